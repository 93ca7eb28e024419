"""The kernels of `collate`: many short pieces of one array, changed where they lie."""

from __future__ import annotations

from gridless.compiled import njit


@njit(nogil=True, cache=True)
def raise_pieces(x, lengths, by):
    """Add by[p] to piece p of an array, for all pieces, which follow one another."""
    first = 0
    for p in range(len(lengths)):
        last = first + lengths[p]
        for i in range(first, last):
            x[i] += by[p]
        first = last


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
