"""AEDAT 2.0 (jAER): `#` lines, then big-endian pairs of a 32-bit address and a 32-bit time in microseconds.

Addresses are read as they are stored: of a DVS128 x = bits 1 to 7, y = bits 8 to 14, polarity = bit 0; of a DAVIS
x = bits 12 to 21, y = bits 22 to 30, polarity = bit 11. (jAER mirrors the x of a DVS128 and calls its bit 0 = 0 ON.)
Triggers, frames and inertial data are left out. The counter is unsigned and may wrap.
"""

from __future__ import annotations

import numpy as np

from gridless.data.readers.events.base import File, Recording
from gridless.data.readers.events.pairs import Layout, read_pairs

MAGIC = b"#!AER-DAT2"
SENSORS = {"davis128": (128, 128), "davis208": (208, 192), "davis240": (240, 180), "sbret": (240, 180)}
SENSORS |= {"davis346": (346, 260), "davis640": (640, 480), "davisrgb640": (640, 480)}

# A DVS128 event has nothing above bit 14; a DAVIS marks frames and inertial data by bit 31, triggers by bit 10.
DVS128 = Layout(x=(1, 7), y=(8, 7), polarity=(0, 1), special=0xFFFF8000)
DAVIS = Layout(x=(12, 10), y=(22, 9), polarity=(11, 1), special=0x80000400)


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(file: File) -> Recording:
    lines, start = file.lines(b"#", last=b"#End Of ASCII Header")
    chip = next((line.split(":", 1)[1].lower() for line in lines if line.startswith("AEChip:")), "dvs128")
    davis = next((size for name, size in SENSORS.items() if name in chip), None)
    if davis is None and "dvs128" not in chip:
        raise file.error(f"unknown chip {chip.strip()}. The reader knows DVS128 and DAVIS.", 0)
    words = file.records(start, "V8", "event").view(">u4").reshape(-1, 2).astype(np.uint32)
    return read_pairs(file, start, words, 0, DAVIS if davis else DVS128, davis or (128, 128))
