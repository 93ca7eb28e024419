"""x, or exp(x) - 1 where x < 0, of each element."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Elu(Elementwise):
    name = "elu"
    expected = {"alpha": 1.0}
    modules = (nn.ELU,)
    functions = ("elu",)
    expression = "x > 0.0f ? x : exp_of(x) - 1.0"

    @staticmethod
    def numba(x):
        return x if x > 0 else math.expm1(x)
