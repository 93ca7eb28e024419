"""Segment pooling in Triton: a program owns one example and a block of channels, and walks its rows in order.

If there are few examples with many rows, several programs share one, each a slice of its rows.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two

_ROWS = 16
# Rows worth a program of their own.
_SLICE = 1024


def segment_max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    shape = (len(splits) - 1, features.shape[1])
    slices = _slices(features, shape)
    value = features.new_empty(slices, *shape)
    row = torch.empty(slices, *shape, dtype=torch.int64, device=features.device)
    if value.numel():
        grid, block = _launch(shape, slices)
        double = features.dtype == torch.float64
        sizes, constants = (features.shape[0], slices), (shape[1], _ROWS, block, double)
        _MAX(grid, (features, splits, value, row), sizes, constants)
    if slices == 1:
        return value[0], row[0]
    value, first = value.max(0)
    return value, row.gather(0, first[None])[0]


def segment_mean(features: Tensor, splits: Tensor) -> Tensor:
    shape = (len(splits) - 1, features.shape[1])
    slices = _slices(features, shape)
    double = features.dtype == torch.float64
    wide = features.dtype if slices == 1 else torch.promote_types(features.dtype, torch.float32)
    value = torch.empty(slices, *shape, dtype=wide, device=features.device)
    if value.numel():
        grid, block = _launch(shape, slices)
        _MEAN(grid, (features, splits, value), (slices,), (shape[1], slices > 1, _ROWS, block, double))
    if slices == 1:
        return value[0]
    return (value.sum(0) / splits.diff().clamp(min=1)[:, None]).to(features.dtype)


def _slices(features: Tensor, shape: tuple[int, int]) -> int:
    """Programs that share an example: more than one where few examples have many rows."""
    return max(1, min(features.shape[0] // max(_SLICE * shape[0], 1), 256))


def _launch(shape: tuple[int, int], slices: int) -> tuple[tuple[int, int, int], int]:
    block = min(power_of_two(shape[1]), 64)
    return (shape[0], cdiv(shape[1], block), slices), block


@triton.jit
def _range(splits, example, slices):
    """First row of an example, or of a slice of it, and the row behind the last."""
    first = tl.load(splits + example)
    last = tl.load(splits + example + 1)
    step = (last - first + slices - 1) // slices
    start = first + tl.program_id(2) * step
    return tl.minimum(start, last), tl.minimum(start + step, last)


@triton.jit(do_not_specialize=["num_rows", "slices"])
def _max(
    features,
    splits,
    value,
    row,
    num_rows,
    slices,
    channels,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """BLOCK channels of one example, or of a slice of it: the maximum, and its row."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    example = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    first, last = _range(splits, example, slices)
    count = (last - first).to(tl.int32)
    rows = features + first * channels + c[None, :]
    # Each lane keeps the first of its largest values, and a NaN, which no number beats, from its first one on.
    lane = tl.arange(0, ROWS)[:, None]
    best = tl.full([ROWS, BLOCK], float("-inf"), wide)
    at = tl.zeros([ROWS, BLOCK], tl.int32) + lane
    for start in range(0, count, ROWS):
        s = start + lane
        ok = (s < count) & inside[None, :]
        x = tl.load(rows + s.to(tl.int64) * channels, ok, other=float("-inf")).to(wide)
        more = (x > best) | ((x != x) & (best == best))
        best = tl.where(more, x, best)
        at = tl.where(more, s, at)
    nan = best != best
    any_nan = tl.max(nan.to(tl.int32), 0) > 0
    top = tl.max(tl.where(nan, float("-inf"), best), 0)
    holds = tl.where(any_nan[None, :], nan, best == top[None, :]) & (at < count)
    where = first + tl.min(tl.where(holds, at, count), 0)
    out = tl.where(any_nan, float("nan"), top)
    # The first slice alone writes 0 for an example without rows.
    out = tl.where((first < last) | (tl.program_id(2) > 0), out, 0.0)
    at_out = (tl.program_id(2).to(tl.int64) * tl.num_programs(0) + example) * channels + c
    tl.store(value + at_out, out.to(value.dtype.element_ty), inside)
    tl.store(row + at_out, tl.where(first < last, where, num_rows), inside)


@triton.jit(do_not_specialize=["slices"])
def _mean(
    features,
    splits,
    value,
    slices,
    channels,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """BLOCK channels of one example, or of a slice of it: the mean, or with SUM the sum."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    example = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    first, last = _range(splits, example, slices)
    lane = tl.arange(0, ROWS)[:, None]
    total = tl.zeros([ROWS, BLOCK], wide)
    for start in range(first, last, ROWS):
        s = start + lane
        x = tl.load(features + s * channels + c[None, :], (s < last) & inside[None, :], other=0.0)
        total += x.to(wide)
    mean = tl.sum(total, 0)
    if not SUM:
        mean = mean / tl.maximum(last - first, 1).to(wide)
    at = (tl.program_id(2).to(tl.int64) * tl.num_programs(0) + example) * channels + c
    tl.store(value + at, mean.to(value.dtype.element_ty), inside)


_MAX, _MEAN = map(Launcher, (_max, _mean))
