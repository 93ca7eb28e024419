"""N-MNIST and N-Caltech101 `.bin`: five bytes an event, no header.

x; y; then 24 bits, highest byte first: polarity (1 = ON) and 23 bits of microseconds. Rows with y = 240 mark an
overflow of the camera's own counter and are no events: they are left out, and times stay as they are written.
"""

from __future__ import annotations

import numpy as np

from gridless.data.readers.events.base import File, Recording, columns, fixed

OVERFLOW = 240
CAMERAS = ((34, 34), (304, 240))  # N-MNIST's crop, then the whole ATIS


def sniff(head: bytes) -> bool:
    return False  # nothing to recognise it by: chosen by suffix


def read(file: File) -> Recording:
    raw = file.records(0, "V5", "event").view("u1").reshape(-1, 5)
    rows = None
    keep = raw[:, 1] != OVERFLOW
    if not keep.all():
        rows = np.flatnonzero(keep)
        raw = raw[rows]
    time = raw[:, 4].astype(np.int64)
    time |= raw[:, 3].astype(np.int64) << 8
    time |= (raw[:, 2] & 0x7F).astype(np.int64) << 16
    return Recording(columns(raw[:, 0], raw[:, 1]), time, raw[:, 2] >= 0x80, cameras=CAMERAS, locate=fixed(0, 5, rows))
