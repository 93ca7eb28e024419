"""Grid sampling on the GPU: a stable sort by cells brings the points of each together. No atomics."""

from __future__ import annotations

import torch
from torch import Tensor


def group(numbers: Tensor, splits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    points, dim = numbers.shape
    if not points:
        return numbers.new_empty(0), numbers.new_empty(0), torch.zeros_like(splits)
    example = torch.searchsorted(splits[1:].contiguous(), torch.arange(points, device=numbers.device), right=True)
    low, high = (v.tolist() for v in numbers.aminmax(dim=0))
    key, extent = example, len(splits) - 1
    for d in range(dim):
        along = high[d] - low[d] + 1
        if extent * along >= 1 << 62:
            # Far apart: as many keys as there are pairs.
            key = torch.unique(key, return_inverse=True)[1]
            extent = points
        if extent * along >= 1 << 62:
            axis = torch.unique(numbers[:, d], return_inverse=True)[1]
            low[d], along = 0, points
        else:
            axis = numbers[:, d]
        key, extent = key * along + (axis - low[d]), extent * along
    ordered, order = key.sort(stable=True)
    begins = torch.cat([ordered.new_ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
    first, rank = order[begins].sort()
    inverse = torch.empty_like(order)
    inverse[order] = rank.argsort()[begins.cumsum(0) - 1]
    return first, inverse, torch.searchsorted(first, splits)
