"""A program is compared with the network it was read from, before anything runs it.

`torch.fx` sees what a forward does to its values. It does not see Python that asks what a value is, nor what runs
around the forward. A `Session` runs the forward itself: where the program answers otherwise, it is refused.
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

# Generated events, and the packets that they come in.
EVENTS, PACKETS = 200, (50, 150)

# Microseconds of them, where the network has no windows.
SPAN = 30_000

# How far the logits may be apart, as a part of the largest: float32 rounding. A network that amplifies rounding is
# given as many times its own error, of which no more than LARGEST counts.
TOLERANCE, TIMES, LARGEST = 2e-5, 8, 1e-3

Answers = list[tuple[int, Tensor]]


def compare(model: nn.Module, program: Program, run: Callable[[Program], Stream]) -> None:
    """Refuse a program that does not answer as its network does. `run` makes a stream of a program.

    Both take in the same few hundred generated events. Their LIF layers fire about once for each event, whatever the
    thresholds of the network are, so that every level has events. Levels that no event can reach, because a stride is
    larger than the kernel, have none in the network either.
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
        f"logit. forward depends on something that torch.fx does not see, such as {causes}: write it without, or "
        f"{REMEDY}"
    )


def _forward_answers(model: nn.Module, firing: dict[str, float], events: Events, double: bool = False) -> Answers:
    """Those of a session, with LIF layers that fire easily."""
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
    """How far the answers of a session in float64 are; 0 where forward has values of another type."""
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
    """All that the packets bring, and the prediction at the end."""
    answers, at = [], 0
    for size in PACKETS:
        answers += [tuple(prediction) for prediction in stream.push(events[at : at + size])]
        at += size
    return [*answers, (-1, stream.predict())]


def _difference(answers: Answers, expected: Answers) -> float:
    """The largest, as a part of the largest logit; infinite where there are others, or others that are not finite."""
    if [time for time, _ in answers] != [time for time, _ in expected]:
        return float("inf")
    a, b = (torch.stack([logits.double() for _, logits in part]) for part in (answers, expected))
    finite = b.isfinite()
    if a.shape != b.shape or not torch.equal(a.isfinite(), finite):
        return float("inf")
    largest = float(b[finite].abs().max()) if finite.any() else 0.0
    return float((a - b)[finite].abs().max()) / largest if largest else float(a[finite].abs().sum() > 0)
