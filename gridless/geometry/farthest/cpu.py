"""Farthest sampling on the CPU: exact, and over edges with a priority queue."""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.blocks import aligned, bound_boxes, sort_into_blocks, squared
from gridless.geometry.checks import CROSSING, refuse_crossing
from gridless.kernels.compile import njit
from gridless.kernels.llvm import first_bit
from gridless.kernels.simd_blocks import BLOCK, equal, largest, lower, touched
from gridless.kernels.threads import cut_examples, in_threads
from gridless.structures import Cloud, Edges

# Examples of at most so many points are scanned whole for each sample; larger ones are put into a tree of boxes.
_SMALL = 2048


@njit(nogil=True, cache=True)
def _exact(coords, splits, e0, e1, ends, start, taken):
    """Samples of the examples e0 to e1, without edges."""
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        samples = taken[ends[e] : ends[e + 1]]
        if len(samples) == 0:
            continue
        if last - first <= _SMALL:
            _scan(coords[first:last], start, samples)
        else:
            _in_boxes(coords[first:last], start, samples)
        samples += first


@njit(nogil=True, cache=True)
def _scan(coords, start, taken):
    """Every sample looks at every block of points, in index order."""
    n, dim = coords.shape
    blocks = (n + BLOCK - 1) // BLOCK
    x = aligned(blocks * BLOCK * dim, coords)
    closest = aligned(blocks * BLOCK, coords)
    for d in range(dim):
        x[((blocks - 1) * dim + d) * BLOCK : ((blocks - 1) * dim + d + 1) * BLOCK] = 0
    for i in range(n):
        for d in range(dim):
            x[((i // BLOCK) * dim + d) * BLOCK + i % BLOCK] = coords[i, d]
    closest[:n] = np.inf
    closest[n:] = -1
    at = np.int64(start)
    for s in range(len(taken)):
        taken[s] = at
        # A point that was taken is never the farthest again.
        closest[at] = -1
        best, where = coords.dtype.type(-2), 0
        for b in range(blocks):
            most = lower(x, b, dim, coords[at], closest)
            if most > best:
                best, where = most, b
        at = where * BLOCK + first_bit(equal(closest, where, best))


@njit(nogil=True, cache=True, inner=True)
def _in_boxes(coords, start, taken):
    """Blocks of neighbouring points, groups of 64 blocks: what is too far from a sample to change is passed by."""
    n, dim = coords.shape
    blocks = (n + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    tops = (groups + BLOCK - 1) // BLOCK
    x = aligned(blocks * BLOCK * dim, coords)
    row = np.empty(blocks * BLOCK, np.int32)
    low, high = aligned(groups * BLOCK * dim, coords), aligned(groups * BLOCK * dim, coords)
    group_low, group_high = aligned(tops * BLOCK * dim, coords), aligned(tops * BLOCK * dim, coords)
    sort_into_blocks(coords, x, row)
    bound_boxes(x, x, blocks * BLOCK, dim, low, high)
    bound_boxes(low, high, blocks, dim, group_low, group_high)
    closest = aligned(blocks * BLOCK, coords)
    most, group_most = aligned(groups * BLOCK, coords), aligned(tops * BLOCK, coords)
    closest[:n] = most[:blocks] = group_most[:groups] = np.inf
    closest[n:] = most[blocks:] = group_most[groups:] = -1
    at = np.int64(0)
    while row[at] != start:
        at += 1
    for s in range(len(taken)):
        taken[s] = row[at]
        point = coords[row[at]]
        closest[at] = -1
        for t in range(tops):
            near_groups = touched(group_low, group_high, t, dim, point, group_most)
            while near_groups:
                g = t * BLOCK + first_bit(near_groups)
                near_groups &= near_groups - np.uint64(1)
                near = touched(low, high, g, dim, point, most)
                if near == 0:
                    continue
                while near:
                    b = g * BLOCK + first_bit(near)
                    near &= near - np.uint64(1)
                    most[b] = lower(x, b, dim, point, closest)
                group_most[g] = largest(most, g)
        at = _farthest(closest, most, group_most, row)
        if closest[at] == 0:
            # All points that are left are copies of samples: they follow in index order.
            _take_rest(closest, row, n, taken, s + 1)
            return


@njit(nogil=True, cache=True, inner=True)
def _take_rest(closest, row, n, taken, first):
    """Fill up with the rows that were not taken, in index order."""
    left = np.empty(n, np.bool_)
    for at in range(n):
        left[row[at]] = closest[at] >= 0
    i = 0
    for s in range(first, len(taken)):
        while not left[i]:
            i += 1
        taken[s] = i
        i += 1


@njit(nogil=True, cache=True)
def _farthest(closest, most, group_most, row):
    """Index of the largest distance; among equal ones, that of the smallest row."""
    best = largest(group_most, 0)
    for t in range(1, len(group_most) // BLOCK):
        best = max(best, largest(group_most, t))
    at = np.int64(-1)
    for t in range(len(group_most) // BLOCK):
        in_groups = equal(group_most, t, best)
        while in_groups:
            g = t * BLOCK + first_bit(in_groups)
            in_groups &= in_groups - np.uint64(1)
            in_blocks = equal(most, g, best)
            while in_blocks:
                b = g * BLOCK + first_bit(in_blocks)
                in_blocks &= in_blocks - np.uint64(1)
                points = equal(closest, b, best)
                while points:
                    i = b * BLOCK + first_bit(points)
                    points &= points - np.uint64(1)
                    if at < 0 or row[i] < row[at]:
                        at = i
    return at


@njit(nogil=True, cache=True)
def _lower(closest, most, group_most, i, value):
    """Lower one distance in the queue: a tree of maxima of 64, of which only those that it was are made again."""
    old = closest[i]
    closest[i] = value
    b = i // BLOCK
    if old < most[b]:
        return
    most[b] = largest(closest, b)
    if old == group_most[b // BLOCK]:
        group_most[b // BLOCK] = largest(most, b // BLOCK)


@njit(nogil=True, cache=True, inner=True)
def _first_farthest(closest, most, group_most):
    """The row of the largest distance, the first where several are equal."""
    best, top = largest(group_most, 0), 0
    for t in range(1, len(group_most) // BLOCK):
        value = largest(group_most, t)
        if value > best:
            best, top = value, t
    g = top * BLOCK + first_bit(equal(group_most, top, best))
    b = g * BLOCK + first_bit(equal(most, g, best))
    return b * BLOCK + first_bit(equal(closest, b, best))


@njit(nogil=True, cache=True)
def _take(coords, i, first, last, rows, source, closest, met):
    """Take point i before there is a queue: lower the distances of its neighbours."""
    for at in range(rows[i], rows[i + 1]):
        j = source[at]
        if j < first or j >= last:
            return CROSSING
        met[j - first] = True
        d2 = squared(coords, i, j)
        if d2 < closest[j - first]:
            closest[j - first] = d2
    closest[i - first] = -1
    return 0


@njit(nogil=True, cache=True, inner=True)
def _continue(coords, first, last, rows, source, closest, taken):
    """Fill `taken` from a queue of the distances."""
    blocks = (last - first + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    most = aligned(groups * BLOCK, closest)
    group_most = aligned((groups + BLOCK - 1) // BLOCK * BLOCK, closest)
    most[:] = -1
    group_most[:] = -1
    for b in range(blocks):
        most[b] = largest(closest, b)
    for g in range(groups):
        group_most[g] = largest(most, g)
    for s in range(len(taken)):
        i = first + _first_farthest(closest, most, group_most)
        taken[s] = i
        _lower(closest, most, group_most, i - first, -1)
        for at in range(rows[i], rows[i + 1]):
            j = source[at]
            if j < first or j >= last:
                return CROSSING
            d2 = squared(coords, i, j)
            if d2 < closest[j - first]:
                _lower(closest, most, group_most, j - first, d2)
    return 0


@njit(nogil=True, cache=True)
def _over_edges(coords, splits, e0, e1, ends, start, rows, source, reject, taken):
    """Samples of the examples e0 to e1; distances go along the edges only."""
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        n, end = last - first, ends[e + 1]
        closest = aligned((n + BLOCK - 1) // BLOCK * BLOCK, coords)
        closest[:n] = np.inf
        closest[n:] = -1
        met = np.zeros(n, np.bool_)
        at = ends[e]
        # Infinite distances come first, in index order: no queue is needed for them.
        if at < end and not reject:
            taken[at] = first + start
            at += 1
            if _take(coords, first + start, first, last, rows, source, closest, met):
                return CROSSING
        for i in range(n):
            if at == end:
                break
            if (not met[i] and closest[i] >= 0) if reject else closest[i] == np.inf:
                taken[at] = first + i
                at += 1
                if _take(coords, first + i, first, last, rows, source, closest, met):
                    return CROSSING
        if at < end and _continue(coords, first, last, rows, source, closest, taken[at:end]):
            return CROSSING
    return 0


def sample(cloud: Cloud, sizes: Tensor, start: int, near: Edges | None, reject: bool) -> Tensor:
    coords, splits = cloud.coords.detach().contiguous().numpy(), cloud.splits.numpy()
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes.numpy(), out=ends[1:])
    taken = np.empty(ends[-1], np.int64)
    cuts = cut_examples(splits)
    if near is None:
        in_threads(_exact, [(coords, splits, a, b, ends, start, taken) for a, b in cuts])
    else:
        edges = near.splits.numpy(), near.source.numpy()
        jobs = [(coords, splits, a, b, ends, start, *edges, reject, taken) for a, b in cuts]
        refuse_crossing(in_threads(_over_edges, jobs))
    return torch.from_numpy(taken)
