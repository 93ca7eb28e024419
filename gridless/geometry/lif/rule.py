"""The settings of leaky integrate-and-fire, as tables that every backend reads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from gridless.geometry.taps import check_stride, coarser, reach_of

# Ages beyond so many decay times leave nothing: exp(-32) is 1e-14, far under the resolution of a float32 potential.
CUTOFF = 32


@dataclass(frozen=True, eq=False)
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
            raise ValueError(
                f"lif: threshold is {threshold}, reset {reset}. Both must be finite, reset at most the threshold."
            )
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
