"""Taps on the pixel grid: which source pixels a target pixel sees, and in which order they are counted.

Tap u of target pixel o is the source pixel stride * o + offset_u. Taps are counted row by row (y outer, x inner). They
are given by an odd whole number k (k x k pixels, padded by (k - 1) / 2) or "cross5" (the row and the column of 5 x 5:
9 taps), of any odd size; users say `kernel=`, as in torch. The coarse grid has ceil(size / stride) pixels along each
axis.
"""

from __future__ import annotations

from functools import cache

Taps = int | str
Offsets = tuple[tuple[int, int], ...]


def offsets(taps: Taps) -> Offsets:
    """The (dx, dy) of every tap, row by row."""
    return _offsets(taps)


# torch.compile calls it, and does not trace it.
offsets._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _offsets(taps: Taps) -> Offsets:
    cross = isinstance(taps, str)
    reach = reach_of(taps)
    span = range(-reach, reach + 1)
    return tuple((dx, dy) for dy in span for dx in span if not cross or dx == 0 or dy == 0)


def reach_of(taps: Taps) -> int:
    """Pixels that the taps reach to each side."""
    text = taps.removeprefix("cross") if isinstance(taps, str) else str(taps)
    if isinstance(taps, bool) or not text.isdigit() or int(text) % 2 == 0:
        raise ValueError(f"kernel must be an odd number such as 3, or a cross such as 'cross5', not {taps!r}")
    return int(text) // 2


def check_stride(stride: int) -> int:
    if isinstance(stride, bool) or not isinstance(stride, int) or stride < 1:
        raise ValueError(f"stride must be a whole number of pixels, 1 or more, not {stride!r}")
    return stride


def coarser(sensor: tuple[int, int], stride: int) -> tuple[int, int]:
    """The (width, height) of the grid that is left after a stride."""
    return -(-sensor[0] // stride), -(-sensor[1] // stride)
