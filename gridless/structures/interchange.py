"""Clouds and events of other libraries, read. None is imported before it is met."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

# Columns that belong together: the row they make, and what they are called.
TOGETHER = (
    ("rgb", ("red", "green", "blue")),
    ("rgb", ("r", "g", "b")),
    ("normal", ("nx", "ny", "nz")),
    ("normal", ("normal_x", "normal_y", "normal_z")),
)
# PyG's names of rows, and ours.
PYG = {"x": "features", "y": "label"}


class Held(NamedTuple):
    """A cloud of another library: coordinates (S, D), rows by name, and where its examples begin, if it says so."""

    coords: Any
    rows: dict[str, Any]
    splits: Tensor | None = None


def held_cloud(x: Any) -> Held | None:
    """The content of a cloud of another library, a table or a structured array; None for anything else."""
    if isinstance(x, np.ndarray):
        return None if x.dtype.names is None else _table((name, x[name]) for name in x.dtype.names)
    if isinstance(x, Mapping):
        return _table((name, np.asarray(column)) for name, column in x.items())
    for kind, read in _CLOUDS.items():
        if _is_of(x, kind):
            return read(x)
    return None


def held_events(x: Any) -> tuple[Any, tuple[int, int] | None]:
    """Arrays by name in place of a table, and of a stream of faery also its sensor; anything else as it is."""
    if _is_of(x, "pandas") or _is_of(x, "polars"):
        return {str(name): x[name].to_numpy() for name in x.columns}, None
    if _is_of(x, "faery"):
        if not hasattr(x, "to_array"):
            raise TypeError(
                "Events.of: this faery stream has no end. Use its packets: Events.of(packet, sensor=x.dimensions())."
            )
        return x.to_array(), x.dimensions()
    return x, None


def grouped(columns: Iterable[tuple[str, np.ndarray]]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The two or three coordinates among columns (S, ...) with names in any case, and the rows that the others make."""
    by_name: dict[str, np.ndarray] = {}
    for name, column in columns:
        name = str(name).lower()
        if name in by_name:
            raise ValueError(f"two columns have the name {name!r}")
        by_name[name] = column
    axes = [axis for axis in "xyz" if axis in by_name]
    if not axes and all(axis in by_name for axis in numbered(4)):
        axes = [*takewhile(by_name.__contains__, numbered(8))]
    elif axes[:2] != ["x", "y"]:
        missing = "x" if "x" not in axes else "y"
        raise ValueError(f"the points have no {missing!r}, only {', '.join(by_name)[:200] or 'nothing'}")
    parts = [by_name.pop(axis) for axis in axes]
    if any(part.ndim != 1 or part.dtype.kind not in "fiu" for part in parts):
        raise ValueError("x, y and z must be one number for each point")
    for row, names in TOGETHER:
        if row not in by_name and all(n in by_name and by_name[n].ndim == 1 for n in names):
            by_name[row] = np.stack([by_name.pop(n) for n in names], 1)
    return parts, by_name


def numbered(dim: int) -> list[str]:
    """The names of more coordinates than there are letters."""
    return [f"x{k}" for k in range(dim)]


def natural(*dtypes: np.dtype) -> np.dtype:
    """float32, or float64 where float32 cannot hold such numbers."""
    return np.dtype(np.float32 if np.result_type(np.float32, *dtypes) == np.float32 else np.float64)


def narrowest(coords: np.ndarray) -> np.dtype:
    """float32 where that moves no point of (S, D) by a millionth of the widest side, float64 otherwise."""
    finite = np.isfinite(coords)
    with np.errstate(over="ignore", invalid="ignore"):
        moved = np.abs(coords - coords.astype(np.float32)).max(where=finite, initial=0.0)
    if not moved:
        return np.dtype(np.float32)
    sides = coords.max(0, where=finite, initial=-np.inf) - coords.min(0, where=finite, initial=np.inf)
    # Points that are all in one place: by how far that is from the origin.
    scale = sides.max() or np.abs(coords).max(where=finite, initial=0.0)
    return np.dtype(np.float32 if np.isfinite(moved) and moved <= 1e-6 * scale else np.float64)


def plain(column: np.ndarray) -> np.ndarray:
    """In memory of its own and in a type that every operation of torch knows; int32 is what had two bytes."""
    fits = column.dtype.str[1:] == "u8" and not (column > 2**63 - 1).any()
    return np.array(column, "i8" if fits else plain_type(column.dtype), order="C")


def plain_type(kind: np.dtype) -> np.dtype:
    """The type of `plain`, whatever the values are: numbers of 64 bits without a sign may be too large for int64."""
    name = kind.str[1:]
    wider = {"f2": "f4", "f16": "f8", "u2": "i4", "u4": "i8", "i4": "i8", "u8": "f8"}
    return np.dtype(wider.get(name, name))


