"""Shapes: a procedural set of solids and furniture-like objects, for tests, demos and first experiments.

Each class is a union of a few surfaces (boxes, cylinders, cones, spheres, tori, helices) with random proportions;
points fall on it uniformly by area. Nothing is downloaded, and example i is the same however many are made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from gridless.data.base import Examples, Steps

Array = np.ndarray


@dataclass(frozen=True)
class ShapePart:
    """One surface in each of n examples: its area (n), and how (n, points, 3) uniform numbers become points on it."""

    area: Array
    place: Callable[[Array], Array]


def box(centre: Array, half: Array) -> ShapePart:
    """Six faces; centre and half sides (n, 3)."""
    a, b, c = (half[:, i] for i in range(3))
    faces = np.stack([b * c, a * c, a * b], 1)

    def place(u: Array) -> Array:
        total = faces.sum(1, keepdims=True)
        edge = np.cumsum(faces / total, 1)[:, None, :]
        pick = u[..., :1] * 2
        side = np.where(pick < 1, -1.0, 1.0)
        axis = ((pick % 1) >= edge[..., :2]).sum(-1)
        inside = 2 * u - 1
        inside[..., 0] = 2 * _fresh(u[..., 0]) - 1
        at = np.where(np.arange(3) == axis[..., None], side, inside)
        return centre[:, None] + at * half[:, None]

    return ShapePart(8 * faces.sum(1), place)


def cylinder(centre: Array, radius: Array, height: Array, top: Array | None = None, caps: bool = True) -> ShapePart:
    """Upright (z up) frustum: radius at the bottom, `top` at the top (the same unless given), with both discs."""
    top = radius if top is None else top
    slant = np.hypot(height, radius - top)
    side = np.pi * (radius + top) * slant
    low, high = (np.pi * radius**2, np.pi * top**2) if caps else (0 * radius, 0 * radius)

    def place(u: Array) -> Array:
        total = (side + low + high)[:, None]
        pick = u[..., 0]
        angle = 2 * np.pi * u[..., 1]
        fresh = _fresh(u[..., 2])
        r0, r1 = radius[:, None], top[:, None]
        # Uniform by area along the slant: the radius squared is uniform between its ends.
        along = np.sqrt(r0**2 + u[..., 2] * (r1**2 - r0**2))
        spread = np.abs(r1 - r0) > 1e-6 * np.maximum(r0, r1)
        climb = np.where(spread, (along - r0) / np.where(spread, r1 - r0, 1), u[..., 2])
        on_low = pick < low[:, None] / total
        on_high = ~on_low & (pick < (low + high)[:, None] / total)
        r = np.where(on_low, r0 * np.sqrt(fresh), np.where(on_high, r1 * np.sqrt(fresh), along))
        z = np.where(on_low, 0.0, np.where(on_high, 1.0, climb)) * height[:, None]
        at = np.stack([r * np.cos(angle), r * np.sin(angle), z], -1)
        return centre[:, None] + at

    return ShapePart(side + low + high, place)


def sphere(centre: Array, half: Array) -> ShapePart:
    """An ellipsoid with half axes (n, 3); uniform on the unit sphere, then stretched."""
    a, b, c = (half[:, i] for i in range(3))
    p = 1.6
    area = 4 * np.pi * (((a * b) ** p + (a * c) ** p + (b * c) ** p) / 3) ** (1 / p)

    def place(u: Array) -> Array:
        z = 2 * u[..., 0] - 1
        r = np.sqrt(np.maximum(0, 1 - z**2))
        angle = 2 * np.pi * u[..., 1]
        return centre[:, None] + np.stack([r * np.cos(angle), r * np.sin(angle), z], -1) * half[:, None]

    return ShapePart(area, place)


def torus(centre: Array, ring: Array, tube: Array, upright: bool = False, turns: float = 1.0) -> ShapePart:
    """A tube around a ring; `upright` stands it in the x-z plane; under one turn it is an arc."""
    area = 4 * np.pi**2 * ring * tube * turns

    def place(u: Array) -> Array:
        around, across = 2 * np.pi * turns * (u[..., 0] - 0.5), 2 * np.pi * u[..., 1]
        r = ring[:, None] + tube[:, None] * np.cos(across)
        flat, high = [r * np.cos(around), r * np.sin(around)], tube[:, None] * np.sin(across)
        at = np.stack([flat[0], high, flat[1]] if upright else [*flat, high], -1)
        return centre[:, None] + at

    return ShapePart(area, place)


def helix(ring: Array, tube: Array, height: Array, turns: Array) -> ShapePart:
    """A coiled tube along z."""
    length = turns * np.hypot(2 * np.pi * ring, height / turns)

    def place(u: Array) -> Array:
        around, across = 2 * np.pi * turns[:, None] * u[..., 0], 2 * np.pi * u[..., 1]
        r = ring[:, None] + tube[:, None] * np.cos(across)
        z = height[:, None] * (u[..., 0] - 0.5) + tube[:, None] * np.sin(across)
        return np.stack([r * np.cos(around), r * np.sin(around), z], -1)

    return ShapePart(2 * np.pi * tube * length, place)


def _fresh(u: Array) -> Array:
    """A second uniform number out of the low bits of the first."""
    return (u * 7919.0) % 1


def _at(*xyz: Any) -> Array:
    return np.stack(np.broadcast_arrays(*xyz), -1).astype(np.float64)


# Classes: a generator and a count give the parts. z is up, and sizes are free: every example is normalised after.


def _ball(g: Generator, n: int) -> list[ShapePart]:
    return [sphere(np.zeros((n, 3)), _at(*(g.uniform(0.85, 1.15, n) for _ in range(3))))]


def _crate(g: Generator, n: int) -> list[ShapePart]:
    return [box(np.zeros((n, 3)), g.uniform(0.6, 1.0, (n, 3)))]


def _drum(g: Generator, n: int) -> list[ShapePart]:
    return [cylinder(np.zeros((n, 3)), g.uniform(0.3, 0.5, n), g.uniform(0.9, 1.6, n))]


def _cone(g: Generator, n: int) -> list[ShapePart]:
    r = g.uniform(0.4, 0.7, n)
    return [cylinder(np.zeros((n, 3)), r, g.uniform(0.9, 1.5, n), top=0.02 * r)]


def _ring(g: Generator, n: int) -> list[ShapePart]:
    return [torus(np.zeros((n, 3)), np.ones(n), g.uniform(0.18, 0.4, n))]


def _spring(g: Generator, n: int) -> list[ShapePart]:
    return [helix(g.uniform(0.4, 0.6, n), g.uniform(0.06, 0.1, n), g.uniform(1.4, 2.2, n), g.uniform(3, 5, n))]


def _legs(g: Generator, n: int, half: Array, height: Array) -> list[ShapePart]:
    r = g.uniform(0.03, 0.06, n)
    corners = [(-1, -1), (-1, 1), (1, -1), (1, 1)]
    return [cylinder(_at(0.88 * x * half[:, 0], 0.88 * y * half[:, 1], -height), r, height) for x, y in corners]


def _table(g: Generator, n: int) -> list[ShapePart]:
    half = _at(g.uniform(0.6, 1.0, n), g.uniform(0.5, 0.8, n), g.uniform(0.03, 0.06, n))
    return [box(np.zeros((n, 3)), half), *_legs(g, n, half, g.uniform(0.7, 1.1, n))]


def _chair(g: Generator, n: int) -> list[ShapePart]:
    half = _at(g.uniform(0.4, 0.5, n), g.uniform(0.4, 0.5, n), g.uniform(0.03, 0.05, n))
    tall = g.uniform(0.35, 0.55, n)
    back = box(_at(0, -half[:, 1], tall), _at(half[:, 0], half[:, 2], tall))
    return [box(np.zeros((n, 3)), half), back, *_legs(g, n, half, g.uniform(0.6, 0.9, n))]


def _lamp(g: Generator, n: int) -> list[ShapePart]:
    tall = g.uniform(1.3, 1.8, n)
    foot, shade = g.uniform(0.25, 0.4, n), g.uniform(0.35, 0.5, n)
    return [
        cylinder(_at(0, 0, np.zeros(n)), foot, np.full(n, 0.06)),
        cylinder(_at(0, 0, np.zeros(n)), np.full(n, 0.04), tall),
        cylinder(_at(0, 0, tall), shade, g.uniform(0.35, 0.5, n), top=0.55 * shade, caps=False),
    ]


def _mug(g: Generator, n: int) -> list[ShapePart]:
    r, tall = g.uniform(0.4, 0.5, n), g.uniform(0.9, 1.2, n)
    handle = torus(_at(r, 0, tall / 2), 0.32 * tall, g.uniform(0.05, 0.08, n), upright=True, turns=0.55)
    return [cylinder(np.zeros((n, 3)), r, tall, caps=False), cylinder(np.zeros((n, 3)), r, np.full(n, 0.03)), handle]


def _bottle(g: Generator, n: int) -> list[ShapePart]:
    r, tall, neck = g.uniform(0.28, 0.38, n), g.uniform(0.8, 1.1, n), g.uniform(0.08, 0.12, n)
    shoulder = g.uniform(0.25, 0.35, n)
    return [
        cylinder(np.zeros((n, 3)), r, tall),
        cylinder(_at(0, 0, tall), r, shoulder, top=neck, caps=False),
        cylinder(_at(0, 0, tall + shoulder), neck, g.uniform(0.3, 0.45, n)),
    ]


def _stairs(g: Generator, n: int) -> list[ShapePart]:
    wide, rise, run = g.uniform(0.5, 0.8, n), g.uniform(0.22, 0.3, n), g.uniform(0.3, 0.4, n)
    return [box(_at(0, k * run, (k + 1) * rise / 2), _at(wide, run / 2, (k + 1) * rise / 2)) for k in range(5)]


def _shelf(g: Generator, n: int) -> list[ShapePart]:
    wide, deep, tall = g.uniform(0.6, 0.9, n), g.uniform(0.2, 0.3, n), g.uniform(0.9, 1.2, n)
    thick = np.full(n, 0.025)
    boards = [box(_at(0, 0, z * tall), _at(wide, deep, thick)) for z in (-1.0, -0.35, 0.35, 1.0)]
    sides = [box(_at(x * wide, 0, 0 * tall), _at(thick, deep, tall)) for x in (-1, 1)]
    return boards + sides


def _dumbbell(g: Generator, n: int) -> list[ShapePart]:
    long, r = g.uniform(0.7, 1.0, n), g.uniform(0.28, 0.4, n)
    balls = [sphere(_at(0, 0, s * long), _at(r, r, r)) for s in (-1, 1)]
    return [cylinder(_at(0, 0, -long), np.full(n, 0.08), 2 * long, caps=False), *balls]


CLASSES: dict[str, Callable[[Generator, int], list[ShapePart]]] = {
    "ball": _ball,
    "crate": _crate,
    "drum": _drum,
    "cone": _cone,
    "ring": _ring,
    "spring": _spring,
    "table": _table,
    "chair": _chair,
    "lamp": _lamp,
    "mug": _mug,
    "bottle": _bottle,
    "stairs": _stairs,
    "shelf": _shelf,
    "dumbbell": _dumbbell,
}

# Examples are made in blocks that depend on nothing but the seed and their own number.
_BLOCK = 64


def _make(name: str, count: int, points: int, noise: float, g: Generator) -> Array:
    """`count` clouds of one class (count, points, 3), on the unit sphere's scale, turned about the vertical."""
    parts = CLASSES[name](g, count)
    area = np.stack([p.area for p in parts], 1)
    edge = np.cumsum(area / area.sum(1, keepdims=True), 1)[:, None, :-1]
    part = (g.random((count, points, 1)) >= edge).sum(-1)
    u = g.random((count, points, 3))
    coords = parts[0].place(u.copy())
    for k in range(1, len(parts)):
        coords = np.where((part == k)[..., None], parts[k].place(u.copy()), coords)
    coords += noise * g.standard_normal(coords.shape)
    coords -= (coords.max(1, keepdims=True) + coords.min(1, keepdims=True)) / 2
    coords /= np.linalg.norm(coords, axis=-1).max(1)[:, None, None]
    turn = g.uniform(0, 2 * np.pi, count)
    c, s = np.cos(turn)[:, None], np.sin(turn)[:, None]
    x, y, z = coords[..., 0], coords[..., 1], coords[..., 2]
    return np.stack([c * x - s * y, s * x + c * y, z], -1).astype(np.float32)


