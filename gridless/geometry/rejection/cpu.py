"""Rejection sampling on the CPU: over given edges, or over a hashed grid that holds the samples."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless import backends
from gridless.geometry.checks import squared_radius
from gridless.geometry.work import STRANGER, cut_examples, refuse_stranger
from gridless.structures import Cloud, Edges

# The grid has at most 2^20 cells along each of its (at most three) axes: a cell is one 60-bit number.
_AXIS = 1 << 20


@njit(nogil=True, cache=True)
def _over_edges(coords, splits, e0, e1, rows, source, closest, rejected, kept, counts):
    """Examples e0 to e1; the samples of an example are written to `kept` from its first row on."""
    measure = len(closest) > 0
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        count = 0
        for i in range(first, last):
            if rejected[i]:
                continue
            kept[first + count] = i
            count += 1
            for at in range(rows[i], rows[i + 1]):
                j = source[at]
                if j < first or j >= last:
                    return STRANGER
                rejected[j] = True
                if measure:
                    d2 = _squared(coords, i, j)
                    if d2 < closest[j]:
                        closest[j] = d2
            if measure:
                closest[i] = 0
        counts[e] = count
    return 0


@njit(nogil=True, cache=True)
def _squared(coords, i, j):
    dx = coords[j, 0] - coords[i, 0]
    d2 = dx * dx
    for d in range(1, coords.shape[1]):
        dx = coords[j, d] - coords[i, d]
        d2 += dx * dx
    return d2


@njit(nogil=True, cache=True)
def _cells(coords, first, last, radius, cell):
    """The grid cell (up to three axes) of each row. Points within `radius` are in the same or adjacent cells."""
    axes = min(coords.shape[1], 3)
    for d in range(axes):
        low = high = 0.5 * np.float64(coords[first, d])
        for i in range(first, last):
            x = 0.5 * np.float64(coords[i, d])
            low, high = min(low, x), max(high, x)
        # A little more than the radius, for rounding; halves, so that no difference overflows.
        side = max(0.5001 * radius, (high - low) / (_AXIS - 4))
        for i in range(first, last):
            cell[i - first, d] = np.int64((0.5 * np.float64(coords[i, d]) - low) / side) + 1
    for d in range(axes, 3):
        cell[: last - first, d] = 1


@njit(nogil=True, cache=True)
def _slot(key, keys, mask):
    """Where `key` is in the hash table, or the empty place where it belongs."""
    at = (key * np.int64(-7046029254386353131) >> 20) & mask
    while keys[at] != key and keys[at] != -1:
        at = (at + 1) & mask
    return at


@njit(nogil=True, cache=True)
def _in_grid(coords, splits, e0, e1, radius, reach, closest, kept, counts):
    """Samples of examples e0 to e1: a point is kept if no sample in the 27 cells around it is within reach."""
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        n = last - first
        if n == 0:
            counts[e] = 0
            continue
        cell = np.empty((n, 3), np.int64)
        _cells(coords, first, last, radius, cell)
        size = 16
        while size < 2 * n:
            size *= 2
        keys = np.full(size, -1, np.int64)
        head = np.empty(size, np.int32)
        # The samples of a cell are a list: `after` leads from one to the next.
        after = np.full(n, -1, np.int32)
        axes = min(coords.shape[1], 3)
        count = 0
        for i in range(n):
            if _closest(coords, first, i, cell, axes, keys, head, after, size - 1, reach, False) <= reach:
                continue
            key = (cell[i, 0] << 40) | (cell[i, 1] << 20) | cell[i, 2]
            at = _slot(key, keys, size - 1)
            after[i] = head[at] if keys[at] == key else -1
            keys[at] = key
            head[at] = i
            kept[first + count] = first + i
            count += 1
        counts[e] = count
        if len(closest):
            for i in range(n):
                closest[first + i] = _closest(coords, first, i, cell, axes, keys, head, after, size - 1, reach, True)


@njit(nogil=True, cache=True)
def _closest(coords, first, i, cell, axes, keys, head, after, mask, reach, all_of_them):
    """The squared distance of point i to its closest sample; to the first one met within reach unless all count."""
    best = np.inf
    wide_y = 1 if axes > 1 else 0
    wide_z = 1 if axes > 2 else 0
    for x in range(-1, 2):
        for y in range(-wide_y, wide_y + 1):
            for z in range(-wide_z, wide_z + 1):
                key = ((cell[i, 0] + x) << 40) | ((cell[i, 1] + y) << 20) | (cell[i, 2] + z)
                at = _slot(key, keys, mask)
                if keys[at] == -1:
                    continue
                j = head[at]
                while j >= 0:
                    d2 = _squared(coords, first + i, first + j)
                    if d2 < best:
                        best = d2
                        if d2 <= reach and not all_of_them:
                            return best
                    j = after[j]
    return best


@njit(nogil=True, cache=True)
def _compact(kept, splits, counts, ends, out):
    for e in range(len(counts)):
        for k in range(counts[e]):
            out[ends[e] + k] = kept[splits[e] + k]


def sample(
    cloud: Cloud, near: Edges | None, radius: float | None, distance: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    coords, splits = cloud.coords.detach().contiguous().numpy(), cloud.splits.numpy()
    closest = np.full(len(coords) if distance else 0, np.inf, coords.dtype)
    kept = np.empty(len(coords), np.int64)
    counts = np.zeros(cloud.num_examples, np.int64)
    cuts = cut_examples(splits)
    if near is not None:
        rejected = np.zeros(len(coords), np.bool_)
        edges = near.splits.numpy(), near.source.numpy()
        jobs = [(coords, splits, a, b, *edges, closest, rejected, kept, counts) for a, b in cuts]
        refuse_stranger(backends.in_threads(_over_edges, jobs))
    else:
        reach = coords.dtype.type(squared_radius(radius or 0, cloud.coords.dtype))
        backends.in_threads(_in_grid, [(coords, splits, a, b, radius, reach, closest, kept, counts) for a, b in cuts])
    ends = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=ends[1:])
    index = np.empty(ends[-1], np.int64)
    _compact(kept, splits, counts, ends, index)
    closest[splits[-1] :] = 0
    return torch.from_numpy(index), torch.from_numpy(ends), torch.from_numpy(closest).sqrt() if distance else None
