"""x / (1 + exp(-x)) of each element."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Silu(Elementwise):
    name = "silu"
    modules = (nn.SiLU,)
    functions = ("silu",)
    expression = "x * sigmoid_of(x)"

    @staticmethod
    def numba(x):
        return x / (1 + math.exp(-x))
