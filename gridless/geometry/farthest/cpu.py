"""Farthest sampling on the CPU: exact, and over edges with a priority queue."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless import backends
from gridless.geometry.work import STRANGER, cut_examples, refuse_stranger
from gridless.structures import Cloud, Edges


@njit(nogil=True, cache=True)
def _exact(coords, splits, e0, e1, ends, start, taken):
    dim = coords.shape[1]
    for e in range(e0, e1):
        first, n, size = splits[e], splits[e + 1] - splits[e], ends[e + 1] - ends[e]
        closest = np.full(n, np.inf, coords.dtype)
        at = start
        for s in range(size):
            taken[ends[e] + s] = first + at
            mine = coords[first + at]
            closest[at] = -1
            best, where = coords.dtype.type(-1), 0
            for j in range(n):
                dx = coords[first + j, 0] - mine[0]
                d2 = dx * dx
                for d in range(1, dim):
                    dx = coords[first + j, d] - mine[d]
                    d2 += dx * dx
                if d2 < closest[j]:
                    closest[j] = d2
                if closest[j] > best:
                    best, where = closest[j], j
            at = where


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
