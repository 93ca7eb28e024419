"""Searches and samplings of one small cloud in a single compiled call: the lines of a plan that follow one another.

Called one by one, the ten lines of a network spend more time in Python than in their kernels.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.ball.cpu import AXES, SMALL, numbers, scratch
from gridless.geometry.bisection import MORE_OUT, SCAN, search
from gridless.geometry.checks import check_radius
from gridless.geometry.rejection.cpu import over_edges
from gridless.kernels.compile import njit
from gridless.structures import Cloud, Edges
from gridless.structures.rows import NO_ROWS

# Samples are summed up to be counted.
_SEARCH, _SAMPLE = 0, 1
_NOT_FINITE = 1
# Edges that there is room for at first, and those beyond which lines are run one by one, each with memory of its own.
_FIRST, _MOST = 1 << 17, 1 << 22


@njit(nogil=True, cache=True)
def _run(x, lines, settings, axes, work, boxes, stack, unordered, rows, coords, wholes, sources, sizes):
    """Run `lines` (operation, cloud, cloud or edges) on the points x; clouds and edges are numbered by their lines.

    Results follow one another: in `wholes` the splits of the points and of each search, and the rows and the splits of
    each sample; in `sources` the edges; in `coords` the coordinates of samples. `sizes` gets the lengths of the pieces
    of all three.
    Returns 0, or what was too small, or that the points are not finite; and copies of the three that just hold them.
    """
    n, dim = x.shape
    # Not written out where they are used, because Numba compiles a function anew for every constant that it is called
    # with, and `search`, seven seconds of it, is the one that batches use.
    zero, one, scan = np.int64(0), np.int64(1), np.int64(SCAN)
    flat, bad = x.reshape(n * dim), False
    for i in range(n * dim):
        bad |= not abs(flat[i]) < np.inf
    if bad:
        return _NOT_FINITE, wholes[:0], sources[:0], coords[:0]
    samples = 0
    for line in range(len(lines)):
        samples += lines[line, 0]
    size_wholes, size_sources, size_coords = 1, len(lines) + samples + 1, 2 * len(lines) + 1
    # For the points and each line: first row in `coords` or `sources`, offset of the splits, number of points.
    begins, count = np.empty((len(lines) + 1, 3), np.int64), np.empty(1, np.int64)
    used_coords, used_wholes, used_sources = 0, 2, 0
    begins[0, 0], begins[0, 1], begins[0, 2] = 0, 0, n
    wholes[0], wholes[1], sizes[0] = 0, n, 2
    for line in range(len(lines)):
        operation, a, b = lines[line, 0], lines[line, 1], lines[line, 2]
        at, points = begins[a, 0], begins[a, 2]
        source = x if a == 0 else coords[at : at + points]
        splits = wholes[begins[a, 1] : begins[a, 1] + 2]
        if operation == _SEARCH:
            at, targets = begins[b, 0], begins[b, 2]
            target = x if b == 0 else coords[at : at + targets]
            wholes[used_wholes] = 0
            target_splits = wholes[begins[b, 1] : begins[b, 1] + 2]
            _, total, short = search(
                source, splits, target, target_splits, zero, one, a == b, zero > one, settings[line, 0],
                settings[line, 1], settings[line, 2], settings[line, 3], axes, work, boxes, stack, scan, zero,
                unordered, rows[0], rows[1], wholes[used_wholes + 1 :], zero, sources[used_sources:],
            )  # fmt: skip
            if short:
                return short, wholes[:0], sources[:0], coords[:0]
            begins[line + 1, 0], begins[line + 1, 1] = used_sources, used_wholes
            sizes[size_wholes], sizes[size_sources] = targets + 1, total
            size_wholes, size_sources = size_wholes + 1, size_sources + 1
            used_wholes, used_sources = used_wholes + targets + 1, used_sources + total
        else:
            own_rows = wholes[used_wholes : used_wholes + points]
            over_edges(
                source, splits, zero, one, wholes[begins[b, 1] :], sources[begins[b, 0] :], coords[0, :0],
                np.zeros(points, np.bool_), own_rows, count,
            )  # fmt: skip
            left = count[0]
            for k in range(left):
                for d in range(dim):
                    coords[used_coords + k, d] = source[own_rows[k], d]
            begins[line + 1, 0], begins[line + 1, 1], begins[line + 1, 2] = used_coords, used_wholes + left, left
            sizes[size_wholes], sizes[size_wholes + 1], sizes[size_coords] = left, 2, left
            size_wholes, size_coords = size_wholes + 2, size_coords + 1
            used_wholes, used_coords = used_wholes + left + 2, used_coords + left
            wholes[used_wholes - 2], wholes[used_wholes - 1] = 0, left
    return 0, wholes[:used_wholes].copy(), sources[:used_sources].copy(), coords[:used_coords].copy()


class _ChainMemory:
    """Buffers of one thread for results whose sizes are not known yet; the next cloud reuses them."""

    def __init__(self, chain: PointChain, dtype: torch.dtype, points: int) -> None:
        # For each line: radius, its square, 1/2 and the margin for rounding, in the dtype of the points.
        settings = np.array([numbers(check_radius("ball", radius, dtype), dtype) for radius in chain.radii])
        # Every line gives at most as many points, and as many splits and rows of points, as there are points, and two.
        room = len(chain.lines) * (points + 2) + 2
        coords, wholes = np.empty((room, chain.dim), settings.dtype), np.empty(room, np.int64)
        self.lines, self.results = (chain.table, settings, AXES[chain.dim]), (coords, wholes)
        self.sizes = np.empty(chain.ends[-1], np.int64)
        self.points, self.edges, self.space = points, _FIRST, scratch(settings.dtype)
        self.space.widen(points)
        self.grow(0)

    def grow(self, short: int) -> None:
        """Make room for more of what was too small, and gather what the kernel is given beside the points."""
        self.edges *= 2 if short == MORE_OUT else 1
        self.space.grow(short)
        space, sources = self.space, np.empty(self.edges, np.int32)
        scratches = space.work, space.boxes, space.stack, space.unordered, space.rows
        self.arguments = *self.lines, *scratches, *self.results, sources, self.sizes
        self.unusual = space.unusual


class _Line(NamedTuple):
    """Results of a line: the first of its pieces of `wholes`, and its piece of `sources` or `coords`."""

    name: str
    operation: int
    cloud: str  # which is searched or sampled
    whole: int
    piece: int
    symmetric: bool


@dataclass(frozen=True, eq=False)
class PointChain:
    """Lines of a plan that one call runs: balls without a limit, and rejection sampling over them."""

    first: str
    dim: int
    lines: list[_Line]
    ends: tuple[int, int, int]  # of the pieces of `wholes`, `sources` and `coords`, numbered one after the other
    radii: list[float]
    table: np.ndarray  # of each line: operation, cloud, and a cloud or edges, by their lines; 0 is the first
    memories: threading.local = field(default_factory=threading.local)  # memory by the dtype of the points

    @classmethod
    def of(cls, steps: Mapping[str, tuple[str, Sequence[str], Mapping[str, Any]]]) -> PointChain | None:
        """The chain that begins with the first line of a plan (operation, inputs, settings by name), if any does."""
        first = next((name for name, (op, _, _) in steps.items() if op == "points"), None)
        if first is None:
            return None
        at, lines, table, radii, pieces = {first: 0}, [], [], [], [0, 0]
        for name, (op, inputs, settings) in steps.items():
            if op in ("ball", "rejection_sample") and all(i in at for i in inputs) and "limit" not in settings:
                # Plain, which are found faster in a dict than the names of a plan.
                operation, (a, b) = _SEARCH if op == "ball" else _SAMPLE, map(str, inputs)
                whole = 1 + pieces[_SEARCH] + 2 * pieces[_SAMPLE]
                lines.append(_Line(name, operation, a, whole, pieces[operation], a == b))
                table.append((operation, at[a], at[b]))
                radii.append(settings.get("radius", 1.0))
                pieces[operation] += 1
                at[name] = len(at)
        wholes, dim = 1 + pieces[_SEARCH] + 2 * pieces[_SAMPLE], steps[first][2]["dim"]
        ends = wholes, wholes + pieces[_SEARCH], wholes + sum(pieces)
        return cls(first, dim, lines, ends, radii, np.array(table)) if lines else None

    def run(self, source: Tensor | Cloud) -> dict[str, Any]:
        """The cloud of the points and the results of the lines, by name.

        Empty for other points: the lines are then run one by one, and say what is wrong.
        """
        points = source.coords if isinstance(source, Cloud) else source
        count, dim = points.shape
        if not 0 < count <= SMALL or dim != self.dim or points.requires_grad or not backends.on_cpu(points):
            return {}
        if isinstance(source, Cloud) and (source.splits.shape[0] != 2 or source.padding):
            return {}
        memories: dict[Any, _ChainMemory] = self.memories.__dict__
        memory = memories.get(points.dtype)
        if memory is None or memory.points < count or memory.unusual:
            if points.dtype not in (torch.float32, torch.float64):
                return {}
            memory = memories[points.dtype] = _ChainMemory(self, points.dtype, count)
        points = points.contiguous() if isinstance(source, Cloud) else points.detach().contiguous()
        x = points.numpy()
        while True:
            short, wholes, sources, coords = _run(x, *memory.arguments)
            if not short:
                break
            if short == _NOT_FINITE or (short == MORE_OUT and 2 * memory.edges > _MOST):
                return {}
            memory.grow(short)
        # All lines have pieces of the same three tensors.
        sizes, (first, second, _) = memory.sizes.tolist(), self.ends
        split, tensor = torch.unsafe_split_with_sizes, torch.from_numpy
        whole, columns = split(tensor(wholes), sizes[:first]), split(tensor(sources), sizes[first:second])
        sampled = split(tensor(coords), sizes[second:])
        cloud = source if isinstance(source, Cloud) else Cloud.made(coords=points, splits=whole[0])
        rows, directions = cloud.rows, cloud.directions
        values: dict[str, Any] = {self.first: cloud.trusted()}
        counts = {self.first: count}
        for name, operation, of, at, piece, symmetric in self.lines:
            if operation == _SEARCH:
                values[name] = Edges.made(
                    splits=whole[at], source=columns[piece], num_source=counts[of], symmetric=symmetric, _checked=True
                )
            else:
                counts[name] = sizes[second + piece]
                values[name] = Cloud.made(
                    coords=sampled[piece], splits=whole[at + 1], parent_index=whole[at], num_parent=counts[of],
                    rows=rows if rows is NO_ROWS else values[of].rows.taken(whole[at]), directions=directions,
                    _checked=True,
                )  # fmt: skip
        return values
