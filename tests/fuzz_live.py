"""Random live networks: `python tests/fuzz_live.py --seconds 60`, and as a part of `make fuzz`.

A forward is drawn from Python as users write it: control flow, changes in place, aliases, shared layers, autocast,
random numbers, buffers that change, hooks. `gl.stream` must answer as a `Session` does, or refuse by name; and the
network must stay as it was. Case n of run r is always the same network.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook

import gridless as gl

sys.path.insert(0, str(Path(__file__).resolve().parent / "live"))

from live import busy, settled

SENSOR, CHANNELS, EVENTS = (18, 14), 6, 250

# A statement takes the network, the values so far, geometry and memory; it returns a new value, or changes one.
Statement = Callable[["Drawn", list[Tensor], Any, Any], Tensor | None]


def by_type(net, values, geometry, memory):
    return values[-1] if isinstance(values[-1], Tensor) else values[-1] * 1.5


def by_gradients(net, values, geometry, memory):
    return values[-1].tanh() if torch.is_grad_enabled() else values[-1].sigmoid()


def by_mode(net, values, geometry, memory):
    return values[-1] if net.training else values[-1] + 0.5


def by_memory(net, values, geometry, memory):
    return values[-1] * 2 if memory is None else values[-1] * 0.5


def by_length(net, values, geometry, memory):
    return values[-1] if len(values) % 2 else -values[-1]


def in_a_loop(net, values, geometry, memory):
    x = values[-1]
    for scale in net.scales:
        x = x * scale + 0.1 if scale > 1 else x - scale
    return x


def swallowed(net, values, geometry, memory):
    try:
        return values[-1] + values[-1].cumsum(1)
    except TypeError:
        return values[-1]


def added_in_place(net, values, geometry, memory):
    values[-1] += values[0].tanh()


def changed_alias(net, values, geometry, memory):
    alias = values[-1]
    alias.mul_(0.5)
    return alias + values[-1]


def changed_copy(net, values, geometry, memory):
    copied = values[-1].clone()
    copied.add_(1)
    return copied * values[-1]


def changed_part(net, values, geometry, memory):
    x = values[-1].clone()
    x[:, :3].add_(1)
    return x


def relu_in_place(net, values, geometry, memory):
    return functional.relu(values[-1] - 0.1, inplace=True)


def shared_dense(net, values, geometry, memory):
    return net.dense(net.dense(values[-1]).relu())


def shared_conv(net, values, geometry, memory):
    return net.conv(net.conv(values[-1], geometry, memory).tanh(), geometry, memory)


def shared_mean(net, values, geometry, memory):
    return net.mean(values[-1], geometry, memory) + net.mean(values[0].sigmoid(), geometry, memory)


def in_autocast(net, values, geometry, memory):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return net.dense(values[-1]).float()


def without_autocast(net, values, geometry, memory):
    with torch.autocast("cpu", enabled=False):
        return net.dense(values[-1])


def random_numbers(net, values, geometry, memory):
    return values[-1] + 0.1 * torch.rand(CHANNELS)


def python_numbers(net, values, geometry, memory):
    return values[-1] * (1 + random.random())


def changed_buffer(net, values, geometry, memory):
    net.calls += 1
    return values[-1] + net.calls


def changed_attribute(net, values, geometry, memory):
    net.last_values = values[-1]
    return net.last_values * 2


def joined(net, values, geometry, memory):
    return torch.cat([values[-1][:, :2], values[0][:, 2:]], 1)


def gated(net, values, geometry, memory):
    a, b = values[-1].chunk(2, 1)
    return torch.cat([a.sigmoid() * b, a], -1)


def divided(net, values, geometry, memory):
    return values[-1] / 4 - values[0] / torch.full((CHANNELS,), 3.0)


STATEMENTS: list[Statement] = [
    by_type, by_gradients, by_mode, by_memory, by_length, in_a_loop, swallowed, added_in_place, changed_alias,
    changed_copy, changed_part, relu_in_place, shared_dense, shared_conv, shared_mean, in_autocast, without_autocast,
    random_numbers, python_numbers, changed_buffer, changed_attribute, joined, gated, divided,
]  # fmt: skip


class Drawn(nn.Module):
    """A network whose forward is a list of statements."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        camera = plan.events(SENSOR)
        self.stream = plan.lif(camera, decay_time=3000.0, threshold=0.6, reset=-0.4)
        self.first = gl.nn.PolarityConv(plan.causal(camera, self.stream, 3, 2), CHANNELS)
        self.conv = gl.nn.EventConv(plan.causal(self.stream, self.stream, 3), CHANNELS, CHANNELS)
        self.dense, self.mean = nn.Linear(CHANNELS, CHANNELS), gl.nn.LeakyMean(self.stream, 700.0)
        self.last, self.is_last = gl.nn.Last(self.stream), draw.random() < 0.5
        self.register_buffer("calls", torch.zeros(1))
        self.scales = [draw.uniform(0.2, 2) for _ in range(draw.randrange(4))]
        self.statements = draw.choices(STATEMENTS, k=draw.randint(1, 5))

    def forward(self, geometry, memory=None):
        values = [self.first(geometry, memory)]
        for statement in self.statements:
            value = statement(self, values, geometry, memory)
            values += [] if value is None else [value]
        rows = self.dense(values[-1])
        return self.last(rows, geometry, memory) if self.is_last else rows

    def __str__(self) -> str:
        return " ".join(statement.__name__ for statement in self.statements)


