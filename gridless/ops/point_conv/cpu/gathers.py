"""The gather of the CPU convolution: sums over the edges of a tile of rows, with edge values made on the way."""

from __future__ import annotations

from gridless.kernels.compile import njit
from gridless.kernels.products import gather
from gridless.ops.point_conv.cpu.values import basis_values, falloffs, normalise_rows, run_of_rows, vectors


@njit(nogil=True, cache=True, inner=True)
def gather_tile(
    first, last, splits, column, row_coords, column_coords,
    kind, table, chain, width, radius, falloff, normalise, inverse, f, v, w, p, tile, stride, size, channels, lane,
):  # fmt: skip
    """tile[i - first] = the M x channels sums over the edges of row i; M = 1 where f holds M runs of channels.

    A radius below zero says that rows are sources; `inverse` is of targets. It is no argument of its own, because Numba
    compiles a function anew for every constant that it is called with.
    """
    runs, rows = (size, 1) if stride == channels else (1, size)
    i = first
    while i < last:
        end = run_of_rows(splits, i, last, len(w))
        count = splits[end] - splits[i]
        vectors(i, end, splits, column, row_coords, column_coords, radius, v)
        falloffs(v, count, falloff, w)
        if normalise:
            if radius > 0:
                normalise_rows(i, end, splits, w, inverse)
            else:
                for e in range(count):
                    w[e] *= inverse[column[splits[i] + e]]
        basis_values(v, w, count, kind, table, chain, width, p)
        for r in range(i, end):
            at, edges = splits[r] - splits[i], splits[r + 1] - splits[r]
            c_at, b_row = (r - first) * stride, f.shape[1]
            for m in range(runs):
                a_at, b_at = m * len(w) + at, m * channels
                gather(tile, c_at, p, a_at, len(w), f, b_at, b_row, rows, channels, edges, column, splits[r], lane)
        i = end
