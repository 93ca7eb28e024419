"""Augmentation of point clouds: frozen settings, cloud in, cloud out.

Each takes one example or a ragged batch, a `Cloud`, on any device; every example of a batch draws its own numbers. Rows
follow their points, and those that are directions turn with them. One example may also be an (S, D) tensor or array of
coordinates, and then coordinates come back. Random numbers come from `generator`, on its device, or from torch's own on
the cloud's device, which a DataLoader seeds in each worker; or from any `Draws`.

    generator = torch.Generator().manual_seed(0)
    for step in (Shuffle(), Drop(0.5), Scale(0.8, 1.25)):
        cloud = step(cloud, generator)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, overload

import torch
from torch import Generator, Tensor

from gridless.augment.draws import FINITE, Draws, Settings
from gridless.structures import Cloud, Rows


@dataclass(frozen=True)
class PointTransform(Settings):
    """Points to points. Subclasses write `apply`, for a ragged batch."""

    @overload
    def __call__(self, points: Cloud, generator: Generator | Draws | None = None) -> Cloud: ...
    @overload
    def __call__(self, points: Any, generator: Generator | Draws | None = None) -> Tensor: ...
    def __call__(self, points: Any, generator: Generator | Draws | None = None) -> Cloud | Tensor:
        cloud = points if isinstance(points, Cloud) else self._cloud(points)
        if cloud.padding:
            raise ValueError(f"{type(self).__name__}: the cloud is padded. Augment first, then pad.")
        result = self.apply(cloud, Draws.of(generator))
        return result if isinstance(points, Cloud) else result.coords

    def _cloud(self, points: Any) -> Cloud:
        shape = tuple(getattr(points, "shape", ()))
        if len(shape) != 2 or shape[1] > 3:
            message = f"{type(self).__name__} takes a Cloud or an (S, 1 to 3) array, not "
            if not shape:
                raise TypeError(f"{message}{type(points).__name__}. For a batch use gl.Cloud.of([...]).")
            if len(shape) == 3:
                raise ValueError(f"{message}{shape}. For a batch use gl.Cloud.of(x).")
            raise ValueError(f"{message}{shape}. For more values use gl.Cloud.of(x[:, :3], rgb=x[:, 3:]).")
        return Cloud.of(points)

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        raise NotImplementedError


# Shared by the transforms.


def _uniform(cloud: Cloud, draws: Draws, low: float, high: float, *shape: int) -> Tensor:
    """Numbers for each example (B, ...)."""
    return low + (high - low) * draws.uniform(cloud, *shape, dtype=cloud.coords.dtype)


# Under this name a cloud keeps how many points each example has, where all are known to have as many.
EVEN = "points of each example"


def _even(cloud: Cloud) -> int | None:
    return len(cloud) if cloud.num_examples == 1 else cloud.cached(EVEN, lambda: None)


def _with(cloud: Cloud, function: Callable[[Tensor, Tensor], Tensor], points: Tensor, values: Tensor) -> Tensor:
    """`function` of what points have (S, ...) and of what their examples have (B, ...), as these broadcast."""
    if (even := _even(cloud)) is None:
        return function(points, values[cloud.example])
    return function(points.reshape(cloud.num_examples, even, *points.shape[1:]), values[:, None]).flatten(0, 1)


def _moved(cloud: Cloud, coords: Tensor, turn: Callable[[Tensor], Tensor] | None = None) -> Cloud:
    """The same points elsewhere; `turn` is what becomes of their directions (S, ..., D)."""
    rows = cloud.rows
    if turn is not None and cloud.directions:
        turned = {name: turn(rows[name].to(coords.dtype)).to(rows[name].dtype) for name in cloud.directions}
        rows = Rows({**rows, **turned})
    moved = Cloud.made(coords=coords.contiguous(), splits=cloud.splits, rows=rows, directions=cloud.directions)
    return _alike(cloud, moved)


def _alike(cloud: Cloud, other: Cloud) -> Cloud:
    """The other, whose examples are of the cloud's sizes: what is known of these is not found again."""
    if cloud.num_examples > 1:
        other.cached("example", lambda: cloud.example)
        other.cached(EVEN, lambda: _even(cloud))
    return other


