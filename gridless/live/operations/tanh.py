"""tanh(x) of each element."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Tanh(Elementwise):
    name = "tanh"
    modules = (nn.Tanh,)
    functions = ("tanh",)
    expression = "2.0 * sigmoid_of(2.0 * (double)x) - 1.0"

    @staticmethod
    def numba(x):
        return math.tanh(x)
