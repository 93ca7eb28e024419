"""Tiles of a scene, and plans that are run on them: what lies inside a tile is as in the whole scene.

Balls are local. Rejection sampling is not, but it is decided by an order of points that no tile changes, a hash of
their coordinates, in which chains of rejections are short: each run finds out how far those from beyond the halo come,
and widens the halo where that is too far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from numbers import Number
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.geometry import grid_sample
from gridless.geometry.rejection import doubtful_depth
from gridless.plan import Plan
from gridless.scenes.scene import Scene, cells_of
from gridless.structures import Cloud, Geometry, Rows

Key = tuple[int, int]
# Reads of a point, over all tiles, above which the scene is sorted first.
_OFTEN = 6.0


def tiles(
    source: Any,
    size: float,
    halo: float = 0.0,
    grid: float | None = None,
    rows: Sequence[str] | None = None,
) -> Tiles:
    """The tiles of a scene that have points: squares over the first two axes, each with a halo around it.

    LAS, LAZ and COPC files, binary PLY and NPY files are read piece by piece, files of other formats as a whole; the
    scene is never in memory. If the pieces of a tile are spread all over the scene, a sorted copy is made in a
    temporary folder first.

    >>> for tile in gl.tiles("city.laz", 50.0, halo=model.plan.reach()):
    ...     tile.cloud, tile.offset, tile.cloud.rows["inside"], tile.cloud.rows["index"]

    Args:
        source: a file, a folder of files, an array or tensor (S, D), or a `Cloud` of one example.
        size: the side of a tile; math.inf makes one of the whole scene.
        halo: how far around it, at least, a tile has points, too: `plan.reach()`.
        grid: keep the first point of each cell of this size; the cells are those of the scene.
        rows: the names of the rows that are wanted; all by default.
    """
    _check_arguments(source, size=size, halo=halo, grid=grid)
    return Tiles(Scene(source, None if rows is None else list(rows)), size, halo, grid)


def _check_arguments(source: Any, **lengths: Any) -> None:
    """Refuse arguments of another kind or in another order, before a file is read."""
    if isinstance(source, Plan | nn.Module | Number):
        message = f"tiles: the source must be a file, a folder, points or a cloud, not a {type(source).__name__}"
        raise TypeError(f"{message}. The order is gl.tiles(source, size, halo=plan.reach()).")
    for name, value in lengths.items():
        if isinstance(value, Plan | nn.Module):
            example = "gl.tiles(source, 50.0, halo=plan.reach()), then tile.run(plan)"
            raise TypeError(f"tiles: {name} must be a length, not a {type(value).__name__}. Write {example}.")
        if value is not None and not hasattr(value, "__float__"):
            message = f"tiles: {name} must be a length, not {value!r:.80}"
            raise TypeError(f"{message}. The order is gl.tiles(source, size, halo, grid).")


class Tiles(Sequence):
    """`len`, `tiles[k]` and `for tile in tiles`; every point of the scene is inside exactly one of them.

    `size`, `halo` and `grid` are those of `gl.tiles`. `scratch` is the folder of a sorted copy, which stays, and is
    found again as long as no file is changed; None for a temporary one. `counts` are those of `Scene.scan`, if known.
    """

    def __init__(
        self,
        scene: Scene,
        size: float,
        halo: float = 0.0,
        grid: float | None = None,
        scratch: str | Path | None = None,
        counts: np.ndarray | None = None,
    ) -> None:
        if not size > 0 or not 0 <= halo < math.inf:
            raise ValueError(f"tiles: size must be positive and halo at least 0, not {size} and {halo}")
        if grid is not None and not 0 < grid < math.inf:
            raise ValueError(f"tiles: grid must be positive, not {grid}")
        self.scene, self.size, self.halo, self.grid = scene, float(size), float(halo), grid
        # The halo that other tiles needed: the next tile begins with it.
        self.usual = self.halo
        if counts is None:
            counts = scene.scan(self.size) if scene.count else np.empty((0, 3), np.int64)
        self.counts = {(i, j): n for i, j, n in counts.tolist()}
        # Back and forth, so that a tile follows its neighbour.
        self.keys = sorted(self.counts, key=lambda key: (key[0], key[1] if key[0] % 2 else -key[1]))
        if self.keys:
            self._axes = min(scene.dim, 2)
            self._ends = scene.low.min(0), scene.high.max(0)
            # Tiles are cut over the first two axes, and as deep as the scene.
            for axis in range(2, scene.dim):
                low, high = (float(end[axis]) for end in self._ends)
                if scene.dtype != np.float32 and high - low >= scene.resolution * (1 << 25):
                    raise ValueError(
                        f"tiles: points are from {low:g} to {high:g} along axis {axis}, too far apart for float32 at a "
                        f"resolution of {scene.resolution:g}. Remove outliers."
                    )
            read = sum(int(scene.sizes[scene.within(*self.box(key, self.halo))].sum()) for key in self.keys)
            if read > _OFTEN * scene.count:
                scene.sort(min(self.size, float((self._ends[1] - self._ends[0])[: self._axes].max())) / 4, scratch)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        return self.tile(self.keys[k])

    def __iter__(self) -> Iterator[Tile]:
        return map(self.tile, self.keys)

    def box(self, key: tuple[int, int], halo: float) -> tuple[np.ndarray, np.ndarray]:
        """The box of a tile and its halo, over the first axes."""
        if math.isinf(self.size):
            return np.full(self._axes, -math.inf), np.full(self._axes, math.inf)
        numbers = np.array(key[: self._axes], np.float64)
        low, high = numbers * self.size, (numbers + 1) * self.size
        # A point belongs to the cell of a quotient, which is rounded: it may lie a little before or behind it.
        halo += 4 * float(np.spacing(np.maximum(np.abs(low), np.abs(high))).max())
        return low - halo, high + halo

    def tile(self, key: tuple[int, int], halo: float | None = None) -> Tile:
        """The tile of a cell (i, j) with a halo of its own, or that of the others."""
        halo = self.usual if halo is None else halo
        low, high = self.box(key, halo)
        coords, index, scene_rows = self.scene.window(low, high)
        order = _order(coords)
        cells = cells_of(coords, self.size)
        inside = ((cells[:, 0] == key[0]) & (cells[:, 1] == key[1])).take(order)
        # Several tiles are cut at a time: what is not needed any more goes at once.
        del cells
        offset = self._offset(
            np.maximum(low, self._ends[0][: self._axes]), np.minimum(high, self._ends[1][: self._axes])
        )
        coords -= offset
        near = coords.astype(np.float32).take(order, 0)
        if self.scene.dtype != np.float32 and len(near) and np.abs(near).max() >= self.scene.resolution * (1 << 24):
            raise ValueError(
                f"tiles: a tile of {np.ptp(coords, axis=0).max():g} is too large for float32 at a resolution of "
                f"{self.scene.resolution:g}. Use smaller tiles."
            )
        lost = {"index", "inside"} & scene_rows.keys()
        if lost:
            raise ValueError(
                f"tiles: the name of the rows {lost.pop()!r} is reserved. Choose other rows with rows=[...]."
            )
        rows: dict[str, Any] = {name: values.take(order, 0) for name, values in scene_rows.items()}
        every = Cloud.of(near)
        every = every._changed(
            rows=Rows.of({**rows, "index": index.take(order), "inside": inside}, every.coords, "tiles")
        )
        del coords, index, scene_rows, order
        cloud = every if self.grid is None else grid_sample(every, self.grid, origin=offset.tolist())
        return Tile(self, key, halo, offset, every, cloud)

    def _offset(self, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """The offset of a tile's coordinates: zero if they are float32 already."""
        offset = np.zeros(self.scene.dim)
        if self.scene.dtype != np.float32:
            offset = (self._ends[0] + self._ends[1]) / 2
            offset[: self._axes] = (low + high) / 2
        return np.round(offset / self.scene.resolution) * self.scene.resolution


