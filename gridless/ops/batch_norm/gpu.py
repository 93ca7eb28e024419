"""Batch normalisation in Triton: two launches in each direction. x is read twice, and only the result is written.

The first launch leaves each program's part of the sums over rows; in the second every program puts all parts together,
always in the same order. Statistics are Welford's in each lane, combined by Chan's formula over lanes and programs.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportInvalidTypeForm=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two
from gridless.ops.batch_norm.reference import Running

# Programs of a launch, at most, and numbers in a tile: one program to a multiprocessor, with eight warps.
PROGRAMS = 128
TILE = 8192
WARPS = 8


def forward(
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    before: bool,
    after: bool,
    running: Running | None = None,
) -> tuple[Tensor, Tensor]:
    rows, channels = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    y = torch.empty_like(x)
    statistics = torch.empty(3, channels, dtype=wide, device=x.device)
    if channels == 0:
        return y, statistics
    tall, block, grid = _launch(rows, channels)
    # The last number is what this batch weighs in the running statistics.
    parts = torch.empty(2 * grid[0] * channels + 1, dtype=wide, device=x.device)
    double, counted, affine = wide == torch.float64, count is not None, weight is not None
    # Any tensor stands for those that a kernel does not read.
    number = count if counted else parts
    running_tensors = (parts,) * 3 if running is None else running[:3]
    momentum = 0.0 if running is None else running[3]
    constants = channels, counted, before, running is not None, tall, block, double
    _MOMENTS(grid, (x, number, parts, running_tensors[2]), (rows, grid[0], momentum), constants, WARPS)
    tensors = x, y, number, parts, statistics, weight if affine else parts, bias if affine else parts, *running_tensors
    constants = channels, counted, before, after, affine, running is not None, PROGRAMS, tall, block, double
    _APPLY(grid, tensors, (rows, grid[0], eps), constants, WARPS)
    return y, statistics


def backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, channels = x.shape
    wide, affine = statistics.dtype, weight is not None
    dx = torch.empty_like(x)
    like = statistics[0] if weight is None else weight
    d_weight, d_bias = torch.empty_like(like), torch.empty_like(like)
    if channels == 0:
        return dx, d_weight, d_bias
    tall, block, grid = _launch(rows, channels)
    parts = torch.empty(2, grid[0], channels, dtype=wide, device=x.device)
    double, counted = wide == torch.float64, count is not None
    tensors = grad, x, count if counted else parts, statistics, weight if affine else parts, bias if affine else parts
    constants = channels, counted, before, after, affine, tall, block, double
    _SUMS(grid, (*tensors, parts), (rows, grid[0]), constants, WARPS)
    _APPLY_BACKWARD(grid, (*tensors, parts, dx, d_weight, d_bias), (rows, grid[0]), (*constants, PROGRAMS), WARPS)
    return dx, d_weight, d_bias


def _launch(rows: int, channels: int) -> tuple[int, int, tuple[int, int, int]]:
    """Rows and channels of a tile, and programs along the rows and along the channels."""
    # The largest power of two that divides them, where it is not a small one: no lane is idle then.
    divisor = channels & -channels
    block = min(divisor if divisor >= 32 else power_of_two(channels), 128)
    tall, across = TILE // block, cdiv(channels, block)
    return tall, block, (max(1, min(cdiv(rows, tall), PROGRAMS // across)), across, 1)


@triton.jit
def _real(count, rows, COUNTED: tl.constexpr):
    """Number of rows that count."""
    n = rows
    if COUNTED:
        n = tl.minimum(tl.load(count), rows).to(rows.dtype)
    return n


@triton.jit
def _share(n, programs, ROWS: tl.constexpr):
    """Rows of a program: equal shares of whole tiles."""
    return (n + programs * ROWS - 1) // (programs * ROWS) * ROWS


@triton.jit
def _load(x, s, c, ok, channels, RELU: tl.constexpr, WIDE: tl.constexpr):
    """Numbers of x in the type of the sums, after the ReLU of `before`."""
    value = tl.load(x + s.to(tl.int64) * channels + c, ok, other=0.0).to(WIDE)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)
    return value


@triton.jit
def _affine(weight, bias, c, inside, AFFINE: tl.constexpr, WIDE: tl.constexpr):
    """weight and bias of the channels c, or 1 and 0."""
    if AFFINE:
        w = tl.load(weight + c, inside, other=0.0).to(WIDE)
        b = tl.load(bias + c, inside, other=0.0).to(WIDE)
    else:
        w = tl.full(c.shape, 1.0, WIDE)
        b = tl.zeros(c.shape, WIDE)
    return w, b


@triton.jit
def _parts(parts, programs, c, inside, channels, PARTS: tl.constexpr):
    """Two sums of every program, each (PARTS, channels of the tile)."""
    p = tl.arange(0, PARTS)[:, None]
    ok = (p < programs) & inside[None, :]
    at = p * channels + c[None, :]
    return tl.load(parts + at, ok, other=0.0), tl.load(parts + programs * channels + at, ok, other=0.0)


@triton.jit
def _together(seen, means, squares, total):
    """Mean, and sum of squares about it, of `total` numbers, from those of groups of so many as were `seen`."""
    mean = tl.sum(seen * means, 0) / total
    apart = means - mean[None, :]
    return mean, tl.sum(squares + seen * apart * apart, 0)


@triton.jit(do_not_specialize=["rows", "programs"])
def _moments(
    x, count, parts, batches, rows, programs, momentum: tl.float64, channels,
    COUNTED: tl.constexpr, BEFORE: tl.constexpr, TRACK: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squares about it, of the rows of each program; the first one says what the batch weighs."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    if TRACK:
        # The weight of the batch is made here, as the second launch counts the batch.
        weighs = tl.maximum(1.0 / (tl.load(batches) + 1).to(wide), tl.full([], momentum, wide))
        tl.store(parts + 2 * programs * channels, weighs, tl.program_id(0) + tl.program_id(1) == 0)
    n = _real(count, rows, COUNTED)
    share = _share(n, programs, ROWS)
    first = tl.program_id(0) * share
    last = tl.minimum(first + share, n)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    lane = tl.arange(0, ROWS)[:, None]
    means = tl.zeros([ROWS, BLOCK], wide)
    squares = tl.zeros([ROWS, BLOCK], wide)
    tiles = tl.zeros([], wide)
    for start in range(first, last, ROWS):
        s = start + lane
        ok = (s < last) & inside[None, :]
        value = _load(x, s, c[None, :], ok, channels, BEFORE, wide)
        tiles += 1.0
        delta = tl.where(ok, value - means, 0.0)
        means += delta / tiles
        squares += delta * (value - means)
    # Lanes beyond the last row have seen one tile less.
    seen = tl.maximum((last - first - lane + ROWS - 1) // ROWS, 0).to(wide)
    mean, spread = _together(seen, means, squares, tl.maximum(last - first, 1).to(wide))
    at = tl.program_id(0) * channels + c
    tl.store(parts + at, mean, inside)
    tl.store(parts + programs * channels + at, spread, inside)


@triton.jit
def _track(mean, var, n, running_mean, running_var, batches, share, c, inside):
    """Move the running statistics of the channels c by a share towards those of a batch of n rows."""
    if n > 0:
        old = tl.load(running_mean + c, inside)
        tl.store(running_mean + c, old + share.to(old.dtype) * (mean.to(old.dtype) - old), inside)
        old = tl.load(running_var + c, inside)
        tl.store(running_var + c, old + share.to(old.dtype) * (var.to(old.dtype) - old), inside)
        if tl.program_id(1) == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["rows", "programs"])
def _apply(
    x, y, count, parts, statistics, weight, bias, running_mean, running_var, batches,
    rows, programs, eps: tl.float64, channels,
    COUNTED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr, TRACK: tl.constexpr,
    PARTS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Normalise a share of the rows with the moments of all; the first program moves the running statistics."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    n = _real(count, rows, COUNTED)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels

    share = _share(n, programs, ROWS)
    seen = tl.minimum(tl.maximum(n - tl.arange(0, PARTS)[:, None] * share, 0), share).to(wide)
    means, squares = _parts(parts, programs, c, inside, channels, PARTS)
    total = tl.maximum(n, 1).to(wide)
    mean, spread = _together(seen, means, squares, total)
    scale = 1.0 / tl.sqrt(spread / total + tl.full([], eps, wide))
    if tl.program_id(0) == 0:
        unbiased = spread / tl.maximum(n - 1, 1).to(wide)
        tl.store(statistics + c, mean, inside)
        tl.store(statistics + channels + c, scale, inside)
        tl.store(statistics + 2 * channels + c, unbiased, inside)
        if TRACK:
            newest = tl.load(parts + 2 * programs * channels)
            _track(mean, unbiased, n, running_mean, running_var, batches, newest, c, inside)

    w, b = _affine(weight, bias, c, inside, AFFINE, wide)
    for start in range(tl.program_id(0) * ROWS, rows, programs * ROWS):
        s = start + tl.arange(0, ROWS)[:, None]
        value = _load(x, s, c[None, :], (s < n) & inside[None, :], channels, BEFORE, wide)
        value = (value - mean[None, :]) * scale[None, :] * w[None, :] + b[None, :]
        if AFTER:
            value = tl.where(value < 0.0, 0.0, value)
        value = tl.where(s < n, value, 0.0)
        at = s.to(tl.int64) * channels + c[None, :]
        tl.store(y + at, value.to(y.dtype.element_ty), (s < rows) & inside[None, :])


@triton.jit
def _normalised(
    grad, x, mean, scale, w, b, s, c, ok, channels, BEFORE: tl.constexpr, AFTER: tl.constexpr, WIDE: tl.constexpr
):  # fmt: skip
    """The normalised input, 0 outside, and the gradient that reaches it before the weight."""
    g = tl.load(grad + s.to(tl.int64) * channels + c[None, :], ok, other=0.0).to(WIDE)
    h = (_load(x, s, c[None, :], ok, channels, BEFORE, WIDE) - mean[None, :]) * scale[None, :]
    if AFTER:
        g = tl.where(h * w[None, :] + b[None, :] <= 0.0, 0.0, g)
    return tl.where(ok, h, 0.0), g


@triton.jit(do_not_specialize=["rows", "programs"])
def _sums(
    grad, x, count, statistics, weight, bias, parts, rows, programs, channels,
    COUNTED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Sums of the gradient, and of the gradient times the normalised input, over the rows of each program."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    n = _real(count, rows, COUNTED)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    mean = tl.load(statistics + c, inside, other=0.0)
    scale = tl.load(statistics + channels + c, inside, other=0.0)
    w, b = _affine(weight, bias, c, inside, AFFINE, wide)
    plain = tl.zeros([ROWS, BLOCK], wide)
    times = tl.zeros([ROWS, BLOCK], wide)
    for start in range(tl.program_id(0) * ROWS, n, programs * ROWS):
        s = start + tl.arange(0, ROWS)[:, None]
        ok = (s < n) & inside[None, :]
        h, g = _normalised(grad, x, mean, scale, w, b, s, c, ok, channels, BEFORE, AFTER, wide)
        plain += g
        times += g * h
    at = tl.program_id(0) * channels + c
    tl.store(parts + at, tl.sum(plain, 0), inside)
    tl.store(parts + programs * channels + at, tl.sum(times, 0), inside)


@triton.jit(do_not_specialize=["rows", "programs"])
def _apply_backward(
    grad, x, count, statistics, weight, bias, parts, dx, d_weight, d_bias, rows, programs, channels,
    COUNTED: tl.constexpr, BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """dx of a share of the rows from the sums of all; the first program writes d_weight and d_bias."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    n = _real(count, rows, COUNTED)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    mean = tl.load(statistics + c, inside, other=0.0)
    scale = tl.load(statistics + channels + c, inside, other=0.0)
    w, b = _affine(weight, bias, c, inside, AFFINE, wide)
    plains, products = _parts(parts, programs, c, inside, channels, PARTS)
    plain, times = tl.sum(plains, 0), tl.sum(products, 0)
    if tl.program_id(0) == 0:
        tl.store(d_bias + c, plain.to(d_bias.dtype.element_ty), inside)
        tl.store(d_weight + c, times.to(d_weight.dtype.element_ty), inside)
    total = tl.maximum(n, 1).to(wide)
    plain, times = plain / total, times / total
    for start in range(tl.program_id(0) * ROWS, rows, programs * ROWS):
        s = start + tl.arange(0, ROWS)[:, None]
        ok = (s < n) & inside[None, :]
        h, g = _normalised(grad, x, mean, scale, w, b, s, c, ok, channels, BEFORE, AFTER, wide)
        value = (g - plain[None, :] - h * times[None, :]) * (scale * w)[None, :]
        at = s.to(tl.int64) * channels + c[None, :]
        if BEFORE:
            value = tl.where(tl.load(x + at, ok, other=0.0).to(wide) <= 0.0, 0.0, value)
        value = tl.where(ok, value, 0.0)
        tl.store(dx + at, value.to(dx.dtype.element_ty), (s < rows) & inside[None, :])


_MOMENTS, _APPLY, _SUMS, _APPLY_BACKWARD = map(Launcher, (_moments, _apply, _sums, _apply_backward))
