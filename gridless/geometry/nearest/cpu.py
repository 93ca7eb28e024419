"""The nearest search on the CPU: a kd-tree of small leaves, whose boxes bound the distance to the bit."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless import backends
from gridless.geometry.work import cut_examples
from gridless.structures import Cloud

# Points of a leaf, at most.
_LEAF = 16


@njit(nogil=True, cache=True)
def _levels(n):
    """Halvings until a leaf is small enough."""
    levels = 0
    while n > _LEAF << levels:
        levels += 1
    return levels


@njit(nogil=True, cache=True)
def _swap(x, row, i, j):
    row[i], row[j] = row[j], row[i]
    for d in range(x.shape[1]):
        x[i, d], x[j, d] = x[j, d], x[i, d]


@njit(nogil=True, cache=True)
def _select(x, row, low, high, middle, d):
    """Move the points of low to high so that those before `middle` are not above those after it along axis d."""
    high -= 1
    while low < high:
        a, b, c = x[low, d], x[(low + high) >> 1, d], x[high, d]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while x[i, d] < pivot:
                i += 1
            while x[j, d] > pivot:
                j -= 1
            if i <= j:
                _swap(x, row, i, j)
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@njit(nogil=True, cache=True)
def _build(x, row, begin, low, high):
    """Sort points x and their row numbers into a tree: node m has the points begin[m] to begin[m + 1] of its level.

    Nodes are numbered level by level from 1, the children of m are 2 m and 2 m + 1; `low` and `high` are their boxes.
    `begin` is for the leaves.
    """
    leaves = len(begin) - 1
    dim = x.shape[1]
    stack = np.empty((64, 3), np.int64)
    stack[0] = 1, 0, len(x)
    top = 1
    while top:
        top -= 1
        node, a, b = stack[top]
        widest, axis = x.dtype.type(-1), 0
        for d in range(dim):
            lo = hi = x[a, d] if a < b else x.dtype.type(0)
            for i in range(a, b):
                lo, hi = min(lo, x[i, d]), max(hi, x[i, d])
            low[node, d], high[node, d] = lo, hi
            if hi - lo > widest:
                widest, axis = hi - lo, d
        if node >= leaves:
            begin[node - leaves], begin[node - leaves + 1] = a, b
            continue
        middle = (a + b) >> 1
        _select(x, row, a, b, middle, axis)
        stack[top] = 2 * node, a, middle
        stack[top + 1] = 2 * node + 1, middle, b
        top += 2


@njit(nogil=True, cache=True)
def _to_box(low, high, node, t):
    """The squared distance from t to a box. Rounding is monotone, so no point inside has a smaller one."""
    zero = t.dtype.type(0)
    gap = max(max(low[node, 0] - t[0], t[0] - high[node, 0]), zero)
    total = gap * gap
    for d in range(1, len(t)):
        gap = max(max(low[node, d] - t[d], t[d] - high[node, d]), zero)
        total += gap * gap
    return total


@njit(nogil=True, cache=True)
def _insert(best, index, count, k, d2, j):
    """Keep the k smallest (distance, row) pairs, sorted."""
    if count == k:
        if d2 > best[k - 1] or (d2 == best[k - 1] and j > index[k - 1]):
            return count
        at = k - 1
    else:
        at = count
        count += 1
    while at > 0 and (best[at - 1] > d2 or (best[at - 1] == d2 and index[at - 1] > j)):
        best[at], index[at] = best[at - 1], index[at - 1]
        at -= 1
    best[at], index[at] = d2, j
    return count


@njit(nogil=True, cache=True)
def _query(x, row, begin, low, high, t, k, best, index, stack, bound):
    leaves = len(begin) - 1
    dim = x.shape[1]
    stack[0], bound[0] = 1, t.dtype.type(0)
    top, count = 1, 0
    while top:
        top -= 1
        node = stack[top]
        if count == k and bound[top] > best[k - 1]:
            continue
        while node < leaves:
            left, right = _to_box(low, high, 2 * node, t), _to_box(low, high, 2 * node + 1, t)
            node *= 2
            if right < left:
                stack[top], bound[top] = node, left
                node += 1
            else:
                stack[top], bound[top] = node + 1, right
            top += 1
        for i in range(begin[node - leaves], begin[node - leaves + 1]):
            dx = x[i, 0] - t[0]
            d2 = dx * dx
            for d in range(1, dim):
                dx = x[i, d] - t[d]
                d2 += dx * dx
            if count < k or d2 <= best[k - 1]:
                count = _insert(best, index, count, k, d2, row[i])
    return count


@njit(nogil=True, cache=True)
def _plant(source, a, b, x, row, begin, low, high):
    x[:] = source[a:b]
    for i in range(b - a):
        row[i] = a + i
    begin[:] = 0
    _build(x, row, begin, low, high)


@njit(nogil=True, cache=True)
def _rows(target, i0, i1, x, row, begin, low, high, k, splits, out):
    """The rows of targets i0 to i1 of one example."""
    best = np.empty(k, x.dtype)
    index = np.empty(k, np.int64)
    stack = np.empty(64, np.int64)
    bound = np.empty(64, x.dtype)
    for i in range(i0, i1):
        _query(x, row, begin, low, high, target[i], k, best, index, stack, bound)
        at = splits[i]
        for m in range(k):
            j, p = index[m], at + m
            while p > at and out[p - 1] > j:
                out[p] = out[p - 1]
                p -= 1
            out[p] = j


@njit(nogil=True, cache=True)
def _examples(source, ss, target, ts, e0, e1, k, splits, out):
    for e in range(e0, e1):
        n = ss[e + 1] - ss[e]
        if n == 0 or ts[e + 1] == ts[e]:
            continue
        leaves = 1 << _levels(n)
        x = np.empty((n, source.shape[1]), source.dtype)
        row = np.empty(n, np.int64)
        begin = np.empty(leaves + 1, np.int64)
        low, high = np.empty((2 * leaves, x.shape[1]), x.dtype), np.empty((2 * leaves, x.shape[1]), x.dtype)
        _plant(source, ss[e], ss[e + 1], x, row, begin, low, high)
        _rows(target, ts[e], ts[e + 1], x, row, begin, low, high, min(k, n), splits, out)


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    x, y = source.coords.detach().contiguous().numpy(), target.coords.detach().contiguous().numpy()
    ss, ts = source.splits.numpy(), target.splits.numpy()
    counts = np.zeros(len(target), np.int64)
    counts[: ts[-1]] = np.repeat(np.minimum(np.diff(ss), k), np.diff(ts))
    splits = np.zeros(len(target) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    out = np.empty(splits[-1], np.int32)
    backends.in_threads(_examples, [(x, ss, y, ts, a, b, k, splits, out) for a, b in cut_examples(ts)])
    return torch.from_numpy(splits), torch.from_numpy(out)
