"""Farthest sampling on the CPU: exact, and over edges with a priority queue."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless import backends
from gridless.geometry.blocks import (
    BLOCK,
    aligned,
    bound_blocks,
    bound_boxes,
    equal,
    first_bit,
    largest,
    lower,
    sort_into_blocks,
    touched,
)
from gridless.geometry.work import STRANGER, cut_examples, refuse_stranger
from gridless.structures import Cloud, Edges

# Examples of at most so many points are scanned whole for each sample; larger ones are put into a tree of boxes.
_SMALL = 2048


@njit(nogil=True, cache=True)
def _exact(coords, splits, e0, e1, ends, start, taken):
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        mine = taken[ends[e] : ends[e + 1]]
        if len(mine) == 0:
            continue
        if last - first <= _SMALL:
            _scan(coords[first:last], start, mine)
        else:
            _in_boxes(coords[first:last], start, mine)
        mine += first


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


@njit(nogil=True, cache=True)
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
    bound_blocks(x, blocks, dim, low, high)
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


@njit(nogil=True, cache=True)
def _farthest(closest, most, group_most, row):
    """Where the largest distance is; of equal ones, that of the smallest row."""
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
def _squared(coords, i, j):
    dx = coords[j, 0] - coords[i, 0]
    d2 = dx * dx
    for d in range(1, coords.shape[1]):
        dx = coords[j, d] - coords[i, d]
        d2 += dx * dx
    return d2


@njit(nogil=True, cache=True)
def _sift_down(heap, key, at, count):
    """A binary heap of rows with the largest key, then the smallest row, on top; keys are copies of distances."""
    row, value = heap[at], key[at]
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        other = down + 1
        if other < count and (key[other] > key[down] or (key[other] == key[down] and heap[other] < heap[down])):
            down = other
        if value > key[down] or (value == key[down] and row < heap[down]):
            break
        heap[at], key[at] = heap[down], key[down]
        at = down
    heap[at], key[at] = row, value


@njit(nogil=True, cache=True)
def _take(coords, i, first, last, rows, source, closest, met):
    """Take point i: lower the distances of its neighbours."""
    for at in range(rows[i], rows[i + 1]):
        j = source[at]
        if j < first or j >= last:
            return STRANGER
        met[j - first] = True
        d2 = _squared(coords, i, j)
        if d2 < closest[j - first]:
            closest[j - first] = d2
    closest[i - first] = -1
    return 0


@njit(nogil=True, cache=True)
def _over_edges(coords, splits, e0, e1, ends, start, rows, source, reject, taken):
    """The queue with lazy deletion: distances only fall, so an entry on top that is out of date is lowered in place."""
    for e in range(e0, e1):
        first, last = splits[e], splits[e + 1]
        n, end = last - first, ends[e + 1]
        closest = np.full(n, np.inf, coords.dtype)
        met = np.zeros(n, np.bool_)
        at = ends[e]
        # Infinite distances come first, in index order: no queue is needed for them.
        if at < end and not reject:
            taken[at] = first + start
            at += 1
            if _take(coords, first + start, first, last, rows, source, closest, met):
                return STRANGER
        for i in range(n):
            if at == end:
                break
            if (not met[i] and closest[i] >= 0) if reject else closest[i] == np.inf:
                taken[at] = first + i
                at += 1
                if _take(coords, first + i, first, last, rows, source, closest, met):
                    return STRANGER
        if at == end:
            continue
        heap = np.arange(n)
        key = closest.copy()
        for i in range(n // 2 - 1, -1, -1):
            _sift_down(heap, key, i, n)
        while at < end:
            i = heap[0]
            if key[0] != closest[i]:
                key[0] = closest[i]
            else:
                taken[at] = first + i
                at += 1
                if _take(coords, first + i, first, last, rows, source, closest, met):
                    return STRANGER
                key[0] = -1
            _sift_down(heap, key, 0, n)
    return 0


def sample(cloud: Cloud, sizes: Tensor, start: int, near: Edges | None, reject: bool) -> Tensor:
    coords, splits = cloud.coords.detach().contiguous().numpy(), cloud.splits.numpy()
    ends = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes.numpy(), out=ends[1:])
    taken = np.empty(ends[-1], np.int64)
    cuts = cut_examples(splits)
    if near is None:
        backends.in_threads(_exact, [(coords, splits, a, b, ends, start, taken) for a, b in cuts])
    else:
        edges = near.splits.numpy(), near.source.numpy()
        jobs = [(coords, splits, a, b, ends, start, *edges, reject, taken) for a, b in cuts]
        refuse_stranger(backends.in_threads(_over_edges, jobs))
    return torch.from_numpy(taken)
