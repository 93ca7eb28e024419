"""MATLAB `.mat`, versions 5 to 7, as ASL-DVS is stored: vectors x, y, ts (microseconds), pol.

Only real numeric arrays are read, and only those; structs, cells, text and other names are skipped. Version 7.3 is HDF5
and is read as such. (A reader of our own: SciPy's crashes on damaged files.)
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from itertools import islice

import numpy as np

from gridless.data.readers.events.base import File, Recording
from gridless.data.readers.events.npy import FIELDS, recording_of

CAMERAS = ((240, 180),)
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
MATRIX, COMPRESSED = 14, 15
NUMERIC_CLASSES = range(6, 16)
COMPLEX = 0x0800
MAX_DIMENSIONS = 32


def sniff(head: bytes) -> bool:
    return len(head) >= 128 and head[124:128] in (b"\x00\x01IM", b"\x01\x00MI")


def read(file: File) -> Recording:
    order = "<" if file.bytes(126, 128) == b"IM" else ">"
    arrays = {}
    for kind, at, data in _elements(file, file.data[128:].data, 128, order, pad=False):
        found = _variable(file, kind, data, at, order)
        if found is not None:
            arrays[found[0]] = found[1]
    recording = recording_of(file, arrays)
    recording.cameras = CAMERAS
    return recording


def _elements(file: File, data: memoryview, at: int, order: str, pad: bool) -> Iterator[tuple[int, int, memoryview]]:
    """(type, byte in the file, content) of one element after the other."""
    start = 0
    while start < len(data):
        if start + 8 > len(data):
            raise file.error("truncated: an element is cut short", at + start)
        kind, size = struct.unpack_from(f"{order}II", data, start)
        # A small element keeps its size in the upper half of the type, and its content beside it.
        small = kind >> 16
        if small:
            if small > 4:
                raise file.error(f"a small element cannot hold {small} bytes", at + start)
            yield kind & 0xFFFF, at + start, data[start + 4 : start + 4 + small]
            start += 8
            continue
        if start + 8 + size > len(data):
            raise file.error(f"truncated: an element of {size} bytes is cut short", at + start)
        yield kind, at + start, data[start + 8 : start + 8 + size]
        start += 8 + (-(-size // 8) * 8 if pad else size)


def _variable(file: File, kind: int, data: memoryview, at: int, order: str) -> tuple[str, np.ndarray] | None:
    if kind == COMPRESSED:
        engine = zlib.decompressobj()
        try:
            whole = engine.decompress(data, file.limits.left + 1)
        except zlib.error as error:
            raise file.error(f"cannot be unpacked: {error}", at) from None
        file.limits.unpacked("a compressed element", len(whole), at)
        if not engine.eof:
            raise file.error("a compressed element is cut short", at)
        inner = list(islice(_elements(file, memoryview(whole), at, order, pad=False), 2))
        if len(inner) != 1 or inner[0][0] == COMPRESSED:
            raise file.error("a compressed element must hold one variable", at)
        kind, _, data = inner[0]
    if kind != MATRIX:
        return None
    return _matrix(file, data, at, order)


def _matrix(file: File, data: memoryview, at: int, order: str) -> tuple[str, np.ndarray] | None:
    parts = list(islice(_elements(file, data, at, order, pad=True), 4))
    if len(parts) < 3 or len(parts[0][2]) != 8 or len(parts[1][2]) not in range(8, 4 * MAX_DIMENSIONS + 1, 4):
        return None
    (flags,) = struct.unpack_from(f"{order}I", parts[0][2])
    name = bytes(parts[2][2]).decode("latin-1")
    if name.lower() not in FIELDS or flags & 0xFF not in NUMERIC_CLASSES:
        return None
    if flags & COMPLEX or len(parts) < 4 or parts[3][0] not in NUMBERS:
        raise file.error(f"{name} does not hold real numbers", at)
    dtype = np.dtype(order + NUMBERS[parts[3][0]])
    shape = struct.unpack(f"{order}{len(parts[1][2]) // 4}i", parts[1][2])
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(parts[3][2]):
        raise file.error(f"{name} should be {shape}, but has {len(parts[3][2])} bytes", at)
    if math.prod(shape) != max(shape, default=0):
        raise file.error(f"{name} is {shape}, not a vector", at)
    return name, _whole(file, name, np.frombuffer(parts[3][2], dtype), at)


def _whole(file: File, name: str, array: np.ndarray, at: int) -> np.ndarray:
    """Integers, from numbers that MATLAB may have stored as doubles."""
    if array.dtype.kind != "f":
        return array.astype(array.dtype.newbyteorder("="))
    # Not true of NaN.
    small = array.min(initial=0) > -(2**62) and array.max(initial=0) < 2**62
    if not small or not (array == np.round(array)).all():
        raise file.error(f"{name} must hold whole numbers", at)
    return array.astype(np.int64)
