"""The small products of the live engine: blocks of rows with weights that lie in panels."""

# pyright: reportCallIssue=false

from __future__ import annotations

from gridless.kernels.compile import njit
from gridless.kernels.products import BLOCK, add_product

HALF = BLOCK // 2


@njit(nogil=True, cache=True, error_model="numpy")
def product(c, c_at, columns, a, a_at, a_row, b, b_at, rows, steps, lane):
    """c (rows, columns) += a (rows, steps) b (steps, columns), columns a whole number of vectors.

    b lies in panels of two vectors (the last may be of one): all steps of the first panel, then those of the next. So
    that weights are read once, in order, from whichever cache they are in.
    """
    at = 0
    while at < columns:
        panel = b_at + at * steps
        i = 0
        if at + 2 * lane <= columns:
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                # A block is cheaper than more than half as many rows: its spare rows are computed and never read.
                if rows - i > BLOCK // 2:
                    add_product(BLOCK, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += BLOCK
                elif rows - i > 1:
                    add_product(HALF, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += HALF
                else:
                    add_product(1, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += 1
            at += 2 * lane
        else:
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                if rows - i > 1:
                    add_product(BLOCK, 1, c, to, columns, a, of, a_row, 1, b, panel, lane, steps)
                    i += BLOCK
                else:
                    add_product(1, 1, c, to, columns, a, of, a_row, 1, b, panel, lane, steps)
                    i += 1
            at += lane


@njit(nogil=True, cache=True, error_model="numpy")
def spread(weight, bias, work, to, rows, columns):
    """Every row a copy of the bias."""
    for i in range(rows):
        for k in range(columns):
            work[to + i * columns + k] = weight[bias + k]
