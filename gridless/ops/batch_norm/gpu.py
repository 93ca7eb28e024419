"""Batch normalisation in Triton: x is read twice in each direction, and only the result is written.

Statistics are combined by Chan's formula, tile by tile and then over programs, always in the same order.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two

# Programs that share the sums over rows, and numbers in a tile.
PROGRAMS = 512
TILE = 4096


def forward(
    x: Tensor, count: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, before: bool, after: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, channels = x.shape
    wide = torch.promote_types(x.dtype, torch.float32)
    y = torch.empty_like(x)
    mean, scale, unbiased = (torch.empty(channels, dtype=wide, device=x.device) for _ in range(3))
    if channels == 0:
        return y, mean, scale, unbiased
    tall, block, programs, tiles = _launch(rows, channels)
    parts = torch.empty(3, programs, channels, dtype=wide, device=x.device)
    double = wide == torch.float64
    affine = weight is not None
    _MOMENTS((programs, tiles, 1), (x, count, parts), (rows, programs), (channels, before, tall, block, double))
    few = min(block, 8)
    statistics = (parts, mean, scale, unbiased)
    _COMBINE((cdiv(channels, few), 1, 1), statistics, (programs, eps), (channels, PROGRAMS, few))
    if rows:
        tensors = (x, y, count, mean, scale, weight if affine else mean, bias if affine else mean)
        constants = (channels, before, after, affine, tall, block, double)
        _APPLY((cdiv(rows, tall), tiles, 1), tensors, (rows,), constants)
    return y, mean, scale, unbiased


def backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor]:
    rows, channels = x.shape
    dx = torch.empty_like(x)
    if channels == 0:
        return dx, mean.new_empty(2, 0)
    tall, block, programs, tiles = _launch(rows, channels)
    parts = torch.empty(programs, 2, channels, dtype=mean.dtype, device=x.device)
    double = mean.dtype == torch.float64
    affine = weight is not None
    tensors = (grad, x, count, mean, scale, weight if affine else mean, bias if affine else mean)
    constants = (channels, before, after, affine, tall, block, double)
    _SUMS((programs, tiles, 1), (*tensors, parts), (rows, programs), constants)
    total = torch.empty(2, channels, dtype=mean.dtype, device=x.device)
    few = min(power_of_two(2 * channels), 8)
    _TOTAL((cdiv(2 * channels, few), 1, 1), (parts, total), (programs,), (2 * channels, PROGRAMS, few))
    if rows:
        _APPLY_BACKWARD((cdiv(rows, tall), tiles, 1), (*tensors, total, dx), (rows,), constants)
    return dx, total


def track(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float,
) -> None:
    channels = len(mean)
    if channels:
        block = min(power_of_two(channels), 1024)
        tensors = (mean, var, count, running_mean, running_var, tracked)
        _TRACK((cdiv(channels, block), 1, 1), tensors, (momentum,), (channels, block))


def _launch(rows: int, channels: int) -> tuple[int, int, int, int]:
    """Rows and channels of a tile, programs along the rows of the sums, tiles along the channels."""
    # The largest power of two that divides them, where it is not a small one: no lane is idle then.
    divisor = channels & -channels
    block = min(divisor if divisor >= 32 else power_of_two(channels), 128)
    tall = TILE // block
    return tall, block, max(1, min(cdiv(rows, tall), PROGRAMS)), cdiv(channels, block)


@triton.jit
def _track(mean, var, count, running_mean, running_var, tracked, momentum, channels, BLOCK: tl.constexpr):
    if tl.load(count) > 0:
        c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = c < channels
        before = tl.load(running_mean + c, ok)
        now = tl.load(mean + c, ok).to(before.dtype)
        tl.store(running_mean + c, before + momentum * (now - before), ok)
        before = tl.load(running_var + c, ok)
        now = tl.load(var + c, ok).to(before.dtype)
        tl.store(running_var + c, before + momentum * (now - before), ok)
        if tl.program_id(0) == 0:
            tl.store(tracked, tl.load(tracked) + 1)


@triton.jit
def _span(count, rows, programs, ROWS: tl.constexpr):
    """The rows of this program: equal shares of whole tiles."""
    n = tl.minimum(tl.load(count), rows)
    share = (n + programs * ROWS - 1) // (programs * ROWS) * ROWS
    first = tl.program_id(0) * share
    return first, tl.minimum(first + share, n)


@triton.jit
def _load(x, s, c, ok, channels, RELU: tl.constexpr, WIDE: tl.constexpr):
    value = tl.load(x + s.to(tl.int64) * channels + c, ok, other=0.0).to(WIDE)
    if RELU:
        value = tl.where(value < 0.0, 0.0, value)
    return value


@triton.jit(do_not_specialize=["rows", "programs"])
def _moments(
    x, count, parts, rows, programs, channels,
    BEFORE: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    first, last = _span(count, rows, programs, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    lane = tl.arange(0, ROWS)[:, None]
    mean = tl.zeros([BLOCK], wide)
    squares = tl.zeros([BLOCK], wide)
    seen = tl.zeros([BLOCK], wide)
    for start in range(first, last, ROWS):
        s = start + lane
        ok = (s < last) & inside[None, :]
        value = _load(x, s, c[None, :], ok, channels, BEFORE, wide)
        more = tl.minimum(last - start, ROWS).to(wide)
        here = tl.sum(value, 0) / more
        apart = tl.where(ok, value - here[None, :], 0.0)
        delta = here - mean
        both = seen + more
        squares += tl.sum(apart * apart, 0) + delta * delta * (seen * more / both)
        mean += delta * (more / both)
        seen = both
    at = tl.program_id(0) * channels + c
    tl.store(parts + at, seen, inside)
    tl.store(parts + programs * channels + at, mean, inside)
    tl.store(parts + 2 * programs * channels + at, squares, inside)


@triton.jit(do_not_specialize=["programs"])
def _combine(
    parts, mean, scale, unbiased, programs, eps, channels, PARTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    p = tl.arange(0, PARTS)[:, None]
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = (p < programs) & (c < channels)[None, :]
    at = p * channels + c[None, :]
    seen = tl.load(parts + at, ok, other=0.0)
    means = tl.load(parts + programs * channels + at, ok, other=0.0)
    squares = tl.load(parts + 2 * programs * channels + at, ok, other=0.0)
    n = tl.sum(seen, 0)
    total = tl.maximum(n, 1.0)
    middle = tl.sum(seen * means, 0) / total
    apart = means - middle[None, :]
    spread = tl.sum(squares + seen * apart * apart, 0)
    tl.store(mean + c, middle, c < channels)
    tl.store(scale + c, 1.0 / tl.sqrt(spread / total + eps), c < channels)
    tl.store(unbiased + c, spread / tl.maximum(n - 1.0, 1.0), c < channels)


@triton.jit(do_not_specialize=["rows"])
def _apply(
    x, y, count, mean, scale, weight, bias, rows, channels,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    n = tl.minimum(tl.load(count), rows)
    s = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = c < channels
    value = _load(x, s, c, (s < n) & inside, channels, BEFORE, wide)
    value = (value - tl.load(mean + c, inside, other=0.0)) * tl.load(scale + c, inside, other=0.0)
    if AFFINE:
        w = tl.load(weight + c, inside, other=0.0).to(wide)
        value = value * w + tl.load(bias + c, inside, other=0.0).to(wide)
    if AFTER:
        value = tl.where(value < 0.0, 0.0, value)
    value = tl.where(s < n, value, 0.0)
    tl.store(y + s.to(tl.int64) * channels + c, value.to(y.dtype.element_ty), (s < rows) & inside)


@triton.jit
def _normalised(
    grad, x, mean, scale, weight, bias, s, c, ok, inside, channels,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """The normalised input, 0 outside, and the gradient that reaches it before the weight."""
    g = tl.load(grad + s.to(tl.int64) * channels + c, ok, other=0.0).to(WIDE)
    value = _load(x, s, c, ok, channels, BEFORE, WIDE)
    h = (value - tl.load(mean + c, inside, other=0.0)) * tl.load(scale + c, inside, other=0.0)
    if AFTER:
        out = h
        if AFFINE:
            w = tl.load(weight + c, inside, other=0.0).to(WIDE)
            out = h * w + tl.load(bias + c, inside, other=0.0).to(WIDE)
        g = tl.where(out > 0.0, g, 0.0)
    return tl.where(ok, h, 0.0), g


@triton.jit(do_not_specialize=["rows", "programs"])
def _sums(
    grad, x, count, mean, scale, weight, bias, parts, rows, programs, channels,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    first, last = _span(count, rows, programs, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = c < channels
    lane = tl.arange(0, ROWS)[:, None]
    plain = tl.zeros([BLOCK], wide)
    times = tl.zeros([BLOCK], wide)
    for start in range(first, last, ROWS):
        s = start + lane
        ok = (s < last) & inside
        h, g = _normalised(
            grad, x, mean, scale, weight, bias, s, c, ok, inside, channels, BEFORE, AFTER, AFFINE, wide
        )  # fmt: skip
        plain += tl.sum(g, 0)
        times += tl.sum(g * h, 0)
    flat = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0) * 2 * channels + flat
    tl.store(parts + at, plain, flat < channels)
    tl.store(parts + at + channels, times, flat < channels)


@triton.jit(do_not_specialize=["programs"])
def _total(parts, total, programs, sums, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Two sums of each channel: of the gradient, and of the gradient times the normalised input."""
    p = tl.arange(0, PARTS)[:, None]
    c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.load(parts + p * sums + c[None, :], (p < programs) & (c < sums)[None, :], other=0.0)
    tl.store(total + c, tl.sum(part, 0), c < sums)


