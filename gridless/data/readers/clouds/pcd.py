"""PCD, of the Point Cloud Library: ASCII, binary and compressed.

A field `rgb` or `rgba` is a colour packed into four bytes; a field `_` is padding.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from gridless.data.readers.clouds.base import Points, Source, named, numbers, typed
from gridless.kernels.compile import njit

WORDS = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")
TYPES = {
    "F4": "<f4", "F8": "<f8", "I1": "i1", "I2": "<i2", "I4": "<i4", "I8": "<i8", "U1": "u1", "U2": "<u2", "U4": "<u4",
    "U8": "<u8",
}  # fmt: skip


class PcdField(NamedTuple):
    name: str
    kind: np.dtype
    count: int
    start: int  # bytes before it in a point
    column: int  # numbers before it in a point


def read(source: Source) -> Points:
    fields, count, way, at, line = _header(source)
    size = fields[-1].start + fields[-1].kind.itemsize * fields[-1].count
    if way == "ascii":
        return _points(source, fields, _ascii(source, fields, count, at, line))
    if way == "binary":
        raw = source.stored("points", count, size, at)
        strides = [(size, field.kind.itemsize) for field in fields]
        starts = [field.start for field in fields]
    else:
        packed, unpacked = np.frombuffer(source.stored("sizes", 2, 4, at), "<u4").tolist()
        if unpacked != count * size:
            raise source.error(f"unpacks to {unpacked} bytes, but {count} points have {count * size}", at + 4)
        packed = source.stored("bytes", packed, 1, at + 8)
        source.limits.unpacked("the points", unpacked, at + 4)
        out = np.empty(unpacked, np.uint8)
        if _lzf(np.frombuffer(packed, np.uint8), out) != unpacked:
            raise source.error("the compressed points are damaged", at + 8)
        # All points of a field lie together.
        raw = out.tobytes()
        strides = [(field.kind.itemsize * field.count, field.kind.itemsize) for field in fields]
        starts = [count * field.start for field in fields]
    columns = [
        np.ndarray((count, field.count), field.kind, raw, start, stride) if count else _none(field)
        for field, start, stride in zip(fields, starts, strides, strict=True)
    ]
    return _points(source, fields, columns)


def _none(field: PcdField) -> np.ndarray:
    return np.empty((0, field.count), field.kind)


def _header(source: Source) -> tuple[list[PcdField], int, str, int, int]:
    """The fields, the number of points, how they are stored, and byte and line where they begin."""
    header: dict[str, list[str]] = {}
    lines: dict[str, int] = {}
    at, line = 0, 1
    while "DATA" not in header:
        end = source.data.find(b"\n", at)
        tokens = source.data[at : max(end, at)].decode("latin-1").split("#")[0].split()
        if end < 0 or (tokens and tokens[0] not in WORDS):
            raise source.error("not a PCD file: its header has no line DATA", at, line)
        if tokens:
            if tokens[0] in header:
                raise source.error(f"a second line {tokens[0]}", at, line)
            header[tokens[0]], lines[tokens[0]] = tokens[1:], line
        at, line = end + 1, line + 1
    missing = [word for word in ("FIELDS", "SIZE", "TYPE") if not header.get(word)]
    if missing:
        raise source.error(f"the header has no {missing[0]}")
    names = header["FIELDS"]
    repeats = header.get("COUNT", ["1"] * len(names))
    if not len(names) == len(header["SIZE"]) == len(header["TYPE"]) == len(repeats):
        raise source.error("FIELDS, SIZE, TYPE and COUNT differ in length", line=lines["FIELDS"])
    fields, start, column = [], 0, 0
    for name, size, kind, repeat in zip(names, header["SIZE"], header["TYPE"], repeats, strict=True):
        if kind + size not in TYPES:
            raise source.error(f"{name[:40]!r} has the unknown type {(kind + ' ' + size)[:40]}", line=lines["TYPE"])
        if not re.fullmatch(r"[1-9][0-9]{0,4}", repeat):
            raise source.error(f"{name[:40]!r} has the count {repeat[:40]}", line=lines["COUNT"])
        fields.append(PcdField(name, np.dtype(TYPES[kind + size]), int(repeat), start, column))
        start, column = start + int(size) * int(repeat), column + int(repeat)
    way = " ".join(header["DATA"])
    if way not in ("ascii", "binary", "binary_compressed"):
        raise source.error(f"unknown DATA {way[:40]!r}", line=lines["DATA"])
    counts = {w: source.count("".join(header[w]), w, lines[w]) for w in ("POINTS", "WIDTH", "HEIGHT") if w in header}
    area = counts["WIDTH"] * counts["HEIGHT"] if counts.keys() >= {"WIDTH", "HEIGHT"} else None
    count = counts.get("POINTS", area)
    if count is None:
        raise source.error("the header has no POINTS")
    if area is not None and area != count:
        raise source.error(f"POINTS is {count}, but WIDTH times HEIGHT {area}", line=lines["POINTS"])
    return fields, count, way, at, line


def _ascii(source: Source, fields: list[PcdField], count: int, at: int, line: int) -> list[np.ndarray]:
    width = fields[-1].column + fields[-1].count
    body = source.data[at:]
    table = numbers(source, body, line, width)
    if len(table) != count:
        raise source.error(f"truncated? The header declares {count} points, the file holds {len(table)}", line=line)
    columns = []
    for field in fields:
        parts = table[:, field.column : field.column + field.count].T
        columns.append(np.stack([typed(source, part, field.kind, field.name, body, line) for part in parts], 1))
    return columns


def _points(source: Source, fields: list[PcdField], columns: list[np.ndarray]) -> Points:
    named_columns = []
    for field, column in zip(fields, columns, strict=True):
        named_columns += [] if field.name == "_" else colours(field.name, column)
    return named(source, named_columns)


def colours(name: str, column: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """The rows that a column (S, count) makes: colours that are packed into four bytes, as PCL does, are unpacked."""
    if name.lower() not in ("rgb", "rgba") or column.shape[1] != 1 or column.dtype.itemsize != 4:
        return [(name, column[:, 0] if column.shape[1] == 1 else column)]
    packed = np.ascontiguousarray(column, column.dtype.newbyteorder("=")).view(np.uint32)[:, 0]
    rgb = np.stack([packed >> shift & 255 for shift in (16, 8, 0)], 1).astype(np.uint8)
    return [("rgb", rgb)] + ([("alpha", (packed >> 24).astype(np.uint8))] if name.lower() == "rgba" else [])


@njit(nogil=True, cache=True)
def _lzf(packed, out):
    """LZF: runs of bytes, and copies of what came before. The number of bytes written, -1 if they do not fit."""
    i, o = 0, 0
    while i < len(packed):
        control = int(packed[i])
        i += 1
        if control < 32:
            run = control + 1
            if i + run > len(packed) or o + run > len(out):
                return -1
            out[o : o + run] = packed[i : i + run]
            i += run
            o += run
            continue
        length = control >> 5
        if length == 7:
            if i >= len(packed):
                return -1
            length += int(packed[i])
            i += 1
        if i >= len(packed):
            return -1
        back = o - ((control & 31) << 8) - int(packed[i]) - 1
        i += 1
        if back < 0 or o + length + 2 > len(out):
            return -1
        for _ in range(length + 2):
            out[o] = out[back]
            o += 1
            back += 1
    return o
