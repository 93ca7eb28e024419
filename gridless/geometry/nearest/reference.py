"""The nearest search as a specification: sort every row of the distance matrix, keep k."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.ball.reference import distances
from gridless.structures import Cloud


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    counts = torch.zeros(len(target), dtype=torch.int64, device=target.device)
    parts = []
    for first, rows, distance in distances(source, target):
        # A stable sort leaves equal distances in index order.
        order = distance.argsort(dim=1, stable=True)[:, :k]
        counts[rows] = order.shape[1]
        parts.append(order.sort(dim=1).values.flatten() + first)
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.cat(parts) if parts else counts.new_zeros(0)
    return splits, index.int()
