"""The point convolution on the GPU.

One kernel makes the sums N F of a tile of targets and multiplies them by Theta while they are in registers: of all
channels where those fit, strip by strip where there are many targets. Otherwise N F is written for some of the targets
at a time, and a library product reads it. The backward pass does the same with B = N^T dF' over the transposed edges;
depthwise, the same kernel does either. No atomics: every sum has one owner.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels import tf32
from gridless.kernels.launch import Launcher, cdiv, power_of_two
from gridless.ops.point_conv.contract import CoordGradients, Gradients, Neighbours
from gridless.ops.point_conv.edge_function import compute_dtype
from gridless.ops.point_conv.gpu import dense, gluon
from gridless.ops.point_conv.gpu.rows import TYPES, EdgeRows, rows_of
from gridless.ops.point_conv.gpu.tiles import CHUNK, GROUP, depthwise_tile, gather_tile, processors, side_by_side
from gridless.ops.point_conv.gpu.triton_coords import coords_kernel, sums_kernel
from gridless.ops.point_conv.gpu.triton_depthwise import depthwise_kernel
from gridless.ops.point_conv.gpu.triton_kernels import column_kernel, contract_kernel, gather_kernel, total_kernel

# Bytes of F Theta that are made at once where features are transformed first.
TRANSFORMED = 64 << 20
# Numbers of a tile of which columns are added up; and parts that are added up at a time, of so many numbers: those of
# the bias are many and short.
COLUMN_TILE, PARTS, NUMBERS, BIAS_PARTS, BIAS_NUMBERS = 8192, 64, 64, 512, 8

_GATHER, _CONTRACT, _DEPTHWISE, _SUMS, _COORDS, _COLUMN, _TOTAL = map(
    Launcher,
    (gather_kernel, contract_kernel, depthwise_kernel, sums_kernel, coords_kernel, column_kernel, total_kernel),
)


def conv(
    features: Tensor, weight: Tensor, bias: Tensor | None, near: Neighbours, transform_first: bool
) -> tuple[Tensor, Tensor]:
    shape, dtype, rows = weight.shape, features.dtype, rows_of(near, False)
    out = features.new_empty(rows.count, shape[-1])
    inverse = features.new_empty(rows.count if near.function.normalise else 0, dtype=compute_dtype(dtype))
    if rows.count == 0 or 0 in shape:
        return out.zero_() if bias is None else out.copy_(bias), inverse.zero_()
    if len(shape) == 2:
        _depthwise(rows, inverse, features, weight, bias, out, False)
    elif transform_first:
        _transform_first(rows, inverse, features, weight, bias, out)
    elif chosen := dense.forward(rows.kind, dtype, *shape, bias is not None, *_sizes(rows, shape, out)):
        chosen(rows, inverse, features, weight, bias, out)
    else:
        times_weight = tf32.product_with(weight.flatten(0, 1), rows.count, processors(out.device))
        for first, last, sums in _chunks(rows, inverse, features):
            times_weight(sums, bias, out[first:last])
    return out, inverse


def conv_backward(
    grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
    need_features: bool, need_weight: bool, need_bias: bool,
) -> Gradients:  # fmt: skip
    if features.numel() == 0 or grad.numel() == 0:
        d_features = torch.zeros_like(features) if need_features else None
        return d_features, torch.zeros_like(weight) if need_weight else None, grad.sum(0) if need_bias else None
    bias_parts = _column_parts(grad) if need_bias else None
    if not need_features and not need_weight:
        return None, *_totals(None, weight, bias_parts, grad)
    rows = rows_of(near, True)
    if weight.ndim == 2:
        d_features = torch.empty_like(features) if need_features else None
        parts = _depthwise(rows, inverse, grad, weight, features, d_features, need_weight)
        return d_features, *_totals(parts, weight, bias_parts, grad)
    return _dense_backward(rows, inverse, grad, weight, features, bias_parts, need_features, need_weight)


def _dense_backward(
    rows: EdgeRows, inverse: Tensor, grad: Tensor, weight: Tensor, features: Tensor, bias_parts: Tensor | None,
    need_features: bool, need_weight: bool,
) -> Gradients:  # fmt: skip
    shape = weight.shape
    needs = need_features, need_weight
    chosen = dense.backward(rows.kind, features.dtype, *shape, *needs, *_sizes(rows, shape, grad))
    if chosen.both is not None:
        d_features = torch.empty_like(features) if need_features else None
        parts = chosen.both(rows, inverse, grad, features, weight, d_features)
        return d_features, *_totals(parts, weight, bias_parts, grad)
    if not need_features or chosen.features is not None:
        parts = None if chosen.weight is None else chosen.weight(rows, inverse, grad, features, weight)
        if parts is not None or not need_weight:
            totals = _totals(parts, weight, bias_parts, grad)
            # The memory of the parts is free for the gradient of the features.
            del parts
            d_features = None
            if chosen.features is not None:
                d_features = torch.empty_like(features)
                chosen.features(rows, inverse, grad, weight, None, d_features)
            return d_features, *totals
    terms, channels, width = shape
    d_features = torch.empty_like(features) if need_features else None
    across = weight.transpose(1, 2).reshape(terms * width, channels)
    times_weight = tf32.product_with(across, rows.count, processors(grad.device)) if need_features else None
    total = None
    for first, last, sums in _chunks(rows, inverse, grad):
        if d_features is not None and times_weight is not None:
            times_weight(sums, None, d_features[first:last])
        if need_weight:
            total = _product(features[first:last].t(), sums, total)
    if total is not None:
        total = total.view(1, channels, terms, width).transpose(1, 2).contiguous()
    return d_features, *_totals(total, weight, bias_parts, grad)


def _sizes(rows: EdgeRows, shape: torch.Size, out: Tensor) -> tuple:
    """Sizes and settings that decide the kernels of a convolution by matrices, beside types and channels."""
    index = rows.index(max(shape[1], shape[2]))
    return rows.blocks, rows.degree, index, out.device, tf32.float32_precision(), gluon.GLUON


def _column_parts(x: Tensor) -> Tensor:
    """Parts (parts, P) whose sum is the sum of the rows."""
    rows, width = x.shape
    block = min(power_of_two(width), 128)
    tall = COLUMN_TILE // block
    programs = min(cdiv(rows, tall), 4 * processors(x.device))
    parts = x.new_empty(programs, width, dtype=compute_dtype(x.dtype))
    constants = width, TYPES[parts.dtype], tall, block
    _COLUMN((programs, cdiv(width, block), 1), (x, parts), (rows,), constants)
    return parts


def _totals(
    parts: Tensor | None, weight: Tensor, bias_parts: Tensor | None, grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The sums of both parts, as gradients of weight and bias."""
    if parts is None and bias_parts is None:
        return None, None
    # The gradient stands where nothing is read or written.
    d_weight = d_bias = None
    tensors, sizes = [grad] * 4, [0] * 4
    if parts is not None:
        d_weight = torch.empty_like(weight)
        tensors[:2], sizes[:2] = (parts, d_weight), (parts.shape[0], weight.numel())
    if bias_parts is not None:
        d_bias = grad.new_empty(grad.shape[1])
        tensors[2:], sizes[2:] = (bias_parts, d_bias), bias_parts.shape
    programs = cdiv(sizes[1], NUMBERS) + cdiv(sizes[3], BIAS_NUMBERS)
    _TOTAL((programs, 1, 1), tuple(tensors), tuple(sizes), (PARTS, NUMBERS, BIAS_PARTS, BIAS_NUMBERS))
    return d_weight, d_bias


