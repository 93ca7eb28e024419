"""Shared by the readers of meshes: polygons, in text and as triangles."""

from __future__ import annotations

import io
from typing import NamedTuple

import numpy as np

from gridless.data.readers.clouds.base import Source

# Bytes that a triangle takes while points are drawn.
TRIANGLE = 200


class Mesh(NamedTuple):
    """vertices (V, 3) float64; the corners of all polygons (C) int64, one behind the other; how many each has (F)."""

    vertices: np.ndarray
    corners: np.ndarray
    lengths: np.ndarray


def triangles(source: Source, mesh: Mesh) -> np.ndarray:
    """The corners (T, 3, 3) of the triangles into which the polygons fall, as fans about their first corners."""
    vertices, corners, lengths = mesh
    vertices = vertices.reshape(len(vertices), 3)  # of none, the number of columns is not known
    if len(corners) and (corners.min() < 0 or corners.max() >= len(vertices)):
        bad = int(np.argmax((corners < 0) | (corners >= len(vertices))))
        face = int(np.searchsorted(np.cumsum(lengths), bad, "right"))
        raise source.error(f"face {face} has the corner {corners[bad]}, but there are {len(vertices)} vertices")
    fans = np.maximum(lengths - 2, 0)
    source.limits.unpacked("the triangles", int(fans.sum()) * TRIANGLE)
    first = np.repeat(np.cumsum(lengths) - lengths, fans)
    step = np.arange(len(first)) - np.repeat(np.cumsum(fans) - fans, fans)
    return vertices[corners[np.stack([first, first + step + 1, first + step + 2], 1)]]


def polygons(source: Source, body: bytes, line: int, before: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Corners and lengths from lines of text: `before` numbers, the length, the corners, and anything else.

    Lines that are empty, and what follows a #, are passed over.
    """
    try:
        # Polygons of one kind are a table.
        table = np.loadtxt(io.BytesIO(body), np.float64, ndmin=2) if body.strip() else np.empty((0, before + 1))
        length = int(table[0, before]) if len(table) else 0
        cells = table[:, before + 1 : before + 1 + length]
        whole = (cells == np.floor(cells)).all() and (np.abs(cells) < 2**53).all()
        if whole and (table[:, before] == length).all() and cells.shape[1] == length:
            return cells.astype(np.int64).reshape(-1), np.full(len(table), length)
    except (ValueError, IndexError, OverflowError):
        pass
    corners, lengths = [], []
    for n, row in enumerate(body.split(b"\n"), line):
        tokens = row.split(b"#")[0].split()[before:]
        if tokens:
            if not tokens[0].isdigit() or len(tokens[0]) > 18:
                raise source.error("the number of corners is not a count", line=n)
            length = int(tokens[0])
            if len(tokens) <= length:
                raise source.error(f"truncated? The line declares {length} corners and has {len(tokens) - 1}", line=n)
            cells = tokens[1 : length + 1]
            if not all(map(bytes.isdigit, cells)) or max(map(len, cells), default=0) > 18:
                raise source.error("a corner is not the number of a vertex", line=n)
            corners += map(int, cells)
            lengths.append(length)
    return np.array(corners, np.int64), np.array(lengths, np.int64)
