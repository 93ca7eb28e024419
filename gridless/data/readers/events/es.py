"""Event Stream `.es`, version 2: a 12-byte signature, version, type, width and height, then events of 5 bytes.

The first byte of an event holds the time since the last one and the polarity; longer pauses are bytes of their own.
Types: 1 (contrast events) and 2 (ATIS, of which the contrast events are kept and the exposure measurements left out).
"""

from __future__ import annotations

import numpy as np

from gridless.data.readers.events.base import File, Recording, shrink
from gridless.kernels.compile import njit

MAGIC = b"Event Stream"


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(file: File) -> Recording:
    if len(file) < 20:
        raise file.error("truncated: the header has 20 bytes", len(file))
    version, kind = tuple(file.data[12:15].tolist()), int(file.data[15])
    if version[0] != 2:
        raise file.error(f"version {'.'.join(map(str, version))} is unknown. Only version 2 can be read.", 12)
    if kind not in (1, 2):
        raise file.error(f"holds events of type {kind}. Contrast events (1) and ATIS events (2) can be read.", 15)
    width, height = (int(v) for v in file.data[16:20].view("<u2"))
    if not width or not height:
        raise file.error(f"the header says the sensor is {width} x {height}", 16)
    body = file.data[20:]
    capacity = len(body) // 5
    pixel, time = np.empty((capacity, 2), np.int32), np.empty(capacity, np.int64)
    polarity = np.empty(capacity, np.bool_)
    count, position = _decode(body, kind == 2, capacity, pixel, time, polarity)
    if position < len(body):
        file.truncated("the last event has no whole 5 bytes", 20 + position)

    def locate(row: int) -> int:
        out = np.empty((capacity, 2), np.int32), np.empty(capacity, np.int64), np.empty(capacity, np.bool_)
        return 20 + _decode(body, kind == 2, row + 1, *out)[1] - 5

    return Recording(shrink(pixel, count), shrink(time, count), shrink(polarity, count), (width, height), locate=locate)


@njit(nogil=True, cache=True)
def _decode(data, atis, limit, pixel, time, polarity):  # type: ignore[no-untyped-def]
    """The number of events, and the byte after the last whole one."""
    count = 0
    now = np.int64(0)
    i = 0
    size = len(data)
    while i < size:
        byte = np.int64(data[i])
        if byte >= (0xFC if atis else 0xFE):  # a pause; the lowest of these, a reset of the reader, is one of no time
            now += 63 * (byte & 3) if atis else 127 * (byte & 1)
            i += 1
            continue
        if i + 5 > size:
            return count, i
        now += byte >> 2 if atis else byte >> 1
        if not (atis and (byte & 1)):
            time[count] = now
            pixel[count, 0] = np.int32(data[i + 1]) | (np.int32(data[i + 2]) << 8)
            pixel[count, 1] = np.int32(data[i + 3]) | (np.int32(data[i + 4]) << 8)
            polarity[count] = (byte & 2 if atis else byte & 1) != 0
            count += 1
            if count == limit:
                return count, i + 5
        i += 5
    return count, i
