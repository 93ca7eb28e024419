"""The point convolution on the GPU.

One kernel makes the sums N F of a tile of targets and multiplies them by Theta while they are in registers: of all
channels where those fit, strip by strip where there are many targets. Otherwise N F is written for some of the targets
at a time, and a library product reads it. The backward pass does the same with B = N^T dF' over the transposed edges;
depthwise, the same kernel does either. No atomics: every sum has one owner.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels.launch import Launcher, cdiv, power_of_two
from gridless.ops.point_conv.contract import CoordGradients, Gradients, Neighbours
from gridless.ops.point_conv.edge_function import EdgeFunction, compute_dtype
from gridless.ops.point_conv.gpu import gluon
from gridless.ops.point_conv.gpu.arguments import fits_int32, scale, terms
from gridless.ops.point_conv.gpu.tiles import (
    CHUNK,
    GROUP,
    HELD,
    Tile,
    depthwise_tile,
    dot_block,
    fused_backward_tile,
    fused_tile,
    gather_tile,
    have_room,
    processors,
    side_by_side,
    wide_backward_tiles,
)  # fmt: skip
from gridless.ops.point_conv.gpu.triton_coords import coords_kernel, sums_kernel
from gridless.ops.point_conv.gpu.triton_depthwise import depthwise_kernel
from gridless.ops.point_conv.gpu.triton_kernels import (
    column_kernel,
    contract_kernel,
    fused_backward_kernel,
    fused_kernel,
    gather_kernel,
    total_kernel,
    weight_kernel,
)

# Whether kernels are compiled for CUDA, and not interpreted.
_COMPILED = torch.version.cuda is not None and not interpreting()
# Bytes of F Theta that are made at once where features are transformed first.
TRANSFORMED = 64 << 20
# Numbers of a tile of which columns are added up; and parts that are added up at a time, of so many numbers: those of
# the bias are many and short.
COLUMN_TILE, PARTS, NUMBERS, BIAS_PARTS, BIAS_NUMBERS = 8192, 64, 64, 512, 8

_GATHER, _FUSED, _FUSED_BACKWARD, _WEIGHT, _CONTRACT = map(
    Launcher, (gather_kernel, fused_kernel, fused_backward_kernel, weight_kernel, contract_kernel)
)
_DEPTHWISE, _SUMS, _COORDS = map(Launcher, (depthwise_kernel, sums_kernel, coords_kernel))
_COLUMN, _TOTAL = map(Launcher, (column_kernel, total_kernel))

_TYPES = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
    torch.float64: tl.float64,
}


def conv(
    features: Tensor, weight: Tensor, bias: Tensor | None, near: Neighbours, transform_first: bool
) -> tuple[Tensor, Tensor]:
    terms, channels, width = *weight.shape[:2], weight.shape[-1]
    count = near.target_coords.shape[0]
    out = features.new_empty(count, width)
    inverse = features.new_empty(count if near.function.normalise else 0, dtype=compute_dtype(features.dtype))
    if out.numel() == 0 or channels == 0:
        return out.zero_() if bias is None else out.copy_(bias), inverse.zero_()
    rows = _Rows(near, inverse, False, features.dtype)
    if weight.ndim == 2:
        _depthwise(rows, features, weight, bias, out, False)
    elif transform_first:
        _transform_first(rows, features, weight, bias, out)
    elif (tile := fused_tile(features.dtype, *weight.shape, count, rows.edges, out.device)) is not None:
        _fused(rows, features, weight, bias, out, tile)
    else:
        flat = weight.view(terms * channels, width)
        for first, last, sums in rows.chunks(features):
            if bias is None:
                torch.mm(sums, flat, out=out[first:last])
            else:
                torch.addmm(bias, sums, flat, out=out[first:last])
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
    rows = _Rows(near, inverse, True, features.dtype)
    if weight.ndim == 2:
        d_features = torch.empty_like(features) if need_features else None
        parts = _depthwise(rows, grad, weight, features, d_features, need_weight)
        return d_features, *_totals(parts, weight, bias_parts, grad)
    return _dense_backward(rows, grad, weight, features, bias_parts, need_features, need_weight)


def _dense_backward(
    rows: _Rows, grad: Tensor, weight: Tensor, features: Tensor, bias_parts: Tensor | None,
    need_features: bool, need_weight: bool,
) -> Gradients:  # fmt: skip
    terms, channels, width = weight.shape
    sizes = rows.count, rows.edges
    narrow = fused_backward_tile(features.dtype, *weight.shape, *sizes, grad.device)
    if narrow is not None:
        # Features, and the sums twice, as either factor of a product.
        numbers = narrow.rows * (dot_block(channels) + 2 * terms * dot_block(width))
        narrow = narrow if have_room(numbers, features.dtype, grad.device) else None
    if need_weight and narrow is not None:
        d_features = torch.empty_like(features) if need_features else None
        parts = _fused_backward(rows, grad, features, weight, d_features, narrow)
        return d_features, *_totals(parts, weight, bias_parts, grad)
    wide = wide_backward_tiles(features.dtype, *weight.shape, *sizes)
    along = wide and wide[0]
    if narrow is not None:
        along = fused_tile(features.dtype, terms, width, channels, *sizes, grad.device)
    if not need_features or along is not None:
        parts = _weight(rows, grad, features, weight, wide and wide[1]) if need_weight else None
        if parts is not None or not need_weight:
            totals = _totals(parts, weight, bias_parts, grad)
            # What the parts took is free for the gradient of the features.
            del parts
            d_features = None
            if along is not None and need_features:
                d_features = torch.empty_like(features)
                _fused(rows, grad, weight, None, d_features, along)
            return d_features, *totals
    d_features = torch.empty_like(features) if need_features else None
    across = weight.transpose(1, 2).reshape(terms * width, channels) if need_features else None
    total = None
    for first, last, sums in rows.chunks(grad):
        if d_features is not None and across is not None:
            torch.mm(sums, across, out=d_features[first:last])
        if need_weight:
            total = _product(features[first:last].t(), sums, total)
    if total is not None:
        total = total.view(1, channels, terms, width).transpose(1, 2).contiguous()
    return d_features, *_totals(total, weight, bias_parts, grad)


def _column_parts(x: Tensor) -> Tensor:
    """Parts (parts, P) whose sum is the sum of the rows."""
    rows, width = x.shape
    block = min(power_of_two(width), 128)
    tall = COLUMN_TILE // block
    programs = min(cdiv(rows, tall), 4 * processors(x.device))
    parts = x.new_empty(programs, width, dtype=compute_dtype(x.dtype))
    constants = width, _TYPES[parts.dtype], tall, block
    _COLUMN((programs, cdiv(width, block), 1), (x, parts), (rows,), constants)
    return parts


def _totals(
    parts: Tensor | None, weight: Tensor, bias_parts: Tensor | None, grad: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The sums of both parts, as gradients of weight and bias."""
    if parts is None and bias_parts is None:
        return None, None
    d_weight = None if parts is None else torch.empty_like(weight)
    d_bias = None if bias_parts is None else grad.new_empty(grad.shape[1])
    weights = (0, 0) if parts is None else (parts.shape[0], weight.numel())
    biases = (0, 0) if bias_parts is None else bias_parts.shape
    tensors = tuple(grad if x is None else x for x in (parts, d_weight, bias_parts, d_bias))
    programs = cdiv(weights[1], NUMBERS) + cdiv(biases[1], BIAS_NUMBERS)
    _TOTAL((programs, 1, 1), tensors, (*weights, *biases), (PARTS, NUMBERS, BIAS_PARTS, BIAS_NUMBERS))
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
            _Rows(near, inverse, False, features.dtype).coords(grad, across, features, along, d_target)
        if need_source:
            along_weight = weight if depthwise else weight.transpose(0, 1).reshape(channels, terms * width)
            _Rows(near, inverse, True, features.dtype).coords(features, along_weight, grad, along, d_source)
    return d_source if need_source else None, d_target if need_target else None


