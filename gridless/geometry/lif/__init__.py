"""Leaky integrate-and-fire: events into fewer, coarser events."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gridless.backends import implementation, uncompiled
from gridless.geometry.lif import reference
from gridless.geometry.lif.rule import Rule, decay_tables
from gridless.geometry.taps import coarser
from gridless.structures import Events

__all__ = ["LIFMemory", "Rule", "decay_tables", "lif", "lif_step"]


class LIFMemory(NamedTuple):
    """State of a stream: potential (B, H', W') float32, and the time (B, H', W') int64 it was true at."""

    potential: Tensor
    time: Tensor

    @classmethod
    def start(cls, sensor: tuple[int, int], stride: int = 2, examples: int = 1, device: str = "cpu") -> LIFMemory:
        """Before the first event: all zero.

        Args:
            sensor: (width, height) of the input.
            stride: how much coarser the grid of the output is.
            examples: how many streams there are.
            device: where the memory is.
        """
        width, height = coarser(sensor, stride)
        shape = (examples, height, width)
        dtypes = torch.float32, torch.int64
        return cls(*(torch.zeros(shape, dtype=dtype, device=device) for dtype in dtypes))


@uncompiled
def lif(
    events: Events,
    kernel: int = 3,
    stride: int = 2,
    decay_time: float = 1000.0,
    threshold: float = 1.5,
    reset: float = -3.0,
) -> Events:
    """The events that `events` fire on a grid `stride` times coarser.

    An input event at time t adds 1/n to the potential V of each of the n output pixels that have it at a tap (only
    those on the grid count, so that every event adds 1 in all). For each of them, row by row (y outer, x inner),

        V <- V decay(t - T) + 1/n,   T <- t,   and if V > threshold (strictly):   V <- reset, and an event is fired

    from V = 0. Polarity plays no part. The events that are fired are in order of arrival: of their causes, then row by
    row. Each knows its `cause`, the row of the input event that fired it, and has that event's time and rows.

    Every backend, and every way of cutting a stream into packets, fires the same events, because each operation is
    specified to the bit. V, 1/n, threshold and reset are float32, and product and sum are rounded one after the other.
    decay(age) stands for exp(-age / decay_time) and is the float32 product of two float32 table entries, see
    `decay_tables`; it is 0 from about 32 decay times on. Ages are whole microseconds; a negative one counts as 0.

    Refused on the CPU: what `Events.check` refuses. On the GPU, where looking would cost a synchronisation, events
    outside the sensor do nothing.

    Args:
        events: the input events.
        kernel: the side of the window of pixels, odd, that an event reaches.
        stride: how much coarser the grid of the output is.
        decay_time: microseconds in which a potential decays to 1/e.
        threshold: the potential above which an event is fired.
        reset: the potential after that.
    """
    return lif_step(events, None, kernel, stride, decay_time, threshold, reset)[0]


@uncompiled
def lif_step(
    events: Events,
    memory: LIFMemory | None,
    kernel: int = 3,
    stride: int = 2,
    decay_time: float = 1000.0,
    threshold: float = 1.5,
    reset: float = -3.0,
) -> tuple[Events, LIFMemory]:
    """`lif` of the next packet of each stream: memory in (None before the first), events and memory out.

    Causes are rows of the packet. The memory given is left as it was. The other arguments are those of `lif`.
    """
    rule = Rule.of(events.sensor, kernel, stride, decay_time, threshold, reset)
    check_events("lif", events)
    width, height = rule.grid
    shape = (events.num_examples, height, width)
    if memory is None:
        memory = LIFMemory.start(events.sensor, stride, events.num_examples, str(events.device))
    for name, value, dtype in zip(memory._fields, memory, (torch.float32, torch.int64), strict=True):
        if value.shape != shape or value.dtype != dtype or value.device != events.device:
            raise ValueError(f"lif: the {name} of the memory must be {shape} {dtype} on {events.device}")
    backend = implementation(reference, events.device)
    cause, at, potential, time = backend.fire(events, rule, memory.potential, memory.time)
    pixel = torch.stack([at % width, at // width], 1).int()
    splits = torch.searchsorted(cause, events.splits)
    fired = Events(
        pixel, events.time[cause], None, splits, rule.grid, cause, len(events), rows=events.rows.taken(cause)
    )
    return fired.trusted(), LIFMemory(potential, time)


def check_events(what: str, events: Events) -> None:
    """Look at the values once, and only where that costs no synchronisation."""
    if not isinstance(events, Events):
        raise TypeError(f"{what}: expected Events, not {type(events).__name__}. Use gl.Events.of(array, sensor=...).")
    if events.device.type == "cpu":
        events.check(what)
