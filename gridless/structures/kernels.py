"""Compiled loops on the CPU; a module of their own, because structures are often made where nothing is compiled."""

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit

OUTSIDE, BACK, NEGATIVE = 1, 2, 3


@njit(nogil=True, cache=True)
def raise_pieces(x, lengths, by):
    """Add by[p] to piece p of an array, for all pieces, which follow one another."""
    first = 0
    for p in range(len(lengths)):
        # From 0 on, and in one type: a loop from elsewhere, whose index may count from the end, is not made of vectors.
        piece, step = x[first : first + lengths[p]], x.dtype.type(by[p])
        for i in range(len(piece)):
            piece[i] += step
        first += lengths[p]


@njit(nogil=True, cache=True)
def drop_firsts(x, lengths):
    """Move all pieces but the first one forward over their first elements; return how many elements are left."""
    first = to = lengths[0]
    for p in range(1, len(lengths)):
        last = first + lengths[p]
        for i in range(first + 1, last):
            x[to] = x[i]
            to += 1
        first = last
    return to


@njit(nogil=True, cache=True)
def count_pairs(table, splits):
    """Set `splits` (T + 1) to where the edges of each tap begin, in tap order."""
    splits[:] = 0
    for row in range(table.shape[0]):
        for k in range(table.shape[1]):
            splits[k + 1] += table[row, k] >= 0
    for k in range(table.shape[1]):
        splits[k + 1] += splits[k]


@njit(nogil=True, cache=True)
def fill_pairs(table, splits, target, source):
    """Write the edges of a table in tap order, those of a tap by ascending target."""
    at = splits.copy()
    for row in range(table.shape[0]):
        for k in range(table.shape[1]):
            if table[row, k] >= 0:
                target[at[k]], source[at[k]] = row, table[row, k]
                at[k] += 1


@njit(nogil=True, cache=True)
def transpose_table(table, back):
    """Set back[j, k] = i for every edge table[i, k] = j, and the rest to -1."""
    back[:] = -1
    for row in range(table.shape[0]):
        for k in range(table.shape[1]):
            if table[row, k] >= 0:
                back[table[row, k], k] = row


@njit(nogil=True, cache=True)
def first_fault(pixel, time, splits, width, height):  # type: ignore[no-untyped-def]
    """(kind, row) of the first event outside the sensor, or else the first that steps back in time or is negative."""
    row = first_outside(pixel, width, height)
    if row >= 0:
        return OUTSIDE, row
    for example in range(len(splits) - 1):
        start, end = splits[example], splits[example + 1]
        row = first_back(time, start, end)
        if row >= 0:
            return BACK, row
        if end > start and time[start] < 0:
            return NEGATIVE, start
    return 0, 0


@njit(nogil=True, cache=True, inner=True)
def first_outside(pixel, width, height):  # type: ignore[no-untyped-def]
    """The first event outside the sensor, or -1."""
    bad = False
    for i in range(len(pixel)):
        # A negative number read as unsigned is large.
        bad |= (np.uint32(pixel[i, 0]) >= width) | (np.uint32(pixel[i, 1]) >= height)
    if bad:
        for i in range(len(pixel)):
            if np.uint32(pixel[i, 0]) >= width or np.uint32(pixel[i, 1]) >= height:
                return i
    return -1


@njit(nogil=True, cache=True, inner=True)
def first_back(time, start, end):  # type: ignore[no-untyped-def]
    """The first of the events of a recording that steps back in time, or -1."""
    bad = False
    for i in range(start + 1, end):
        bad |= time[i] < time[i - 1]
    if bad:
        for i in range(start + 1, end):
            if time[i] < time[i - 1]:
                return i
    return -1
