"""Bisection, the search structure of the CPU: halve the targets, and carry along the sources that can reach them.

A node is a list of targets and a list of sources (see `simd_lists`), both in index order. It is halved across the
widest side of the targets' bounding box; each half takes the sources within the radius of its own box. Filtering keeps
the order, so at a leaf every target scans a short list of sources and finds its neighbours already ascending: nothing
is sorted, there is no grid to size, and clusters, outliers and equal points cost no more than others.

Kernels get all their memory from the caller and say when it is too small; they return then, and are called again.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit
from gridless.kernels.simd_lists import (
    address,
    copy_vector,
    count_ball,
    halve,
    load_id,
    load_point,
    pick,
    plane_bounds,
    prefetch,
    scan_ball,
    size_of,
    store_scalar,
)

# Modes of a leaf: keep rows in the order they are met, count them, or write them where they belong.
SCAN, COUNT, FILL = 0, 1, 2

# Return values for a buffer that was too small: the space for lists, the space for rows, or the output.
MORE_WORK, MORE_ROWS, MORE_OUT = -1, -2, -3

# Targets that are scanned together.
_LEAF = 40


@njit(nogil=True, cache=True)
def room(count, width):
    """Elements of a plane that holds `count` points, a vector beyond them, and an odd number of cache lines."""
    return (((count + width - 1) // width + 1) | 1) * width


@njit(nogil=True, cache=True)
def write_list(x, first, last, work, stride):
    """Write points first to last of a cloud as a list, at the beginning of `work`."""
    dim, n = x.shape[1], last - first
    ids = work.view(np.int32)[dim * stride * (x.itemsize // 4) :]
    for d in range(dim):
        plane = work[d * stride : (d + 1) * stride]
        for i in range(n):
            plane[i] = x[first + i, d]
        plane[n : n + 64 // x.itemsize] = np.nan
    for i in range(n):
        ids[i] = first + i


@njit(nogil=True, cache=True)
def gather_list(x, ids, work, at, stride, axes):
    """Write the points `ids` of a cloud as a list, from element `at` of `work` on."""
    n, own = len(ids), work.view(np.int32)[(at + len(axes) * stride) * (x.itemsize // 4) :]
    # Point by point: each is a cache line far from the last, and all its coordinates are on it.
    for i in range(n):
        j = np.uint64(ids[i])
        own[i] = ids[i]
        for d in range(len(axes)):
            work[at + d * stride + i] = x[j, d]
    for d in range(len(axes)):
        work[at + d * stride + n : at + d * stride + n + 64 // x.itemsize] = np.nan


@njit(nogil=True, cache=True, inner=True)
def _push(stack, node, t_at, t_stride, t_count, s_at, s_stride, s_count, free, useless):
    """Put a node on the stack: its targets, its sources, the free space, and the halvings that did not help."""
    stack[node, 0], stack[node, 1], stack[node, 2] = t_at, t_stride, t_count
    stack[node, 3], stack[node, 4], stack[node, 5] = s_at, s_stride, s_count
    stack[node, 6], stack[node, 7] = free, useless


@njit(nogil=True, cache=True)
def _measure(at, stride, count, like, axes, boxes, node):
    """Write the bounding box of a node's targets."""
    vectors = (count * size_of(like) + 63) // 64
    for d in range(len(axes)):
        boxes[node, d], boxes[node, 8 + d] = plane_bounds(at + d * stride, vectors, like)


@njit(nogil=True, cache=True, inner=True)
def _middle(boxes, node, radius, half, axes):
    """The widest axis of a node's box and its middle; -1 if halving the box would not leave out many sources."""
    axis, widest, middle = -1, radius * half * half * half, radius
    for d in range(len(axes)):
        low, high = boxes[node, d], boxes[node, 8 + d]
        if high * half - low * half > widest:
            axis, widest, middle = d, high * half - low * half, high * half + low * half
            if not middle < high:
                middle = low
    return axis, middle


@njit(nogil=True, cache=True, inner=True)
def _scan_rows(t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, unordered, used, begin, count):
    """Scan the sources for every target of a leaf; the rows follow one another in `unordered`."""
    size, free, base = size_of(reach), len(unordered) - s_count - 64, address(unordered)
    ids = t_at + len(axes) * t_stride
    for k in range(t_count):
        if used > free:
            return MORE_ROWS
        i = np.uint64(load_id(ids + 4 * k) - first)
        point = load_point(t_at + k * size, t_stride, axes, reach)
        hits = scan_ball(s_at, s_stride, s_count, point, reach, base + 4 * used)
        begin[i], count[i] = used, hits
        used += hits
    return used


