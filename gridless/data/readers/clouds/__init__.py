"""Readers of users' own clouds: one file per format, chosen by the suffix.

    cloud = gl.read_cloud("scan.ply")
    cloud.coords, cloud.rows["rgb"], cloud.rows["normal"]

A reader returns `Points`: the coordinates and, by name, the rows of the file. Files that it cannot read raise
`FormatError` with the file and the line or byte, and no other exception.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import torch

from gridless.data.errors import FormatError, check_file
from gridless.data.isolation import read_isolated
from gridless.data.limits import Limits
from gridless.data.readers.bags import SUFFIXES, is_bag
from gridless.data.readers.clouds.base import Parts, Points, Source
from gridless.structures import Cloud, Rows
from gridless.structures.interchange import normals, plain

# suffix -> module
READERS = {
    ".asc": "text", ".bag": "ros", ".bin": "lidar", ".csv": "text", ".db3": "ros", ".e57": "e57", ".las": "las",
    ".laz": "las", ".mcap": "ros", ".npy": "arrays", ".npz": "arrays", ".pcd": "pcd", ".ply": "ply", ".pts": "text",
    ".txt": "text", ".xyz": "text",
}  # fmt: skip
# Read by a library, which opens the file itself.
BY_PATH = (".bag", ".db3", ".e57", ".mcap")
# Read piece by piece where that is asked for.
IN_PARTS = (".las", ".laz", ".npy", ".ply")
# Text beside scans that holds no points: that of KITTI's sequences, and notes.
NOTES = ("calib.txt", "poses.txt", "times.txt", "readme.txt", "license.txt")
MESHES = (".off", ".obj", ".stl", ".glb", ".gltf")


def read_cloud(
    path: str | Path,
    dtype: torch.dtype | None = None,
    rows: str | Sequence[str] | None = None,
    max_bytes: int | None = None,
    isolated: bool = False,
    topic: str | None = None,
    message: int = 0,
) -> Cloud:
    """Read the points of the file `path` as one example. Everything the file stores for each point becomes a row.

    PLY (ASCII and binary), PCD (ASCII, binary, compressed), LAS, LAZ and COPC, E57, NPY and NPZ, KITTI's `.bin`,
    nuScenes' `.pcd.bin`, XYZ, ASC, TXT, CSV and PTS (a point per line, numbers separated by whitespace, commas or
    semicolons), and `sensor_msgs/PointCloud2` in ROS 1 `.bag`, ROS 2 `.db3` and `.mcap`. Columns are found by name
    where the file names them; otherwise the first three (or two) are the coordinates.

    `topic` chooses between the topics of a bag with clouds, `message` between the clouds of a topic: 0 is the first, -1
    the last.

    Coordinates are float32, or float64 for LAS, where the file declares numbers that float32 cannot hold, and of text
    where float32 would move a point by a millionth of the widest side; `dtype` overrides. Points that are not finite
    are kept: what uses them will say so.

    Rows have the names of their columns in lower case, `rgb` (S, 3) and `normal` (S, 3), which is a direction, among
    them; what stands behind the coordinates without a name is `features`. `rows` are the names of those wanted, by
    default all; one that the file does not have is refused.

    A compressed file may unpack to `max_bytes`, by default the larger of 256 MiB and 100 times its length. A file that
    ends too early, is not what its name says, or cannot be understood raises `FormatError`. With `isolated` the file is
    read in a process of its own, whose crash, hang or hunger for memory is a `FormatError`, too: see the page on
    untrusted files.
    """
    path = Path(path)
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"read_cloud: dtype must be torch.float32 or torch.float64, not {dtype}")
    if not is_bag(path):
        check_file(path)
    if isolated:
        return read_isolated(read_cloud, path, max_bytes, dtype=dtype, rows=rows, topic=topic, message=message)
    points = _read(path, max_bytes, topic, message)
    rows = [rows] if isinstance(rows, str) else rows
    missing = [name for name in rows or () if name not in points.rows]
    if missing:
        raise FormatError(
            path, f"its points have no {missing[0]!r}, only {', '.join(points.rows)[:200] or 'coordinates'}"
        )
    columns = {name: torch.from_numpy(plain(points.rows[name])) for name in (points.rows if rows is None else rows)}
    wanted = points.dtype if dtype is None else np.dtype("f4" if dtype == torch.float32 else "f8")
    with np.errstate(over="ignore"):
        coords = torch.from_numpy(np.array(points.coords, wanted, order="C"))
    return Cloud(
        coords,
        torch.tensor([0, len(coords)], device=coords.device),
        rows=Rows(columns),
        directions=normals(columns, coords),
    )


def read_parts(path: Path) -> Parts:
    """A file piece by piece: LAS, LAZ and COPC, binary PLY and NPY, of which no more is in memory than a piece.

    Files of other formats are one piece.
    """
    check_file(path)
    suffix = path.suffix.lower()
    if suffix not in IN_PARTS or not path.stat().st_size:
        points = _read(path, None)
        return Parts([len(points.coords)], lambda k: points)
    return import_module(f"gridless.data.readers.clouds.{READERS[suffix]}").parts(Source.mapped(path))


def _read(path: Path, max_bytes: int | None, topic: str | None = None, message: int = 0) -> Points:
    suffix = path.suffix.lower() if path.is_file() else ".db3"
    if suffix in MESHES:
        raise FormatError(path, "a mesh has no points. Use gl.data.sample_mesh(path, points=1024).")
    if suffix not in READERS:
        raise FormatError(path, f"unknown suffix {suffix!r}. There are readers for {', '.join(sorted(READERS))}.")
    if (topic is not None or message) and READERS[suffix] != "ros":
        raise FormatError(path, f"has no topics. The options topic and message are for {', '.join(SUFFIXES)}.")
    by_path = suffix in BY_PATH
    source = Source(path, b"", Limits(path, max_bytes), topic, message) if by_path else Source.of(path, max_bytes)
    if not source.data and not (by_path and path.stat().st_size):
        raise source.error("holds no points: the file is empty")
    return import_module(f"gridless.data.readers.clouds.{READERS[suffix]}").read(source)
