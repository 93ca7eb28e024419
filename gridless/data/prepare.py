"""Prepares the points of a file for a network, the same way in training and in prediction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gridless.data.errors import FormatError
from gridless.data.readers.bags import is_bag
from gridless.data.readers.clouds import MESHES, ply, read_cloud
from gridless.data.readers.clouds.base import Source
from gridless.data.readers.meshes import sample_mesh
from gridless.structures import Cloud, Rows
from gridless.structures.interchange import narrowest

# The axis that points up -> the order of axes that puts it at y, and their signs: left stays left.
_TURNS = {"x": ((1, 0, 2), (-1, 1, 1)), "y": ((0, 1, 2), (1, 1, 1)), "z": ((0, 2, 1), (1, 1, -1))}


@dataclass(frozen=True)
class Preparation:
    """Settings of the preparation: points are turned y up, centred, and scaled to the unit sphere."""

    up: str = "y"
    """The axis that points up in the file: x, y or z."""
    keep_scale: bool = False
    """Do not centre and scale to the unit sphere. Coordinates that float32 cannot hold, such as those of a map, are
    moved by whole numbers, their middle to the origin."""
    features: Sequence[str] = ()
    """Rows that the network sees, such as [rgb, intensity]; `NAME.2` is a column. Bytes become 0 to 1."""
    block: float | None = None
    """Cut a cloud into columns of this side, in the file's units, each an example about its middle, in that scale."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """Divisors of the features in training, by name (see `scale`); files of another type are refused. Training fills it
    in."""

    def __post_init__(self) -> None:
        if self.up not in _TURNS:
            raise ValueError(f"up must be x, y or z, not {self.up!r}")
        check_length("block", self.block)
        features = (self.features,) if isinstance(self.features, str) else tuple(self.features)
        object.__setattr__(self, "features", features)


def y_up(coords: Tensor, how: Preparation) -> Tensor:
    """Places or directions (..., 3) of a file, turned y up."""
    order, signs = map(torch.tensor, _TURNS[how.up])
    return coords[..., order] * signs


def check_length(name: str, value: float | None) -> None:
    """Refuse what is neither None nor a length."""
    if value is not None and not (isinstance(value, (int, float)) and 0 < value < math.inf):
        raise ValueError(f"{name} must be a length above 0, in the units of the points, not {value!r}")


def read_points(
    file: str | Path, points: int, how: Preparation, label: bool = False, topic: str | None = None
) -> Cloud:
    """The cloud in a file with its rows, or `points` points on a mesh.

    A PLY with faces is a mesh, unless what its vertices have is wanted, features or a `label`, or blocks are cut.
    """
    suffix = Path(file).suffix.lower()
    if suffix in MESHES:
        return sample_mesh(file, points, normalise=False)
    if suffix == ".ply" and not (label or how.features or how.block):
        # Faces that cannot be read leave the vertices; what else is wrong, their reader says.
        with suppress(FormatError, FileNotFoundError):
            if ply.has_faces(Source.mapped(Path(file))):
                return sample_mesh(file, points, normalise=False)
    cloud = read_cloud(file, topic=topic if topic is not None and is_bag(Path(file)) else None)
    if not len(cloud):
        raise ValueError(f"{file}: has no points")
    return cloud


def is_finite(cloud: Cloud) -> Tensor:
    """True for points that have a place, (S) bool: sensors give NaN for returns that do not come back."""
    return cloud.coords.isfinite().all(1)


def blocks(cloud: Cloud, how: Preparation) -> list[Tensor]:
    """The points of each block, in the order of the blocks; without blocks one of them all."""
    if how.block is None:
        return [torch.arange(len(cloud), device=cloud.device)]
    flat = [axis for axis in range(3) if axis != "xyz".index(how.up)]
    cell = (cloud.coords[:, flat] / how.block).floor().long()
    _, number = cell.unique(dim=0, return_inverse=True)
    order = number.argsort(stable=True)
    return list(order.split(number.bincount().tolist()))


AS_USUAL = Preparation()


def prepare(
    cloud: Cloud, what: str, points: int | None = None, how: Preparation = AS_USUAL, kept: Sequence[str] = ()
) -> Cloud:
    """The cloud of a file as networks see it: at most `points` points, turned, centred and scaled, the rows `kept`."""
    coords = cloud.coords
    if coords.shape[1] < 3 or not len(coords):
        raise ValueError(f"{what}: points must have three coordinates, not the shape {tuple(coords.shape)}")
    Cloud.of(coords[:, :3]).check(what)
    if points is not None and len(coords) > points:
        cloud = cloud[torch.randperm(len(coords), generator=torch.Generator().manual_seed(0), device="cpu")[:points]]
        coords = cloud.coords
    coords = y_up(coords, how)
    if how.block is not None:
        low, high = coords.min(0).values, coords.max(0).values
        coords = coords - torch.stack([(low[0] + high[0]) / 2, low[1], (low[2] + high[2]) / 2])
    elif how.keep_scale:
        if narrowest(coords.numpy()) == np.float64:
            coords = coords - ((coords.min(0).values + coords.max(0).values) / 2).round()
    else:
        same = bool((coords == coords[0]).all())  # their mean is rounded, and may be another point
        coords = coords - coords.mean(0)
        size = coords.norm(dim=1).max()
        if same or size == 0:
            raise ValueError(f"{what}: all {len(coords)} points are the same")
        coords = coords / size
    rows = {name: _feature(cloud, name, what, how) for name in kept}
    directions = ("normal",) if "normal" in rows else ()
    return Cloud.of(coords.float().contiguous(), directions=directions, **rows)


def row(cloud: Cloud, name: str, what: str) -> Tensor:
    """A row of a cloud, or NAME.2, a column of it."""
    whole, _, column = name.partition(".")
    if name in cloud.rows:
        return cloud.rows[name]
    if whole not in cloud.rows or not column.isdigit() or int(column) >= cloud.rows[whole][0:1].numel():
        raise ValueError(f"{what}: its points have no {name!r}, only {', '.join(cloud.rows) or 'coordinates'}")
    return cloud.rows[whole].flatten(1)[:, int(column)]


def _feature(cloud: Cloud, name: str, what: str, how: Preparation) -> Tensor:
    """As float32 (S, channels), normals y up; whole numbers of one or two bytes from 0 to 1. Labels stay."""
    values = row(cloud, name, what)
    if name == "part":
        return values
    if values.is_floating_point() and not values.isfinite().all():
        raise ValueError(f"{what}: some {name!r} are not finite. Remove such points, or replace the values.")
    values, by = values[:, None] if values.ndim == 1 else values.flatten(1), scale(values.dtype)
    check_scales({name: {how.scales.get(name, by): "training", by: what}})
    values = values.float() / by
    return y_up(values, how) if name == "normal" else values


def scale(dtype: torch.dtype) -> int:
    """The divisor of features of a type. Readers give int32 for numbers of two bytes, and for nothing else."""
    return {torch.uint8: 255, torch.int32: 65535}.get(dtype, 1)


def check_scales(scales: Mapping[str, Mapping[int, str]]) -> None:
    """Refuse features that some files have in one or two bytes and others not: by name, a file of each `scale`."""
    for name, files in scales.items():
        if len(files) > 1:
            (a, first), (b, second) = list(files.items())[:2]
            raise ValueError(
                f"{name!r} has different types: it is divided by {a} in {first} and by {b} in {second}. "
                "Convert the files to one type."
            )


def joined(cloud: Cloud, features: Sequence[str]) -> Cloud:
    """The same cloud with the rows `features`, side by side, as one of that name."""
    if not features:
        return cloud
    rows = {name: values for name, values in cloud.rows.items() if name not in features}
    rows["features"] = torch.cat([cloud.rows[name] for name in features], 1)
    return cloud._changed(rows=Rows(rows), directions=())


def turned(cloud: Cloud, how: Preparation, what: str, kept: Sequence[str] = ()) -> Cloud:
    """A scan, or a part of a scene, as the network sees it: turned, y up, neither centred nor scaled, with its features
    in one row and the rows `kept`."""
    rows = {name: _feature(cloud, name, what, how) for name in how.features}
    others = {name: cloud.rows[name] for name in kept} | (
        {"features": torch.cat(list(rows.values()), 1)} if rows else {}
    )
    return Cloud.of(y_up(cloud.coords, how).float(), directions=(), **others)


def padded(parts: Sequence[Tensor]) -> Tensor:
    """(N, longest, ...), zeros behind the shorter ones."""
    out = parts[0].new_zeros(len(parts), max(map(len, parts)), *parts[0].shape[1:])
    for i, part in enumerate(parts):
        out[i, : len(part)] = part
    return out
