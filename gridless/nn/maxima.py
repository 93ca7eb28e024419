"""Maxima over neighbours in place of convolutions. After Chen and others, Decoupled Local Aggregation for Point Cloud
Learning: where neighbours lie is told once at each level, and features then pass between neighbours as maxima."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from gridless.nn.blocks import Dense, DropPath, sampled
from gridless.nn.norm import BatchNorm
from gridless.ops.edge_max import edge_max
from gridless.plan import Name
from gridless.structures import Geometry


class Surroundings(nn.Module):
    """The maximum over the edges of a point of a small network of where each neighbour lies; geometry to (S', P).

    norm(dense(max over the neighbours j of point i of edge((x_j - x_i) / radius, x_j up, 1))), `edge` being three dense
    maps with GELU between them; a point without neighbours has 0 in place of the maximum. P is `channels`. `near` must
    be limited to `count` edges in a row, as `plan.nearest` is. `up` is the axis along which the network also knows
    where the neighbour is in space; None for none. The norm begins at `gain`.
    """

    def __init__(
        self, near: Name, channels: int, count: int, radius: float, up: int | None = None, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.near, self.count, self.radius, self.up = near, count, radius, up
        # One is told instead of a bias, whose gradient would be a sum over all edges: on GPUs a product is faster, and
        # fastest with a multiple of eight columns.
        self.columns = -(-(near.dim + (up is not None) + 1) // 8) * 8
        first, second, third = (Dense(a, b, bias=False) for a, b in ((self.columns, 24), (24, 48), (48, 48)))
        self.edge = nn.Sequential(first, nn.GELU(), second, nn.GELU(), third)
        self.expand = Dense(48, channels, bias=False)
        self.norm = _norm(channels, near.target, gain)

    def forward(self, geometry: Geometry) -> Tensor:
        edges, coords = geometry[self.near], geometry[self.near.target].coords
        if edges.limit is None or edges.limit > self.count:
            raise ValueError(
                f"Surroundings: {self.near} may have more than {self.count} neighbours per point. Use "
                f"plan.nearest(..., {self.count}) or plan.ball(..., limit={self.count})."
            )
        if not len(edges):
            nothing = self.expand.weight.new_zeros(len(coords), self.expand.in_features)
            return self.norm(self.expand(nothing), geometry)
        # A row of fewer edges repeats its last, which changes no maximum; one of none, padding, has any.
        each = torch.arange(self.count, device=coords.device)
        at = edges.splits[:-1, None] + torch.minimum(each, (edges.counts[:, None] - 1).clamp(min=0))
        source = edges.source[at.clamp(max=len(edges) - 1)].long()  # (S', count)
        source_coords = geometry[self.near.source].coords
        up = [] if self.up is None else [source_coords[:, self.up, None]]
        encoded = self._wide(torch.cat([source_coords / self.radius, *up, torch.ones_like(source_coords[:, :1])], 1))
        x = encoded[source] - self._wide(coords / self.radius)[:, None]
        y = self.edge(x.to(self.expand.weight.dtype)).max(1).values
        if self.near.source != self.near.target:
            # A point of the cloud itself has at least itself.
            y = torch.where(edges.counts[:, None] > 0, y, 0.0)
        return self.norm(self.expand(y), geometry)

    def _wide(self, x: Tensor) -> Tensor:
        return pad(x, (0, self.columns - x.shape[1]))


class MaxBlock(nn.Module):
    """norm(max over neighbours j of dense(F)_j - dense(F)_i), (S, Q) to (S', P).

    Q and P are `in_channels` and `out_channels`, the neighbours j of a target i along `edges`, which is a sample of
    their source or the source itself. The norm begins at `gain`.
    """

    def __init__(self, edges: Name, in_channels: int, out_channels: int, gain: float = 0.0) -> None:
        super().__init__()
        self.edges = edges
        self.dense = Dense(in_channels, out_channels, bias=False)
        self.norm = _norm(out_channels, edges.target, gain)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        y = self.dense(features)
        own = y if self.edges.source == self.edges.target else sampled(y, geometry, self.edges.target)
        return self.norm(edge_max(y, geometry[self.edges]) - own, geometry)


class MaxDown(nn.Module):
    """Features of a sample, (S, Q) to (S', P): `MaxBlock` along `down` + norm(dense(F)) of the sampled points.

    Q and P are `in_channels` and `out_channels`. Both norms begin at 0.3.
    """

    def __init__(self, down: Name, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.cloud = down.target
        self.maxima = MaxBlock(down, in_channels, out_channels, 0.3)
        self.shortcut = Dense(in_channels, out_channels, bias=False)
        self.norm = _norm(out_channels, down.target, 0.3)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        short = self.norm(self.shortcut(sampled(features, geometry, self.cloud)), geometry)
        return short + self.maxima(features, geometry)


class PointwiseBlock(nn.Module):
    """norm(dense(gelu(dense(F)))), (S, C) to (S, C): F are features of `cloud`, C is `channels`, inside are twice as
    many. The norm begins at `gain`."""

    def __init__(self, cloud: Name, channels: int, gain: float = 0.0) -> None:
        super().__init__()
        # The input has biases already, those of norms.
        self.expand, self.reduce = (Dense(a * channels, b * channels, bias=False) for a, b in ((1, 2), (2, 1)))
        self.norm = _norm(channels, cloud, gain)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return self.norm(self.reduce(gelu(self.expand(features))), geometry)


class MaxLevel(nn.Module):
    """Features of one level, (S', C): those of the level before it along `down`, or those given, or None; then residual
    blocks: point-wise, and as many maxima along `near` as there are `rates`, a point-wise one after every second.

    C is `channels`; the level before has half as many. `count` and `up` are those of `Surroundings`, the radius is
    `spacing`. `rates` are the probabilities that a branch is left out in training.
    """

    def __init__(
        self, down: Name | None, near: Name, channels: int, count: int, spacing: float, up: int | None,
        rates: Sequence[float],
    ) -> None:  # fmt: skip
        super().__init__()
        cloud = near.target
        self.down = None if down is None else MaxDown(down, channels // 2, channels)
        self.around = Surroundings(near, channels, count, spacing, up, 0.8 if down is None else 0.2)
        self.first = PointwiseBlock(cloud, channels, 0.2)
        self.passes = nn.ModuleList(MaxBlock(near, channels, channels) for _ in rates)
        self.between = nn.ModuleList(PointwiseBlock(cloud, channels) for _ in rates[1::2])
        self.drops = nn.ModuleList(DropPath(cloud, rate) for rate in rates)

    def forward(self, features: Tensor | None, geometry: Geometry) -> Tensor:
        x = self.around(geometry)
        if features is not None:
            x = x + (features if self.down is None else self.down(features, geometry))
        x = x + self.drops[0](self.first(x, geometry), geometry)
        for i, (drop, block) in enumerate(zip(self.drops, self.passes, strict=True)):
            x = x + drop(block(x, geometry), geometry)
            if i % 2:
                x = x + drop(self.between[i // 2](x, geometry), geometry)
        return x


def _norm(channels: int, cloud: str, gain: float) -> BatchNorm:
    norm = BatchNorm(channels, cloud, momentum=0.1, eps=1e-5)
    assert norm.weight is not None
    nn.init.constant_(norm.weight, gain)
    return norm
