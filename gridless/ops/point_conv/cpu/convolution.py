"""The point convolution in Numba: tiles of rows that stay in cache, gathered and multiplied at once.

Forward: a tile of N F (targets x M Q) is gathered row by row, then multiplied by Theta (M Q x P).
Backward: a tile of B = [N(m)]^T dF' (sources x M P) is gathered over the transposed edges, then
dF = B Theta^T, and dTheta = F^T B is added up tile by tile. Beside the results only the tiles need memory.
Depthwise, the products are those of diagonal matrices.

Channels are padded to whole vectors: features and gradients whose channels do not fill them, and those of 16 bits,
are copied first. Each thread takes a run of rows; for a given number of threads two runs give the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.products import BLOCK, lanes, matmul, matmul_transposed, pack
from gridless.kernels.threads import in_threads
from gridless.ops.point_conv.contract import Gradients, Neighbours
from gridless.ops.point_conv.cpu.gathers import gather_tile
from gridless.ops.point_conv.cpu.tiles import numpy_dtype, ranges, tile_height, wide, wide_weight
from gridless.ops.point_conv.cpu.values import (
    basis_values,
    falloffs,
    longest,
    normalise_rows,
    recipe,
    run_of_rows,
    vectors,
)
from gridless.ops.point_conv.edge_function import compute_dtype


def conv(
    features: Tensor, weight: Tensor, bias: Tensor | None, near: Neighbours, transform_first: bool
) -> tuple[Tensor, Tensor]:
    compute = numpy_dtype(features)
    targets = len(near.splits) - 1
    out = features.new_empty(targets, weight.shape[-1], dtype=compute_dtype(features.dtype))
    inverse = out.new_empty(targets if near.function.normalise else 0)
    if not weight.numel():
        return out.copy_(out.new_zeros(1) if bias is None else bias).to(features.dtype), inverse.zero_()
    f, theta = wide(features, compute), wide_weight(weight, compute)
    size, q, p = theta.shape[0], theta.shape[1], theta.shape[-1]
    start = np.zeros(p, compute)
    if bias is not None:
        start[: len(bias)] = bias.detach().to(out.dtype).numpy()
    if transform_first:
        f = (torch.from_numpy(f) @ torch.from_numpy(theta.transpose(1, 0, 2).reshape(q, -1))).numpy()
        packed, channels = np.empty(0, compute), p
    else:
        packed, channels = theta.ravel() if weight.ndim == 2 else pack(theta.reshape(-1, p)), q
    edges = _arrays(near.splits, near.source, near)
    rule = recipe(near.function, edges[2].dtype, f.dtype)
    arrays = (f, packed, start, out.numpy(), inverse.numpy())
    sizes = (size, channels, p, tile_height(size * channels, compute), lanes(compute), weight.ndim == 2)
    in_threads(_forward, [(a, b, *edges, *rule, *arrays, *sizes) for a, b in ranges(edges[0])])
    return out.to(features.dtype), inverse


def conv_backward(
    grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
    need_features: bool, need_weight: bool, need_bias: bool,
) -> Gradients:  # fmt: skip
    d_bias = grad.sum(0) if need_bias else None
    if not (need_features or need_weight):
        return None, None, d_bias
    if not weight.numel():
        return torch.zeros_like(features), torch.zeros_like(weight), d_bias
    compute = numpy_dtype(features)
    g, theta = wide(grad, compute), wide_weight(weight, compute)
    f = wide(features, compute) if need_weight else np.empty((0, 0), compute)
    size, q, p = theta.shape[0], theta.shape[1], theta.shape[-1]
    if depthwise := weight.ndim == 2:
        turned = theta.ravel()
    else:
        turned = pack(np.ascontiguousarray(theta.transpose(0, 2, 1)).reshape(-1, q))
    edges = _arrays(*near.back, near)
    rule = recipe(near.function, edges[2].dtype, g.dtype)
    cuts = ranges(edges[0])
    shape = features.shape if need_features else (0, 0)
    d_features = features.new_empty(shape, dtype=compute_dtype(features.dtype))
    d_weight = np.zeros((len(cuts), 1 if depthwise else q, size * p) if need_weight else (len(cuts), 0, 0), compute)
    arrays = (inverse.numpy(), g, f, turned, d_features.numpy())
    sizes = (size, q, p, tile_height(size * p, compute), lanes(compute), depthwise)
    in_threads(_backward, [(a, b, *edges, *rule, *arrays, d_weight[n], *sizes) for n, (a, b) in enumerate(cuts)])
    if not need_weight:
        return d_features.to(features.dtype), None, d_bias
    # Added by NumPy, which starts no threads for it.
    total = torch.from_numpy(d_weight.sum(0))
    if depthwise:
        total = total.view(size, q)[:, : weight.shape[1]]
    else:
        total = total.view(q, size, p)[: weight.shape[1], :, : weight.shape[2]].transpose(0, 1)
    return d_features.to(features.dtype) if need_features else None, total.to(weight.dtype).contiguous(), d_bias


def edge_sums(near: Neighbours) -> tuple[Tensor, Tensor]:
    sums = near.target_coords.new_empty(len(near.splits) - 1, near.function.size)
    inverse = sums.new_empty(len(sums) if near.function.normalise else 0)
    edges = _arrays(near.splits, near.source, near)
    rule = recipe(near.function, edges[2].dtype, edges[2].dtype)
    arrays = (sums.detach().numpy(), inverse.detach().numpy())
    in_threads(_sums, [(a, b, *edges, *rule, *arrays) for a, b in ranges(edges[0])])
    return sums, inverse


def _arrays(splits: Tensor, columns: Tensor, near: Neighbours) -> tuple[np.ndarray, ...]:
    return tuple(t.detach().numpy() for t in (splits, columns, near.source_coords, near.target_coords))


@njit(nogil=True, cache=True)
def _forward(
    first, last, splits, source, source_coords, target_coords,
    kind, table, chain, slots, width, radius, falloff, normalise,
    f, packed, start, out, inverse, size, channels, p_channels, tile_rows, lane, depthwise,
):  # fmt: skip
    """(N F) Theta + bias of the targets first to last, tile by tile; N F alone is summed if F was transformed first."""
    capacity = longest(splits, first, last)
    v = np.empty((source_coords.shape[1], capacity), f.dtype)
    w = np.empty(capacity, f.dtype)
    p = np.empty((slots, capacity), f.dtype)
    transformed = len(packed) == 0
    stride = p_channels if transformed else size * channels + lane
    tile = np.empty((tile_rows, stride), f.dtype)
    result = np.empty((tile_rows, p_channels), f.dtype)
    for t in range(first, last, tile_rows):
        end = min(t + tile_rows, last)
        if transformed:
            _begin(tile, start)
        else:
            tile[:] = 0
        gather_tile(
            t, end, splits, source, target_coords, source_coords, kind, table, chain, width, radius, falloff,
            normalise, inverse, f, v, w, p, tile, stride, size, channels, lane,
        )  # fmt: skip
        if transformed:
            _copy(tile, out, t, end)
        elif depthwise:
            _scale_and_add(tile, packed, size, channels, start, out[t:end])
        else:
            _begin(result, start)
            rows = (end - t + BLOCK - 1) // BLOCK * BLOCK
            matmul(result, tile, stride, packed, rows, p_channels, size * channels, lane)
            _copy(result, out, t, end)


# Loops, because what Numba makes of an array assigned to a slice takes four seconds to compile: it words its error.
@njit(nogil=True, cache=True, inner=True)
def _begin(tile, start):
    """Every row of the tile begins as `start`."""
    for i in range(tile.shape[0]):
        for j in range(tile.shape[1]):
            tile[i, j] = start[j]


@njit(nogil=True, cache=True, inner=True)
def _copy(tile, out, first, last):
    """The tile's rows, to the rows first to last of `out`."""
    for i in range(first, last):
        for j in range(out.shape[1]):
            out[i, j] = tile[i - first, j]


