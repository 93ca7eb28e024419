"""Searches and samplings of one small cloud in a single compiled call: the lines of a plan that follow one another.

Called one by one, the ten lines of a network spend more time in Python than in their kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gridless import backends
from gridless.geometry.ball.cpu import AXES, SMALL, numbers, scratch
from gridless.geometry.bisection import MORE_OUT, SCAN, search
from gridless.geometry.checks import check_finite, check_radius
from gridless.geometry.rejection.cpu import over_edges
from gridless.kernels.compile import njit
from gridless.structures import Cloud, Edges
from gridless.structures.base import Structure

# Samples are summed up to be counted.
_SEARCH, _SAMPLE = 0, 1
_NOT_FINITE = 1
# Edges beyond which lines are run one by one, each with memory of its own.
_MOST = 1 << 22


@njit(nogil=True, cache=True)
def _run(x, lines, settings, axes, work, boxes, stack, found, rows, coords, wholes, sources, sizes):
    """Run `lines` (operation, cloud, cloud or edges) on the points x; clouds and edges are numbered by their lines.

    Results follow one another: in `wholes` the splits of each search, and the rows and the splits of each sample; in
    `sources` the edges; in `coords` the coordinates of samples. `sizes` gets the lengths of the pieces of all three.
    Returns 0, or what was too small, or that the points are not finite; and copies of the three that just hold them.
    """
    n, dim = x.shape
    # Not written out where they are used, because Numba compiles a function anew for every constant that it is called
    # with, and `search`, seven seconds of it, is the one that batches use.
    zero, one, scan = np.int64(0), np.int64(1), np.int64(SCAN)
    bad = 0
    for i in range(n):
        for d in range(dim):
            bad += not abs(x[i, d]) < np.inf
    if bad:
        return _NOT_FINITE, wholes[:0], sources[:0], coords[:0]
    samples = 0
    for line in range(len(lines)):
        samples += lines[line, 0]
    size_wholes, size_sources, size_coords = 0, len(lines) + samples, 2 * len(lines)
    # Of the points and of each line: its first row in `coords` or `sources`, where its splits begin, and its points.
    begins, whole, count = np.empty((len(lines) + 1, 3), np.int64), np.empty(2, np.int64), np.empty(1, np.int64)
    used_coords, used_wholes, used_sources = 0, 0, 0
    begins[0, 0], begins[0, 1], begins[0, 2] = 0, 0, n
    whole[0], whole[1] = 0, n
    for line in range(len(lines)):
        operation, a, b = lines[line, 0], lines[line, 1], lines[line, 2]
        at, points = begins[a, 0], begins[a, 2]
        source = x if a == 0 else coords[at : at + points]
        splits = whole if a == 0 else wholes[begins[a, 1] : begins[a, 1] + 2]
        if operation == _SEARCH:
            at, targets = begins[b, 0], begins[b, 2]
            target = x if b == 0 else coords[at : at + targets]
            wholes[used_wholes] = 0
            target_splits = whole if b == 0 else wholes[begins[b, 1] : begins[b, 1] + 2]
            _, total, short = search(
                source, splits, target, target_splits, zero, one, a == b, zero > one, settings[line, 0],
                settings[line, 1], settings[line, 2], settings[line, 3], axes, work, boxes, stack, scan, zero, found,
                rows[0], rows[1], wholes[used_wholes + 1 :], zero, sources[used_sources:],
            )  # fmt: skip
            if short:
                return short, wholes[:0], sources[:0], coords[:0]
            begins[line + 1, 0], begins[line + 1, 1] = used_sources, used_wholes
            sizes[size_wholes], sizes[size_sources] = targets + 1, total
            size_wholes, size_sources = size_wholes + 1, size_sources + 1
            used_wholes, used_sources = used_wholes + targets + 1, used_sources + total
        else:
            kept = wholes[used_wholes : used_wholes + points]
            over_edges(
                source, splits, zero, one, wholes[begins[b, 1] :], sources[begins[b, 0] :], coords[0, :0],
                np.zeros(points, np.bool_), kept, count,
            )  # fmt: skip
            left = count[0]
            for k in range(left):
                for d in range(dim):
                    coords[used_coords + k, d] = source[kept[k], d]
            begins[line + 1, 0], begins[line + 1, 1], begins[line + 1, 2] = used_coords, used_wholes + left, left
            sizes[size_wholes], sizes[size_wholes + 1], sizes[size_coords] = left, 2, left
            size_wholes, size_coords = size_wholes + 2, size_coords + 1
            used_wholes, used_coords = used_wholes + left + 2, used_coords + left
            wholes[used_wholes - 2], wholes[used_wholes - 1] = 0, left
    return 0, wholes[:used_wholes].copy(), sources[:used_sources].copy(), coords[:used_coords].copy()


class _Results:
    """Where the lines of one thread write, until it is known how much they give."""

    def __init__(self, x: np.ndarray, lines: int) -> None:
        # Every line gives at most as many points, and as many splits and rows of points, as there are points, and two.
        room = lines * (len(x) + 2)
        self.points, self.lines = len(x), lines
        self.coords, self.wholes = np.empty((room, x.shape[1]), x.dtype), np.empty(room, np.int64)
        self.sources, self.sizes = np.empty(1 << 17, np.int32), np.empty(3 * lines, np.int64)


_kept = threading.local()


@dataclass(frozen=True, eq=False)
class Chain:
    """Lines of a plan that one call runs: balls without a limit, and rejection sampling over them."""

    first: str
    names: list[str]
    lines: list[tuple[int, int, int]]  # operation, cloud, and a cloud or edges, by their lines; 0 is the first
    samples: int
    radii: list[float]
    table: np.ndarray  # the lines
    settings: dict[torch.dtype, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of(cls, steps: Mapping[str, tuple[str, Sequence[str], Mapping[str, Any]]]) -> Chain | None:
        """The chain that begins with the first line of a plan (operation, inputs, settings by name), if any does."""
        first = next((name for name, (op, _, _) in steps.items() if op == "points"), None)
        if first is None:
            return None
        at, lines, radii = {first: 0}, [], []
        for name, (op, inputs, settings) in steps.items():
            if op in ("ball", "rejection_sample") and all(i in at for i in inputs) and "limit" not in settings:
                at[name] = len(at)
                lines.append((_SEARCH if op == "ball" else _SAMPLE, *(at[i] for i in inputs)))
                radii.append(settings.get("radius", 1.0))
        if not lines:
            return None
        samples = sum(line[0] == _SAMPLE for line in lines)
        return cls(first, list(at)[1:], lines, samples, radii, np.array(lines))

    def run(self, cloud: Cloud) -> dict[str, Structure]:
        """What the lines give by name; nothing where this is not for such a cloud, and lines are run one by one."""
        points = cloud.coords
        count, dim = points.shape
        if not 0 < count <= SMALL or cloud.splits.shape[0] != 2 or cloud.padding or points.requires_grad:
            return {}
        if not points.is_cpu or backends.backend_for(points.device) != "cpu":
            return {}
        x, lines, key = points.numpy(), len(self.lines), (points.dtype, dim)
        kept: dict[Any, _Results] = _kept.__dict__
        results = kept.get(key)
        if results is None or results.points < count or results.lines < lines:
            results = kept[key] = _Results(x, lines)
        space = scratch(x.dtype)
        space.widen(count)
        while True:
            short, wholes, sources, coords = _run(
                x, self.table, self._settings(points.dtype), AXES[dim], space.work, space.boxes, space.stack,
                space.found, space.rows, results.coords, results.wholes, results.sources, results.sizes,
            )  # fmt: skip
            if not short:
                return self._structures(cloud, wholes, sources, coords, results.sizes.tolist())
            if short == _NOT_FINITE:
                check_finite("ball: source", cloud)
            if short != MORE_OUT:
                space.grow(short)
            elif 2 * len(results.sources) > _MOST:
                return {}
            else:
                results.sources = np.empty(2 * len(results.sources), np.int32)

    def _structures(
        self, cloud: Cloud, wholes: np.ndarray, sources: np.ndarray, coords: np.ndarray, sizes: list[int]
    ) -> dict[str, Structure]:
        """What the lines gave; all have pieces of the same three tensors."""
        first, second = len(self.lines) + self.samples, 2 * len(self.lines)
        whole, source, kept = (
            iter(torch.unsafe_split_with_sizes(torch.from_numpy(array), sizes[a:b]))
            for array, a, b in ((wholes, 0, first), (sources, first, second), (coords, second, second + self.samples))
        )
        made: list[Any] = [cloud.trusted()]
        counts = [cloud.coords.shape[0]]
        rows, directions = cloud.rows, cloud.directions
        for operation, a, b in self.lines:
            if operation == _SEARCH:
                counts.append(0)
                made.append(Edges.made(
                    splits=next(whole), source=next(source), num_source=counts[a], symmetric=a == b, _checked=True,
                ))  # fmt: skip
            else:
                index, points = next(whole), next(kept)
                counts.append(points.shape[0])
                made.append(Cloud.made(
                    coords=points, splits=next(whole), parent_index=index, num_parent=counts[a],
                    rows=made[a].rows.taken(index) if rows else rows, directions=directions, _checked=True,
                ))  # fmt: skip
        return dict(zip(self.names, made[1:], strict=True))

    def _settings(self, dtype: torch.dtype) -> np.ndarray:
        """Of each line: radius, its square, 1/2 and the margin for rounding, in the dtype of the points."""
        if dtype not in self.settings:
            each = [numbers(check_radius("ball", radius, dtype), dtype) for radius in self.radii]
            self.settings[dtype] = np.array(each)
        return self.settings[dtype]