def normals(rows: Mapping[str, Any], coords: Any) -> tuple[str, ...]:
    """The names of rows that are directions: normals, if they have as many dimensions as the points."""
    real = [n for n in ("normal", "norm") if n in rows and tuple(rows[n].shape) == tuple(coords.shape)]
    return tuple(n for n in real if "float" in str(rows[n].dtype))


# Clouds of other libraries.


def _table(columns: Iterable[tuple[str, np.ndarray]]) -> Held:
    try:
        parts, rows = grouped(columns)
    except ValueError as error:
        raise ValueError(f"Cloud.of: {error}") from None
    for name, column in rows.items():
        if column.dtype.kind not in "fiub":
            raise TypeError(
                f"Cloud.of: the column {name!r} holds {column.dtype}, not numbers. "
                "Leave it out, or number its values, e.g. with pandas.factorize."
            )
    coords = np.stack(parts, 1).astype(natural(*(p.dtype for p in parts)))
    return Held(coords, {name: plain(column) for name, column in rows.items()})


def _frame(frame: Any) -> Held:
    return _table((str(name), frame[name].to_numpy()) for name in frame.columns)


def _pyg(data: Any) -> Held:
    """`pos`, and all that belongs to nodes; `x` is called features, `y` label. Attributes of graphs are left out."""
    if getattr(data, "pos", None) is None:
        raise ValueError("Cloud.of: this PyG Data has no points. Set data.pos, (N, D).")
    keys = [*map(str, data.keys())]
    # PyG keeps facts about the batch itself: batch, and x_batch where x was to be followed.
    own = {"pos", "batch", "ptr", *(f"{name}_{what}" for name in keys for what in ("batch", "ptr"))}
    names = [n for n in keys if n not in own and data.is_node_attr(n)]
    rows: dict[str, Any] = {PYG.get(n, n): data[n] for n in names if isinstance(data[n], Tensor | np.ndarray)}
    splits = getattr(data, "ptr", None)
    batch = getattr(data, "batch", None)
    if splits is None and batch is not None and len(batch):
        if bool((batch[1:] < batch[:-1]).any()):
            raise ValueError("Cloud.of: the batch vector of this PyG Data is not sorted. Sort the points by example.")
        splits = torch.cat([batch.new_zeros(1), torch.bincount(batch).cumsum(0)])
    return Held(data.pos, rows, splits)


def _open3d(cloud: Any) -> Held:
    if hasattr(cloud, "point"):
        # The newer class, o3d.t.geometry.PointCloud, whose rows have any names.
        named: dict[str, str] = {"colors": "rgb", "normals": "normal"}
        rows: dict[str, Any] = {named.get(str(n), str(n)): plain(v.cpu().numpy()) for n, v in cloud.point.items()}
        if "positions" not in rows:
            raise ValueError("Cloud.of: this Open3D point cloud is empty")
        return Held(rows.pop("positions"), rows)
    if not hasattr(cloud, "points"):
        raise TypeError(
            f"Cloud.of: an Open3D {type(cloud).__name__} has no points. "
            "Sample some: mesh.sample_points_uniformly(1024)."
        )
    kinds = (("rgb", "colors"), ("normal", "normals"))
    rows = {row: np.asarray(getattr(cloud, theirs), np.float32) for row, theirs in kinds if len(getattr(cloud, theirs))}
    return Held(np.array(cloud.points, np.float64).reshape(-1, 3), rows)


def _trimesh(mesh: Any) -> Held:
    """A PointCloud with its colours; of a mesh the vertices, with colours and normals."""
    if not hasattr(mesh, "vertices"):
        raise TypeError(f"Cloud.of: a trimesh {type(mesh).__name__} has no vertices. Use scene.to_geometry().")
    coords, rows = np.array(mesh.vertices, np.float64).reshape(-1, np.shape(mesh.vertices)[-1]), {}
    visual = getattr(mesh, "visual", None)
    colours = np.asarray(mesh.colors if visual is None else getattr(visual, "vertex_colors", ()))
    given = visual is None or getattr(visual, "kind", None) in ("vertex", "face")
    if given and colours.shape[:1] == coords.shape[:1] and colours.ndim == 2:
        rows["rgb"] = np.array(colours[:, :3])
    if len(getattr(mesh, "faces", ())):
        rows["normal"] = np.array(mesh.vertex_normals, np.float64)
    return Held(coords, rows)


_CLOUDS: dict[str, Callable[[Any], Held]] = {
    "torch_geometric": _pyg,
    "open3d": _open3d,
    "trimesh": _trimesh,
    "pandas": _frame,
    "polars": _frame,
}


def _is_of(x: Any, package: str) -> bool:
    """True if a class of x, or a base of it, comes from a package."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(x).__mro__)


def package(module: str, what: str, package: str) -> Any:
    """A module of an optional package, for the function `what`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f"{what}: {package} is not installed. Run: pip install {package}") from error
