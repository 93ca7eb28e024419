"""The mean over cells in Triton: rows sorted by cell (stably), then one program per cell and block of channels."""

# pyright: reportAssignmentType=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two

_ROWS = 16


def voxel_mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    channels = features.shape[1]
    # Out of range sorts to the end, after every cell, where no split points.
    key = torch.where((cell >= 0) & (cell < cells), cell, cells)
    sorted_key, order = torch.sort(key, stable=True)
    splits = torch.searchsorted(sorted_key, torch.arange(cells + 1, device=cell.device, dtype=cell.dtype))
    value = features.new_empty(cells, channels)
    if value.numel():
        block = min(power_of_two(channels), 64)
        constants = (channels, _ROWS, block, features.dtype == torch.float64)
        _MEAN((cells, cdiv(channels, block), 1), (features, order, splits, value), (), constants)
    return value, splits.diff()


@triton.jit
def _mean(features, order, splits, value, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr):
    """BLOCK channels of one voxel: the mean of its points."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    cell = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < channels
    first = tl.load(splits + cell)
    last = tl.load(splits + cell + 1)
    lane = tl.arange(0, ROWS)
    total = tl.zeros([ROWS, BLOCK], wide)
    for start in range(first, last, ROWS):
        ok = start + lane < last
        s = tl.load(order + start + lane, ok, other=0).to(tl.int64)
        x = tl.load(features + s[:, None] * channels + c[None, :], ok[:, None] & inside[None, :], other=0.0)
        total += x.to(wide)
    mean = tl.sum(total, 0) / tl.maximum(last - first, 1).to(wide)
    tl.store(value + cell * channels + c, mean.to(value.dtype.element_ty), inside)


_MEAN = Launcher(_mean)
