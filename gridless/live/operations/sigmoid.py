"""1 / (1 + exp(-x)) of each element."""

from __future__ import annotations

import math

from torch import nn

from gridless.live.operation import Elementwise


class Sigmoid(Elementwise):
    name = "sigmoid"
    modules = (nn.Sigmoid,)
    functions = ("sigmoid",)
    expression = "sigmoid_of(x)"

    @staticmethod
    def numba(x):
        return 1 / (1 + math.exp(-x))