@triton.jit(do_not_specialize=["rows"])
def _apply_backward(
    grad, x, count, mean, scale, weight, bias, total, dx, rows, channels,
    BEFORE: tl.constexpr, AFTER: tl.constexpr, AFFINE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    n = tl.minimum(tl.load(count), rows)
    s = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    inside = c < channels
    ok = (s < n) & inside
    h, g = _normalised(grad, x, mean, scale, weight, bias, s, c, ok, inside, channels, BEFORE, AFTER, AFFINE, wide)
    plain = tl.load(total + c, inside, other=0.0)
    times = tl.load(total + channels + c, inside, other=0.0)
    value = (g - (plain + h * times) / tl.maximum(n, 1).to(wide)) * tl.load(scale + c, inside, other=0.0)
    if AFFINE:
        value = value * tl.load(weight + c, inside, other=0.0).to(wide)
    if BEFORE:
        raw = tl.load(x + s.to(tl.int64) * channels + c, ok, other=0.0)
        value = tl.where(raw > 0.0, value, 0.0)
    value = tl.where(ok, value, 0.0)
    tl.store(dx + s.to(tl.int64) * channels + c, value.to(dx.dtype.element_ty), (s < rows) & inside)


_MOMENTS, _COMBINE, _APPLY, _SUMS, _TOTAL, _APPLY_BACKWARD, _TRACK = map(
    Launcher, (_moments, _combine, _apply, _sums, _total, _apply_backward, _track)
)