@dataclass(frozen=True, eq=False)
class Tile:
    """A part of a scene: that with this `key` of `tiles`, with the points up to `halo` around it.

    `cloud` are its points in float32, with `offset` (D) float64 taken off, and the scene's rows. Two more say where a
    point is: `index`, its row in the scene, and `inside`, whether it belongs to this tile or to the halo. Points are in
    the order of a hash of their coordinates. With a `grid`, `cloud` has the first point of each cell, and `every` all.
    """

    tiles: Tiles
    key: tuple[int, int]
    halo: float
    offset: np.ndarray
    every: Cloud
    cloud: Cloud

    def wider(self, halo: float) -> Tile:
        """The same tile with another halo."""
        return self.tiles.tile(self.key, halo)

    def run(
        self,
        plan: Plan,
        layers: Iterable[str] = (),
        device: torch.device | str = "cpu",
        around: float = 0.0,
        prepare: Callable[[Cloud], Cloud] = lambda cloud: cloud,
    ) -> tuple[Tile, Geometry]:
        """Run a plan on the tile's cloud. Inside the tile, the result is that of the whole scene.

        If the halo is too small, it is widened and the plan runs again. Also returns the tile with the final halo.

        Args:
            plan: one that begins with points, and has a `reach`.
            layers: the edges that a network convolves along, one after the other (`layers_of`).
            device: where the plan is run.
            around: how far from the tile results must be right, too.
            prepare: what is done to the cloud first, such as to choose its rows; no point may change its place in it.
        """
        reach = plan.reach(list(layers)) - plan.reach()
        tile = self
        while True:
            geometry = plan(prepare(tile.cloud).to(device))
            depth = tile._depth(device)
            needed = tile._doubt(plan, geometry, depth, reach) + around
            if needed < tile.halo or bool(depth.isinf().all()):
                return tile, geometry
            tile = tile.wider(max(1.1 * needed, 1.3 * tile.halo))
            self.tiles.usual = max(self.tiles.usual, 1.1 * needed)

    def _depth(self, device: torch.device | str) -> Tensor:
        """The distance of each point from the end of the tile; infinite where the scene ends first."""
        low, high = self.tiles.box(self.key, self.halo)
        axes = len(low)
        first, last = (end[:axes] for end in self.tiles._ends)
        low, high = np.where(low <= first, -math.inf, low), np.where(high >= last, math.inf, high)
        x = self.cloud.coords[:, :axes].to(device).double() + torch.from_numpy(self.offset[:axes]).to(device)
        ends = torch.from_numpy(low).to(device), torch.from_numpy(high).to(device)
        return torch.minimum((x - ends[0]).amin(1), (ends[1] - x).amin(1))

    def _doubt(self, plan: Plan, geometry: Geometry, depth: Tensor, reach: float) -> float:
        """Up to which depth the lines of a plan, and layers of that reach, may differ from those of the whole scene."""
        # A cell at the end of the tile may have lost its first point.
        doubt, at, widest = {}, {}, reach
        for name, step in plan.steps.items():
            if step.op == "points":
                doubt[name], at[name] = self.tiles.grid or 0.0, depth
            elif step.op == "rejection_sample":
                cloud, near = step.inputs
                radius = dict(plan.steps[near].settings)["radius"]
                doubt[name] = doubtful_depth(geometry[near], at[cloud], doubt[cloud], radius)
                at[name] = at[cloud][geometry[name].parent_index]
            elif step.op == "ball":
                widest = max(widest, dict(step.settings)["radius"])
        return max(doubt.values()) + widest


