"""log(1 + x) of each element."""

from __future__ import annotations

import math

from gridless.live.operation import Elementwise


class Log1P(Elementwise):
    name = "log1p"
    functions = ("log1p",)
    expression = "log1p_of(x)"

    @staticmethod
    def numba(x):
        return math.log1p(x)

    def example(self, net):
        return lambda x, geometry, memory: x.abs().log1p()
