"""Rejection sampling on the CPU: over given edges, or over a hashed grid that holds the samples."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.blocks import squared
from gridless.geometry.checks import CROSSING, refuse_crossing, squared_radius
from gridless.geometry.rejection.reference import ball_of_samples as ball_of_samples  # torch, a few passes
from gridless.kernels.compile import njit
from gridless.kernels.threads import cut_examples, in_threads
from gridless.structures import Cloud, Edges

# Cells per point up to which a grid is stored whole; beyond, cells share the places of a hash table.
_DENSE = 8
# Large odd numbers, whose products scatter cells over the table.
_MIX = -7046029254386353131, -4417276706812531889, 1609587929392839161
# Cells of a hashed grid are numbered from the origin. Beyond this number all are one: float64 would misplace points.
_FAR = float(1 << 40)


@njit(nogil=True, cache=True)
def over_edges(coords, splits, e0, e1, rows, source, closest, rejected, samples, counts):
    """Examples e0 to e1; the samples of an example are written to `samples` from its first row on."""
    measure = len(closest) > 0
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        count = 0
        for i in range(first, last):
            if rejected[i]:
                continue
            samples[first + count] = i
            count += 1
            for at in range(rows[i], rows[i + 1]):
                j = source[at]
                if j < first or j >= last:
                    return CROSSING
                rejected[j] = True
                if measure:
                    d2 = squared(coords, i, j)
                    if d2 < closest[j]:
                        closest[j] = d2
            if measure:
                closest[i] = 0
        counts[e] = count
    return 0


@njit(nogil=True, cache=True)
def _cells(coords, radius, cell, shape):
    """The grid cell of each row along up to three axes: points within `radius` are in adjacent cells.

    Cells are numbered from 1 on in a grid of `shape`; if that is too large to be stored, shape is zero.
    """
    axes = min(coords.shape[1], 3)
    # A little wider than the radius, for rounding; halves, so that no difference overflows.
    side = 0.5001 * radius
    start, total = np.empty(3, np.float64), 1.0
    shape[:] = 1
    for d in range(axes):
        low = high = coords[0, d]
        for i in range(len(coords)):
            low, high = min(low, coords[i, d]), max(high, coords[i, d])
        start[d] = 0.5 * np.float64(low)
        along = (0.5 * np.float64(high) - start[d]) / side + 3
        total *= along
        shape[d] = np.int64(min(along, _FAR))
    cell[:, axes:] = 0
    if total <= _DENSE * len(coords):
        for d in range(axes):
            for i in range(len(coords)):
                cell[i, d] = np.int64((0.5 * np.float64(coords[i, d]) - start[d]) / side) + 1
        return
    shape[:] = 0
    for d in range(axes):
        for i in range(len(coords)):
            number = np.floor(0.5 * np.float64(coords[i, d]) / side)
            cell[i, d] = np.int64(min(max(number, -_FAR), _FAR))


@njit(nogil=True, cache=True)
def _place(x, y, z, shape, mask):
    """The place of a cell in the table: its number in the grid, or a hash of it where the grid is too large."""
    if mask == 0:
        return (x * shape[1] + y) * shape[2] + z
    return (x * _MIX[0] + y * _MIX[1] + z * _MIX[2] >> 20) & mask


@njit(nogil=True, cache=True)
def _sort(coords, cell, shape, mask, begin, row, sorted_coords):
    """Bring the points of each place together, in index order: begin[p] to begin[p + 1]."""
    n, dim = coords.shape
    place = np.empty(n, np.int64)
    for i in range(n):
        place[i] = _place(cell[i, 0], cell[i, 1], cell[i, 2], shape, mask)
        begin[place[i] + 1] += 1
    total = 0
    for p in range(1, len(begin)):
        # The first of each place for now: placing the points moves it to the end.
        count = begin[p]
        begin[p] = total
        total += count
    for i in range(n):
        at = begin[place[i] + 1]
        begin[place[i] + 1] = at + 1
        row[at] = i
        for d in range(dim):
            sorted_coords[at, d] = coords[i, d]


@njit(nogil=True, cache=True, inner=True)
def _reject(coords, begin, row, i, reach, first, last, rejected, closest):
    """Reject the points in places first to last that are within reach of point i."""
    for at in range(begin[first], begin[last + 1]):
        d2 = squared(coords, i, at)
        if d2 <= reach:
            j = row[at]
            rejected[j] = True
            if len(closest) and d2 < closest[j]:
                closest[j] = d2


@njit(nogil=True, cache=True, inner=True)
def _one_in_grid(coords, radius, reach, closest, samples):
    """Samples of one example, with its points sorted into cells as wide as the radius; returns their number."""
    n, dim = coords.shape
    cell, shape = np.empty((n, 3), np.int64), np.empty(3, np.int64)
    _cells(coords, radius, cell, shape)
    mask = np.int64(0)
    size = shape[0] * shape[1] * shape[2]
    if size == 0:
        size = 16
        while size < 2 * n:
            size *= 2
        mask = size - 1
    begin, row = np.zeros(size + 1, np.int64), np.empty(n, np.int32)
    sorted_coords = np.empty((n, dim), coords.dtype)
    _sort(coords, cell, shape, mask, begin, row, sorted_coords)
    at = np.empty(n, np.int32)
    for p in range(n):
        at[row[p]] = p
    rejected = np.zeros(n, np.bool_)
    wide_y, wide_z = np.int64(dim > 1), np.int64(dim > 2)
    count = 0
    for i in range(n):
        if rejected[i]:
            continue
        samples[count] = i
        count += 1
        cx, cy, cz = cell[i, 0], cell[i, 1], cell[i, 2]
        for x in range(cx - 1, cx + 2):
            for y in range(cy - wide_y, cy + wide_y + 1):
                if mask == 0:
                    # Cells that differ in their last axis only are neighbours in the table too.
                    first = _place(x, y, cz - wide_z, shape, mask)
                    _reject(sorted_coords, begin, row, at[i], reach, first, first + 2 * wide_z, rejected, closest)
                    continue
                for z in range(cz - wide_z, cz + wide_z + 1):
                    place = _place(x, y, z, shape, mask)
                    _reject(sorted_coords, begin, row, at[i], reach, place, place, rejected, closest)
    return count


@njit(nogil=True, cache=True)
def _in_grid(coords, splits, e0, e1, radius, reach, closest, samples, counts):
    """Samples of examples e0 to e1, without edges: a kept point rejects what it finds in the cells around it."""
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        if last > first:
            own_samples = samples[first:last]
            distances = closest[first:last] if len(closest) else closest
            counts[e] = _one_in_grid(coords[first:last], radius, reach, distances, own_samples)
            own_samples[: counts[e]] += first


@njit(nogil=True, cache=True)
def _compact(samples, splits, counts, ends, out):
    """Copy the samples of all examples one behind the other."""
    for e in range(len(counts)):
        for k in range(counts[e]):
            out[ends[e] + k] = samples[splits[e] + k]


def sample(cloud: Cloud, near: Edges | None, radius: float | None, distance: bool) -> Cloud:
    coords, splits = cloud.coords.detach().contiguous().numpy(), cloud.splits.numpy()
    closest = np.full(len(coords) if distance else 0, np.inf, coords.dtype)
    samples = np.empty(len(coords), np.int64)
    counts = np.zeros(cloud.num_examples, np.int64)
    cuts = cut_examples(splits)
    if near is not None:
        rejected = np.zeros(len(coords), np.bool_)
        edges = near.splits.numpy(), near.source.numpy()
        jobs = [(coords, splits, a, b, *edges, closest, rejected, samples, counts) for a, b in cuts]
        refuse_crossing(in_threads(over_edges, jobs))
    else:
        reach = coords.dtype.type(squared_radius(radius or 0, cloud.coords.dtype))
        in_threads(_in_grid, [(coords, splits, a, b, radius, reach, closest, samples, counts) for a, b in cuts])
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    index = np.empty(ends[-1], np.int64)
    _compact(samples, splits, counts, ends, index)
    closest[splits[-1] :] = 0
    far = torch.from_numpy(closest).sqrt() if distance else None
    return cloud.sampled(torch.from_numpy(index), torch.from_numpy(ends), far)


@njit(nogil=True, cache=True)
def _doubtful_depth(splits, source, depth, known, radius):
    """The greatest depth of a point in doubt, see `doubtful_depth` of the package."""
    state, deepest = np.empty(len(depth), np.int8), known  # -1 in doubt, 0 rejected, 1 kept
    for i in range(len(depth)):
        state[i] = 1 if depth[i] > known + radius else -1
        if depth[i] > known:
            for at in range(splits[i], splits[i + 1]):
                j = source[at]
                if j < i and state[j] == 1:
                    state[i] = 0
                    break
                if j < i and state[j] < 0:
                    state[i] = -1
        if state[i] < 0 and depth[i] > deepest:
            deepest = depth[i]
    return deepest


def doubtful_depth(rows: Edges, depth: Tensor, known: float, radius: float) -> float:
    return float(_doubtful_depth(rows.splits.numpy(), rows.source.numpy(), depth.numpy(), float(known), radius))
