"""OFF: counts, vertices, polygons. Many files of ModelNet40 lack the end of line behind `OFF`."""

from __future__ import annotations

import re

from gridless.data.readers.clouds.base import Source, numbers
from gridless.data.readers.meshes.base import Mesh, polygons


def read(source: Source) -> Mesh:
    begin = re.match(rb"(?:\s*+#[^\n]*+\n)*+\s*+(ST)?C?N?OFF", source.data)
    if begin is None or b"\0" in source.data:
        raise source.error("not a text OFF file: it does not begin with OFF, or holds zero bytes", 0)
    # Comments before it are lines without anything.
    rows = [b""] * source.data.count(b"\n", 0, begin.end()) + source.data[begin.end() :].split(b"\n")
    filled = [i for i, row in enumerate(rows) if row.split(b"#")[0].strip()]
    tokens = rows[filled[0]].split(b"#")[0].decode("latin-1").split() if filled else []
    if len(tokens) not in (2, 3):
        raise source.error("the counts of vertices, faces and edges are missing", line=filled[0] + 1 if filled else 1)
    counts = [
        source.count(word, f"the number of {what}", filled[0] + 1) for word, what in zip(tokens, ("vertices", "faces"))
    ]
    ends = [1, 1 + counts[0], 1 + sum(counts)]
    if len(filled) < ends[2]:
        message = (
            f"truncated: the header declares {counts[0]} vertices and {counts[1]} faces, {len(filled) - 1} lines follow"
        )
        raise source.error(message, line=len(rows))

    def lines(first: int, end: int) -> tuple[bytes, int]:
        """Bytes and number of the first of the lines that hold something, from `first` to before `end`."""
        if first == end:
            return b"", 1
        return b"\n".join(rows[filled[first] : filled[end - 1] + 1]), filled[first] + 1

    vertices = numbers(source, *lines(ends[0], ends[1]))
    if len(vertices) and vertices.shape[1] < 3:
        raise source.error("a vertex needs at least three numbers", line=filled[1] + 1)
    return Mesh(vertices[:, :3], *polygons(source, *lines(ends[1], ends[2])))
