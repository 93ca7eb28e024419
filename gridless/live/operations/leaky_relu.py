"""x, or slope x where x < 0, of each element."""

from __future__ import annotations

from torch import nn

from gridless.live.operation import Elementwise


class LeakyRelu(Elementwise):
    name = "leaky_relu"
    settings = {"slope": "negative_slope"}
    modules = (nn.LeakyReLU,)
    functions = ("leaky_relu",)
    expression = "x > 0.0f ? x : x * slope"

    @staticmethod
    def numba(x, slope):
        return x if x > 0 else x * slope
