"""Points on the surface of a mesh: one file per format, chosen by the suffix.

A reader returns a `Mesh`, its vertices and the corners of its polygons, and raises `FormatError`, nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from gridless.data.errors import FormatError, check_file
from gridless.data.isolation import read_isolated
from gridless.data.readers.clouds.base import Source
from gridless.data.readers.meshes.base import triangles
from gridless.structures import Cloud
from gridless.structures.interchange import narrowest

# suffix -> module. trimesh reads those of `scene`. OFF and PLY are read here: for a mesh of 81,920 triangles OFF takes
# 110 ms instead of 480 ms, and trimesh refuses a binary PLY whose faces have different numbers of corners.
READERS = {".glb": "scene", ".gltf": "scene", ".obj": "scene", ".off": "off", ".ply": "ply", ".stl": "scene"}


def sample_mesh(
    path: str | Path,
    points: int = 1024,
    seed: int = 0,
    normalise: bool = True,
    max_bytes: int | None = None,
    isolated: bool = False,
) -> Cloud:
    """Points drawn uniformly by area from the triangles of the mesh in `path`: OFF, PLY, OBJ, STL, glTF.

    The same seed gives the same points on any machine. With `normalise` their mean is at the origin and they fit the
    unit sphere, as in the releases of ModelNet40; without, those of a map, which float32 would move, are float64. The
    triangles may take `max_bytes`, see `read_cloud`; a file that cannot be understood raises `FormatError`. With
    `isolated` the file is read in a process of its own, for files that are not trusted.
    """
    if points < 1:
        raise ValueError(f"sample_mesh: points must be at least 1, not {points}")
    if isolated:
        check_file(Path(path))
        return read_isolated(sample_mesh, path, max_bytes, points=points, seed=seed, normalise=normalise)
    source, corners = _read(Path(path), max_bytes)
    with np.errstate(all="ignore"):
        return Cloud.of(torch.from_numpy(_sample(source, corners, points, seed, normalise)))


def read_triangles(path: str | Path, max_bytes: int | None = None) -> np.ndarray:
    """The corners (T, 3, 3) float64 of the triangles of a mesh, of the kinds that `sample_mesh` reads."""
    source, corners = _read(Path(path), max_bytes)
    if not len(corners):
        raise source.error("a mesh without triangles")
    return corners


def _read(path: Path, max_bytes: int | None) -> tuple[Source, np.ndarray]:
    check_file(path)
    if path.suffix.lower() not in READERS:
        kinds = ", ".join(sorted(READERS))
        raise FormatError(path, f"unknown mesh format {path.suffix!r}. There are readers for {kinds}.")
    source = Source.of(path, max_bytes)
    if not source.data:
        raise source.error("holds no triangles: the file is empty")
    with np.errstate(all="ignore"):
        return source, triangles(
            source, import_module(f"gridless.data.readers.meshes.{READERS[path.suffix.lower()]}").read(source)
        )


def _sample(source: Source, corners: np.ndarray, points: int, seed: int, normalise: bool) -> np.ndarray:
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    ends = np.cumsum(area)
    if not len(area) or not np.isfinite(ends[-1]) or not ends[-1] > 0:
        raise source.error("the mesh has no area: it needs triangles with three finite corners")
    random = np.random.default_rng(seed)
    chosen = corners[np.minimum(np.searchsorted(ends, random.random(points) * ends[-1]), len(ends) - 1)]
    u, v = random.random((2, points, 1))
    over = u + v > 1  # the other half of the parallelogram
    u, v = np.where(over, 1 - u, u), np.where(over, 1 - v, v)
    coords = chosen[:, 0] + u * (chosen[:, 1] - chosen[:, 0]) + v * (chosen[:, 2] - chosen[:, 0])
    if normalise:
        coords -= coords.mean(0)
        coords /= max(np.linalg.norm(coords, axis=1).max(), np.finfo(np.float64).tiny)
    if not np.isfinite(coords.astype(np.float32)).all():
        raise source.error("its coordinates are too large for float32")
    return coords.astype(narrowest(coords))