def case(run: int, number: int) -> Drawn:
    draw = random.Random(f"live {run} {number}")
    return settled(lambda: Drawn(draw), draw.randrange(2**31))


def check(model: Drawn, hooked: bool, size: int) -> bool:
    """True if the network runs live. Its answers must be those of a session, else it raises."""
    before, attributes = deepcopy(model.state_dict()), set(vars(model))
    hook = register_module_forward_hook(_doubled) if hooked else None
    try:
        engine = gl.stream(model)
    except (TypeError, ValueError) as error:
        if not str(error).startswith("stream: "):
            raise
        return False
    finally:
        if hook is not None:
            hook.remove()
    assert not hooked, "a hook for all modules was not seen"
    assert set(vars(model)) == attributes, "the network has other attributes"
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), f"{name} was changed"
    events, session = busy("plain", SENSOR, EVENTS), gl.live.Session(deepcopy(model))
    for at in range(0, EVENTS, size):
        logits, expected = engine(events[at : at + size]), session(events[at : at + size])
        assert (logits is None) == (expected is None), "one of them predicts nothing"
        if logits is not None and expected is not None:
            away = float((logits - expected).abs().max() / expected.abs().max().clamp(min=1e-6))
            assert away < 1e-4, f"the engine is {away:.2g} away from the session"
    return True


def _doubled(module: nn.Module, args: Any, out: Any) -> Any:
    return 2 * out if isinstance(module, nn.Linear) else None


def findings(run: int, end: int, seconds: float = float("inf")) -> Iterator[tuple[int, str]]:
    """Failures of the first `end` networks of a run, or of as many as the time allows."""
    stop, number, ran = time.monotonic() + seconds, 0, 0
    while number < end and time.monotonic() < stop:
        model = case(run, number)
        draw = random.Random(f"check {run} {number}")
        try:
            ran += check(model, draw.random() < 0.1, draw.choice([1, 17, EVENTS]))
        except Exception:
            yield number, f"{model}\n{traceback.format_exc(limit=-4)}"
        number += 1
    print(f"run {run}: {number} live networks, of which {ran} run and {number - ran} are refused", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--run", type=int, default=int(time.time()))
    options = parser.parse_args()
    count = 0
    for number, what in findings(options.run, sys.maxsize, options.seconds):
        count += 1
        print(f"live network {number} of run {options.run}: {what}", flush=True)
    sys.exit(bool(count))


if __name__ == "__main__":
    main()
