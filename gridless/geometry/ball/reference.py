"""The ball search as a specification: every target against every source of its example."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from gridless.geometry.checks import check_edge_count, squared_radius
from gridless.structures import Cloud

# Pairs looked at together.
_CHUNK = 1 << 22


def squared_distance(source: Tensor, target: Tensor) -> Tensor:
    """|source_j - target_i|^2 (S', S), rounded after every operation, in dimension order."""
    total = torch.zeros((), dtype=source.dtype, device=source.device)
    for s, t in zip(source.unbind(1), target.unbind(1), strict=True):
        d = s[None, :] - t[:, None]
        total = d * d if total.ndim == 0 else total + d * d
    return total


def distances(source: Cloud, target: Cloud) -> Iterator[tuple[int, slice, Tensor]]:
    """For some targets of an example after others: its first source, their rows, and `squared_distance` to all."""
    starts, ends = source.splits.tolist(), target.splits.tolist()
    for a, b, first, last in zip(starts, starts[1:], ends, ends[1:], strict=False):
        step = max(_CHUNK // max(b - a, 1), 1)
        for low in range(first, last, step):
            rows = slice(low, min(low + step, last))
            yield a, rows, squared_distance(source.coords[a:b].detach(), target.coords[rows].detach())


def ball(source: Cloud, target: Cloud, radius: float, limit: int | None) -> tuple[Tensor, Tensor]:
    reach = squared_radius(radius, source.coords.dtype)
    counts = torch.zeros(len(target), dtype=torch.int64, device=target.device)
    parts, total = [], 0
    for first, rows, distance in distances(source, target):
        inside = distance <= reach
        if limit is not None:
            inside &= _nearest(distance.masked_fill(~inside, torch.inf), limit)
        counts[rows] = inside.sum(1)
        total += int(inside.sum())
        check_edge_count("ball", total)
        parts.append(inside.nonzero()[:, 1] + first)
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    index = torch.cat(parts) if parts else counts.new_zeros(0)
    return splits, index.int()


def _nearest(distance: Tensor, limit: int) -> Tensor:
    """True at the `limit` smallest of each row, of equal ones at the first."""
    order = distance.argsort(dim=1, stable=True)[:, :limit]
    return torch.zeros_like(distance, dtype=torch.bool).scatter_(1, order, True)