def _kept_first(cloud: Cloud, counts: Tensor) -> Cloud:
    """The first counts[b] points of each example b."""
    if cloud.num_examples == 1 and cloud.device.type == "cpu":
        return cloud[: int(counts)]
    keep = _with(cloud, torch.lt, torch.arange(len(cloud), device=cloud.device), cloud.splits[:-1] + counts)
    return cloud._part(keep, torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def _axes(like: Tensor) -> Tensor:
    return torch.eye(3, dtype=like.dtype, device=like.device)


def _rotated(cloud: Cloud, matrix: Tensor) -> Cloud:
    """matrix (B, 3, 3), a rotation, applied to the points of each example: to the bit the same in any batch."""

    def product(vectors: Tensor, each: Tensor) -> Tensor:
        x, y, z = (each[..., d] * vectors[..., d, None] for d in range(3))
        return x + y + z

    def turn(vectors: Tensor) -> Tensor:
        return _with(cloud, product, vectors, matrix.reshape(-1, *[1] * (vectors.ndim - 2), 3, 3))

    return _moved(cloud, turn(cloud.coords), turn)


def _scaled(cloud: Cloud, factor: Tensor) -> Cloud:
    """factor (B, D), or (B, 1) for all axes, times the points of each example."""

    def turn(vectors: Tensor) -> Tensor:
        # Normals stay across the surface, and as long as they were: they are divided by the factors that the surface is
        # multiplied by.
        divided = _with(cloud, torch.div, vectors, factor.reshape(-1, *[1] * (vectors.ndim - 2), factor.shape[1]))
        length = vectors.norm(dim=-1, keepdim=True)
        return divided * (length / divided.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny))

    return _moved(cloud, _with(cloud, torch.mul, cloud.coords, factor), turn if factor.shape[1] > 1 else None)


def _need_3d(cloud: Cloud, what: PointTransform) -> None:
    if cloud.dim != 3:
        raise ValueError(f"{type(what).__name__} needs points of 3 dimensions, not {cloud.dim}")


# Transforms that choose points.


@dataclass(frozen=True)
class First(PointTransform):
    """The first `count` points of each example, or all where there are fewer."""

    count: int

    bounds: ClassVar = {"count": (1, FINITE)}

    def describe(self) -> str:
        return f"the first {self.count} points"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        return _kept_first(cloud, cloud.sizes.clamp(max=self.count))


@dataclass(frozen=True)
class Shuffle(PointTransform):
    """The points of each example in random order."""

    def describe(self) -> str:
        return "points in random order"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        place = draws.uniform(cloud, each="row", dtype=torch.float64)
        if (even := _even(cloud)) is None:
            order = torch.argsort(place + cloud.example, stable=True)
        else:
            order = (torch.argsort(place.view(-1, max(even, 1)), stable=True) + cloud.splits[:-1, None]).flatten()
        return _alike(cloud, cloud._part(order, cloud.splits))


@dataclass(frozen=True)
class Drop(PointTransform):
    """Keep the first floor(n (1 - p)) of n points, at least one, with p from U(0, most): shuffle before."""

    most: float = 0.875

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise ValueError(f"Drop: most must be at least 0 and less than 1, not {self.most}")

    def describe(self) -> str:
        return f"up to {self.most:.0%} of the points left out"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        share = 1 - _uniform(cloud, draws, 0, self.most).double()
        counts = (cloud.sizes * share).floor().long()
        return _kept_first(cloud, torch.minimum(counts.clamp(min=1), cloud.sizes))


# Transforms that move points.


@dataclass(frozen=True)
class Normalise(PointTransform):
    """Move the mean of each example to the origin and scale it into the unit sphere."""

    def describe(self) -> str:
        return "centred and scaled to the unit sphere"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        from gridless.ops.segment_pool import segment_max, segment_mean

        if not len(cloud):
            return cloud
        # In float64: float32 holds huge coordinates, and not their sum. From the first point: the mean of equal points
        # is then one of them to the bit, and nothing is left to be scaled.
        first = cloud.coords[cloud.splits[:-1].clamp(max=len(cloud) - 1)].double()
        apart = _with(cloud, torch.sub, cloud.coords.double(), first)
        middle = (first + segment_mean(apart, cloud.splits)).to(cloud.coords.dtype)
        centred = _with(cloud, torch.sub, cloud.coords, middle)
        largest = segment_max(centred.abs().amax(1, keepdim=True), cloud.splits)
        # Squares of such numbers are beyond those of float32.
        odd = (largest > 0) & ((largest < 1e-15) | (largest > 1e15))
        centred = _with(cloud, torch.div, centred, torch.where(odd, largest, 1))
        reach = segment_max(centred.norm(dim=1, keepdim=True), cloud.splits)
        return _moved(cloud, _with(cloud, torch.div, centred, torch.where(reach > 0, reach, 1)))


