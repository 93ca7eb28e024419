"""Gradients of the coordinates in Numba.

One kernel serves both ends of an edge: rows are targets over the edges, or sources over the transposed edges. With c_m
the derivative of the loss by the edge value n_m = p_m w / W, and a = sum of c_m p_m,

    dL/dv = sum of c_m (w / W) dp_m/dv + (a - D_i if normalise else a) / W dw/dv,    D_i = sum over the row of a w / W.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.products import BLOCK, lanes, matmul, pack
from gridless.kernels.threads import in_threads
from gridless.ops.point_conv.contract import CoordGradients, Neighbours
from gridless.ops.point_conv.cpu.tiles import numpy_dtype, ranges, tile_height, wide, wide_weight
from gridless.ops.point_conv.cpu.values import falloffs, longest, recipe, run_of_rows, vectors
from gridless.ops.point_conv.edge_function import MONOMIALS


def conv_coords_backward(
    grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
    need_source: bool, need_target: bool,
) -> CoordGradients:  # fmt: skip
    if not grad.numel() or not features.numel():
        return (
            torch.zeros_like(near.source_coords) if need_source else None,
            torch.zeros_like(near.target_coords) if need_target else None,
        )
    compute = numpy_dtype(features)
    g, f, theta = wide(grad, compute), wide(features, compute), wide_weight(weight, compute)
    # H = dF' Theta(m)^T of a target, so that c_m = <H_m, F_j>; F Theta(m) of a source, so that c_m = <that, dF'_i>.
    if weight.ndim == 2:
        to_q = to_p = theta.ravel()
    else:
        _, q, p = theta.shape
        to_q = pack(np.ascontiguousarray(theta.transpose(2, 0, 1)).reshape(p, -1))
        to_p = pack(np.ascontiguousarray(theta.transpose(1, 0, 2)).reshape(q, -1))
    return _both_ends((g, to_q, f), (f, to_p, g), inverse, near, need_source, need_target)


def edge_sums_backward(
    grad: Tensor, sums: Tensor, inverse: Tensor, near: Neighbours, need_source: bool, need_target: bool
) -> CoordGradients:
    g = grad.detach().numpy()
    none = np.empty((0, 0), g.dtype)
    return _both_ends((g, none.ravel(), none), (none, none.ravel(), g), inverse, near, need_source, need_target)


def _both_ends(
    of_targets: tuple, of_sources: tuple, inverse: Tensor, near: Neighbours, need_source: bool, need_target: bool
) -> CoordGradients:
    """`of_targets`: features of the rows, what they are multiplied with, features of the columns; and for sources."""
    x, y = near.source_coords.detach(), near.target_coords.detach()
    compute = of_targets[0].dtype
    rule = recipe(near.function, x.numpy().dtype, compute)
    # The sources of normalised rows need the D of the targets, which the pass over the targets leaves here.
    shared = np.zeros(len(y) if near.function.normalise else 0, compute)
    d_source = d_target = None
    if need_target or near.function.normalise:
        d_target = torch.empty_like(y)
        edges = (near.splits.numpy(), near.source.numpy(), y.numpy(), x.numpy())
        _run(True, edges, rule, of_targets, inverse, shared, d_target)
    if need_source:
        d_source = torch.empty_like(x)
        edges = (*(t.numpy() for t in near.back), x.numpy(), y.numpy())
        _run(False, edges, rule, of_sources, inverse, shared, d_source)
    return d_source, d_target if need_target else None


def _run(by_target, edges, rule, operands, inverse, shared, out) -> None:  # type: ignore[no-untyped-def]
    row_features, packed, column_features = operands
    channels = column_features.shape[1] if len(packed) else 0
    # One factor for each term and channel, where a matrix would have as many rows as there are channels.
    depthwise = 0 < len(packed) == len(rule.table) * channels
    height = tile_height(max(len(rule.table) * channels, 1), row_features.dtype)
    sizes = (channels, height, lanes(row_features.dtype), depthwise)
    arrays = (row_features, packed, column_features, inverse.numpy(), shared, out.numpy())
    in_threads(_gradients, [(a, b, by_target, *edges, *rule, *arrays, *sizes) for a, b in ranges(edges[0])])


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, inner=True)
def _dot(x, y):
    """The sum of x times y."""
    total = x.dtype.type(0)
    for n in range(len(y)):
        total += x[n] * y[n]
    return total


@njit(nogil=True, cache=True, inner=True)
def _basis_at(v, kind, table, width, value, slope):
    """value (M) = p_m(v), slope (M, D) = dp_m/dv."""
    size, dim = table.shape
    one = value.dtype.type(1)
    for m in range(size):
        if kind == MONOMIALS:
            value[m] = one
            for d in range(dim):
                for _ in range(int(table[m, d])):
                    value[m] *= v[d]
            for d in range(dim):
                slope[m, d] = table[m, d]
                if table[m, d] > 0:
                    for other in range(dim):
                        for _ in range(int(table[m, other]) - (1 if other == d else 0)):
                            slope[m, d] *= v[other]
        else:
            square = value.dtype.type(0)
            for d in range(dim):
                square += (v[d] - table[m, d]) * (v[d] - table[m, d])
            value[m] = np.exp(square / (-2 * width * width))
            for d in range(dim):
                slope[m, d] = (table[m, d] - v[d]) / (width * width) * value[m]


@njit(nogil=True, cache=True)
def _gradients(
    first, last, by_target, splits, column, row_coords, column_coords,
    kind, table, chain, slots, width, radius, falloff, normalise,
    row_features, packed, column_features, inverse, shared, out, channels, height, lane, depthwise,
):  # fmt: skip
    """Gradients of the coordinates of the rows first to last, targets or sources."""
    size, dim = table.shape
    dtype = row_features.dtype
    capacity = longest(splits, first, last)
    v = np.empty((dim, capacity), dtype)
    w = np.empty(capacity, dtype)
    c = np.empty((capacity, size), dtype)
    value, slope = np.empty(size, dtype), np.empty((size, dim), dtype)
    vector, total = np.empty(dim, dtype), np.empty(dim, dtype)
    steps = row_features.shape[1]
    rows_in = np.zeros((height, steps), dtype)
    transformed = np.empty((height, size * channels), dtype)
    for t in range(first, last, height):
        stop = min(t + height, last)
        if depthwise:
            for r in range(stop - t):
                for n in range(size * channels):
                    transformed[r, n] = row_features[t + r, n % channels] * packed[n]
        elif len(packed) > 0:
            for i in range(t, stop):
                for j in range(steps):
                    rows_in[i - t, j] = row_features[i, j]
            transformed[:] = 0
            whole = (stop - t + BLOCK - 1) // BLOCK * BLOCK
            matmul(transformed, rows_in, steps, packed, whole, size * channels, steps, lane)
        i = t
        while i < stop:
            end = run_of_rows(splits, i, stop, capacity)
            start = splits[i]
            vectors(i, end, splits, column, row_coords, column_coords, radius if by_target else -radius, v)
            falloffs(v, splits[end] - start, falloff, w)
            for r in range(i, end):
                for e in range(splits[r] - start, splits[r + 1] - start):
                    j = column[start + e]
                    for m in range(size):
                        if len(packed) > 0:
                            c[e, m] = _dot(transformed[r - t, m * channels : (m + 1) * channels], column_features[j])
                        else:
                            c[e, m] = row_features[r, m] if by_target else column_features[j, m]
                _row_gradient(
                    r, start, by_target, splits, column, kind, table, width, radius, falloff, normalise,
                    v, w, c, value, slope, vector, total, inverse, shared, out,
                )  # fmt: skip
            i = end


@njit(nogil=True, cache=True, inner=True)
def _row_gradient(
    r, start, by_target, splits, column, kind, table, width, radius, falloff, normalise,
    v, w, c, value, slope, vector, total, inverse, shared, out,
):  # fmt: skip
    """Gradient of the coordinates of one row, from the coefficients c of its edges."""
    size, dim = table.shape
    one = w.dtype.type(1)
    total[:] = 0
    if normalise and by_target:
        shared[r] = 0
        for e in range(splits[r] - start, splits[r + 1] - start):
            for d in range(dim):
                vector[d] = v[d, e]
            _basis_at(vector, kind, table, width, value, slope)
            for m in range(size):
                shared[r] += c[e, m] * value[m] * w[e] * inverse[r]
    for e in range(splits[r] - start, splits[r + 1] - start):
        j = column[start + e]
        scale = one
        mean = w.dtype.type(0)
        if normalise:
            scale = inverse[r] if by_target else inverse[j]
            mean = shared[r] if by_target else shared[j]
        square = w.dtype.type(0)
        for d in range(dim):
            vector[d] = v[d, e]
            square += vector[d] * vector[d]
        _basis_at(vector, kind, table, width, value, slope)
        whole = -mean
        for m in range(size):
            whole += c[e, m] * value[m]
            for d in range(dim):
                total[d] += c[e, m] * w[e] * scale * slope[m, d]
        if falloff and square > 0 and w[e] > 0:
            length = np.sqrt(square)
            for d in range(dim):
                total[d] -= whole * scale * vector[d] / length
    for d in range(dim):
        out[r, d] = total[d] / radius if by_target else -total[d] / radius
