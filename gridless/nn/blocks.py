"""Residual blocks of point convolutions: the paper's, and a leaner modern one.

A block is given the name of the edges it convolves along; channels follow, as in torch's layers. `forward` takes
features of the source cloud and the geometry, and returns features of the target cloud.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gridless.nn.conv import DepthwiseConv, PointConv
from gridless.nn.norm import BatchNorm
from gridless.plan import Name
from gridless.structures import Geometry


class Dense(nn.Linear):
    """A point-wise linear map, initialised as the paper's: Glorot-uniform weights, zero bias.

    The arguments are those of `torch.nn.Linear`.
    """

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Bottleneck(nn.Module):
    """Dense Q to P/4, ReLU, norm; convolution P/4, ReLU, norm; Dense P, norm, dropout: (S, Q) to (S', P).

    Q and P are `in_channels` and `out_channels`; the convolution is along `edges`; `conv` are further arguments of
    `PointConv`, such as its basis.
    """

    def __init__(self, edges: Name, in_channels: int, out_channels: int, dropout: float = 0.5, **conv: Any) -> None:
        super().__init__()
        if out_channels % 4:
            raise ValueError(f"Bottleneck: out_channels must be a multiple of 4, not {out_channels}")
        inner = out_channels // 4
        self.reduce = Dense(in_channels, inner)
        self.norm1 = BatchNorm(inner, edges.source, relu="before")
        self.conv = PointConv(edges, inner, inner, **conv)
        self.norm2 = BatchNorm(inner, edges.target, relu="before")
        self.expand = Dense(inner, out_channels)
        self.norm3 = BatchNorm(out_channels, edges.target)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        y = self.norm1(self.reduce(features), geometry)  # (S, P/4)
        y = self.norm2(self.conv(y, geometry), geometry)  # (S', P/4)
        return self.dropout(self.norm3(self.expand(y), geometry))  # (S', P)


class ResBlock(nn.Module):
    """The paper's in-place residual block: relu(F + bottleneck(F)), (S, Q) to (S, Q).

    The convolution is along `near`, of `channels` over 4; `dropout` is a probability, and `conv` are further arguments
    of `PointConv`.
    """

    def __init__(self, near: Name, channels: int, dropout: float = 0.5, **conv: Any) -> None:
        super().__init__()
        self.branch = Bottleneck(near, channels, channels, dropout, **conv)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        return (features + self.branch(features, geometry)).relu()


class DownBlock(nn.Module):
    """The paper's down-sampling residual block, (S, Q) to (S', P), S' a sample of S.

    relu(bottleneck(F) + dropout(norm(dense(F[sampled])))), with `in_channels` Q, `out_channels` P and edges `down`.
    `conv` are further arguments of its `PointConv`.
    """

    def __init__(self, down: Name, in_channels: int, out_channels: int, dropout: float = 0.5, **conv: Any) -> None:
        super().__init__()
        self.target = down.target
        self.branch = Bottleneck(down, in_channels, out_channels, dropout, **conv)
        self.shortcut = Dense(in_channels, out_channels)
        self.norm = BatchNorm(out_channels, down.target)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        short = self.dropout(self.norm(self.shortcut(sampled(features, geometry, self.target)), geometry))
        return (self.branch(features, geometry) + short).relu()


class UpBlock(nn.Module):
    """A decoder step: relu(norm(convolution of the coarse features) + skip), (S', Q) and (S, P) to (S, P).

    `up` are the edges of a down-sampling convolution, transposed.
    """

    def __init__(self, up: Name, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.conv = PointConv(up, in_channels, out_channels)
        self.norm = BatchNorm(out_channels, up.target)

    def forward(self, features: Tensor, skip: Tensor, geometry: Geometry) -> Tensor:
        return (self.norm(self.conv(features, geometry), geometry) + skip).relu()


class WideBlock(nn.Module):
    """A residual block in today's manner: norm before each ReLU, a wider bottleneck, no dropout.

    relu(shortcut + norm(dense(relu(norm(conv(relu(norm(dense(F, x))))))))), (S, Q) to (S', P): the first map also sees
    where the points are. The shortcut is the identity in place, and the last norm then begins at zero, so that a deep
    network starts as a shallow one; down-sampling, it is a linear map of the sampled points. In training the branch of
    a cloud is left out in place with probability `drop_path`. With `depthwise` the convolution is a depthwise one,
    which a `ratio` over 1 suits: an inverted bottleneck. Q and P are `in_channels` and `out_channels`; the convolution,
    of about `ratio` P channels, is along `edges`.
    """

    def __init__(
        self,
        edges: Name,
        in_channels: int,
        out_channels: int,
        ratio: float = 0.5,
        drop_path: float = 0.0,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        if not ratio > 0:
            raise ValueError(f"WideBlock: ratio must be positive, not {ratio}")
        self.drop_path = DropPath(edges.target, drop_path)
        inner = max(8, round(out_channels * ratio / 8) * 8)
        self.source, self.target = edges.source, edges.target
        self.reduce = Dense(in_channels + edges.dim, inner, bias=False)
        self.norm1 = BatchNorm(inner, edges.source, momentum=0.1, relu="after")
        self.conv = DepthwiseConv(edges, inner, bias=False) if depthwise else PointConv(edges, inner, inner, bias=False)
        self.norm2 = BatchNorm(inner, edges.target, momentum=0.1, relu="after")
        self.expand = Dense(inner, out_channels, bias=False)
        self.norm3 = BatchNorm(out_channels, edges.target, momentum=0.1)
        self.shortcut = nn.Identity()
        self.norm = None
        if edges.source != edges.target:
            self.shortcut = Dense(in_channels, out_channels, bias=False)
            self.norm = BatchNorm(out_channels, edges.target, momentum=0.1)
        else:
            assert self.norm3.weight is not None
            nn.init.zeros_(self.norm3.weight)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        y = self.norm1(self.reduce(with_coords(features, geometry, self.source)), geometry)
        y = self.norm2(self.conv(y, geometry), geometry)
        y = self.norm3(self.expand(y), geometry)
        if self.norm is None:
            return (features + self.drop_path(y, geometry)).relu()
        short = self.norm(self.shortcut(sampled(features, geometry, self.target)), geometry)
        return (short + y).relu()


class DropPath(nn.Module):
    """In training, 0 for whole clouds, with a probability, and the rest so much larger: a residual branch left out."""

    def __init__(self, cloud: Name, probability: float) -> None:
        super().__init__()
        if not 0 <= probability < 1:
            raise ValueError(f"DropPath: the probability must be at least 0 and below 1, not {probability}")
        self.cloud, self.probability = cloud, probability

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        if not self.training or not self.probability:
            return features
        cloud, keep = geometry[self.cloud], 1 - self.probability
        scale = (torch.rand(cloud.num_examples, device=features.device) < keep).to(features.dtype) / keep
        return features * scale[cloud.example.clamp(max=cloud.num_examples - 1)][:, None]

    def extra_repr(self) -> str:
        return f"{self.cloud}, {self.probability}"


def sampled(features: Tensor, geometry: Geometry, cloud: str) -> Tensor:
    """The features of those points of the parent cloud that were sampled into `cloud`: (S, C) to (S', C)."""
    sample = geometry[cloud]
    if sample.parent_index is None:
        raise ValueError(f"{cloud} is no sample of a cloud. Sample it in the plan.")
    if features.shape[0] != sample.num_parent:
        raise ValueError(
            f"features have {features.shape[0]} rows, but the parent of {cloud} has {sample.num_parent} points. Pass "
            "the features of the parent cloud."
        )
    return features.index_select(0, sample.parent_index)


def with_coords(features: Tensor, geometry: Geometry, cloud: str) -> Tensor:
    """Features beside the coordinates of their points: (S, C) to (S, C + D)."""
    return torch.cat([features, geometry[cloud].coords.to(features.dtype)], 1)
