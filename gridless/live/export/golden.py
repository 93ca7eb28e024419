"""The golden recording: made of whole numbers only, so that C and NumPy make the same one, of any length (`test.c`)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

STEP = 10  # microseconds between events


def _mixed(i: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        i = i + np.uint64(0x9E3779B97F4A7C15)
        i = (i ^ i >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        i = (i ^ i >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return i ^ i >> np.uint64(31)


def _around(i: np.ndarray, shift: int, size: int, noise: np.ndarray) -> np.ndarray:
    """Around a place that swings to and fro between 0 and size - 1."""
    most = max(size - 1, 1)
    at = (i >> np.uint64(shift)).astype(np.int64) % (2 * most)
    at = np.minimum(np.where(at < most, at, 2 * most - at), size - 1)
    one, two = (noise & np.uint64(255)) % np.uint64(9), (noise >> np.uint64(8) & np.uint64(255)) % np.uint64(9)
    return (at + (one + two).astype(np.int64) - 8).clip(0, size - 1)


def recording(first: int, last: int, sensor: tuple[int, int]) -> dict[str, np.ndarray]:
    """Events first to last: x, y, t in microseconds, p."""
    i = np.arange(first, last, dtype=np.uint64)
    h = _mixed(i)
    time = STEP * i.astype(np.int64) + (h % np.uint64(STEP)).astype(np.int64)
    x = _around(i, 6, sensor[0], h >> np.uint64(8))
    y = _around(i, 7, sensor[1], h >> np.uint64(24))
    return {"x": x, "y": y, "t": time, "p": (h >> np.uint64(40) & np.uint64(1)).astype(np.int64)}


def packets(count: int, sensor: tuple[int, int]) -> Iterator[dict[str, np.ndarray]]:
    """The first `count` events, a thousand at a time."""
    for at in range(0, count, 1000):
        yield recording(at, min(at + 1000, count), sensor)