@njit(nogil=True, cache=True, inner=True)
def _count_rows(t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, limit, count):
    """Count the sources of every target of a leaf; with a limit, no farther than to it."""
    size, ids = size_of(reach), t_at + len(axes) * t_stride
    step = 1024 if limit > 0 else s_count
    for k in range(t_count):
        point = load_point(t_at + k * size, t_stride, axes, reach)
        hits, at = 0, 0
        while at < s_count and (limit == 0 or hits < limit):
            hits += count_ball(s_at + at * size, s_stride, min(step, s_count - at), point, reach)
            at += step
        count[np.uint64(load_id(ids + 4 * k) - first)] = min(hits, limit) if limit > 0 else hits


@njit(nogil=True, cache=True, inner=True)
def _fill_rows(t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, unordered, begin, out):
    """Write the row of every target of a leaf where it begins in `out`."""
    if s_count + 32 > len(unordered):
        return MORE_ROWS
    size, ids, row, base = size_of(reach), t_at + len(axes) * t_stride, address(unordered), address(out)
    # The rows lie far apart: ask for their first lines together.
    for k in range(t_count):
        to = base + 4 * begin[np.uint64(load_id(ids + 4 * k) - first)]
        prefetch(to)
        prefetch(to + 64)
    for k in range(t_count):
        point = load_point(t_at + k * size, t_stride, axes, reach)
        hits = scan_ball(s_at, s_stride, s_count, point, reach, row)
        to = base + 4 * begin[np.uint64(load_id(ids + 4 * k) - first)]
        if hits < 16:
            for n in range(hits):
                store_scalar(to + 4 * n, load_id(row + 4 * n))
        else:
            for n in range(0, hits - 15, 16):
                copy_vector(row + 4 * n, to + 4 * n)
            copy_vector(row + 4 * (hits - 16), to + 4 * (hits - 16))
    return 0


@njit(nogil=True, cache=True, inner=True)
def descend(
    t_at, t_stride, t_count, s_at, s_stride, s_count, free, end, radius, reach, half, eps, axes, boxes, stack,
    mode, limit, first, unordered, begin, count, out,
):  # fmt: skip
    """Search the sources for all targets of a root; lists are written between the addresses `free` and `end`.

    Rows are numbered from target `first` on. Returns the entries of `unordered` that rows use, or what was too small.
    """
    size = size_of(reach)
    width, planes = 64 // size, len(axes) + 1
    # Not 0 and 1 written out: Numba compiles a function anew for every constant that it is called with.
    used, useless = np.int64(0), np.int64(1)
    _push(stack, used, t_at, t_stride, t_count, s_at, s_stride, s_count, free, useless)
    depth = 1
    while depth > 0:
        depth -= 1
        t_at, t_stride, t_count = stack[depth, 0], stack[depth, 1], stack[depth, 2]
        s_at, s_stride, s_count = stack[depth, 3], stack[depth, 4], stack[depth, 5]
        free = stack[depth, 6]
        leaf, axis, middle = t_count <= _LEAF or s_count <= 2 * width, 0, radius
        if not leaf:
            # The box of a node is its parent's, cut; it is measured anew where cutting was no use.
            if stack[depth, 7]:
                _measure(t_at, t_stride, t_count, reach, axes, boxes, depth)
            axis, middle = _middle(boxes, depth, radius, half, axes)
            leaf = axis < 0
        if leaf:
            if mode == SCAN:
                used = _scan_rows(
                    t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, unordered, used, begin, count
                )
                if used < 0:
                    return used
            elif mode == COUNT:
                _count_rows(t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, limit, count)
            elif _fill_rows(
                t_at, t_stride, t_count, s_at, s_stride, s_count, reach, axes, first, unordered, begin, out
            ):
                return MORE_ROWS
            continue
        t_room, s_room = room(t_count, width) * size, room(s_count, width) * size
        t_left, t_right = free, free + planes * t_room
        s_left = t_right + planes * t_room
        s_right = s_left + planes * s_room
        free = s_right + planes * s_room
        if free > end or depth + 2 > len(stack):
            return MORE_WORK
        # Far from the origin the sum is rounded, by half of this at most: no source within the radius is lost.
        grown = radius + eps * abs(middle)
        t_a, t_b = halve(t_at, t_stride, t_count, t_left, t_room, t_right, t_room, axis, middle, middle, axes)
        s_a, s_b = halve(
            s_at, s_stride, s_count, s_left, s_room, s_right, s_room, axis, middle + grown, middle - grown, axes
        )
        useless = 1 if t_a == 0 or t_b == 0 else 0
        for d in range(len(axes)):
            boxes[depth + 1, d], boxes[depth + 1, 8 + d] = boxes[depth, d], boxes[depth, 8 + d]
        boxes[depth, 8 + axis] = middle
        boxes[depth + 1, axis] = middle
        _push(stack, depth, t_left, t_room, t_a, s_left, s_room, s_a, free, useless)
        _push(stack, depth + 1, t_right, t_room, t_b, s_right, s_room, s_b, free, useless)
        depth += 2
    return used


