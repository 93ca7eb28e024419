"""Layers that leave the cloud, one row per example, and one that returns to it."""

from __future__ import annotations

from torch import Tensor, nn

from gridless.ops.segment_pool import segment_max, segment_mean, segment_spread
from gridless.structures import Geometry


class _Pool(nn.Module):
    def __init__(self, cloud: str) -> None:
        super().__init__()
        self.cloud = cloud

    def extra_repr(self) -> str:
        return self.cloud


class MaxPool(_Pool):
    """F'[b] = max of F[s] over the points s of example b of `cloud`: (S, C) to (B, C); 0 where there are none."""

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return segment_max(features, geometry[self.cloud].splits)


class MeanPool(_Pool):
    """F'[b] = mean of F[s] over the points s of example b of `cloud`: (S, C) to (B, C); 0 where there are none."""

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return segment_mean(features, geometry[self.cloud].splits)


class Spread(_Pool):
    """F'[s] = F[b] for every point s of example b of `cloud`: (B, C) to (S, C); 0 for padding."""

    def forward(self, values: Tensor, geometry: Geometry) -> Tensor:
        cloud = geometry[self.cloud]
        return segment_spread(values * cloud.sizes[:, None].to(values.dtype), cloud.splits, len(cloud))
