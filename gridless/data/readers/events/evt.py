"""Prophesee `.raw`, encodings EVT 2.0 and EVT 3.0: `%` lines, then words that only make sense in sequence.

EVT2, 32-bit words: contrast events carry x, y and the low 6 bits of the time, the high 28 bits come in words of their
own. EVT3, 16-bit words: row, column, and the two halves of a 24-bit time are separate; vectors of 8 or 12 neighbouring
pixels share one word. Both counters wrap (after 4.8 hours and 16.8 seconds), and are continued here. Events before the
first time word have no time and are left out, as are words of all other kinds (triggers, monitoring).
"""

from __future__ import annotations

import re

import numpy as np

from gridless.data.readers.events.base import File, Recording, shrink
from gridless.kernels.compile import njit

GENERATIONS = {"gen31": (640, 480), "gen3": (640, 480), "gen41": (1280, 720), "gen4": (1280, 720)}
GENERATIONS |= {"imx636": (1280, 720), "imx646": (1280, 720), "genx320": (320, 320)}
MAX_SIZE = 1 << 11


def sniff(head: bytes) -> bool:
    return head.startswith(b"%") and (b"% evt " in head or b"% format EVT" in head or b"% plugin_name" in head)


def read(file: File) -> Recording:
    lines, start = file.lines(b"%", last=b"% end")
    header = {k: v.strip() for k, _, v in (line.partition(" ") for line in lines)}
    version = _version(header)
    if version == "2.0":
        words = file.records(start, "<u4", "word")
        capacity, decode = len(words), _decode_evt2
    elif version == "3.0":
        words = file.records(start, "<u2", "word")
        capacity, decode = int(_count_evt3(words, EVENTS_OF)), _decode_evt3_alone
    else:
        raise file.error(f"the encoding is EVT {version or 'unknown'}. EVT 2.0 and EVT 3.0 can be read.", 0)
    pixel, time, polarity = _outputs(capacity)
    count = int(decode(words, capacity + 1, pixel, time, polarity)[0])

    def locate(row: int) -> int:
        _, position = decode(words, row + 1, *_outputs(capacity))
        return start + words.itemsize * (position - 1)

    return Recording(
        shrink(pixel, count),
        shrink(time, count),
        shrink(polarity, count),
        _sensor(file, header),
        ((640, 480), (1280, 720)) if version == "2.0" else ((1280, 720),),
        locate,
    )


