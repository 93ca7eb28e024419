"""OBJ: lines `v x y z` and `f 1 2 3`; corners count from 1, or, if negative, back from the last vertex. A line that
ends with a backslash goes on in the next one."""

from __future__ import annotations

import numpy as np

from gridless.data.readers.clouds.base import NUMBER, Source
from gridless.data.readers.meshes.base import Mesh


def read(source: Source) -> Mesh:
    if b"\0" in source.data:
        raise source.error("not text: it holds a zero byte", source.data.index(b"\0"))
    vertices, corners, lengths, before = [], [], [], b""
    for line, row in enumerate(source.data.split(b"\n"), 1):
        row = before + row.split(b"#")[0].rstrip()
        before = row[:-1] + b" " if row.endswith(b"\\") else b""
        words = [] if before else row.split()
        if words[:1] == [b"v"]:
            if len(words) < 4 or not all(map(NUMBER.fullmatch, words[1:4])):
                raise source.error("a vertex is three numbers", line=line)
            vertices.append([float(word) for word in words[1:4]])
        elif words[:1] == [b"f"]:
            # A corner may be followed by the numbers of its texture and normal: 1/2/3.
            found = [word.partition(b"/")[0] for word in words[1:]]
            whole = all(word.removeprefix(b"-").isdigit() for word in found)
            # A face of two corners is a line, which has no area.
            if len(found) < 2 or not whole or max(map(len, found)) > 18:
                raise source.error("a face is three corners or more, numbers of vertices", line=line)
            numbers = list(map(int, found))
            corners += [n - 1 if n >= 0 else len(vertices) + n for n in numbers]
            lengths.append(len(numbers))
    return Mesh(np.array(vertices).reshape(-1, 3), np.array(corners, np.int64), np.array(lengths, np.int64))
