"""log(1 + exp(x)) of each element."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Softplus(Elementwise):
    name = "softplus"
    expected = {"beta": 1, "threshold": 20}
    modules = (nn.Softplus,)
    functions = ("softplus",)
    expression = "x > 20.0f ? x : log1p_of(exp_of(x))"

    @staticmethod
    def numba(x):
        return x if x > 20 else math.log1p(math.exp(x))
