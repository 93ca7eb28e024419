"""Text: a point per line, numbers apart by blanks, tabs, commas or semicolons, in quotation marks or not.

The first line may name the columns, and so may the last comment before the numbers (`# x y z intensity`,
`//X Y Z R G B`). Without names the first three numbers, or the only two, are the coordinates and the rest are
`features`; in a `.pts` intensity and colour. The number of points may stand alone before them.
"""

from __future__ import annotations

import re

import numpy as np

from gridless.data.readers.clouds.base import NUMBER, Points, Source, named, numbers
from gridless.structures.interchange import narrowest

PTS = {4: "x y z intensity", 6: "x y z r g b", 7: "x y z intensity r g b"}
WHOLE = ("label", "classification", "instance")
# Lines that are empty or comments.
PASSED = re.compile(rb"(?:[ \t\r]*+(?:(?:#|//)[^\n]*+)?(?:\n|\Z))*+")


def read(source: Source) -> Points:
    if b"\0" in source.data:
        raise source.error("not text: it holds a zero byte", source.data.index(b"\0"))
    at, line, comment = _skip(source, 3 if source.data.startswith(b"\xef\xbb\xbf") else 0, 1)
    first, end = _line(source, at)
    promised = None
    if _is_count(source, first, end):
        promised = source.count(first, "the number of points", line)
        at, line, below = _skip(source, end, line + 1)
        comment = below or comment
        first, end = _line(source, at)
    header = None
    cells = [cell.strip("\"'") for cell in _cells(first.rstrip(",; \t"))]
    if first and not all(NUMBER.fullmatch(cell.encode("latin-1")) for cell in cells):
        header, headed = first, line
        if not {"x", "y"} <= set(re.split(r"[,;\s\"']+", header.lower())):
            raise source.error(f"neither numbers nor column names with x and y: {header[:80]!r}", line=line)
        at, line, _ = _skip(source, end, line + 1)
        first, end = _line(source, at)
        if promised is None and _is_count(source, first, end):
            promised = source.count(first, "the number of points", line)
            at, line, _ = _skip(source, end, line + 1)
            first, end = _line(source, at)
    if not first and header is None:
        raise source.error("holds no points")
    delimiter = next((c for c in ";,\t" if c in first), None)
    if delimiter == "\t" and any(" " in cell.strip() for cell in first.split("\t")):
        delimiter = None
    body = re.sub(rb"(?m)^[ \t]*//.*$", b"", source.data[at:]).replace(b'"', b"")
    if delimiter and first.endswith(delimiter):
        # Behind the last number, too.
        body = re.sub(rb"(?m)[;,\t][ \t\r]*$", b"", body)
        header = header and header.removesuffix(delimiter)
    table = numbers(source, body, line, delimiter=delimiter)
    if promised is not None and promised != len(table):
        raise source.error(f"truncated? It declares {promised} points and holds {len(table)}")
    if header is not None:
        names = _names(header, delimiter)
        if len(table) and len(names) != table.shape[1]:
            raise source.error(f"{len(names)} names for {table.shape[1]} columns of numbers", line=headed)
        table = table if len(table) else np.empty((0, len(names)))
    else:
        names = _names(comment, delimiter)
        if not {"x", "y"} <= set(names) or len(names) != table.shape[1]:
            names = PTS.get(table.shape[1], "").split() if source.path.suffix.lower() == ".pts" else []
    if names:
        return _by_name(source, names, table)
    if table.shape[1] < 2:
        raise source.error("a point needs at least two numbers, but the lines have one", line=line)
    rows = {"features": table[:, 3:].astype(np.float32)} if table.shape[1] > 3 else {}
    return Points(table[:, :3], rows, narrowest(table[:, :3]))


def _is_count(source: Source, line: str, end: int) -> bool:
    """True if a line is the number of points: one number, and the next line, which begins at byte `end`, has more."""
    after = _line(source, _skip(source, end, 0)[0])[0]
    return bool(re.fullmatch(r"\d+", line)) and (source.path.suffix.lower() == ".pts" or len(_cells(after)) > 1)


def _cells(line: str) -> list[str]:
    return re.split(r"[,;\s]+", line.strip())


def _line(source: Source, at: int) -> tuple[str, int]:
    """The line that begins at byte `at`, and where the next one does."""
    end = source.data.find(b"\n", at)
    end = len(source.data) if end < 0 else end
    return source.data[at:end].decode("latin-1").strip(), end + 1


def _skip(source: Source, at: int, line: int) -> tuple[int, int, str]:
    """Byte and number of the next line that is neither empty nor a comment, and the last comment before it."""
    passed = PASSED.match(source.data, at)
    assert passed is not None
    comment = passed[0].rstrip().rpartition(b"\n")[2].decode("latin-1")
    return passed.end(), line + passed[0].count(b"\n"), comment.lstrip("#/ \t")


def _names(header: str, delimiter: str | None) -> list[str]:
    cells = header.split(delimiter) if delimiter and delimiter in header else _cells(header)
    names = [cell.strip(" \t\"'").lower() for cell in cells]
    return [name or f"column{i}" for i, name in enumerate(names)]


def _by_name(source: Source, names: list[str], table: np.ndarray) -> Points:
    points = named(source, zip(names, table.T, strict=True))
    points = points._replace(dtype=narrowest(points.coords))
    for name, row in points.rows.items():
        whole = (row == np.floor(row)).all()
        if name in WHOLE:
            if not whole or not (np.abs(row) < 2**53).all():
                raise source.error(f"the column {name!r} must hold whole numbers")
            points.rows[name] = row.astype(np.int64)
        elif name == "rgb" and row.ndim == 2:
            # From 0 to 1 where nothing lies between: 1 is the largest, not the smallest.
            colour = whole and row.min(initial=0) >= 0 and row.max(initial=0) <= 255 and row.max(initial=0) != 1
            points.rows[name] = row.astype(np.uint8 if colour else np.float32)
        elif name == "normal":
            points.rows[name] = row.astype(np.float32)
    return points
