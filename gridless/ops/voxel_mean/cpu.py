"""The mean over cells in Numba: one pass over the rows in order, each thread taking its share of the channels."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads


def voxel_mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    wide = features.detach().to(torch.promote_types(features.dtype, torch.float32))
    at = cell.numpy()
    count = torch.zeros(cells, dtype=torch.int64)
    _count(at, count.numpy())
    total = wide.new_zeros(cells, features.shape[1])
    arrays = (wide.numpy(), at, count.numpy(), total.numpy())
    # Shares of at least 16 channels, a cache line: threads that write to one line get in each other's way.
    shares = max(1, min(num_threads(), features.shape[1] // 16))
    in_threads(_mean, [(a, b, *arrays) for a, b in even_ranges(features.shape[1], shares)])
    return total.to(features.dtype), count


@njit(nogil=True, cache=True)
def _count(cell, count):
    for s in range(len(cell)):
        if cell[s] >= 0:
            count[cell[s]] += 1


@njit(nogil=True, cache=True)
def _mean(low, high, features, cell, count, total):
    for s in range(len(cell)):
        if cell[s] >= 0:
            out, x = total[cell[s]], features[s]
            for c in range(low, high):
                out[c] += x[c]
    for v in range(len(count)):
        if count[v] > 1:
            for c in range(low, high):
                total[v, c] /= count[v]