def edge_sums(near: Neighbours) -> tuple[Tensor, Tensor]:
    function, count = near.function, near.target_coords.shape[0]
    sums = near.target_coords.new_empty(count, function.size)
    inverse = near.target_coords.new_empty(count if function.normalise else 0)
    if count == 0:
        return sums, inverse
    rows = _Rows(near, inverse, False, sums.dtype)
    for base, size in rows.groups():
        rows.launch(_SUMS, (cdiv(count, 32), 1, 1), (), (sums,), (count,), 4, function.dim, base, size, T=32, K=8)
    return sums, inverse


def edge_sums_backward(
    grad: Tensor, sums: Tensor, inverse: Tensor, near: Neighbours, need_source: bool, need_target: bool
) -> CoordGradients:
    along = (grad * sums).sum(1) if near.function.normalise else inverse
    d_source, d_target = torch.zeros_like(near.source_coords), torch.zeros_like(near.target_coords)
    if need_target and grad.numel():
        _Rows(near, inverse, False, grad.dtype).coords_featureless(grad, along.clone(), d_target)
    if need_source and d_source.numel():
        _Rows(near, inverse, True, grad.dtype).coords_featureless(grad, along, d_source)
    return d_source if need_source else None, d_target if need_target else None


class _Rows:
    """Targets with their sources, or with `flip` sources with their targets, and how kernels are told of them."""

    def __init__(self, near: Neighbours, inverse: Tensor, flip: bool, dtype: torch.dtype) -> None:
        ends = (near.target_coords, near.source_coords)
        mine, theirs = reversed(ends) if flip else ends
        splits, columns = near.back if flip else near[:2]
        self.tensors = (mine, theirs, splits, columns, inverse)
        self.function, self.flip = near.function, flip
        self.count, self.columns, self.edges = mine.shape[0], theirs.shape[0], columns.shape[0]
        self.dtype = _TYPES[compute_dtype(dtype)]
        # W beside the sums takes a line of PTX, which is written for float32.
        self.total = _COMPILED and self.dtype is tl.float32
        self.scale = scale(near.function.radius)

    @property
    def shape(self) -> tuple:
        """All that a launch depends on, tensors and their addresses apart."""
        return self.function, self.flip, self.count, self.columns, self.edges, self.tensors[0].dtype

    def index(self, width: int) -> Any:
        """The integer type in which `width` numbers per row or column, and their coordinates, can be addressed."""
        width = max(width, self.function.dim)
        return tl.int32 if fits_int32(self.count, self.columns, self.edges, width) else tl.int64

    def groups(self) -> list[tuple[int, int]]:
        """First term and number of terms of each group."""
        size = self.function.size
        return [(base, min(GROUP, size - base)) for base in range(0, size, GROUP)]

    def launch(
        self, launcher: Launcher, grid: tuple[int, int, int], before: tuple[Tensor, ...], after: tuple[Tensor, ...],
        sizes: tuple[int, ...], *how: Any, **more: Any,
    ) -> None:  # fmt: skip
        """Once: see `bound`."""
        self.bound(launcher, before, after, len(sizes), *how, **more)(grid, (*sizes, *self.scale))

    def bound(
        self, launcher: Launcher, before: tuple[Tensor, ...], after: tuple[Tensor, ...], sizes: int, warps: int,
        width: int, base: int = 0, size: int | None = None, registers: int | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        """launch(grid, (*sizes, *scale)) of a kernel, with so many sizes.

        Tensors stand before and after those of the rows. The kernel addresses `width` numbers per row, and sums `size`
        terms (all) from `base` on; `more` are the constants that the rows do not know."""
        tensors, function = (*before, *self.tensors, *after), self.function
        how = self.flip, self.dtype, self.total, self.index(width), base, function.size if size is None else size
        constants = _constants(launcher, len(tensors) + sizes + len(self.scale), function, *how, **more)
        return launcher.bound(tensors, constants, warps, registers)

    def chunks(self, features: Tensor) -> Any:
        """(first row, last row, N F, or N^T F, of these rows), in one buffer of at most CHUNK bytes."""
        channels = features.shape[1]
        width = self.function.size * channels
        step = max(CHUNK // (width * features.element_size()) // 128, 1) * 128
        buffer = features.new_empty(min(step, self.count), width)
        block = min(64, max(4, power_of_two(channels)))
        tile = gather_tile(features.dtype, block)
        more: Any = {"C": channels, **tile.strips(block)}
        gathers = [
            self.bound(_GATHER, (features,), (buffer,), 2, tile.warps, channels, base, size, **more)
            for base, size in self.groups()
        ]
        for first in range(0, self.count, step):
            last = min(first + step, self.count)
            for gather in gathers:
                gather((cdiv(last - first, tile.rows), cdiv(channels, block), 1), (first, last, *self.scale))
            yield first, last, buffer if last - first == len(buffer) else buffer[: last - first]

    def coords(self, mine: Tensor, weight: Tensor, theirs: Tensor, along: Tensor, out: Tensor) -> None:
        """Gradients of the rows' coordinates: coefficients are products of (mine weight) and theirs.

        The weight is a matrix (channels of mine, M C), or the factors (M, C) of a depthwise convolution.
        """
        terms, channels = self.function.size, theirs.shape[1]
        step = max(CHUNK // (terms * channels * mine.element_size()) // 128, 1) * 128
        block = min(64, max(4, power_of_two(channels)))
        for first in range(0, self.count, step):
            last = min(first + step, self.count)
            some = mine[first:last]
            transformed = some[:, None] * weight if weight.shape == (terms, channels) else some @ weight
            tile = gather_tile(theirs.dtype, block)
            grid = (cdiv(last - first, tile.rows), 1, 1)
            for base, size in self.groups():
                how: Any = (first, last), tile.warps, channels, base, size
                settings: Any = {"C": channels, "FEATURES": True, "T": tile.rows, "CB": block}
                self.launch(_COORDS, grid, (transformed, theirs), (along, out), *how, **settings)

    def coords_featureless(self, grad: Tensor, along: Tensor, out: Tensor) -> None:
        for base, size in self.groups():
            grid, how = (cdiv(self.count, 32), 1, 1), ((0, self.count), 1, grad.shape[1], base, size)
            self.launch(_COORDS, grid, (grad, grad), (along, out), *how, C=1, FEATURES=False, T=32, CB=1)


def _fused(rows: _Rows, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, tile: Tile) -> None:
    """(N F) Theta + bias, or where the rows are sources the gradient of the features from that of the result."""
    channels, width = features.shape[1], out.shape[1]
    precision = _precision()
    if _rounds(features.dtype, precision) and gluon.forward(rows, features, weight, bias, out):
        return
    # Sums of all channels, or strip by strip.
    together = dot_block(channels) if rows.function.size * dot_block(channels) <= HELD else tile.strip
    # tf32x3 needs more registers, so one program per multiprocessor.
    beside = tile.beside if precision == "tf32" else 1
    registers = 65536 // (32 * tile.warps * beside) if beside > 1 and torch.version.hip is None else None
    grid, after = (cdiv(rows.count, tile.rows), 1, 1), (weight, weight if bias is None else bias, out)
    rows.launch(
        _FUSED, grid, (features,), after, (rows.count,), tile.warps, channels, registers=registers, C=channels, P=width,
        PB=dot_block(width), HAS_BIAS=bias is not None, PRECISION=precision, **tile.strips(together),
    )  # fmt: skip


def _weight(rows: _Rows, grad: Tensor, features: Tensor, weight: Tensor, tile: Tile | None) -> Tensor | None:
    """Parts of the gradient of the weight alone: 64 of the Q channels and a strip of the P in each program. None where
    there is no tile or no room for it, and Gluon has no kernel."""
    precision = _precision()
    if _rounds(features.dtype, precision):
        parts = gluon.weight(rows, grad, features, weight)
        if parts is not None:
            return parts
    terms, channels, width = weight.shape
    if tile is None or not have_room(terms * tile.rows * tile.strip, features.dtype, grad.device):
        return None
    block, tiles = min(64, dot_block(channels)), cdiv(rows.count, tile.rows)
    across = (cdiv(width, tile.strip), cdiv(channels, block))
    programs = min(max(side_by_side(grad.device, tile) // (across[0] * across[1]), 1), tiles)
    parts = torch.empty(programs, *weight.shape, dtype=torch.float32, device=grad.device)
    rows.launch(
        _WEIGHT, (programs, *across), (grad, features), (parts,), (rows.count, tiles), tile.warps, max(channels, width),
        Q=channels, P=width, QB=block, PRECISION=precision, L=tile.strip, T=tile.rows, U=tile.unroll,
        AHEAD=tile.ahead,
    )  # fmt: skip
    return parts


def _fused_backward(
    rows: _Rows, grad: Tensor, features: Tensor, weight: Tensor, d_features: Tensor | None, tile: Tile
) -> Tensor:
    """Writes the gradient of the features, where it is wanted, and returns parts of the weight's."""
    _, channels, width = weight.shape
    precision = _precision()
    if _rounds(features.dtype, precision):
        parts = gluon.backward(rows, grad, features, weight, d_features)
        if parts is not None:
            return parts
    tiles = cdiv(rows.count, tile.rows)
    programs = min(tiles, side_by_side(grad.device, tile))
    parts = torch.empty(programs, *weight.shape, dtype=torch.float32, device=grad.device)
    after = (weight, features if d_features is None else d_features, parts)
    rows.launch(
        _FUSED_BACKWARD, (programs, 1, 1), (grad, features), after, (rows.count, tiles), tile.warps,
        max(channels, width), Q=channels, P=width, QB=dot_block(channels), PRECISION=precision,
        NEED_F=d_features is not None, **tile.strips(dot_block(width)),
    )  # fmt: skip
    return parts


def _depthwise(
    rows: _Rows, features: Tensor, weight: Tensor, other: Tensor | None, out: Tensor | None, need_weight: bool
) -> Tensor | None:
    """The convolution, with the bias as `other`; or, where the rows are sources, the gradients of the features, which
    are then `other`, and parts (parts, M, C) of the weight's, from that of the result."""
    terms, channels = weight.shape
    block, tile = depthwise_tile(features.dtype, channels)
    tiles, across = cdiv(rows.count, tile.rows), cdiv(channels, block)
    programs = min(tiles, max(side_by_side(features.device, tile) // across, 1)) if need_weight else tiles
    dtype = compute_dtype(features.dtype)
    parts = features.new_empty(programs if need_weight else 0, terms, channels, dtype=dtype)
    # What several launches add up, they add up in the dtype of the sums.
    sums = out if out is None or terms <= GROUP else out.to(dtype)
    after = (weight, weight if other is None else other, parts if sums is None else sums, parts)
    flags: Any = {"HAS_BIAS": other is not None and not rows.flip, "NEED_OUT": out is not None}
    flags |= {"NEED_W": need_weight, "C": channels}
    for base, size in rows.groups():
        how = (rows.count, tiles), tile.warps, channels, base, size
        rows.launch(_DEPTHWISE, (programs, across, 1), (features,), after, *how, **flags, **tile.strips(block))
    if out is not None and sums is not None and sums is not out:
        out.copy_(sums)
    return parts if need_weight else None


def _transform_first(rows: _Rows, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """N (F Theta), as many output channels at a time as F Theta has room for."""
    terms, channels, width = weight.shape
    per_channel = max(features.shape[0], 1) * terms * features.element_size()
    step = min(width, max(16, TRANSFORMED // per_channel // 16 * 16))
    for column in range(0, width, step):
        part = weight[:, :, column : column + step]
        some = part.shape[2]
        transformed = features @ part.transpose(0, 1).reshape(channels, terms * some)  # (S, M * some)
        block = min(64, max(4, power_of_two(some)))
        tile = gather_tile(features.dtype, block)
        grid, after = (cdiv(rows.count, tile.rows), cdiv(some, block), 1), (features if bias is None else bias, out)
        rows.launch(
            _CONTRACT, grid, (transformed,), after, (rows.count, column), tile.warps, terms * some, T=tile.rows,
            CB=block, HAS_BIAS=bias is not None, WIDTH=some, STRIDE=width,
        )  # fmt: skip


def _precision() -> str:
    """How kernels multiply float32 matrices: as torch's products are told to."""
    if torch.version.hip is not None:
        return "ieee"
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"


def _rounds(dtype: torch.dtype, precision: str) -> bool:
    """Whether factors of products have no more than 11 bits."""
    return dtype.itemsize == 2 or precision == "tf32"


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


@lru_cache(4096)
def _constants(
    launcher: Launcher, given: int, function: EdgeFunction, flip: bool, dtype: Any, total: bool, index: Any, base: int,
    size: int, **more: Any,
) -> tuple:  # fmt: skip
    """All constants of a kernel, in its order: many, and the same at every call of a layer."""
    constants = {"D": function.dim, "FALLOFF": function.falloff, "NORMALISE": function.normalise, "INDEX": index}
    constants |= {"FLIP": flip, "DTYPE": dtype, "TERMS": function.size, "TOTAL": total, "BASE": base} | more
    return launcher.ordered(given, constants | terms(function, base, size))
