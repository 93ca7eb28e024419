"""Prophesee `.dat`: `%` lines, a byte for the type and one for the size of an event, then events of 8 bytes.

Little-endian: 32 bits of microseconds, then x (14 bits), y (14), polarity (4); in version 1 x (9), y (8), polarity (1).
The counter may wrap. N-Cars is stored in this form.
"""

from __future__ import annotations

from gridless.data.readers.events.base import File, Recording
from gridless.data.readers.events.pairs import Layout, read_pairs

CONTRAST = (0x00, 0x0C)
LAYOUTS = {1: Layout((0, 9), (9, 8), (17, 1)), 2: Layout((0, 14), (14, 14), (28, 4))}
CAMERAS = ((304, 240), (640, 480), (1280, 720))
MAX_SIZE = 1 << 14


def sniff(head: bytes) -> bool:
    return head.startswith(b"% Data file containing") or (
        head.startswith(b"%") and b"% evt " not in head and b"% Version " in head
    )


def read(file: File) -> Recording:
    lines, start = file.lines(b"%", last=b"% end")
    header = {k.lower(): v for k, _, v in (line.partition(" ") for line in lines)}
    version = _number(file, header, "version", 1)
    if version not in LAYOUTS:
        raise file.error(f"version {version} is unknown. Versions 1 and 2 can be read.", 0)
    sensor = None
    if "width" in header and "height" in header:
        sensor = (_number(file, header, "width", 0), _number(file, header, "height", 0))
        if not all(0 < v <= MAX_SIZE for v in sensor):
            raise file.error(f"the header says the sensor is {sensor[0]} x {sensor[1]}", 0)
    if len(file) < start + 2:
        raise file.error("truncated: the header is not followed by the type and size of an event", len(file))
    kind, size = int(file.data[start]), int(file.data[start + 1])
    if kind not in CONTRAST or size != 8:
        raise file.error(f"holds events of type {kind} and {size} bytes, not contrast events (0 or 12) of 8", start)
    start += 2
    words = file.records(start, "V8", "event").view("<u4").reshape(-1, 2)
    return read_pairs(file, start, words, 1, LAYOUTS[version], sensor, CAMERAS)


def _number(file: File, header: dict[str, str], name: str, default: int) -> int:
    text = header.get(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise file.error(f"the header gives {name} as {text!r}, not a whole number", 0) from None
