"""The maximum over neighbours in Numba: a thread owns whole rows."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import in_threads, num_threads, row_ranges


def forward(features: Tensor, splits: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    wide = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    shape = (len(splits) - 1, features.shape[1])
    value, row = wide.new_zeros(shape), features.new_full(shape, -1, dtype=torch.int32)
    in_threads(_max, _jobs(splits, wide, splits, source, value, row))
    return value.to(features.dtype), row


def backward(grad: Tensor, row: Tensor, back_splits: Tensor, back_source: Tensor) -> Tensor:
    wide = grad.detach().to(torch.promote_types(grad.dtype, torch.float32))
    total = wide.new_zeros(len(back_splits) - 1, grad.shape[1])
    in_threads(_collect, _jobs(back_splits, wide, row, back_splits, back_source, total))
    return total.to(grad.dtype)


def _jobs(splits: Tensor, *tensors: Tensor) -> list[tuple]:
    """Ranges of rows with about as many edges, one per thread."""
    arrays = tuple(t.numpy() for t in tensors)
    return [(a, b, *arrays) for a, b in row_ranges(splits.numpy(), num_threads())]


@njit(nogil=True, cache=True)
def _max(first, last, features, splits, source, value, row):
    """Rows first to last: the maximum of each channel over the edges, and its source."""
    for i in range(first, last):
        for e in range(splits[i], splits[i + 1]):
            j = source[e]
            for c in range(features.shape[1]):
                x, best = features[j, c], value[i, c]
                # Larger, or a NaN, and no NaN before it.
                if e == splits[i] or (not x <= best and best == best):
                    value[i, c] = x
                    row[i, c] = j


@njit(nogil=True, cache=True)
def _collect(first, last, grad, row, splits, source, total):
    """Sources first to last: the sum of the gradients of the targets whose maximum each is."""
    for j in range(first, last):
        for e in range(splits[j], splits[j + 1]):
            i = source[e]
            # Repeats of an edge stand side by side.
            if e > splits[j] and source[e - 1] == i:
                continue
            for c in range(grad.shape[1]):
                if row[i, c] == j:
                    total[j, c] += grad[i, c]
