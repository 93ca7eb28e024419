"""PLY: the element `vertex`, and the corners in the element `face`."""

from __future__ import annotations

import numpy as np

from gridless.data.readers.clouds.base import Source, named
from gridless.data.readers.clouds.ply import Part, Property, columns, parts_of, spans
from gridless.data.readers.meshes.base import Mesh, polygons

CORNERS = ("vertex_indices", "vertex_index")


def read(source: Source) -> Mesh:
    order, parts = parts_of(source)
    vertices = named(source, columns(source, order, parts["vertex"])).coords.astype(np.float64)
    face = parts.get("face")
    chosen = next((p for p in face.element.lists if p.name in CORNERS), None) if face else None
    if face is None or chosen is None or chosen.kind.kind == "f" or vertices.shape[1] != 3:
        raise source.error("not a mesh: it needs x, y, z and faces with whole numbers in vertex_indices")
    if order:
        return Mesh(vertices, *_binary(source, face, chosen))
    before = face.element.properties[: face.element.properties.index(chosen)]
    if any(p.counter for p in before):
        raise source.error("faces with a list before their corners are not supported", line=face.element.line)
    return Mesh(vertices, *polygons(source, face.data, face.line, len(before)))


def _binary(source: Source, face: Part, chosen: Property) -> tuple[np.ndarray, np.ndarray]:
    first, lengths = spans(source, face, chosen)[1].T
    size = chosen.kind.itemsize
    inside = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    place = np.repeat(first, lengths) + inside * size
    raw = np.frombuffer(face.data, np.uint8)[place[:, None] + np.arange(size)]
    return raw.view(chosen.kind).astype(np.int64).reshape(-1), lengths
