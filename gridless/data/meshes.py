"""Points on the surface of a mesh."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from gridless.data.formats.base import FormatError
from gridless.structures import Cloud


def sample_mesh(path: str | Path, points: int = 1024, seed: int = 0, normalise: bool = True) -> Cloud:
    """Points drawn uniformly by area from the triangles of a mesh (OFF, PLY, OBJ, STL, ...; needs `trimesh`).

    The same seed gives the same points on any machine. With `normalise` their mean is at the origin and they fit the
    unit sphere, as in the releases of ModelNet40.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    corners = _triangles(path)  # (T, 3, 3)
    area = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1)
    if not len(area) or not np.isfinite(area).all() or not area.sum() > 0:
        raise FormatError(path, "a mesh without area: it has no triangles, or all of them are degenerate")
    random = np.random.default_rng(seed)
    ends = np.cumsum(area)
    chosen = corners[np.minimum(np.searchsorted(ends, random.random(points) * ends[-1]), len(ends) - 1)]
    u, v = random.random((2, points, 1))
    over = u + v > 1  # the other half of the parallelogram
    u, v = np.where(over, 1 - u, u), np.where(over, 1 - v, v)
    coords = chosen[:, 0] + u * (chosen[:, 1] - chosen[:, 0]) + v * (chosen[:, 2] - chosen[:, 0])
    if normalise:
        coords -= coords.mean(0)
        coords /= max(np.linalg.norm(coords, axis=1).max(), np.finfo(np.float64).tiny)
    return Cloud.of(torch.from_numpy(coords.astype(np.float32)))


def _triangles(path: Path) -> np.ndarray:
    try:
        import trimesh
    except ImportError:
        raise ImportError(f"{path}: meshes need trimesh: pip install 'gridless[data]'") from None
    data, kind = path.read_bytes(), path.suffix.lower().lstrip(".")
    if kind == "off" and data[:3] == b"OFF" and data[3:4] not in (b"\n", b"\r", b" "):
        data = b"OFF\n" + data[3:]  # many files of ModelNet40 lack this end of line
    try:
        mesh = cast(Any, trimesh.load(io.BytesIO(data), file_type=kind, force="mesh", process=False))
        return np.asarray(mesh.triangles, np.float64)
    except Exception as error:  # trimesh raises whatever its parsers meet
        raise FormatError(path, f"not a whole mesh: {type(error).__name__}: {error}") from None
