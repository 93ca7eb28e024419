"""A program is compared with the network it was read from, before anything runs it.

`torch.fx` sees the operations of a forward on its values. It does not see Python that asks for the type of a value, nor
code around the forward. A `Session` runs the forward itself; a program that answers otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module

from gridless.backends import use_backend
from gridless.live.packets import Stream
from gridless.live.program import Program
from gridless.live.reading import REMEDY, Untouched, apart, eager, private_copy
from gridless.live.session import Session
from gridless.structures import Events

# Generated events, and the sizes of their packets.
EVENTS, PACKETS = 200, (50, 150)

# Microseconds of these events, if the network has no windows.
SPAN = 30_000

# Largest difference of the logits, relative to the largest logit: float32 rounding. A network that amplifies rounding
# may differ by TIMES its own error in float32, of which at most LARGEST counts.
TOLERANCE, TIMES, LARGEST = 2e-5, 8, 1e-3

Answers = list[tuple[int, Tensor]]


def compare(model: nn.Module, program: Program, run: Callable[[Program], Stream]) -> None:
    """Refuse a program whose answers differ from its network's. `run` makes a stream of a program.

    Both take in the same generated events. Their LIF layers get other thresholds, with which they fire about once for
    each event, so that every level has events. A level that no event can reach, because a stride is larger than the
    kernel, has none in the network either.
    """
    model, sensor = eager(model), program.streams[0].sensor
    span = SPAN if program.duration is None else program.duration * 3 // 2
    firing = {"decay_time": float(min(max(span, 1000), 10**9)), "threshold": 0.9, "reset": 0.0}
    streams = tuple(replace(s, lif=s.lif | firing) if s.source else s for s in program.streams)
    events = _generated(sensor, span)
    answers = _answers(run(replace(program, streams=streams)), events)
    expected = _forward_answers(model, firing, events)
    difference = _difference(answers, expected)
    if difference > TOLERANCE:
        rounding = _rounding(model, firing, events, expected)
        if difference > TOLERANCE + TIMES * min(rounding, LARGEST):
            raise TypeError(_message(model, difference))


def _message(model: nn.Module, difference: float) -> str:
    causes = "isinstance(x, Tensor), torch.is_tensor(x), numbers of Python's random or NumPy"
    if torch_module._global_forward_hooks or torch_module._global_forward_pre_hooks:
        causes = "the forward hooks that are registered for all modules"
    return (
        f"stream: the program of {type(model).__name__} differs from its forward by {difference:.2g} of the largest "
        f"logit. forward depends on something that torch.fx does not see, such as {causes}. Write it without, or "
        f"{REMEDY}."
    )


def _forward_answers(model: nn.Module, firing: dict[str, float], events: Events, double: bool = False) -> Answers:
    """Answers of a session, with LIF layers that fire easily."""
    model = private_copy(model)
    plan = model.plan
    for name, step in plan.steps.items():  # type: ignore[union-attr]
        if step.op == "lif":
            plan.steps[name] = replace(step, settings=tuple((dict(step.settings) | firing).items()))  # type: ignore[union-attr]
    # Programs hold weights of 16 bits as float32.
    if double:
        model = model.double()
    elif any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters()):
        model = model.float()
    untouched = Untouched(model)
    with apart(), use_backend(None):
        answers = _answers(Session(model), events)
    untouched.check()
    return answers


def _rounding(model: nn.Module, firing: dict[str, float], events: Events, expected: Answers) -> float:
    """Difference to a session in float64; 0 if forward has values of another type."""
    try:
        return _difference(expected, _forward_answers(model, firing, events, double=True))
    except RuntimeError:
        return 0.0


def _generated(sensor: tuple[int, int], span: int) -> Events:
    """Events around the middle of the sensor, and some everywhere, over `span` microseconds."""
    generator = np.random.default_rng(0)
    everywhere = generator.random(EVENTS) < 0.1
    columns = {}
    for name, size in zip("xy", sensor, strict=True):
        near = generator.normal(size / 2, min(4, size / 4), EVENTS).clip(0, size - 1).astype(np.int64)
        columns[name] = np.where(everywhere, generator.integers(0, size, EVENTS), near)
    columns["t"] = np.sort(generator.integers(0, span, EVENTS))
    columns["p"] = generator.integers(0, 2, EVENTS)
    return Events.of(columns, sensor=sensor)


def _answers(stream: Stream, events: Events) -> Answers:
    """All predictions of the packets, and the one at the end."""
    answers, at = [], 0
    for size in PACKETS:
        answers += [tuple(prediction) for prediction in stream.push(events[at : at + size])]
        at += size
    return [*answers, (-1, stream.predict())]


def _difference(answers: Answers, expected: Answers) -> float:
    """Largest difference, relative to the largest logit; infinite for other times, or other places of NaN."""
    if [time for time, _ in answers] != [time for time, _ in expected]:
        return float("inf")
    a, b = (torch.stack([logits.double() for _, logits in part]) for part in (answers, expected))
    finite = b.isfinite()
    if a.shape != b.shape or not torch.equal(a.isfinite(), finite):
        return float("inf")
    largest = float(b[finite].abs().max()) if finite.any() else 0.0
    return float((a - b)[finite].abs().max()) / largest if largest else float(a[finite].abs().sum() > 0)
