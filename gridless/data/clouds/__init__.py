"""Readers of users' own clouds: one file per format, chosen by the suffix.

    cloud = gl.read_cloud("scan.ply")

A reader returns `Points`: the coordinates and, by name, what else the file knows of each point. What a reader cannot
understand it refuses with `FormatError`, which names the file and the line or the byte; it raises nothing else.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from gridless.data.clouds.base import Points, Source
from gridless.data.errors import FormatError
from gridless.structures import Cloud

# suffix -> module
READERS = {
    ".bin": "lidar", ".csv": "text", ".las": "las", ".laz": "las", ".npy": "arrays", ".npz": "arrays", ".pcd": "pcd",
    ".ply": "ply", ".pts": "text", ".txt": "text", ".xyz": "text",
}  # fmt: skip
MESHES = (".off", ".obj", ".stl", ".glb", ".gltf")


def read_cloud(path: str | Path, dtype: torch.dtype | None = None, max_bytes: int | None = None) -> Cloud:
    """The points of a file, as one example.

    PLY (ASCII and binary), PCD (ASCII, binary, compressed), LAS and LAZ (LAZ needs `lazrs`), NPY and NPZ, KITTI's
    `.bin`, nuScenes' `.pcd.bin`, XYZ, TXT, CSV and PTS (a point per line, numbers apart by blanks, commas or
    semicolons). Columns are found by name where the file names them; otherwise the first three (or two) are the
    coordinates.

    Coordinates are float32, or float64 where the file declares numbers that float32 cannot hold and for LAS; `dtype`
    overrides. Points that are not finite are kept: what uses them will say so.

    A compressed file may unpack to `max_bytes`, by default the larger of 256 MiB and 100 times its length. A file that
    ends too early, is not what its name says, or cannot be understood raises `FormatError`.
    """
    path = Path(path)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"read_cloud: coordinates are torch.float32 or torch.float64, not {dtype}")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    points = _read(path, max_bytes)
    wanted = points.dtype if dtype is None else np.dtype("f4" if dtype == torch.float32 else "f8")
    with np.errstate(over="ignore"):
        return Cloud.of(np.array(points.coords, wanted, order="C"))


def _read(path: Path, max_bytes: int | None) -> Points:
    suffix = path.suffix.lower()
    if suffix in MESHES:
        raise FormatError(path, "a mesh has no points of its own: use gl.data.sample_mesh(path, points=1024)")
    if suffix not in READERS:
        raise FormatError(path, f"unknown kind {suffix!r}: there are readers for {', '.join(sorted(READERS))}")
    source = Source.of(path, max_bytes)
    if not source.data:
        raise source.error("holds no points: the file is empty")
    return import_module(f"gridless.data.clouds.{READERS[suffix]}").read(source)
