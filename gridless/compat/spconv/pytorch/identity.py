"""A layer that returns its input."""

from __future__ import annotations

from typing import Any

from torch import nn


class Identity(nn.Module):
    """Returns its input, a tensor or a sparse one."""

    def forward(self, x: Any) -> Any:
        return x

    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size