def conv_coords_backward(
    grad: Tensor, features: Tensor, weight: Tensor, inverse: Tensor, near: Neighbours,
    need_source: bool, need_target: bool,
) -> CoordGradients:  # fmt: skip
    terms, channels, width = *weight.shape[:2], weight.shape[-1]
    depthwise = weight.ndim == 2
    along = torch.empty_like(inverse)
    d_source, d_target = torch.zeros_like(near.source_coords), torch.zeros_like(near.target_coords)
    if features.numel() and grad.numel():
        if need_target or near.function.normalise:
            across = weight if depthwise else weight.permute(2, 0, 1).reshape(width, terms * channels)
            _coords(rows_of(near, False), inverse, grad, across, features, along, d_target)
        if need_source:
            along_weight = weight if depthwise else weight.transpose(0, 1).reshape(channels, terms * width)
            _coords(rows_of(near, True), inverse, features, along_weight, grad, along, d_source)
    return d_source if need_source else None, d_target if need_target else None


def edge_sums(near: Neighbours) -> tuple[Tensor, Tensor]:
    function, count = near.function, near.target_coords.shape[0]
    sums = near.target_coords.new_empty(count, function.size)
    inverse = near.target_coords.new_empty(count if function.normalise else 0)
    if count == 0:
        return sums, inverse
    rows = rows_of(near, False)
    for base, size in rows.groups():
        arguments = (count,), sums.dtype, 4, function.dim, base, size
        rows.launch(_SUMS, (cdiv(count, 32), 1, 1), (*rows.tensors, inverse, sums), *arguments, T=32, K=8)
    return sums, inverse


