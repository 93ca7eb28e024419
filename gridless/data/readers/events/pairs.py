"""Events that are two 32-bit words, an address and a time, as in AEDAT 2.0 and `.dat`: decoded in one pass."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gridless.data.readers.events.base import File, Recording, shrink
from gridless.kernels.compile import njit
from gridless.structures.events import LATE, WRAP


@dataclass(frozen=True)
class Layout:
    """Bits of an address for x, y and polarity, as (lowest bit, number of bits); `special` bits mark no event."""

    x: tuple[int, int]
    y: tuple[int, int]
    polarity: tuple[int, int]
    special: int = 0


def read_pairs(
    file: File,
    start: int,
    words: np.ndarray,
    address: int,
    layout: Layout,
    sensor: tuple[int, int] | None,
    cameras: tuple[tuple[int, int], ...] = (),
) -> Recording:
    """From words (events, 2) uint32 that begin at byte `start`; `address` is the column of the address."""
    count = len(words)
    pixel, time, polarity = np.empty((count, 2), np.int32), np.empty(count, np.int64), np.empty(count, np.bool_)
    shifts = np.array([layout.x[0], layout.y[0], layout.polarity[0]], np.uint32)
    masks = np.array([(1 << bits) - 1 for _, bits in (layout.x, layout.y, layout.polarity)], np.uint32)
    special = np.uint32(layout.special)
    decoded, bad = (int(v) for v in _decode(words, address, shifts, masks, special, pixel, time, polarity))
    if bad >= 0:
        value = int(words[bad, address] >> shifts[2]) & int(masks[2])
        raise file.error(f"event {bad} has polarity {value}, which must be 0 or 1", start + 8 * bad)

    def locate(row: int) -> int:
        return start + 8 * int(np.flatnonzero(words[:, address] & special == 0)[row])

    return Recording(shrink(pixel, decoded), shrink(time, decoded), shrink(polarity, decoded), sensor, cameras, locate)


@njit(nogil=True, cache=True)
def _decode(words, column, shifts, masks, special, pixel, time, polarity):  # type: ignore[no-untyped-def]
    """Events kept, and the first with a polarity above 1 (-1: none). Times that fall by over half their range wrap,
    and events from before that may come late."""
    count = 0
    last, base = np.int64(0), np.int64(0)
    for i in range(len(words)):
        word, stamp = words[i, column], np.int64(words[i, 1 - column])
        if word & special:
            continue
        if last - stamp > WRAP // 2:
            base += WRAP
        elif base and stamp - last > WRAP - LATE:
            base -= WRAP
        last = stamp
        on = (word >> shifts[2]) & masks[2]
        if on > 1:
            return count, i
        pixel[count, 0] = (word >> shifts[0]) & masks[0]
        pixel[count, 1] = (word >> shifts[1]) & masks[1]
        time[count] = base + stamp
        polarity[count] = on == 1
        count += 1
    return count, -1
