"""Rows taken and added in one order: the same bits in every run, forward and backward.

On a CPU with several threads torch's x[index] adds gradients in any order, on a GPU `index_select` does.
"""

from __future__ import annotations

import torch
from torch import Tensor


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """x[index]: x (n, ...), index of any shape to (*index.shape, ...)."""
    index = index.long()
    if x.is_cuda:
        return x[index]
    return x.index_select(0, index.flatten()).reshape(*index.shape, *x.shape[1:])


def sum_rows(rows: Tensor, index: Tensor, size: int) -> Tensor:
    """Sums (size, ...) of the rows of each index (len(rows))."""
    total = rows.new_zeros(size, *rows.shape[1:])
    if rows.is_cuda:
        return total.index_put((index.long(),), rows, accumulate=True)
    return torch.index_add(total, 0, index.long(), rows)
