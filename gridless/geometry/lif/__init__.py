"""Leaky integrate-and-fire: events into fewer, coarser events."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.geometry.taps import check_stride, coarser, reach_of
from gridless.structures import Events

__all__ = ["LIFState", "Rule", "decay_tables", "lif", "lif_step"]

# Ages beyond so many decay times leave nothing: exp(-32) is 1e-14, far under the resolution of a float32 potential.
CUTOFF = 32


class LIFState(NamedTuple):
    """What a stream leaves behind: potential (B, H', W') float32 and the time (B, H', W') int64 it was true at."""

    potential: Tensor
    time: Tensor

    @classmethod
    def start(cls, sensor: tuple[int, int], stride: int = 2, examples: int = 1, device: str = "cpu") -> LIFState:
        """Before the first event: all zero. `sensor` is that of the input."""
        width, height = coarser(sensor, stride)
        shape = (examples, height, width)
        return cls(torch.zeros(shape, device=device), torch.zeros(shape, dtype=torch.int64, device=device))


def lif(
    events: Events,
    kernel: int = 3,
    stride: int = 2,
    decay_time: float = 1000.0,
    threshold: float = 1.5,
    reset: float = -3.0,
) -> Events:
    """The events that `events` fire on a grid `stride` times coarser.

    An input event at time t adds 1/n to the potential V of each of the n output pixels whose kernel covers it (only
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


def lif_step(
    events: Events,
    state: LIFState | None,
    kernel: int = 3,
    stride: int = 2,
    decay_time: float = 1000.0,
    threshold: float = 1.5,
    reset: float = -3.0,
) -> tuple[Events, LIFState]:
    """`lif` of the next packet of each stream: state in (None before the first), events and state out.

    Causes are rows of the packet. The state given is left as it was. The other arguments are those of `lif`.
    """
    rule = Rule.of(events.sensor, kernel, stride, decay_time, threshold, reset)
    check_events("lif", events)
    width, height = rule.grid
    shape = (events.num_examples, height, width)
    if state is None:
        state = LIFState.start(events.sensor, stride, events.num_examples, str(events.device))
    for name, value, dtype in zip(state._fields, state, (torch.float32, torch.int64), strict=True):
        if value.shape != shape or value.dtype != dtype or value.device != events.device:
            raise ValueError(f"lif: the {name} of the state must be {shape} {dtype} on {events.device}")
    backend = implementation(__name__, events.device)
    cause, at, potential, time = backend.fire(events, rule, state.potential, state.time)
    pixel = torch.stack([at % width, at // width], 1).int()
    splits = torch.searchsorted(cause, events.splits)
    fired = Events(
        pixel, events.time[cause], None, splits, rule.grid, cause, len(events), rows=events.rows.taken(cause)
    )
    return fired.trusted(), LIFState(potential, time)


@dataclass(frozen=True)
class Rule:
    """The settings of a LIF layer, with what kernels need of them.

    An input at x reaches the output pixels low[0][x] to high[0][x] along x, and likewise along y. share[n] is 1/n.
    """

    sensor: tuple[int, int]
    grid: tuple[int, int]
    low: tuple[np.ndarray, np.ndarray]
    high: tuple[np.ndarray, np.ndarray]
    share: np.ndarray
    most: int
    coarse: np.ndarray
    fine: np.ndarray
    bits: int
    threshold: np.float32
    reset: np.float32

    @classmethod
    @cache
    def of(
        cls,
        sensor: tuple[int, int],
        kernel: int = 3,
        stride: int = 2,
        decay_time: float = 1000.0,
        threshold: float = 1.5,
        reset: float = -3.0,
    ) -> Rule:
        if not isinstance(kernel, int):
            raise ValueError(f"lif: kernel must be an odd whole number, not {kernel!r}")
        reach = reach_of(kernel)
        grid = coarser(sensor, check_stride(stride))
        if not (np.isfinite(threshold) and np.isfinite(reset) and reset <= threshold):
            raise ValueError(f"lif: threshold and reset must be finite, and reset not above: {threshold}, {reset}")
        low, high = [], []
        for size, coarse_size in zip(sensor, grid, strict=True):
            x = np.arange(size)
            low.append(np.maximum(-((reach - x) // stride), 0).astype(np.int32))
            high.append(np.minimum((x + reach) // stride, coarse_size - 1).astype(np.int32))
        most = int(np.prod([max(int((h - a + 1).max()), 0) for a, h in zip(low, high, strict=True)]))
        share = np.zeros(most + 1, np.float32)
        share[1:] = (1 / np.arange(1, most + 1)).astype(np.float32)
        coarse, fine, bits = decay_tables(decay_time)
        limits = np.float32(threshold), np.float32(reset)
        return cls(sensor, grid, tuple(low), tuple(high), share, most, coarse, fine, bits, *limits)


@cache
def decay_tables(decay_time: float) -> tuple[np.ndarray, np.ndarray, int]:
    """coarse, fine (float32) and bits, with exp(-age / decay_time) ~ coarse[age >> bits] * fine[age & (2^bits - 1)].

    The last entry of `coarse` is 0, and stands for all ages beyond it. The entries are exponentials in float64, rounded
    to float32; the product has a relative error under 2e-7. Both tables fit into the first level cache.
    """
    if not 1e-3 <= decay_time <= 1e12:
        raise ValueError(f"lif: decay_time must be a number of microseconds between 1e-3 and 1e12, not {decay_time}")
    longest = CUTOFF * float(decay_time)
    bits = max(int(np.ceil(np.log2(max(longest, 2)) / 2)), 1)
    fine = np.exp(-np.arange(2**bits) / decay_time).astype(np.float32)
    steps = np.arange(int(longest) // 2**bits + 1) * float(2**bits)
    coarse = np.append(np.exp(-steps / decay_time), 0.0).astype(np.float32)
    return coarse, fine, bits


def check_events(what: str, events: Events) -> None:
    """Look at the values once, and only where that costs no synchronisation."""
    if not isinstance(events, Events):
        raise TypeError(f"{what}: expected Events, not {type(events).__name__}")
    if events.device.type == "cpu":
        events.check(what)
