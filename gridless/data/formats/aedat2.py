"""AEDAT 2.0 (jAER): `#` lines, then big-endian pairs of a 32-bit address and a 32-bit time in microseconds.

Addresses are read as they are stored: of a DVS128 x = bits 1 to 7, y = bits 8 to 14, polarity = bit 0; of a DAVIS
x = bits 12 to 21, y = bits 22 to 30, polarity = bit 11. (jAER mirrors the x of a DVS128 and calls its bit 0 = 0 ON.)
What is no contrast event (triggers, frames, inertial data) is left out. The counter is unsigned and may wrap.
"""

from __future__ import annotations

import numpy as np

from gridless.data.formats.base import File, Recording, columns, fixed, unwrapped

MAGIC = b"#!AER-DAT2"
DAVIS = {"davis128": (128, 128), "davis208": (208, 192), "davis240": (240, 180), "sbret": (240, 180)}
DAVIS |= {"davis346": (346, 260), "davis640": (640, 480), "davisrgb640": (640, 480)}


def sniff(head: bytes) -> bool:
    return head.startswith(MAGIC)


def read(file: File) -> Recording:
    lines, start = file.lines(b"#", last=b"#End Of ASCII Header")
    pairs = file.records(start, np.dtype([("address", ">u4"), ("time", ">u4")]), "event")
    address = pairs["address"].astype(np.uint32)
    chip = next((line.split(":", 1)[1].lower() for line in lines if line.startswith("AEChip:")), "dvs128")
    davis = next((size for name, size in DAVIS.items() if name in chip), None)
    if davis is None and "dvs128" not in chip:
        raise file.error(f"the chip {chip.strip()} is not known: DVS128 and DAVIS are", 0)
    # A DAVIS marks frames and inertial data by bit 31, triggers by bit 10; a DVS128 event has nothing above bit 14.
    special = address & (np.uint32(0x80000400) if davis else np.uint32(0xFFFF8000))
    rows = None
    if special.any():
        rows = np.flatnonzero(special == 0)
        address, pairs = address[rows], pairs[rows]
    if davis:
        x, y, polarity = (address >> 12) & 0x3FF, (address >> 22) & 0x1FF, (address & 0x800) != 0
    else:
        x, y, polarity = (address >> 1) & 0x7F, (address >> 8) & 0x7F, (address & 1) != 0
    time = unwrapped(pairs["time"].astype(np.uint32))
    return Recording(columns(x, y), time, polarity, davis or (128, 128), locate=fixed(start, 8, rows))
