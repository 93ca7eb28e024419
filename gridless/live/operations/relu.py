"""x, or 0 where x < 0, of each element. NaN stays NaN."""

from __future__ import annotations

from torch import nn

from gridless.live.operation import Elementwise
from gridless.live.panels import places
from gridless.live.simd import relu
from gridless.live.table import PITCH


class Relu(Elementwise):
    name = "relu"
    modules = (nn.ReLU,)
    functions = ("relu", "relu_")
    expression = "x > 0.0f ? x : 0.0f"

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        to, a, _ = places(i, r, first)
        for k in range(0, n * i[r + PITCH], 8):
            relu(f, to + k, a + k)
