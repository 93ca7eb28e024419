"""Layout of the operands of the CPU convolution: whole vectors, tiles that stay in cache, a run of rows per thread."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.products import BLOCK, padded
from gridless.kernels.threads import num_threads, row_ranges
from gridless.ops.point_conv.edge_function import compute_dtype

_TILE_BYTES = 1 << 17
# Rows that are worth a thread of their own.
_SHARE = 256


def wide(x: Tensor, compute: np.dtype) -> np.ndarray:
    """Rows of whole vectors in the compute dtype: the tensor's own memory where it already is that."""
    missing = padded(x.shape[1], compute) - x.shape[1]
    x = x.detach().to(compute_dtype(x.dtype))
    return (torch.nn.functional.pad(x, (0, missing)) if missing else x.contiguous()).numpy()


def wide_weight(weight: Tensor, compute: np.dtype) -> np.ndarray:
    """(M, Q, P), or (M, C), with the channels padded with zeros."""
    missing = [n for size in reversed(weight.shape[1:]) for n in (0, padded(size, compute) - size)]
    return torch.nn.functional.pad(weight.detach().to(compute_dtype(weight.dtype)), missing).contiguous().numpy()


def ranges(splits: np.ndarray) -> list[tuple[int, int]]:
    """A run of rows for each thread, of about equally many rows and edges."""
    rows = len(splits) - 1
    parts = max(1, min(num_threads(), rows // _SHARE))
    if parts == 1:
        return [(0, rows)]
    # Rows cost a share of a matrix product, edges their gather: weigh an edge as an eighth of a row.
    return row_ranges((splits - splits[0]) / 8 + np.arange(rows + 1), parts)


def numpy_dtype(features: Tensor) -> np.dtype:
    """The compute dtype, as NumPy calls it."""
    return np.dtype(np.float64 if features.dtype == torch.float64 else np.float32)


def tile_height(channels: int, compute: np.dtype) -> int:
    """Rows of a tile of so many channels: whole blocks."""
    rows = _TILE_BYTES // (channels * compute.itemsize)
    return max(min(rows, 512) // BLOCK, 1) * BLOCK