class Shapes(Examples):
    """Clouds of parametric objects: `dataset[i]` is (coords (points, 3) float32, class number).

    z is up, clouds fit the unit sphere and are turned about the vertical. Classes take turns, so that any prefix is
    balanced; the same seed gives the same examples on any machine, whatever `size` is.

    Args:
        size: how many examples.
        points: points per cloud.
        seed: another seed is another set, e.g. for validation.
        class_names: those to keep, in the order of their numbers; all of `Shapes.class_names` by default.
        noise: standard deviation of the jitter, in units of the object before scaling.
        transform: that of `Examples`, applied to the coordinates.
    """

    class_names: tuple[str, ...] = tuple(CLASSES)

    def __init__(
        self,
        size: int = 1024,
        points: int = 512,
        seed: int = 0,
        class_names: Sequence[str] | None = None,
        noise: float = 0.01,
        transform: Steps = (),
    ) -> None:
        if size < 0 or points < 1:
            raise ValueError(f"Shapes: size must be 0 or more and points 1 or more, not {size} and {points}")
        self.class_names = tuple(self.class_names if class_names is None else class_names)
        unknown = [c for c in self.class_names if c not in CLASSES]
        if unknown:
            raise ValueError(f"Shapes: there is no class {unknown[0]!r}. Choose from {', '.join(CLASSES)}.")
        super().__init__(transform)
        kinds = len(self.class_names)
        self.labels: Tensor = torch.arange(size, device="cpu") % kinds
        coords = np.empty((size, points, 3), np.float32)
        for k, name in enumerate(self.class_names):
            code = list(CLASSES).index(name)
            mine = coords[k::kinds]
            for at in range(0, len(mine), _BLOCK):
                g = np.random.default_rng([seed, code, at])
                block = _make(name, _BLOCK, points, noise, g)
                mine[at : at + _BLOCK] = block[: len(mine) - at]
        self.coords: Tensor = torch.from_numpy(coords)

    def example(self, i: int) -> Tensor:
        return self.coords[i]