def edge_sums_backward(
    grad: Tensor, sums: Tensor, inverse: Tensor, near: Neighbours, need_source: bool, need_target: bool
) -> CoordGradients:
    along = (grad * sums).sum(1) if near.function.normalise else inverse
    d_source, d_target = torch.zeros_like(near.source_coords), torch.zeros_like(near.target_coords)
    if need_target and grad.numel():
        _coords_featureless(rows_of(near, False), inverse, grad, along.clone(), d_target)
    if need_source and d_source.numel():
        _coords_featureless(rows_of(near, True), inverse, grad, along, d_source)
    return d_source if need_source else None, d_target if need_target else None


def _chunks(rows: EdgeRows, inverse: Tensor, features: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """(first row, last row, N F, or N^T F, of these rows), in one buffer of at most CHUNK bytes."""
    channels = features.shape[1]
    width = rows.kind.function.size * channels
    step = max(CHUNK // (width * features.element_size()) // 128, 1) * 128
    buffer = features.new_empty(min(step, rows.count), width)
    block = min(64, max(4, power_of_two(channels)))
    tile = gather_tile(features.dtype, block)
    tensors = (features, *rows.tensors, inverse, buffer)
    for first in range(0, rows.count, step):
        last = min(first + step, rows.count)
        grid = cdiv(last - first, tile.rows), cdiv(channels, block), 1
        for group in rows.groups():
            arguments = (first, last), features.dtype, tile.warps, channels, *group
            rows.launch(_GATHER, grid, tensors, *arguments, C=channels, **tile.strips(block))
        yield first, last, buffer if last - first == len(buffer) else buffer[: last - first]


def _coords(
    rows: EdgeRows, inverse: Tensor, row_values: Tensor, weight: Tensor, column_values: Tensor, along: Tensor,
    out: Tensor,
) -> None:  # fmt: skip
    """Gradients of the rows' coordinates: coefficients are products of (row_values weight) and column_values.

    The weight is a matrix (channels of row_values, M C), or the factors (M, C) of a depthwise convolution.
    """
    terms, channels = rows.kind.function.size, column_values.shape[1]
    step = max(CHUNK // (terms * channels * row_values.element_size()) // 128, 1) * 128
    block = min(64, max(4, power_of_two(channels)))
    for first in range(0, rows.count, step):
        last = min(first + step, rows.count)
        part = row_values[first:last]
        transformed = part[:, None] * weight if weight.shape == (terms, channels) else part @ weight
        tile = gather_tile(column_values.dtype, block)
        grid = (cdiv(last - first, tile.rows), 1, 1)
        for base, size in rows.groups():
            tensors = (transformed, column_values, *rows.tensors, inverse, along, out)
            arguments: Any = (first, last), column_values.dtype, tile.warps, channels, base, size
            rows.launch(_COORDS, grid, tensors, *arguments, C=channels, FEATURES=True, T=tile.rows, CB=block)


def _coords_featureless(rows: EdgeRows, inverse: Tensor, grad: Tensor, along: Tensor, out: Tensor) -> None:
    tensors = (grad, grad, *rows.tensors, inverse, along, out)
    for base, size in rows.groups():
        grid, arguments = (cdiv(rows.count, 32), 1, 1), ((0, rows.count), grad.dtype, 1, grad.shape[1], base, size)
        rows.launch(_COORDS, grid, tensors, *arguments, C=1, FEATURES=False, T=32, CB=1)


def _depthwise(
    rows: EdgeRows, inverse: Tensor, features: Tensor, weight: Tensor, other: Tensor | None, out: Tensor | None,
    need_weight: bool,
) -> Tensor | None:  # fmt: skip
    """The convolution, with the bias as `other`; or, where the rows are sources, the gradients of the features, which
    are then `other`, and parts (parts, M, C) of the weight's, from that of the result."""
    terms, channels = weight.shape
    block, tile = depthwise_tile(features.dtype, channels)
    tiles, across = cdiv(rows.count, tile.rows), cdiv(channels, block)
    programs = min(tiles, max(side_by_side(features.device, tile) // across, 1)) if need_weight else tiles
    dtype = compute_dtype(features.dtype)
    parts = features.new_empty(programs if need_weight else 0, terms, channels, dtype=dtype)
    # Several launches add up in the dtype of the sums.
    sums = out if out is None or terms <= GROUP else out.to(dtype)
    written = parts if sums is None else sums
    tensors = (features, *rows.tensors, inverse, weight, weight if other is None else other, written, parts)
    flags: Any = {"HAS_BIAS": other is not None and not rows.kind.flip, "NEED_OUT": out is not None}
    flags |= {"NEED_W": need_weight, "C": channels}
    for base, size in rows.groups():
        arguments = (rows.count, tiles), features.dtype, tile.warps, channels, base, size
        rows.launch(_DEPTHWISE, (programs, across, 1), tensors, *arguments, **flags, **tile.strips(block))
    if out is not None and sums is not None and sums is not out:
        out.copy_(sums)
    return parts if need_weight else None


def _transform_first(
    rows: EdgeRows, inverse: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
) -> None:
    """N (F Theta), as many output channels at a time as F Theta has room for."""
    terms, channels, width = weight.shape
    per_channel = max(features.shape[0], 1) * terms * features.element_size()
    step = min(width, max(16, TRANSFORMED // per_channel // 16 * 16))
    for column in range(0, width, step):
        part = weight[:, :, column : column + step]
        part_width = part.shape[2]
        transformed = features @ part.transpose(0, 1).reshape(channels, terms * part_width)  # (S, M * part_width)
        block = min(64, max(4, power_of_two(part_width)))
        tile = gather_tile(features.dtype, block)
        tensors = (transformed, *rows.tensors, inverse, features if bias is None else bias, out)
        rows.launch(
            _CONTRACT, (cdiv(rows.count, tile.rows), cdiv(part_width, block), 1), tensors, (rows.count, column),
            features.dtype, tile.warps, terms * part_width, T=tile.rows, CB=block, HAS_BIAS=bias is not None,
            WIDTH=part_width, STRIDE=width,
        )  # fmt: skip


def _product(left: Tensor, right: Tensor, total: Tensor | None) -> Tensor:
    """left @ right, added to the total where there is one, in the dtype of the sums."""
    dtype = compute_dtype(left.dtype)
    if left.dtype != dtype and interpreting():
        left, right = left.to(dtype), right.to(dtype)
    if left.dtype == dtype:
        return left @ right if total is None else total.addmm_(left, right)
    if total is None:
        return torch.mm(left, right, out_dtype=dtype)
    return torch.addmm(total, left, right, out_dtype=dtype, out=total)
