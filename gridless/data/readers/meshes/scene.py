"""OBJ, STL and glTF 2.0, by trimesh: the triangles of all meshes of a file, each where its node puts it.

Only the file itself is read: neither materials nor buffers in other files.
"""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from gridless.data.errors import FormatError, library
from gridless.data.readers.clouds.base import Source
from gridless.data.readers.meshes.base import TRIANGLE, Mesh

# Bytes that a node takes, also where it holds nothing, so that few bytes cannot ask for endless work.
NODE = 1000
# A face of two corners is a line, which has no area; trimesh refuses it.
LINE = re.compile(rb"^[ \t]*f[ \t]+\S+[ \t]+\S+[ \t]*\r?$", re.MULTILINE)


def read(source: Source) -> Mesh:
    trimesh = library("trimesh", source.path)
    kind = source.path.suffix.lower().removeprefix(".")
    data = _plain_obj(source.data) if kind == "obj" else source.data
    try:
        scene = trimesh.load_scene(
            io.BytesIO(data), file_type=kind, resolver=None, process=False, skip_materials=True, allow_remote=False
        )
        parts = list(_placed(source, scene))
    except FormatError:
        raise
    except MemoryError:
        raise source.error("declares more data than fits in memory") from None
    except Exception as error:  # trimesh raises many kinds
        raise source.error(f"this mesh cannot be read: {type(error).__name__} {str(error)[:200]}") from None
    if not parts:
        raise source.error("holds no triangles")
    starts = np.cumsum([0] + [len(vertices) for vertices, _ in parts])
    corners = np.concatenate([faces.reshape(-1) + start for (_, faces), start in zip(parts, starts, strict=False)])
    return Mesh(np.concatenate([vertices for vertices, _ in parts]), corners, np.full(len(corners) // 3, 3))


def _plain_obj(data: bytes) -> bytes:
    """The text without what trimesh does not understand: remarks that end in a backslash, and faces of two corners."""
    whole = re.sub(rb"\\\r?\n", b" ", re.sub(rb"#[^\n]*", b"", data))
    return LINE.sub(b"", whole)


def _placed(source: Source, scene: Any) -> Any:
    """Vertices (V, 3) float64 and corners (T, 3) int64 of each mesh in its place."""
    for node in scene.graph.nodes_geometry:
        place, name = scene.graph[node]
        mesh = scene.geometry[name]
        faces = np.asarray(getattr(mesh, "faces", np.empty((0, 3))), np.int64)
        source.limits.unpacked("a mesh", NODE + len(faces) * TRIANGLE)
        vertices = np.asarray(mesh.vertices, np.float64)
        if len(faces) and (faces.min() < 0 or faces.max() >= len(vertices)):
            raise source.error(f"a face has the corner {faces.max()}, but there are {len(vertices)} vertices")
        if len(faces):
            yield vertices @ place[:3, :3].T + place[:3, 3], faces