def layers_of(model: nn.Module) -> list[str]:
    """The edges that the layers of a network convolve along, for `plan.reach` and `Tile.run`.

    A network that sees a scene as a whole, or where in it a point is, is refused by the name of the layer.
    """
    from gridless.nn.blocks import WideBlock
    from gridless.nn.conv import Convolution
    from gridless.nn.pool import Pooling

    for name, module in model.named_modules():
        if isinstance(module, Pooling | WideBlock):
            why = "pools over the whole cloud" if isinstance(module, Pooling) else "sees absolute coordinates"
            raise ValueError(
                f"{type(model).__name__} cannot label a scene tile by tile: {name or 'it'} {why}. Use point_unet."
            )
    return [str(module.edges) for module in model.modules() if isinstance(module, Convolution)]


def _order(coords: np.ndarray) -> np.ndarray:
    """The order (S) int64 of points by a hash of their coordinates, then by their index, which no tile changes."""
    # torch sorts in half the time, and signed numbers alone.
    code = _hash(coords) ^ np.uint64(1 << 63)
    return torch.from_numpy(code.view(np.int64)).argsort(stable=True).numpy()


def _hash(coords: np.ndarray) -> np.ndarray:
    """A number (S) uint64 of each place, as if drawn at random."""
    code = np.zeros(len(coords), np.uint64)
    for column in coords.T:
        code ^= np.ascontiguousarray(column).view(np.uint64)
        code += np.uint64(0x9E3779B97F4A7C15)
        code ^= code >> np.uint64(30)
        code *= np.uint64(0xBF58476D1CE4E5B9)
        code ^= code >> np.uint64(27)
        code *= np.uint64(0x94D049BB133111EB)
        code ^= code >> np.uint64(31)
    return code
