"""The nearest search on the CPU: blocks of neighbouring points, scanned whole, and boxes that rule blocks out."""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.blocks import aligned, bound_boxes, sort_into_blocks
from gridless.kernels.compile import njit
from gridless.kernels.llvm import first_bit
from gridless.kernels.simd_blocks import BLOCK, distances, enough, insert, reached, within
from gridless.kernels.threads import cut_examples, even_ranges, in_threads, num_threads
from gridless.structures import Cloud

# Targets of one example that are worth a thread of their own.
_SHARE = 2048


@njit(nogil=True, cache=True)
def _plant(coords):
    """The points of one example in blocks, with their rows and the boxes of blocks and of groups of blocks.

    `least` and `group_least` are the smallest row of each block and of each group.
    """
    n, dim = coords.shape
    blocks = (n + BLOCK - 1) // BLOCK
    groups = (blocks + BLOCK - 1) // BLOCK
    tops = (groups + BLOCK - 1) // BLOCK
    x, row = aligned(blocks * BLOCK * dim, coords), np.empty(blocks * BLOCK, np.int32)
    low, high = aligned(groups * BLOCK * dim, coords), aligned(groups * BLOCK * dim, coords)
    group_low, group_high = aligned(tops * BLOCK * dim, coords), aligned(tops * BLOCK * dim, coords)
    sort_into_blocks(coords, x, row)
    bound_boxes(x, x, blocks * BLOCK, dim, low, high)
    bound_boxes(low, high, blocks, dim, group_low, group_high)
    least, group_least = np.full(blocks, n, np.int32), np.full(groups, n, np.int32)
    for i in range(n):
        b = i // BLOCK
        least[b] = min(least[b], row[i])
        group_least[b // BLOCK] = min(group_least[b // BLOCK], row[i])
    return x, row, (low, high, least), (group_low, group_high, group_least)


@njit(nogil=True, cache=True, inline="always")
def _gather(x, row, b, n, dim, point, last, best, vectors, scratch, near, far, count, tie, tie_row):
    """Candidates of one block, those not above the k-th distance so far (best[last]), go to `near` and `far`.

    Those at the distance `tie` from row `tie_row` on are left out: there are k before them.
    """
    bits = distances(x, b, dim, point, best[last], scratch)
    if (b + 1) * BLOCK > n:
        bits &= (np.uint64(1) << np.uint64(n - b * BLOCK)) - np.uint64(1)
    elif count == 0:
        # The first block: no more of it than is needed.
        bits &= within(scratch, 0, enough(scratch, last + 1 - 64 // x.itemsize))
    while bits:
        lane = first_bit(bits)
        bits &= bits - np.uint64(1)
        d2 = scratch[lane]
        if d2 <= best[last] and (d2 != tie or row[b * BLOCK + lane] < tie_row):
            near[count], far[count] = row[b * BLOCK + lane], d2
            count += 1
            insert(best, vectors, d2)
    return count


@njit(nogil=True, cache=True)
def _cut(near, far, count, bound, k):
    """Keep the k nearest candidates: all nearer than the k-th, then the first of those as far; return the last row."""
    inside = 0
    for i in range(count):
        if far[i] < bound:
            near[i], near[inside] = near[inside], near[i]
            far[i], far[inside] = far[inside], far[i]
            inside += 1
    ties = inside
    for i in range(inside, count):
        if far[i] == bound:
            near[ties], far[ties] = near[i], bound
            ties += 1
    if ties > k:
        near[inside:ties].sort()
    return near[inside:k].max()


@njit(nogil=True, cache=True, inner=True)
def _untied(boxes, t, dim, point, bits, tie, tie_row):
    """Mask of the boxes `bits` of a block that hold something nearer than `tie`, or a row before `tie_row`."""
    low, high, least = boxes
    tied = bits & ~reached(low, high, t, dim, point, np.nextafter(tie, type(tie)(-1)))
    while tied:
        lane = first_bit(tied)
        tied &= tied - np.uint64(1)
        if least[t * BLOCK + lane] >= tie_row:
            bits &= ~(np.uint64(1) << np.uint64(lane))
    return bits


@njit(nogil=True, cache=True, inner=True)
def _home(boxes, groups, dim, n, point):
    """The block whose box is nearest to a point, nearly: that of the nearest group."""
    blocks = (n + BLOCK - 1) // BLOCK
    g = _nearest_box(groups[0], groups[1], dim, 0, (blocks + BLOCK - 1) // BLOCK, point)
    return _nearest_box(boxes[0], boxes[1], dim, g * BLOCK, min(g * BLOCK + BLOCK, blocks), point)


@njit(nogil=True, cache=True, inner=True)
def _nearest_box(low, high, dim, first, last, point):
    """The box of first to last that is nearest to the point."""
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
def _rows(tree, n, target, at_home, i0, i1, k, reach, first, splits, out):
    """The rows of targets i0 to i1: points of the tree in its own order if `at_home`, else as they come.

    At most k sources each, of those whose squared distance is not above `reach`, to out[splits[i]:].
    Returns how many blocks were looked at.
    """
    x, row, boxes, groups = tree
    dim = target.shape[1]
    lanes = 64 // x.itemsize
    vectors = (k + lanes - 1) // lanes
    # The distances of the nearest so far, ascending, behind a vector of -inf; best[last] is the k-th.
    best, scratch, point = aligned((vectors + 1) * lanes, x), aligned(BLOCK, x), aligned(dim, x)
    best[:lanes] = -np.inf
    last = lanes + k - 1
    near, far = np.empty(2 * k + 4 * BLOCK, np.int32), np.empty(2 * k + 4 * BLOCK, x.dtype)
    words, summary = np.zeros((n >> 6) + 1, np.uint64), np.zeros((n >> 12) + 1, np.uint64)
    block_count, group_count = len(boxes[2]), len(groups[2])
    # Every block is home ^ steps for one of these steps; with a finite reach the target's own block alone is first.
    most_steps = 1
    while reach == np.inf and most_steps < block_count:
        most_steps *= 2
    looked = 0
    for i in range(i0, i1):
        target_row = np.int64(row[i]) if at_home else i
        for d in range(dim):
            point[d] = target[target_row, d]
        best[lanes:] = reach
        home = i // BLOCK if at_home else _home(boxes, groups, dim, n, point)
        count, steps, tie, tie_row = 0, 0, -reach, n
        # First the target's own block and those beside it in the tree, until there are k.
        while count < k and steps < most_steps:
            b = home ^ steps
            if b < block_count:
                count = _gather(x, row, b, n, dim, point, last, best, vectors, scratch, near, far, count, tie, tie_row)
            steps += 1
        looked += steps
        for t in range((group_count + BLOCK - 1) // BLOCK):
            in_groups = np.uint64(1)
            if group_count > 1:
                in_groups = reached(groups[0], groups[1], t, dim, point, best[last])
                in_groups = _some(in_groups, t * BLOCK, group_count)
            if tie == best[last]:
                in_groups = _untied(groups, t, dim, point, in_groups, tie, tie_row)
            while in_groups:
                g = t * BLOCK + first_bit(in_groups)
                in_groups &= in_groups - np.uint64(1)
                in_blocks = _some(reached(boxes[0], boxes[1], g, dim, point, best[last]), g * BLOCK, block_count)
                if tie == best[last]:
                    in_blocks = _untied(boxes, g, dim, point, in_blocks, tie, tie_row)
                while in_blocks:
                    b = g * BLOCK + first_bit(in_blocks)
                    in_blocks &= in_blocks - np.uint64(1)
                    if (b ^ home) < steps:
                        continue
                    looked += 1
                    count = _gather(
                        x, row, b, n, dim, point, last, best, vectors, scratch, near, far, count, tie, tie_row
                    )
                    if count + BLOCK > len(near):
                        # Many are as far as the k-th: from now on only those of smaller rows are candidates.
                        tie_row, tie, count = _cut(near, far, count, best[last], k), best[last], k
                        in_blocks = _untied(boxes, g, dim, point, in_blocks, tie, tie_row)
                        in_groups = _untied(groups, t, dim, point, in_groups, tie, tie_row)
        if count > k:
            _cut(near, far, count, best[last], k)
        # No more than were counted, should the points have changed since.
        for c in range(min(count, splits[target_row + 1] - splits[target_row])):
            _mark(words, summary, near[c])
        _list(words, summary, first, out, splits[target_row])
    return looked


@njit(nogil=True, cache=True)
def _examples(source, ss, target, ts, at_home, e0, e1, k, reach, splits, out):
    """Rows of the examples e0 to e1, with a tree for the sources of each."""
    for e in range(e0, e1):
        n = ss[e + 1] - ss[e]
        if n > 0 and ts[e + 1] > ts[e]:
            tree = _plant(source[ss[e] : ss[e + 1]])
            points, rows = target[ts[e] : ts[e + 1]], splits[ts[e] :]
            _rows(tree, n, points, at_home, 0, len(points), min(k, n), reach, ss[e], rows, out)


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    ss, ts = source.splits.numpy(), target.splits.numpy()
    k = min(k, len(source))
    counts = np.zeros(len(target), np.int64)
    counts[: ts[-1]] = np.repeat(np.minimum(np.diff(ss), k), np.diff(ts))
    splits = np.zeros(len(target) + 1, np.int64)
    np.cumsum(counts, out=splits[1:])
    return torch.from_numpy(splits), torch.from_numpy(fill(source, target, k, np.inf, splits))


def fill(source: Cloud, target: Cloud, k: int, reach: float, splits: np.ndarray) -> np.ndarray:
    """The k nearest sources with a squared distance of at most `reach`; `splits` has counted them."""
    x, y = source.coords.detach().contiguous().numpy(), target.coords.detach().contiguous().numpy()
    ss, ts = source.splits.numpy(), target.splits.numpy()
    # Zeros: should the points have changed since they were counted, every entry is still a row.
    out = np.zeros(splits[-1], np.int32)
    at_home, reach = source is target, x.dtype.type(reach)
    if len(ss) == 2 and num_threads() > 1 and ts[-1] > _SHARE and ss[-1] > 0:
        tree, n = _plant(x[: ss[-1]]), int(ss[-1])
        parts = min(4 * num_threads(), int(ts[-1]) // _SHARE)
        cuts = even_ranges(int(ts[-1]), parts)
        in_threads(_rows, [(tree, n, y, at_home, a, b, min(k, n), reach, 0, splits, out) for a, b in cuts])
    else:
        in_threads(_examples, [(x, ss, y, ts, at_home, a, b, k, reach, splits, out) for a, b in cut_examples(ts)])
    return out
