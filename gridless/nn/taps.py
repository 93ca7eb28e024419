"""Convolutions of voxels as layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gridless.nn.conv import LAYERS, compile_layers_once
from gridless.ops.tap_conv import compile_ahead, tap_conv
from gridless.plan import Name
from gridless.structures import Geometry, expect_geometry


class TapConv(nn.Module):
    """F'_i = sum over k of F_j Theta(k) + bias, j the voxel that i sees at tap k, over one line `taps` of a plan.

    features (S, in_channels) to (S', out_channels). `edges` names a line that makes taps: `plan.taps(voxels, voxels)`
    for a submanifold convolution, `plan.taps(fine, coarse, 2, 2, 0)` to go down, its `plan.transpose` to go up again.
    The weight (T, in_channels, out_channels) begins uniform within +-sqrt(6 / (T (in_channels + out_channels))), the
    bias at zero; both are made on `device` and of `dtype`.
    """

    def __init__(
        self, edges: Name, in_channels: int, out_channels: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        if not isinstance(edges, Name) or edges.kind != "taps":
            raise TypeError(f"TapConv: edges must be the name of taps of a plan, such as plan.taps(...), not {edges!r}")
        self.edges, self.in_channels, self.out_channels = edges, in_channels, out_channels
        shape = (edges.num_taps, in_channels, out_channels)
        self.weight = nn.Parameter(torch.empty(shape, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()
        LAYERS[edges.plan].add(self)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        LAYERS[self.edges.plan].add(self)

    def reset_parameters(self) -> None:
        bound = (6 / (self.edges.num_taps * (self.in_channels + self.out_channels))) ** 0.5
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, features: Tensor, geometry: Geometry) -> Tensor:
        expect_geometry(geometry)
        if features.is_cuda and not torch.compiler.is_compiling():
            precision = torch.backends.cuda.matmul.fp32_precision
            fixed = None if features.requires_grad else self
            compile_layers_once(self.edges.plan, geometry, self.weight, precision, fixed=fixed)
        return tap_conv(features, self.weight, self.bias, geometry[self.edges])

    def compile_ahead(self, geometry: Geometry, needs_features: bool = True) -> None:
        """Tells what this layer will launch, see `gridless.ops.tap_conv.compile_ahead`."""
        needs = needs_features, self.weight.requires_grad
        compile_ahead(self.weight, self.bias is not None, geometry[self.edges].symmetric, needs)

    def extra_repr(self) -> str:
        return f"{self.edges}, {self.in_channels}, {self.out_channels}, bias={self.bias is not None}"
