"""Shared by the readers of clouds and meshes: the file, named columns, tables of numbers."""

from __future__ import annotations

import io
import mmap
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gridless.data.errors import FormatError
from gridless.data.limits import Limits
from gridless.structures.interchange import grouped, natural

NUMBER = re.compile(rb"[+-]?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?|nan|inf|infinity)", re.IGNORECASE)


@dataclass(frozen=True)
class Source:
    """A file that is being read: its bytes, and how much they may unpack to; of a bag, the topic and the message."""

    path: Path
    data: bytes
    limits: Limits
    topic: str | None = None
    message: int = 0

    @classmethod
    def of(cls, path: Path, max_bytes: int | None = None) -> Source:
        return cls(path, path.read_bytes(), Limits(path, max_bytes))

    @classmethod
    def mapped(cls, path: Path) -> Source:
        """The file without reading it: for formats whose pieces are found without the rest."""
        with path.open("rb") as file:
            data: Any = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
        return cls(path, data, Limits(path))

    def error(self, message: str, offset: int | None = None, line: int | None = None) -> FormatError:
        return FormatError(self.path, message if line is None else f"line {line}: {message}", offset)

    def stored(self, what: str, count: int, size: int, at: int) -> bytes:
        """`count` records of `size` bytes from byte `at` on."""
        self.limits.stored(what, count, size, len(self.data) - at, at)
        return self.data[at : at + count * size]

    def count(self, word: str, what: str, line: int) -> int:
        """A word of a header that must be a number of things."""
        if not re.fullmatch(r"[0-9]{1,18}", word):
            raise self.error(f"{what} is {word[:40]!r}, not a count", line=line)
        return int(word)


# Points that are read at a time where a format does not say.
PART = 1 << 16


class Parts(NamedTuple):
    """A file that is read piece by piece: how many points each piece has, and piece k."""

    sizes: list[int]
    read: Callable[[int], Points]


def part_sizes(count: int) -> list[int]:
    return [min(PART, count - first) for first in range(0, count, PART)]


def in_parts(points: Points) -> Parts:
    """Points that are at hand, or mapped, in pieces of as many as PART."""

    def piece(k: int) -> Points:
        at = slice(k * PART, (k + 1) * PART)
        return Points(points.coords[at], {name: rows[at] for name, rows in points.rows.items()}, points.dtype)

    return Parts(part_sizes(len(points.coords)), piece)


class Points(NamedTuple):
    """Coordinates (S, D), rows of any type and trailing shape (S, ...) by name, and what the coordinates become."""

    coords: np.ndarray
    rows: dict[str, np.ndarray]
    dtype: np.dtype


def named(source: Source, columns: Iterable[tuple[str, np.ndarray]]) -> Points:
    """Points of columns (S, ...) with names in any case."""
    try:
        parts, rows = grouped(columns)
    except ValueError as error:
        raise source.error(str(error)) from None
    return Points(np.stack(parts, 1), rows, natural(*(part.dtype for part in parts)))


def numbers(source: Source, body: bytes, line: int, width: int | None = None, delimiter: str | None = None):
    """The table (rows, width) float64 that the lines of `body` hold, the first of which is line `line` of the file.

    Empty lines, and what follows a #, are passed over.
    """
    if not re.search(rb"^[ \t]*[^#\s]", body, re.MULTILINE):
        return np.empty((0, width or 0))
    try:
        table = np.loadtxt(io.BytesIO(body), np.float64, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        raise _fault(source, body, line, width, delimiter, str(error)) from None
    if width is not None and table.shape[1] != width:
        raise _fault(source, body, line, width, delimiter, "")
    return table


def _fault(
    source: Source, body: bytes, line: int, width: int | None, delimiter: str | None, message: str
) -> FormatError:
    """The error of the first line that is no row of the table."""
    for n, row in enumerate(body.split(b"\n"), line):
        row = row.split(b"#")[0].strip()
        cells = [c.strip() for c in row.split(delimiter.encode() if delimiter else None)] if row else []
        for cell in cells:
            if not NUMBER.fullmatch(cell):
                hint = ". Write a decimal point." if re.fullmatch(rb"[+-]?\d+,\d+", cell) else ""
                hint = ". Write a number for each name." if re.fullmatch(rb"[A-Za-z][\w -]*", cell) else hint
                return source.error(f"{cell[:40].decode('latin-1')!r} is not a number{hint}", line=n)
        width = width or len(cells)
        if cells and len(cells) != width:
            return source.error(f"truncated? It has {len(cells)} numbers instead of {width}", line=n)
    return source.error(f"not a table of numbers: {message[:200]}", line=line)


def typed(source: Source, column: np.ndarray, kind: np.dtype, name: str, body: bytes, line: int) -> np.ndarray:
    """A column of the table of `body` in the type that the file declares for it."""
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return column.astype(kind)
    info = np.iinfo(kind)
    # As a float the upper end may be rounded up, out of the range.
    bad = ~((column == np.floor(column)) & (column >= info.min) & (column < float(info.max) + 1))
    if bad.any():
        row = int(bad.argmax())
        lines = [n for n, text in enumerate(body.split(b"\n"), line) if text.split(b"#")[0].strip()]
        raise source.error(f"{name!r} is {column[row]:g}, not of type {kind.name}", line=lines[row])
    return column.astype(kind)
