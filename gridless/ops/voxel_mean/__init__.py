"""Mean over the cells of a grid, for instance (example, t, y, x).

    voxel_mean(F, cell, cells)[v, c] = mean of F[s, c] over the rows s with cell[s] = v

Cells without rows give 0; rows with cell -1 (padding, or outside the grid) belong to none, and their gradient is 0.
float16 and bfloat16 are summed in float32, in row order: two runs give the same bits. On the CPU cells of many rows are
summed in float64. Can be differentiated twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.ops.checks import FLOATS
from gridless.ops.operator import by_reference, operator
from gridless.ops.segment_pool.reference import over
from gridless.ops.voxel_mean import reference


def voxel_mean(features: Tensor, cell: Tensor, cells: int) -> Tensor:
    """The mean feature of each cell: features (S, C), cell (S) in [0, cells) or -1, to (cells, C).

    Cells out of range are refused on the CPU; on the GPU, where looking would cost a synchronisation, they count as -1.
    """
    if features.ndim != 2:
        raise ValueError(f"voxel_mean: features must be (rows, channels), not {tuple(features.shape)}")
    if features.dtype not in FLOATS:
        raise TypeError(f"voxel_mean: features must be floating point, not {features.dtype}. Convert with .float().")
    if cell.dtype not in (torch.int32, torch.int64) or cell.shape != features.shape[:1]:
        raise ValueError(
            f"voxel_mean: cell must be an integer per row, ({features.shape[0]},), not {cell.dtype} {tuple(cell.shape)}"
        )
    if cell.device != features.device:
        raise ValueError(f"voxel_mean: cell is on {cell.device}, features on {features.device}. Move one by .to(...).")
    if cells < 0:
        raise ValueError(f"voxel_mean: the number of cells must be at least 0, not {cells}")
    if by_reference(features):
        _check_range(cell, cells)
        return reference.voxel_mean(features, cell, cells)[0]
    return _mean(features, cell, cells)[0]


def _check_range(cell: Tensor, cells: int) -> None:
    if cell.device.type == "cpu" and len(cell):
        low, high = int(cell.min()), int(cell.max())
        if low < -1 or high >= cells:
            raise ValueError(f"voxel_mean: cells run from {low} to {high}, but must be in [0, {cells}), or -1 for none")


def _fake_mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    return features.new_empty(cells, features.shape[1]), features.new_empty(cells, dtype=torch.int64)


def _save_mean(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[1], output[1])


def _mean_backward(ctx, grad: Tensor, _) -> tuple[Tensor, None, None]:
    return _spread(grad, *ctx.saved_tensors), None, None


@operator("voxel_mean", _fake_mean, _save_mean, _mean_backward)
def _mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    """Means (cells, C), and the number of rows of each cell (cells) int64."""
    _check_range(cell, cells)
    return implementation(reference, features.device).voxel_mean(features.contiguous(), cell.contiguous(), cells)


def _fake_spread(values: Tensor, cell: Tensor, count: Tensor) -> Tensor:
    return values.new_empty(cell.shape[0], values.shape[1])


def _save_spread(ctx, inputs, output) -> None:
    ctx.cells = inputs[0].shape[0]
    ctx.save_for_backward(inputs[1])


def _spread_backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    return _mean(grad, ctx.saved_tensors[0], ctx.cells)[0], None, None


@operator("voxel_spread", _fake_spread, _save_spread, _spread_backward)
def _spread(values: Tensor, cell: Tensor, count: Tensor) -> Tensor:
    """The transpose of the mean: row s gets values[cell[s]] / count[cell[s]], or 0."""
    if not len(values):
        return values.new_zeros(len(cell), values.shape[1])
    inside = (cell >= 0) & (cell < len(values))
    at = torch.where(inside, cell, 0)
    return torch.where(inside[:, None], over(values.index_select(0, at), count.index_select(0, at)), 0.0)
