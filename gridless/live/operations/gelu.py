"""x Phi(x) of each element, with the exact error function."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Gelu(Elementwise):
    name = "gelu"
    expected = {"approximate": "none"}
    modules = (nn.GELU,)
    functions = ("gelu",)
    expression = "0.5 * x * (1.0 + erf_of(x * 0.7071067811865476))"

    @staticmethod
    def numba(x):
        return 0.5 * x * (1 + math.erf(x * 0.7071067811865476))
