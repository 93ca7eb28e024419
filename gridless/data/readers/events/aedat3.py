"""AEDAT 3.1 (cAER): `#` lines, then packets of events, each with a header of 28 bytes, all little-endian.

Polarity packets (type 1) hold events of 8 bytes: valid (bit 0), polarity (1), y (2 to 16), x (17 to 31), and 31 bits of
microseconds, which the packet's overflow counter extends. Invalid events and packets of other types are left out.
"""

from __future__ import annotations

import numpy as np

from gridless.data.readers.events.base import File, Recording, shrink
from gridless.kernels.compile import njit

MAGIC = b"#!AER-DAT3."
SENSORS = {"dvs128": (128, 128), "davis128": (128, 128), "davis208": (208, 192), "davis240": (240, 180)}
SENSORS |= {"davis346": (346, 260), "davis640": (640, 480), "davishet640": (640, 480), "dvxplorer": (640, 480)}
CAMERAS = ((128, 128), (240, 180), (346, 260), (640, 480))
FAULTS = ("", "{} bytes of a packet are missing", "a polarity event must have 8 bytes, not {}")
FAULTS += ("a packet cannot hold {} events", "a second source ({}) has events. Choose one with stream=...")


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(file: File) -> Recording:
    lines, start = file.lines(b"#", last=b"#!END-HEADER")
    if "!END-HEADER" not in lines:
        raise file.error("truncated: the header has no end", start)
    header = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines)}
    if header.get("format", "RAW").upper() != "RAW":
        raise file.error(f"the format is {header['format']}, but only RAW can be read", 0)
    wanted = -1 if file.stream is None else file.stream
    body = file.data[start:]
    capacity, source, fault, detail, position = _scan(body, wanted)
    if fault == 1:
        file.truncated(FAULTS[fault].format(detail), start + int(position))
        body = body[: int(position)]
    elif fault:
        raise file.error(FAULTS[fault].format(detail), start + int(position))
    pixel, time, polarity = np.empty((capacity, 2), np.int32), np.empty(capacity, np.int64), np.empty(capacity, bool)
    count = int(_decode(body, source, capacity, pixel, time, polarity)[0])

    def locate(row: int) -> int:
        out = np.empty((row + 1, 2), np.int32), np.empty(row + 1, np.int64), np.empty(row + 1, bool)
        return start + int(_decode(body, source, row + 1, *out)[1])

    named = header.get(f"source {source}", "").lower()
    sensor = next((size for name, size in SENSORS.items() if named.startswith(name)), None)
    return Recording(shrink(pixel, count), shrink(time, count), shrink(polarity, count), sensor, CAMERAS, locate)


@njit(nogil=True, cache=True, inner=True)
def _u32(data, i):  # type: ignore[no-untyped-def]
    return (
        np.int64(data[i]) | (np.int64(data[i + 1]) << 8) | (np.int64(data[i + 2]) << 16) | (np.int64(data[i + 3]) << 24)
    )


@njit(nogil=True, cache=True)
def _scan(data, wanted):  # type: ignore[no-untyped-def]
    """Room for the events of the wanted source (the only one, if -1), that source, and what is wrong where."""
    room, source, i, size = 0, wanted, 0, len(data)
    while i < size:
        if i + 28 > size:
            return room, source, 1, i + 28 - size, i
        kind = _u32(data, i) & 0xFFFF
        origin = _u32(data, i) >> 16
        length, number = _u32(data, i + 4), _u32(data, i + 20)
        if number >= 1 << 31 or length >= 1 << 31:
            return room, source, 3, number, i + 20
        end = i + 28 + length * number
        if end > size:
            return room, source, 1, end - size, i
        if kind == 1 and number:
            if length != 8:
                return room, source, 2, length, i + 4
            if wanted < 0:
                if source >= 0 and origin != source:
                    return room, source, 4, origin, i
                source = origin
            if origin == source:
                room += number
        i = end
    return room, source, 0, 0, i


@njit(nogil=True, cache=True)
def _decode(data, source, limit, pixel, time, polarity):  # type: ignore[no-untyped-def]
    count, i = 0, 0
    while i < len(data):
        head = _u32(data, i)
        number = _u32(data, i + 20)
        end = i + 28 + _u32(data, i + 4) * number
        if (head & 0xFFFF) == 1 and (head >> 16) == source:
            base = _u32(data, i + 12) << 31
            for j in range(i + 28, end, 8):
                word = _u32(data, j)
                if word & 1:
                    pixel[count, 0] = np.int32(word >> 17)
                    pixel[count, 1] = np.int32((word >> 2) & 0x7FFF)
                    polarity[count] = (word & 2) != 0
                    time[count] = base | (_u32(data, j + 4) & 0x7FFFFFFF)
                    count += 1
                    if count == limit:
                        return count, j
        i = end
    return count, i
