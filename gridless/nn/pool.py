"""Layers that leave the cloud, one row per example, and one that returns to it."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gridless.ops.segment_pool import segment_max, segment_mean, segment_spread
from gridless.structures import Geometry, points_of


class Pooling(nn.Module):
    def __init__(self, cloud: str) -> None:
        super().__init__()
        self.cloud = cloud

    def extra_repr(self) -> str:
        return self.cloud

    def _points(self, features: Tensor, geometry: Geometry) -> Any:
        """The cloud, which must be that of the features."""
        return points_of(type(self).__name__, features, geometry, self.cloud)


class PoolMemory(NamedTuple):
    """The pooled values (B, C) of the events so far, and how many they were (B)."""

    value: Tensor
    count: Tensor


class MaxPool(Pooling):
    """F'[b] = max of F[s] over the points s of example b of `cloud`: (S, C) to (B, C); 0 where there are none.

    With a memory, the events of all packets so far.
    """

    def forward(self, features: Tensor, geometry: Geometry, memory: dict[nn.Module, Any] | None = None) -> Tensor:
        new = segment_max(features, self._points(features, geometry).splits)
        if memory is None:
            return new
        count, before = geometry[self.cloud].sizes[:, None], memory.get(self)
        if before is not None:
            larger = torch.where(before.count == 0, new, torch.maximum(before.value, new))
            new, count = torch.where(count > 0, larger, before.value), before.count + count
        memory[self] = PoolMemory(new, count)
        return new


class MeanPool(Pooling):
    """F'[b] = mean of F[s] over the points s of example b of `cloud`: (S, C) to (B, C); 0 where there are none.

    With a memory, the events of all packets so far.
    """

    def forward(self, features: Tensor, geometry: Geometry, memory: dict[nn.Module, Any] | None = None) -> Tensor:
        new = segment_mean(features, self._points(features, geometry).splits)
        if memory is None:
            return new
        wide = torch.promote_types(new.dtype, torch.float32)
        mean, count, before = new.to(wide), geometry[self.cloud].sizes[:, None], memory.get(self)
        if before is not None:
            total = before.count + count
            # Towards the mean of the packet, by its share of all events.
            mean, count = before.value + (mean - before.value) * (count.to(wide) / total.clamp(min=1)), total
        memory[self] = PoolMemory(mean, count)
        return mean.to(new.dtype)


class Spread(Pooling):
    """F'[s] = F[b] for every point s of example b of `cloud`: (B, C) to (S, C); 0 for padding."""

    def forward(self, values: Tensor, geometry: Geometry) -> Tensor:
        cloud = geometry[self.cloud]
        return segment_spread(values, cloud.splits, len(cloud))
