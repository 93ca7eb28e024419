"""The absolute value of each element."""

from __future__ import annotations

from gridless.live.operation import Elementwise


class Abs(Elementwise):
    name = "abs"
    functions = ("abs",)
    expression = "x < 0.0f ? -x : x"

    @staticmethod
    def numba(x):
        return abs(x)

    def example(self, net):
        return lambda x, geometry, memory: x.abs()