def _outputs(capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    room = capacity + 1
    return np.empty((room, 2), np.int32), np.empty(room, np.int64), np.empty(room, np.bool_)


def _version(header: dict[str, str]) -> str | None:
    if "evt" in header:
        return header["evt"]
    match = re.match(r"EVT(\d)(\d)?\b", header.get("format", ""))
    return f"{match[1]}.{match[2] or 0}" if match else None


def _sensor(file: File, header: dict[str, str]) -> tuple[int, int] | None:
    """From the geometry, or else from the generation of the camera's plugin."""
    said = re.match(r"(\d+)\s*x\s*(\d+)$", header.get("geometry", ""))
    fields = dict(part.split("=", 1) for part in header.get("format", "").split(";") if "=" in part)
    if said:
        sensor = int(said[1][:9]), int(said[2][:9])
    elif fields.get("width", "").isdecimal() and fields.get("height", "").isdecimal():
        sensor = int(fields["width"][:9]), int(fields["height"][:9])
    else:
        plugin = header.get("plugin_name", "")
        return next((size for name, size in GENERATIONS.items() if name in plugin), None)
    if not all(0 < v <= MAX_SIZE for v in sensor):
        raise file.error(f"the header says the sensor is {sensor[0]} x {sensor[1]}", 0)
    return sensor


@njit(nogil=True, cache=True)
def _decode_evt2(words, limit, pixel, time, polarity):  # type: ignore[no-untyped-def]
    count = 0
    high = np.int64(-1)
    base = np.int64(0)
    wraps = np.int64(0)
    for i in range(len(words)):
        word = words[i]
        kind = word >> np.uint32(28)
        if kind <= 1:
            if high >= 0:
                time[count] = base | np.int64((word >> np.uint32(22)) & np.uint32(0x3F))
                pixel[count, 0] = np.int32((word >> np.uint32(11)) & np.uint32(0x7FF))
                pixel[count, 1] = np.int32(word & np.uint32(0x7FF))
                polarity[count] = kind == 1
                count += 1
                if count == limit:
                    return count, i + 1
        elif kind == 8:
            new = np.int64(word & np.uint32(0x0FFFFFFF))
            if high - new > (1 << 27):
                wraps += 1
            high = new
            base = (wraps << 34) | (new << 6)
    return count, len(words)


# Events that a word of EVT3 makes: one for a column, one for each bit of a vector.
_WORDS = np.arange(1 << 16, dtype=np.uint32)
_MASKS = np.where(_WORDS >> 12 == 4, _WORDS & 0xFFF, np.where(_WORDS >> 12 == 5, _WORDS & 0xFF, _WORDS >> 12 == 2))
EVENTS_OF = np.bitwise_count(_MASKS).astype(np.uint8)


@njit(nogil=True, cache=True)
def _count_evt3(words, events_of):  # type: ignore[no-untyped-def]
    count = 0
    for word in words:
        count += events_of[word]
    return count


class Evt3:
    """A decoder of EVT3 that goes on from one packet of words to the next."""

    def __init__(self) -> None:
        self.state = np.array(BEGIN, np.int64)

    def decode(self, words: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Pixels (S, 2), times and polarities (S) of the next words, uint16."""
        capacity = int(_count_evt3(words, EVENTS_OF))
        outputs = _outputs(capacity)
        count = int(_decode_evt3(words, capacity + 1, *outputs, self.state)[0])
        pixel, time, polarity = (shrink(output, count) for output in outputs)
        return pixel, time, polarity

    def forget_place(self) -> None:
        """Words were lost: events have a place again once a row was said, and vectors once a column was."""
        self.state[[3, 4]] = -1


def _decode_evt3_alone(words: np.ndarray, limit: int, *outputs: np.ndarray) -> tuple[int, int]:
    return _decode_evt3(words, limit, *outputs, np.array(BEGIN, np.int64))


# The upper half of the time, how often it wrapped, the time, row, column and polarity.
BEGIN = (-1, 0, 0, -1, -1, 0)


@njit(nogil=True, cache=True)
def _decode_evt3(words, limit, pixel, time, polarity, state):  # type: ignore[no-untyped-def]
    """The outputs have room for one event more than there are: each row, column or low time writes one, and only a
    column keeps it, because which of the three comes next cannot be guessed."""
    count = 0
    high = state[0]
    wraps = state[1]
    now = state[2]
    y = np.int32(state[3])
    x = np.int32(state[4])
    on = state[5] != 0
    for i in range(len(words)):
        word = np.int32(words[i])
        kind = word >> 12
        value = word & 0xFFF
        if (0b1000101 >> kind) & 1:  # 0, 2 or 6
            row, low = -np.int32(kind == 0), -np.int64(kind == 6) & 0xFFF
            y = (y & ~row) | (value & 0x7FF & row)
            now = (now & ~low) | (value & low)
            time[count] = now
            pixel[count, 0] = value & 0x7FF
            pixel[count, 1] = y
            polarity[count] = value >= 0x800
            count += np.int64(kind == 2) & np.int64(high >= 0) & np.int64(y >= 0)
        elif kind == 4 or kind == 5:
            if x >= 0:
                bits = value if kind == 4 else value & 0xFF
                at = x
                if high >= 0 and y >= 0:
                    while bits:
                        if bits & 1:
                            time[count] = now
                            pixel[count, 0] = at
                            pixel[count, 1] = y
                            polarity[count] = on
                            count += 1
                        bits >>= 1
                        at += 1
                x += 12 if kind == 4 else 8
        elif kind == 3:
            x = value & 0x7FF
            on = value >= 0x800
        elif kind == 8 and value != high:
            # The low half follows in a word of its own, after a step of the high half.
            if high - value > (1 << 11):
                wraps += 1
            high = np.int64(value)
            now = (wraps << 24) | (high << 12)
        if count >= limit:
            return count, i + 1
    state[0] = high
    state[1] = wraps
    state[2] = now
    state[3] = y
    state[4] = x
    state[5] = on
    return count, len(words)
