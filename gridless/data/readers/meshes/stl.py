"""STL, binary and ASCII."""

from __future__ import annotations

import numpy as np

from gridless.data.readers.clouds.base import Source, numbers
from gridless.data.readers.meshes.base import Mesh

RECORD = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])


def read(source: Source) -> Mesh:
    data = source.data
    count = int.from_bytes(data[80:84], "little")
    # A binary file may begin with `solid`, too, but then its length is right.
    if len(data) >= 84 and (len(data) == 84 + count * RECORD.itemsize or not data.lstrip().startswith(b"solid")):
        corners = np.frombuffer(source.stored("triangles", count, RECORD.itemsize, 84), RECORD)["corners"]
        vertices = corners.reshape(-1, 3).astype(np.float64)
    else:
        vertices = _ascii(source)
    return Mesh(vertices, np.arange(len(vertices)), np.full(len(vertices) // 3, 3))


def _ascii(source: Source) -> np.ndarray:
    data = source.data.lower()
    if b"endsolid" not in data:
        raise source.error("truncated, or not an STL file: neither a count of triangles nor solid ... endsolid")
    # Only what follows `vertex` counts; the other lines stay, as empty ones, so that errors name the right line.
    rows = [row.split(None, 1) if b"vertex" in row else () for row in data.split(b"\n")]
    body = b"\n".join([row[1] if len(row) == 2 and row[0] == b"vertex" else b"" for row in rows])
    vertices = numbers(source, body, 1, 3)
    if len(vertices) % 3 or data.count(b"endfacet") * 3 != len(vertices):
        raise source.error(f"{len(vertices)} vertices are not three for each facet")
    return vertices