@njit(nogil=True, cache=True)
def _backward(
    first, last, splits, target, source_coords, target_coords,
    kind, table, chain, slots, width, radius, falloff, normalise,
    inverse, grad, f, turned, d_features, d_weight, size, q_channels, p_channels, tile_rows, lane, depthwise,
):  # fmt: skip
    """d_features of the sources first to last, and their share of d_weight, from B = N^T dF' of each tile."""
    capacity = longest(splits, first, last)
    v = np.empty((source_coords.shape[1], capacity), grad.dtype)
    w = np.empty(capacity, grad.dtype)
    p = np.empty((slots, capacity), grad.dtype)
    steps = size * p_channels
    stride = steps + lane
    tile = np.empty((tile_rows, stride), grad.dtype)
    result = np.empty((tile_rows, q_channels), grad.dtype)
    nothing = np.zeros(q_channels, grad.dtype)
    seen = np.empty((tile_rows, q_channels), grad.dtype)
    for t in range(first, last, tile_rows):
        end = min(t + tile_rows, last)
        tile[:] = 0
        gather_tile(
            t, end, splits, target, source_coords, target_coords, kind, table, chain, width, -radius, falloff,
            normalise, inverse, grad, v, w, p, tile, stride, size, p_channels, lane,
        )  # fmt: skip
        if depthwise:
            if d_features.shape[0] > 0:
                _scale_and_add(tile, turned, size, q_channels, nothing, d_features[t:end])
            if d_weight.shape[0] > 0:
                for r in range(end - t):
                    if splits[t + r] == splits[t + r + 1]:
                        continue
                    for m in range(size):
                        for c in range(q_channels):
                            d_weight[0, m * q_channels + c] += f[t + r, c] * tile[r, m * q_channels + c]
            continue
        if d_features.shape[0] > 0:
            result[:] = 0
            rows = (end - t + BLOCK - 1) // BLOCK * BLOCK
            matmul(result, tile, stride, turned, rows, q_channels, steps, lane)
            _copy(result, d_features, t, end)
        if d_weight.shape[0] > 0:
            # A source without edges counts as zero even if its features are NaN: its row of B is zero.
            for r in range(end - t):
                has_edges = splits[t + r] < splits[t + r + 1]
                for c in range(q_channels):
                    seen[r, c] = f[t + r, c] if has_edges else 0
            matmul_transposed(d_weight, seen, 0, q_channels, tile, stride, q_channels, steps, end - t, lane)