@njit(nogil=True, cache=True)
def search(
    x, xs, y, ys, e, last, same, ready, radius, reach, half, eps, axes, work, boxes, stack, mode, limit, unordered,
    begin, count, splits, total, out,
):  # fmt: skip
    """Search examples e to last, each from its own root.

    SCAN appends their rows to `out` after the first `total` edges, and writes the ends of rows to `splits`; COUNT
    writes the size of each row to `count`; FILL writes the rows to `out` where they begin in `begin`.
    If `ready`, the lists of the only example are in `work` already, sources before targets.
    Returns the first example that was not searched, the number of edges, and what was too small.
    """
    dim, size = x.shape[1], x.itemsize
    width, base = 64 // size, address(work)
    while e < last:
        sources, targets = xs[e + 1] - xs[e], ys[e + 1] - ys[e]
        s_stride = room(sources, width)
        t_at, t_stride = 0, s_stride
        free = (dim + 1) * s_stride
        if not same:
            t_at, t_stride = free, room(targets, width)
            free += (dim + 1) * t_stride
        if free > len(work):
            return e, total, MORE_WORK
        if not ready:
            write_list(x, xs[e], xs[e + 1], work, s_stride)
        if not (same or ready):
            write_list(y, ys[e], ys[e + 1], work[t_at:], t_stride)
        rows = 0 if mode == SCAN else ys[e]
        # A point that is no longer finite reaches no leaf, and so has no row.
        if mode == SCAN:
            count[:targets] = 0
        used = descend(
            base + t_at * size, t_stride * size, targets, base, s_stride * size, sources,
            base + free * size, base + len(work) * size, radius, reach, half, eps, axes, boxes, stack,
            mode, limit, ys[e], unordered, begin[rows:], count[rows:], out,
        )  # fmt: skip
        if used < 0:
            return e, total, used
        if mode == SCAN:
            if total + used + 64 > len(out):
                return e, total, MORE_OUT
            total = _copy_rows(unordered, begin, count, targets, out, total, splits[ys[e] :])
        e += 1
    return e, total, 0


@njit(nogil=True, cache=True, inner=True)
def _copy_rows(unordered, begin, count, rows, out, total, splits):
    """Copy rows from where they were found into their order; up to a vector behind them may be overwritten."""
    source, to = address(unordered), address(out)
    for i in range(rows):
        n, row = count[i], source + 4 * begin[i]
        copy_vector(row, to + 4 * total)
        copy_vector(row + 64, to + 4 * total + 64)
        for k in range(32, n, 16):
            copy_vector(row + 4 * k, to + 4 * (total + k))
        total += n
        splits[i] = total
    return total


@njit(nogil=True, cache=True)
def halve_list(points, stride, count, left, left_stride, right, right_stride, axis, upper, lower, axes):
    """`halve` for lists in arrays of their own."""
    size = size_of(upper)
    halve(
        address(points), stride * size, count, address(left), left_stride * size, address(right), right_stride * size,
        axis, upper, lower, axes,
    )  # fmt: skip


@njit(nogil=True, cache=True)
def count_inside(points, stride, count, low, high, axes):
    """Count the points of a list with low < x <= high in every dimension."""
    total = 0
    for i in range(count):
        inside = True
        for d in range(len(axes)):
            x = points[d * stride + i]
            inside &= (x > low[d]) & (x <= high[d])
        total += inside
    return total


@njit(nogil=True, cache=True)
def pick_list(work, stride, count, low, high, at, to_stride, axes):
    """`pick` from the list at the beginning of `work` to one from element `at` on."""
    base, size = address(work), work.itemsize
    pick(base, stride * size, count, low, high, base + at * size, to_stride * size, axes)
