"""Writing clouds: PLY, LAS, LAZ and NPY, with their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.errors import library
from gridless.data.files import whole_file
from gridless.data.readers.clouds import ply
from gridless.structures import Cloud

# Rows that LAS has a place for; others become extra bytes.
LAS_ROWS = {
    "intensity", "return_number", "number_of_returns", "synthetic", "key_point", "withheld", "overlap",
    "scanner_channel", "scan_direction_flag", "edge_of_flight_line", "classification", "user_data", "point_source_id",
    "gps_time", "rgb", "scan_angle",
}  # fmt: skip
BITS = {"return_number": 4, "number_of_returns": 4, "scanner_channel": 2, "classification": 8, "user_data": 8}
BITS |= {"intensity": 16, "point_source_id": 16}
# The finest step of a coordinate in LAS, and how many steps 32 bits have.
FINEST, STEPS = 1e-6, 2**31 - 2
DEGREES = 0.006


def write_cloud(path: str | Path, cloud: Cloud) -> None:
    """Write one cloud with its rows. The suffix decides the format: `.ply`, `.las`, `.laz` or `.npy`.

    - `.ply` is binary: coordinates in their type, `rgb` as red, green, blue, `normal` as nx, ny, nz, others by name.
    - `.las` and `.laz` are of version 1.4. Coordinates are rounded to the finest power of ten that 32 bits hold, a
      millionth at best. Colours of one byte become those of two. Rows without a place in LAS become extra bytes.
    - `.npy` is an array (S, D), or a structured one with the fields x, y, z and the rows.

    `gl.read_cloud` reads all of them back. Values that a format cannot store are refused. If writing fails, an existing
    file is unchanged.
    """
    path = Path(path)
    if not isinstance(cloud, Cloud):
        kind = type(cloud).__name__
        raise TypeError(
            f"write_cloud: the second argument must be a Cloud, not {kind}. Use gl.write_cloud(path, cloud)."
        )
    if path.suffix.lower() not in WRITERS:
        raise ValueError(
            f"{path}: clouds are written as {', '.join(WRITERS)}, not as {path.suffix or 'a file without suffix'}"
        )
    if cloud.num_examples != 1 or cloud.padding:
        raise ValueError(
            f"{path}: a file holds one cloud without padding, not {cloud.num_examples}. Write x.examples[i]."
        )
    WRITERS[path.suffix.lower()](path, cloud)


def _npy(path: Path, cloud: Cloud) -> None:
    coords = cloud.coords.detach().cpu().numpy()
    if not cloud.rows:
        table: Any = coords
    else:
        rows = {name: row.detach().cpu().numpy() for name, row in cloud.rows.items()}
        fields: list[Any] = [(axis, coords.dtype) for axis in "xyz"[: coords.shape[1]]]
        fields += [(name, row.dtype, row.shape[1:]) for name, row in rows.items()]
        table = np.empty(len(coords), fields)
        for axis, column in zip("xyz", coords.T):
            table[axis] = column
        for name, row in rows.items():
            table[name] = row
    with whole_file(path) as out:
        np.save(out, table, allow_pickle=False)


def _las(path: Path, cloud: Cloud) -> None:
    laspy = library("laspy", path)
    coords = cloud.coords.detach().cpu().numpy().astype(np.float64)
    if coords.shape[1] != 3 or not np.isfinite(coords).all():
        raise ValueError(f"{path}: LAS needs three finite coordinates. Remove other points, or write .ply.")
    rows = {name: row.detach().cpu().numpy() for name, row in cloud.rows.items()}
    header = laspy.LasHeader(point_format=7 if "rgb" in rows else 6, version="1.4")
    low, high = (coords.min(0), coords.max(0)) if len(coords) else (np.zeros(3), np.zeros(3))
    header.offsets = np.floor((low + high) / 2)
    reach = max(float(np.abs(coords - header.offsets).max(initial=0.0)), FINEST)
    header.scales = np.full(3, max(FINEST, 10.0 ** np.ceil(np.log10(reach / STEPS))))
    extra = {name: _extra(path, name, row) for name, row in rows.items() if name not in LAS_ROWS}
    types = {name: row.dtype if row.ndim == 1 else f"{row.shape[1]}{row.dtype.str[1:]}" for name, row in extra.items()}
    header.add_extra_dims([laspy.ExtraBytesParams(name, kind) for name, kind in types.items()])
    points: Any = laspy.ScaleAwarePointRecord.zeros(len(coords), header=header)
    points.x, points.y, points.z = coords.T
    for name, row in rows.items():
        if name == "rgb":
            points.red, points.green, points.blue = _colour(path, row).T
        elif name == "scan_angle":
            points.scan_angle = np.round(row / DEGREES).astype(np.int16)
        else:
            points[name] = extra[name] if name in extra else _fitting(path, name, row)
    data = laspy.LasData(header, points)
    with whole_file(path) as out:
        # laspy closes what it is given.
        target: Any = _Kept(out)
        data.write(target, do_compress=path.suffix.lower() == ".laz")


class _Kept:
    """A file that stays open when a library closes it."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def close(self) -> None:
        pass


def _colour(path: Path, rgb: np.ndarray) -> np.ndarray:
    """Colours as two bytes."""
    if rgb.shape[1:] != (3,):
        raise ValueError(f"{path}: rgb must be (points, 3) for LAS, not {rgb.shape}")
    if rgb.dtype == np.uint8:
        return rgb.astype(np.uint16) * 257
    if rgb.dtype.kind == "f" and rgb.min(initial=0) >= 0 and rgb.max(initial=0) <= 1:
        return np.round(rgb * 65535).astype(np.uint16)
    return _whole(path, "rgb", rgb, 16)


def _fitting(path: Path, name: str, row: np.ndarray) -> np.ndarray:
    if row.ndim != 1:
        raise ValueError(
            f"{path}: {name!r} must be one number per point in LAS, not {row.shape[1:]}. Rename it, or write .ply."
        )
    return row if name == "gps_time" else _whole(path, name, row, BITS.get(name, 1))


def _whole(path: Path, name: str, row: np.ndarray, bits: int) -> np.ndarray:
    if (row != np.floor(row)).any() or row.min(initial=0) < 0 or row.max(initial=0) >= 1 << bits:
        problem = f"{name!r} must be whole numbers from 0 to {(1 << bits) - 1} in LAS"
        raise ValueError(f"{path}: {problem}. Scale or rename it, or write .ply or .npy.")
    return row.astype(np.uint8 if bits <= 8 else np.uint16)


def _extra(path: Path, name: str, row: np.ndarray) -> np.ndarray:
    """A row that LAS has no place for, in a type that extra bytes have: up to three numbers a point."""
    row = row.reshape(len(row), -1) if row.ndim > 1 else row
    if row.ndim == 2 and row.shape[1] == 1:
        row = row[:, 0]
    if (row.ndim == 2 and row.shape[1] > 3) or len(name.encode()) > 32:
        problem = f"{name!r} has {row.shape[-1]} numbers per point, or a name of over 32 bytes: too long for LAS"
        raise ValueError(f"{path}: {problem}. Write .ply or .npy.")
    # LAS has neither bits nor numbers of half precision.
    return row.astype({"?": np.uint8, "e": np.float32}.get(row.dtype.char, row.dtype))


WRITERS = {".ply": ply.write, ".las": _las, ".laz": _las, ".npy": _npy}
