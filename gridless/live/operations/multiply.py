"""The product of two values; that of a value and constants is `affine`. Pixels that become an index are scaled, too."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from gridless.live import simd
from gridless.live.operation import Operation
from gridless.live.operations.add import both, whole
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.table import PITCH
from gridless.live.values import PixelIndex


def multiply(r: Any, a: Any, b: Any) -> Any:
    if isinstance(a, PixelIndex) or isinstance(b, PixelIndex):
        a, b = (a, b) if isinstance(a, PixelIndex) else (b, a)
        b = whole(r, b)
        return PixelIndex(a.stream, a.columns * b, a.rows * b, a.constant * b)
    return both(r, "multiply", a, b)


def divide(r: Any, a: Any, b: Any) -> Any:
    if isinstance(b, Row):
        return NotImplemented
    # Torch divides by 0, Python does not.
    return both(r, "multiply", a, 1 / b if isinstance(b, Tensor) or b else math.copysign(math.inf, b))


class Multiply(Operation):
    name = "multiply"
    functions = {
        "mul": multiply, "imul": multiply, "mul_": multiply, "div": divide, "truediv": divide, "itruediv": divide,
        "div_": divide,
    }  # fmt: skip
    over_input = over_input_in_c = True

    def multiply_adds(self, row):
        return row.cells * row.channels, 0

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        to, a, b = places(i, r, first)
        for k in range(0, n * i[r + PITCH], 8):
            simd.multiply(f, to + k, a + k, b + k)

    def c(self, writer, row, n):
        (a, b), out = (writer.at[name] for name in row.inputs), writer.buffer(row)
        return [f"for (k = 0; k < {n} * {row.channels}; k++) {out}[k] = {a}[k] * {b}[k];"]

    def example(self, net):
        return lambda x, geometry, memory: x * x.tanh() / 3
