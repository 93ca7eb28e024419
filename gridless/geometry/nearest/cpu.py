"""The nearest search on the CPU: blocks of neighbouring points, scanned whole, and boxes that rule blocks out."""

from __future__ import annotations

from itertools import pairwise

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
    distances,
    first_bit,
    insert,
    reached,
    sort_into_blocks,
)
from gridless.geometry.work import cut_examples
from gridless.structures import Cloud

# Targets of one example that are worth a thread of their own.
_SHARE = 2048


@njit(nogil=True, cache=True)
def _plant(coords):
    """The points of one example in blocks, with their rows and the boxes of blocks and of groups of blocks."""
    n, dim = coords.shape
    blocks = (n + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    tops = (groups + BLOCK - 1) // BLOCK
    x, row = aligned(blocks * BLOCK * dim, coords), np.empty(blocks * BLOCK, np.int32)
    low, high = aligned(groups * BLOCK * dim, coords), aligned(groups * BLOCK * dim, coords)
    group_low, group_high = aligned(tops * BLOCK * dim, coords), aligned(tops * BLOCK * dim, coords)
    sort_into_blocks(coords, x, row)
    bound_blocks(x, blocks, dim, low, high)
    bound_boxes(low, high, blocks, dim, group_low, group_high)
    return x, row, low, high, group_low, group_high


@njit(nogil=True, cache=True)
def _gather(x, row, b, n, dim, point, k, best, kept, scratch, near, far, count):
    """Candidates of one block: those not above the k-th distance so far."""
    lanes = 64 // x.itemsize
    found = distances(x, b, dim, point, best[lanes + k - 1], scratch)
    if (b + 1) * BLOCK > n:
        found &= (np.uint64(1) << np.uint64(n - b * BLOCK)) - np.uint64(1)
    while found:
        lane = first_bit(found)
        found &= found - np.uint64(1)
        d2 = scratch[lane]
        if d2 <= best[lanes + k - 1]:
            near[count], far[count] = row[b * BLOCK + lane], d2
            count += 1
            insert(best, kept, d2)
    return count


@njit(nogil=True, cache=True)
def _home(low, high, group_low, group_high, dim, n, point):
    """The block whose box is nearest to a point, nearly: that of the nearest group."""
    blocks = (n + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    g = _nearest_box(group_low, group_high, dim, 0, groups, point)
    return _nearest_box(low, high, dim, g * BLOCK, min(g * BLOCK + BLOCK, blocks), point)


@njit(nogil=True, cache=True)
def _nearest_box(low, high, dim, first, last, point):
    least, at = point.dtype.type(np.inf), first
    for b in range(first, last):
        total = point.dtype.type(0)
        for d in range(dim):
            i = ((b // BLOCK) * dim + d) * BLOCK + b % BLOCK
            gap = max(max(low[i] - point[d], point[d] - high[i]), point.dtype.type(0))
            total += gap * gap
        if total < least:
            least, at = total, b
    return at


@njit(nogil=True, cache=True)
def _candidates(tree, n, point, home, k, best, kept, scratch, near, far):
    """Fill `near` and `far` with rows and distances that hold the k nearest; returns how many."""
    x, row, low, high, group_low, group_high = tree
    dim = len(point)
    lanes = 64 // x.itemsize
    blocks = (n + BLOCK - 1) // BLOCK
    best[:lanes] = -np.inf
    best[lanes:] = np.inf
    count, steps = 0, 0
    # First the block at home and its relatives, until there are k.
    while count < k:
        b = home ^ steps
        if b < blocks:
            count = _gather(x, row, b, n, dim, point, k, best, kept, scratch, near, far, count)
        steps += 1
    groups = (blocks + BLOCK - 1) // BLOCK
    for t in range((groups + BLOCK - 1) // BLOCK):
        in_groups = reached(group_low, group_high, t, dim, point, best[lanes + k - 1])
        if (t + 1) * BLOCK > groups:
            in_groups &= (np.uint64(1) << np.uint64(groups - t * BLOCK)) - np.uint64(1)
        while in_groups:
            g = t * BLOCK + first_bit(in_groups)
            in_groups &= in_groups - np.uint64(1)
            in_blocks = reached(low, high, g, dim, point, best[lanes + k - 1])
            if (g + 1) * BLOCK > blocks:
                in_blocks &= (np.uint64(1) << np.uint64(blocks - g * BLOCK)) - np.uint64(1)
            while in_blocks:
                b = g * BLOCK + first_bit(in_blocks)
                in_blocks &= in_blocks - np.uint64(1)
                if (b ^ home) >= steps:
                    count = _gather(x, row, b, n, dim, point, k, best, kept, scratch, near, far, count)
    return count


@njit(nogil=True, cache=True)
def _select(near, far, count, bound, k, first, out):
    """Write the rows of the k nearest in ascending order: all nearer than the k-th, then the first of those as far."""
    taken = 0
    for i in range(count):
        if far[i] < bound:
            taken = _place(out, 0, taken, near[i] + first)
    inside = taken
    # Rows at the k-th distance, ascending, behind those inside; no more than k in all.
    for i in range(count):
        if far[i] == bound:
            at = near[i] + first
            if taken < k:
                taken = _place(out, inside, taken, at)
            elif at < out[k - 1]:
                _place(out, inside, k - 1, at)
    for i in range(inside, k):
        _place(out, 0, i, out[i])


@njit(nogil=True, cache=True)
def _place(out, first, last, value):
    """Put a value in its place among the ascending ones first to last; what was at `last` is overwritten."""
    at = last
    while at > first and out[at - 1] > value:
        out[at] = out[at - 1]
        at -= 1
    out[at] = value
    return last + 1


@njit(nogil=True, cache=True)
def _rows(tree, n, target, at_home, i0, i1, k, first, splits, out):
    """The rows of targets i0 to i1: points of the tree in its own order if `at_home`, else as they come."""
    x, row, low, high, group_low, group_high = tree
    lanes = 64 // x.itemsize
    kept = (k + lanes - 1) // lanes
    best, scratch = aligned((kept + 1) * lanes, x), aligned(BLOCK, x)
    near, far = np.empty(n, np.int32), np.empty(n, x.dtype)
    dim = target.shape[1]
    for i in range(i0, i1):
        mine = np.int64(row[i]) if at_home else i
        point = target[mine]
        home = i // BLOCK if at_home else _home(low, high, group_low, group_high, dim, n, point)
        count = _candidates(tree, n, point, home, k, best, kept, scratch, near, far)
        _select(near, far, count, best[lanes + k - 1], k, first, out[splits[mine] : splits[mine] + k])


@njit(nogil=True, cache=True)
def _examples(source, ss, target, ts, at_home, e0, e1, k, splits, out):
    for e in range(e0, e1):
        n = ss[e + 1] - ss[e]
        if n > 0 and ts[e + 1] > ts[e]:
            tree = _plant(source[ss[e] : ss[e + 1]])
            there, rows = target[ts[e] : ts[e + 1]], splits[ts[e] :]
            _rows(tree, n, there, at_home, 0, len(there), min(k, n), ss[e], rows, out)


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    x, y = source.coords.detach().contiguous().numpy(), target.coords.detach().contiguous().numpy()
    ss, ts = source.splits.numpy(), target.splits.numpy()
    counts = np.zeros(len(target), np.int64)
    counts[: ts[-1]] = np.repeat(np.minimum(np.diff(ss), k), np.diff(ts))
    splits = np.zeros(len(target) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    out = np.empty(splits[-1], np.int32)
    at_home = source is target
    if len(ss) == 2 and backends.num_threads() > 1 and ts[-1] > _SHARE and ss[-1] > 0:
        tree, n = _plant(x[: ss[-1]]), int(ss[-1])
        parts = min(4 * backends.num_threads(), int(ts[-1]) // _SHARE)
        cuts = np.linspace(0, ts[-1], parts + 1).astype(np.int64).tolist()
        jobs = [(tree, n, y, at_home, a, b, min(k, n), 0, splits, out) for a, b in pairwise(cuts)]
        backends.in_threads(_rows, jobs)
    else:
        jobs = [(x, ss, y, ts, at_home, a, b, k, splits, out) for a, b in cut_examples(ts)]
        backends.in_threads(_examples, jobs)
    return torch.from_numpy(splits), torch.from_numpy(out)
