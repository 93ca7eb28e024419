"""The mean over cells in Numba: one pass over the rows in order, each thread taking its share of the channels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import in_threads, num_threads


def voxel_mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    wide = _wide(features)
    at = cell.numpy()
    count = torch.zeros(cells, dtype=torch.int64)
    _count(at, count.numpy())
    total = wide.new_zeros(cells, features.shape[1])
    arrays = (wide.numpy(), at, count.numpy(), total.numpy())
    in_threads(_mean, [(a, b, *arrays) for a, b in _channel_ranges(features.shape[1])])
    return total.to(features.dtype), count


def voxel_spread(values: Tensor, cell: Tensor, count: Tensor) -> Tensor:
    wide = _wide(values)
    spread = wide.new_empty(len(cell), values.shape[1])
    arrays = (wide.numpy(), cell.numpy(), count.numpy(), spread.numpy())
    cuts = np.linspace(0, len(cell), num_threads() + 1).astype(int).tolist()
    in_threads(_spread, [(a, b, *arrays) for a, b in pairwise(cuts)])
    return spread.to(values.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def _channel_ranges(channels: int) -> list[tuple[int, int]]:
    """Shares of at least 16 channels, a cache line: threads that write to one line get in each other's way."""
    shares = max(1, min(num_threads(), channels // 16))
    cuts = np.linspace(0, channels, shares + 1).astype(int).tolist()
    return list(pairwise(cuts))


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


@njit(nogil=True, cache=True)
def _spread(first, last, values, cell, count, spread):
    for s in range(first, last):
        v = cell[s]
        if v < 0:
            spread[s] = 0
        else:
            for c in range(values.shape[1]):
                spread[s, c] = values[v, c] / count[v]
