"""OBJ: lines `v x y z` and `f 1 2 3`; corners count from 1, or, if negative, back from the last vertex."""

from __future__ import annotations

import re

import numpy as np

from gridless.data.clouds.base import NUMBER, Source
from gridless.data.meshes.base import Mesh

CORNER = re.compile(rb"(-?\d{1,18})(/-?\d*){0,2}")


def read(source: Source) -> Mesh:
    if b"\0" in source.data:
        raise source.error("not text: it holds a zero byte", source.data.index(b"\0"))
    vertices, corners, lengths = [], [], []
    for line, row in enumerate(source.data.split(b"\n"), 1):
        words = row.split(b"#")[0].split()
        if words[:1] == [b"v"]:
            if len(words) < 4 or not all(map(NUMBER.fullmatch, words[1:4])):
                raise source.error("a vertex is three numbers", line=line)
            vertices.append([float(word) for word in words[1:4]])
        elif words[:1] == [b"f"]:
            found = [CORNER.fullmatch(word) for word in words[1:]]
            if len(found) < 3 or not all(found):
                raise source.error("a face is three corners or more, numbers of vertices", line=line)
            numbers = [int(match[1]) for match in found if match]
            corners += [n - 1 if n >= 0 else len(vertices) + n for n in numbers]
            lengths.append(len(numbers))
    return Mesh(np.array(vertices).reshape(-1, 3), np.array(corners, np.int64), np.array(lengths, np.int64))
