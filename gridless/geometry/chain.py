"""Searches and samplings of one small cloud in a single compiled call: the lines of a plan that follow one another.

Called one by one, the ten lines of a network spend more time in Python than in their kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
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


# Not written out where they are used, because Numba compiles a function anew for every constant that it is called with,
# and `search`, seven seconds of it, is the one that batches use.
_CONSTANTS = np.array([0, 1, SCAN])


@njit(nogil=True, cache=True)
def _run(x, lines, settings, axes, work, boxes, stack, found, rows, coords, wholes, sources, sizes, constants):
    """Run `lines` (operation, cloud, cloud or edges) on the points x; clouds and edges are numbered by their lines.

    Results follow one another: in `wholes` the splits of each search, and the rows and the splits of each sample; in
    `sources` the edges; in `coords` the coordinates of samples. `sizes` gets the lengths of the pieces of all three.
    Returns 0, or what was too small, or that the points are not finite; and copies of the three that just hold them.
    """
    n, dim = x.shape
    zero, one, scan = constants[0], constants[1], constants[2]
    bad = 0
    for i in range(n):
        for d in range(dim):
            bad += not abs(x[i, d]) < np.inf
    if bad:
        return _NOT_FINITE, wholes[:0], sources[:0], coords[:0]
    samples = np.sum(lines[:, 0])
    size_wholes, size_sources, size_coords = 0, len(lines) + samples, 2 * len(lines)
    # Of the points and of each line: its first row in `coords` or `sources`, where its splits begin, and its points.
    begins = np.zeros((len(lines) + 1, 3), np.int64)
    used_coords, used_wholes, used_sources = 0, 0, 0
    whole, count = np.array([0, n]), np.empty(1, np.int64)
    begins[0, 2] = n
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


@dataclass
class _Results:
    """Where the lines of one thread write, until it is known how much they give."""

    coords: np.ndarray
    wholes: np.ndarray
    sources: np.ndarray
    sizes: np.ndarray


_kept = threading.local()


def _results(x: np.ndarray, lines: int) -> _Results:
    """Memory of this thread for so many lines on the points x."""
    key = f"{x.dtype.char}{x.shape[1]}"
    kept = _kept.__dict__.get(key)
    # Every line gives at most as many points, and as many splits and rows of points, as there are points, and two more.
    room = lines * (len(x) + 2)
    if kept is None or len(kept.wholes) < room or len(kept.sizes) < 3 * lines:
        coords, wholes = np.empty((room, x.shape[1]), x.dtype), np.empty(room, np.int64)
        kept = _Results(coords, wholes, np.empty(1 << 17, np.int32), np.empty(3 * lines, np.int64))
        _kept.__dict__[key] = kept
    return kept


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
        fits = 0 < count <= SMALL and cloud.splits.shape[0] == 2 and not (cloud.padding or points.requires_grad)
        if not fits or points.device.type != "cpu" or backends.backend_for(points.device) != "cpu":
            return {}
        x = points.numpy()
        space, results = scratch(x.dtype), _results(x, len(self.lines))
        space.widen(count)
        while True:
            short, *found = _run(
                x, self.table, self._settings(points.dtype), AXES[dim], space.work, space.boxes, space.stack,
                space.found, space.rows, results.coords, results.wholes, results.sources, results.sizes, _CONSTANTS,
            )  # fmt: skip
            if not short:
                return self._structures(cloud, found, results.sizes.tolist())
            if short == _NOT_FINITE:
                check_finite("ball: source", cloud)
            if short != MORE_OUT:
                space.grow(short)
            elif 2 * len(results.sources) > _MOST:
                return {}
            else:
                results.sources = np.empty(2 * len(results.sources), np.int32)

    def _structures(self, cloud: Cloud, found: list[np.ndarray], sizes: list[int]) -> dict[str, Structure]:
        """What the lines gave; all have pieces of the same three tensors."""
        searches, samples = len(self.names) - self.samples, self.samples
        ends = 0, searches + 2 * samples, 2 * (searches + samples), 2 * searches + 3 * samples
        wholes, sources, coords = (
            iter(torch.split_with_sizes(torch.from_numpy(array), sizes[a:b]))
            for array, (a, b) in zip(found, pairwise(ends), strict=True)
        )
        made: list[Any] = [cloud.trusted()]
        counts = [cloud.coords.shape[0]]
        for operation, a, b in self.lines:
            size = 0
            if operation == _SEARCH:
                line = Edges.made(
                    splits=next(wholes), source=next(sources), num_source=counts[a], symmetric=a == b, _checked=True,
                )  # fmt: skip
            else:
                kept, parent = next(wholes), made[a]
                size = kept.shape[0]
                line = Cloud.made(
                    coords=next(coords), splits=next(wholes), parent_index=kept, num_parent=counts[a],
                    rows=parent.rows.taken(kept), directions=parent.directions, _checked=True,
                )  # fmt: skip
            made.append(line)
            counts.append(size)
        return dict(zip(self.names, made[1:], strict=True))

    def _settings(self, dtype: torch.dtype) -> np.ndarray:
        """Of each line: radius, its square, 1/2 and the margin for rounding, in the dtype of the points."""
        if dtype not in self.settings:
            each = [numbers(check_radius("ball", radius, dtype), dtype) for radius in self.radii]
            self.settings[dtype] = np.array(each)
        return self.settings[dtype]
