"""The quotient of two values, or of a number and a value; that of a value and constants is `affine`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Operation
from gridless.live.operations.add import both
from gridless.live.operations.affine import affine
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.table import PITCH, C


def divide(r: Any, a: Any, b: Any) -> Any:
    if not isinstance(b, Row):
        return NotImplemented
    return both(r, "divide", a if isinstance(a, Row) else affine(r, b, 0, a), b)


class Divide(Operation):
    name = "divide"
    functions = dict.fromkeys(("div", "truediv", "itruediv", "div_"), divide)
    over_input = over_input_in_c = True

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch = i[r + C], i[r + PITCH]
        to, a, b = places(i, r, first)
        for j in range(n):
            for k in range(j * pitch, j * pitch + c):
                f[to + k] = np.float32(f[a + k] / f[b + k])
            # Beyond the channels 0 would be divided by 0.
            for k in range(j * pitch + c, (j + 1) * pitch):
                f[to + k] = 0.0

    def c(self, writer, row, n):
        (a, b), out = (writer.at[name] for name in row.inputs), writer.buffer(row)
        return [f"for (k = 0; k < {n} * {row.channels}; k++) {out}[k] = {a}[k] / {b}[k];"]

    def example(self, net):
        return lambda x, geometry, memory: x / (x.tanh() + 2) + 1 / (x.sigmoid() + 1)
