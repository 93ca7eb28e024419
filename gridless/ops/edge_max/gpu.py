"""The maximum over neighbours in Triton: a program owns some rows and a block of channels, and walks their edges."""

# pyright: reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two

ROWS = 16


def forward(features: Tensor, splits: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    rows, channels = len(splits) - 1, features.shape[1]
    value = features.new_empty(rows, channels)
    row = torch.empty(rows, channels, dtype=torch.int32, device=features.device)
    if value.numel():
        block = _block(channels)
        grid, double = (cdiv(rows, ROWS), cdiv(channels, block), 1), features.dtype == torch.float64
        _MAX(grid, (features, splits, source, value, row), (rows,), (channels, ROWS, block, double))
    return value, row


def backward(grad: Tensor, row: Tensor, back_splits: Tensor, back_source: Tensor) -> Tensor:
    rows, channels = len(back_splits) - 1, grad.shape[1]
    total = grad.new_empty(rows, channels)
    if total.numel():
        block = _block(channels)
        grid, double = (cdiv(rows, ROWS), cdiv(channels, block), 1), grad.dtype == torch.float64
        _COLLECT(grid, (grad, row, back_splits, back_source, total), (rows,), (channels, ROWS, block, double))
    return total


def _block(channels: int) -> int:
    return min(power_of_two(channels), 64)


@triton.jit
def _rows(splits, rows, ROWS: tl.constexpr):
    """The rows of this program, where their edges begin, how many they are, and the most of them."""
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = tl.load(splits + i, i < rows, other=0)
    count = tl.load(splits + i + 1, i < rows, other=0) - first
    return i, first, count, tl.max(count, 0)


@triton.jit(do_not_specialize=["rows"])
def _max(
    features, splits, source, value, row, rows, channels,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """ROWS targets and BLOCK channels: the maximum over the edges, and its source."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i, first, count, most = _rows(splits, rows, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (c < channels)[None, :]
    best = tl.zeros([ROWS, BLOCK], wide)
    at = tl.full([ROWS, BLOCK], -1, tl.int32)
    for e in range(0, most):
        on = e < count
        j = tl.load(source + first + e, on, other=0)
        x = tl.load(features + j.to(tl.int64)[:, None] * channels + c[None, :], on[:, None] & inside, other=0.0)
        x = x.to(wide)
        # Larger, or a NaN, and no NaN before it.
        more = on[:, None] & (((best == best) & ~(x <= best)) | (at < 0))
        best = tl.where(more, x, best)
        at = tl.where(more, j[:, None], at)
    out = i.to(tl.int64)[:, None] * channels + c[None, :]
    ok = (i < rows)[:, None] & inside
    tl.store(value + out, best.to(value.dtype.element_ty), ok)
    tl.store(row + out, at, ok)


@triton.jit(do_not_specialize=["rows"])
def _collect(
    grad, row, splits, source, total, rows, channels,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """ROWS sources and BLOCK channels: the sum of the gradients of the targets whose maximum each is."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    j, first, count, most = _rows(splits, rows, ROWS)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (c < channels)[None, :]
    sums = tl.zeros([ROWS, BLOCK], wide)
    before = tl.full([ROWS], -1, tl.int32)
    for e in range(0, most):
        on = e < count
        i = tl.load(source + first + e, on, other=0)
        at = i.to(tl.int64)[:, None] * channels + c[None, :]
        ok = on[:, None] & inside
        # The gradient is read whether it is this row's or not: to know that first would mean to wait twice.
        x = tl.load(grad + at, ok, other=0.0).to(wide)
        is_row = tl.load(row + at, ok, other=-1) == j[:, None]
        # Repeats of an edge stand side by side.
        sums += tl.where(is_row & (i != before)[:, None], x, 0.0)
        before = i
    out = j.to(tl.int64)[:, None] * channels + c[None, :]
    tl.store(total + out, sums.to(total.dtype.element_ty), (j < rows)[:, None] & inside)


_MAX, _COLLECT = Launcher(_max), Launcher(_collect)
