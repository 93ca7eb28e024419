"""Points in blocks of 64 that lie close together, and the boxes around them."""

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit
from gridless.kernels.simd_blocks import BLOCK


@njit(nogil=True, cache=True, inline="always")
def squared(coords, i, j):
    """The squared distance of rows i and j, rounded as specified."""
    if coords.shape[1] == 3:
        dx, dy, dz = coords[j, 0] - coords[i, 0], coords[j, 1] - coords[i, 1], coords[j, 2] - coords[i, 2]
        return (dx * dx + dy * dy) + dz * dz
    dx = coords[j, 0] - coords[i, 0]
    d2 = dx * dx
    for d in range(1, coords.shape[1]):
        dx = coords[j, d] - coords[i, d]
        d2 += dx * dx
    return d2


@njit(nogil=True, cache=True, inner=True)
def aligned(count, like):
    """An uninitialised array, of the dtype of another, that begins on a cache line."""
    room = np.empty(count + 16, like.dtype)
    skip = (64 - np.int64(room.ctypes.data) % 64) % 64 // room.itemsize
    return room[skip : skip + count]


@njit(nogil=True, cache=True, inner=True)
def sort_into_blocks(coords, x, row):
    """Bring neighbours together: halve the cloud along its longest side until blocks of 64 are left.

    x gets the points, block by block, the last block filled up with its last point; row (blocks * 64) where they were.
    """
    n, dim = coords.shape
    points = coords.copy()
    for i in range(n):
        row[i] = i
    stack = np.empty((64, 2), np.int64)
    stack[0, 0], stack[0, 1] = 0, n
    top = 1
    while top:
        top -= 1
        a, b = stack[top, 0], stack[top, 1]
        if b - a <= BLOCK:
            continue
        axis = _longest(points, a, b)
        if axis < 0:
            # All are equal: searches meet them in index order, which spares them most of the rest.
            row[a:b].sort()
            continue
        middle = a + ((b - a + BLOCK - 1) // BLOCK + 1) // 2 * BLOCK
        _select(points, row, a, b, middle, axis)
        stack[top, 0], stack[top, 1] = middle, b
        stack[top + 1, 0], stack[top + 1, 1] = a, middle
        top += 2
    row[n:] = -1
    for i in range(len(row)):
        for d in range(dim):
            x[((i // BLOCK) * dim + d) * BLOCK + i % BLOCK] = points[min(i, n - 1), d]


@njit(nogil=True, cache=True)
def _longest(points, a, b):
    """The axis along which points a to b extend farthest, halved so that nothing overflows; -1 if all are equal."""
    axis, extent = -1, points.dtype.type(-1)
    for d in range(points.shape[1]):
        low = high = points[a, d]
        for i in range(a + 1, b):
            low, high = min(low, points[i, d]), max(high, points[i, d])
        if high > low and high / 2 - low / 2 > extent:
            axis, extent = d, high / 2 - low / 2
    return axis


@njit(nogil=True, cache=True)
def _select(points, row, low, high, middle, d):
    """Exchange points low to high until none before `middle` is above one after it, along axis d."""
    high -= 1
    while low < high:
        a, b, c = points[low, d], points[(low + high) >> 1, d], points[high, d]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while points[i, d] < pivot:
                i += 1
            while points[j, d] > pivot:
                j -= 1
            if i <= j:
                row[i], row[j] = row[j], row[i]
                for e in range(points.shape[1]):
                    points[i, e], points[j, e] = points[j, e], points[i, e]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@njit(nogil=True, cache=True, inner=True)
def bound_boxes(low, high, boxes, dim, group_low, group_high):
    """The box of each block of boxes, or of points, both of whose corners are the same; stored in blocks of 64 too."""
    groups = (boxes + BLOCK - 1) // BLOCK
    for g in range(groups):
        count = min(boxes - g * BLOCK, BLOCK)
        for d in range(dim):
            start = (g * dim + d) * BLOCK
            least, most = low[start], high[start]
            for i in range(start + 1, start + count):
                least, most = min(least, low[i]), max(most, high[i])
            at = ((g // BLOCK) * dim + d) * BLOCK + g % BLOCK
            group_low[at], group_high[at] = least, most
    _fill(group_low, groups, dim)
    _fill(group_high, groups, dim)


@njit(nogil=True, cache=True)
def _fill(boxes, count, dim):
    """Copies of the last box in the rest of its block, so that all of it is finite."""
    last = count - 1
    for d in range(dim):
        start = ((last // BLOCK) * dim + d) * BLOCK
        for i in range(last % BLOCK + 1, BLOCK):
            boxes[start + i] = boxes[start + last % BLOCK]
