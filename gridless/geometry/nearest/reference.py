"""The nearest search as a specification: sort every row of the distance matrix, keep k."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.ball.reference import squared_distance
from gridless.structures import Cloud

# Pairs looked at together.
_CHUNK = 1 << 22


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    counts = torch.zeros(len(target), dtype=torch.int64, device=target.device)
    parts = []
    starts, ends = source.splits.tolist(), target.splits.tolist()
    for a, b, first, last in zip(starts, starts[1:], ends, ends[1:], strict=False):
        counts[first:last] = min(k, b - a)
        step = max(_CHUNK // max(b - a, 1), 1)
        for low in range(first, last, step):
            distance = squared_distance(
                source.coords[a:b].detach(), target.coords[low : min(low + step, last)].detach()
            )
            # A stable sort leaves equal distances in index order.
            order = distance.argsort(dim=1, stable=True)[:, :k]
            parts.append(order.sort(dim=1).values.flatten() + a)
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.cat(parts) if parts else counts.new_zeros(0)
    return splits, index.int()