@dataclass(frozen=True)
class Jitter(PointTransform):
    """Move each point by N(0, sigma) along every axis, by at most `clip`: each coordinate, or in a `ball`."""

    sigma: float = 0.01
    clip: float = 0.05
    ball: bool = False

    bounds: ClassVar = {"sigma": (0, FINITE), "clip": (0, torch.inf)}

    def describe(self) -> str:
        return f"points moved by about {self.sigma:g}"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        by = self.sigma * draws.normal(cloud, cloud.dim, each="row", dtype=cloud.coords.dtype)
        if self.ball:
            far = by.norm(dim=1, keepdim=True)
            by = torch.where(far > self.clip, by * (self.clip / far), by)
        else:
            by = by.clamp(-self.clip, self.clip)
        return _moved(cloud, cloud.coords + by)


@dataclass(frozen=True)
class Tilt(PointTransform):
    """Turn about a random axis through the origin, by an angle from N(0, sigma) cut off at the limit, in radians."""

    sigma: float = 0.06
    limit: float = 0.18

    bounds: ClassVar = {"sigma": (0, FINITE), "limit": (0, torch.inf)}

    def describe(self) -> str:
        return f"tilted by about {math.degrees(self.sigma):.0f} degrees"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        _need_3d(cloud, self)
        axis = torch.nn.functional.normalize(draws.normal(cloud, 3, dtype=cloud.coords.dtype), dim=1)
        angle = (self.sigma * draws.normal(cloud, dtype=cloud.coords.dtype)).clamp(-self.limit, self.limit)
        return _rotated(cloud, _about(axis, angle))


@dataclass(frozen=True)
class RotateAboutUp(PointTransform):
    """Turn about the axis that points up, "x", "y" (as in ModelNet40) or "z", by any angle."""

    up: str = "y"

    def __post_init__(self) -> None:
        if self.up not in ("x", "y", "z"):
            raise ValueError(f"RotateAboutUp: up must be 'x', 'y' or 'z', not {self.up!r}")

    def describe(self) -> str:
        return "turned about the vertical by any angle"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        _need_3d(cloud, self)
        angle = _uniform(cloud, draws, 0, 2 * torch.pi)
        axis = _axes(angle)["xyz".index(self.up)]
        return _rotated(cloud, _about(axis.expand(len(angle), 3), angle))


@dataclass(frozen=True)
class Scale(PointTransform):
    """Multiply by a factor from U(low, high), one for all axes, or one for each."""

    low: float = 0.8
    high: float = 1.25
    each_axis: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high <= FINITE:
            raise ValueError(f"Scale: low is {self.low}, high {self.high}. They must be 0 < low <= high < 1e30.")

    def describe(self) -> str:
        return f"{self.low:g} to {self.high:g} times the size{' along each axis' if self.each_axis else ''}"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        factor = _uniform(cloud, draws, self.low, self.high, cloud.dim if self.each_axis else 1)
        return _scaled(cloud, factor)


@dataclass(frozen=True)
class Shift(PointTransform):
    """Move by a vector whose coordinates are from U(-limit, limit)."""

    limit: float = 0.1

    bounds: ClassVar = {"limit": (0, FINITE)}

    def describe(self) -> str:
        return f"shifted by up to {self.limit:g}"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        by = _uniform(cloud, draws, -self.limit, self.limit, cloud.dim)
        return _moved(cloud, _with(cloud, torch.add, cloud.coords, by))


@dataclass(frozen=True)
class Mirror(PointTransform):
    """Mirror along an axis (0 is x), with a probability."""

    axis: int
    probability: float = 0.5

    bounds: ClassVar = {"axis": (0, 7), "probability": (0, 1)}

    def describe(self) -> str:
        return f"mirrored along {'xyz'[self.axis] if self.axis < 3 else f'axis {self.axis}'}"

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        if self.axis >= cloud.dim:
            raise ValueError(f"Mirror: points of {cloud.dim} dimensions have no axis {self.axis}")
        sign = torch.ones(cloud.num_examples, cloud.dim, dtype=cloud.coords.dtype, device=cloud.device)
        sign[:, self.axis] = torch.where(_uniform(cloud, draws, 0, 1) < self.probability, -1.0, 1.0).to(sign)
        return _scaled(cloud, sign)


def _about(axis: Tensor, angle: Tensor) -> Tensor:
    """Rotations (B, 3, 3) about unit axes a (B, 3): cos I + sin K + (1 - cos) a a^T, with K the cross product by a."""
    x, y, z = axis.unbind(1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
    sin, cos = angle.sin()[:, None, None], angle.cos()[:, None, None]
    return cos * _axes(axis) + sin * cross + (1 - cos) * (axis[:, :, None] * axis[:, None, :])