@njit(nogil=True, cache=True, inner=True)
def _scale_and_add(tile, theta, size, channels, start, out):
    """out = start + the sum over m of the tile's M runs of channels, each times its own theta."""
    for r in range(len(out)):
        for c in range(out.shape[1]):
            out[r, c] = start[c]
        for m in range(size):
            for c in range(out.shape[1]):
                out[r, c] += tile[r, m * channels + c] * theta[m * channels + c]


@njit(nogil=True, cache=True)
def _sums(
    first, last, splits, source, source_coords, target_coords,
    kind, table, chain, slots, width, radius, falloff, normalise, sums, inverse,
):  # fmt: skip
    """Sums of the basis values over the edges of the targets first to last."""
    capacity = longest(splits, first, last)
    v = np.empty((source_coords.shape[1], capacity), sums.dtype)
    w = np.empty(capacity, sums.dtype)
    p = np.empty((slots, capacity), sums.dtype)
    i = first
    while i < last:
        end = run_of_rows(splits, i, last, capacity)
        count = splits[end] - splits[i]
        vectors(i, end, splits, source, target_coords, source_coords, radius, v)
        falloffs(v, count, falloff, w)
        if normalise:
            normalise_rows(i, end, splits, w, inverse)
        basis_values(v, w, count, kind, table, chain, width, p)
        for r in range(i, end):
            for m in range(sums.shape[1]):
                total = sums.dtype.type(0)
                for e in range(splits[r] - splits[i], splits[r + 1] - splits[i]):
                    total += p[m, e]
                sums[r, m] = total
        i = end
