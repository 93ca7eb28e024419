"""exp(x) of each element."""

from __future__ import annotations

import math

from gridless.live.operation import Elementwise


class Exp(Elementwise):
    name = "exp"
    functions = ("exp",)
    expression = "exp_of(x)"

    @staticmethod
    def numba(x):
        return math.exp(x)

    def example(self, net):
        return lambda x, geometry, memory: x.exp()
