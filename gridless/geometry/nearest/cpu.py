"""The nearest search on the CPU: blocks of neighbouring points, scanned whole, and boxes that rule blocks out."""

# pyright: reportCallIssue=false

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gridless import backends
from gridless.compiled import njit
from gridless.geometry.block_vectors import BLOCK, distances, enough, first_bit, insert, reached, within
from gridless.geometry.blocks import aligned, bound_blocks, bound_boxes, sort_into_blocks
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


@njit(nogil=True, cache=True, inline="always")
def _gather(x, row, b, n, dim, point, last, best, kept, scratch, near, far, count):
    """Candidates of one block, those not above the k-th distance so far (best[last]), go to `near` and `far`."""
    found = distances(x, b, dim, point, best[last], scratch)
    if (b + 1) * BLOCK > n:
        found &= (np.uint64(1) << np.uint64(n - b * BLOCK)) - np.uint64(1)
    elif count == 0:
        # The first block: no more of it than is needed.
        found = within(scratch, 0, enough(scratch, last + 1 - 64 // x.itemsize))
    while found:
        lane = first_bit(found)
        found &= found - np.uint64(1)
        d2 = scratch[lane]
        if d2 <= best[last]:
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


@njit(nogil=True, cache=True, inline="always")
def _some(bits, first, count):
    """The bits that stand for something, where a block numbered from `first` on may reach beyond `count`."""
    return bits if first + BLOCK <= count else bits & ((np.uint64(1) << np.uint64(count - first)) - np.uint64(1))


@njit(nogil=True, cache=True)
def _select(near, far, count, bound, k, first, words, summary, out, at):
    """Write the rows of the k nearest in ascending order: all nearer than the k-th, then the first of those as far."""
    inside = 0
    for i in range(count):
        if far[i] < bound:
            _mark(words, summary, near[i])
            inside += 1
    ties = 0
    for i in range(count):
        if far[i] == bound:
            near[ties] = near[i]
            ties += 1
    if ties > k - inside:
        near[:ties].sort()
    for i in range(k - inside):
        _mark(words, summary, near[i])
    _list(words, summary, first, out, at)


@njit(nogil=True, cache=True, inline="always")
def _mark(words, summary, row):
    """Add a row to a set: a bit of `words`, and a bit of `summary` for each word that is not empty."""
    words[row >> 6] |= np.uint64(1) << np.uint64(row & 63)
    summary[row >> 12] |= np.uint64(1) << np.uint64((row >> 6) & 63)


@njit(nogil=True, cache=True, inline="always")
def _list(words, summary, first, out, at):
    """Write the rows of a set in ascending order, and empty it."""
    for s in range(len(summary)):
        while summary[s]:
            w = s * 64 + first_bit(summary[s])
            summary[s] &= summary[s] - np.uint64(1)
            bits = words[w]
            words[w] = 0
            while bits:
                out[at] = first + w * 64 + first_bit(bits)
                at += 1
                bits &= bits - np.uint64(1)


@njit(nogil=True, cache=True)
def _rows(tree, n, target, at_home, i0, i1, k, first, splits, out):
    """The rows of targets i0 to i1: points of the tree in its own order if `at_home`, else as they come."""
    x, row, low, high, group_low, group_high = tree
    dim = target.shape[1]
    lanes = 64 // x.itemsize
    kept = (k + lanes - 1) // lanes
    # The distances of the nearest so far, ascending, behind a vector of -inf; best[last] is the k-th.
    best, scratch, point = aligned((kept + 1) * lanes, x), aligned(BLOCK, x), aligned(dim, x)
    best[:lanes] = -np.inf
    last = lanes + k - 1
    near, far = np.empty(n, np.int32), np.empty(n, x.dtype)
    words, summary = np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)
    blocks = (n + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    for i in range(i0, i1):
        mine = np.int64(row[i]) if at_home else i
        for d in range(dim):
            point[d] = target[mine, d]
        best[lanes:] = np.inf
        home = i // BLOCK if at_home else _home(low, high, group_low, group_high, dim, n, point)
        count, steps = 0, 0
        # First the block at home and its relatives, until there are k.
        while count < k:
            b = home ^ steps
            if b < blocks:
                count = _gather(x, row, b, n, dim, point, last, best, kept, scratch, near, far, count)
            steps += 1
        for t in range((groups + BLOCK - 1) // BLOCK):
            in_groups = np.uint64(1)
            if groups > 1:
                in_groups = _some(reached(group_low, group_high, t, dim, point, best[last]), t * BLOCK, groups)
            while in_groups:
                g = t * BLOCK + first_bit(in_groups)
                in_groups &= in_groups - np.uint64(1)
                in_blocks = _some(reached(low, high, g, dim, point, best[last]), g * BLOCK, blocks)
                while in_blocks:
                    b = g * BLOCK + first_bit(in_blocks)
                    in_blocks &= in_blocks - np.uint64(1)
                    if (b ^ home) >= steps:
                        count = _gather(x, row, b, n, dim, point, last, best, kept, scratch, near, far, count)
        _select(near, far, count, best[last], k, first, words, summary, out, splits[mine])


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
