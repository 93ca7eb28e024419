"""(C): the mean or the maximum over all cells of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Operation
from gridless.live.table import CELLS, NUMBER, PITCH, VALUE, A, C
from gridless.live.values import Unknown
from gridless.nn.events import VoxelMean


def reduce(kind: str) -> Any:
    def reader(r: Any, x: Any, dim: Any = (), keepdim: bool = False) -> Any:
        x = r.value(x)
        axes = sorted(d % (len(x.shape) + 1) for d in (dim if isinstance(dim, tuple | list) else (dim,)))
        if x.stream is not None or keepdim or axes != list(range(1, len(x.shape))) or len(x.shape) < 2:
            raise Unknown(f"{r.name} (the {kind} along axes {dim}, not over all cells)")
        return r.add(r.name, "reduce", None, (x,), x.shape[-1:], {"kind": kind})

    return reader


class Reduce(Operation):
    name = "reduce"
    functions = {"amax": reduce("max"), "mean": reduce("mean")}

    def lower(self, lowered, row, entry):
        is_max = int(row.settings["kind"] == "max")
        return [entry | {"cells": lowered.values[row.inputs[0]]["cells"], "number": is_max}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, to, a, cells = i[r + C], i[r + PITCH], i[r + VALUE], i[r + A], i[r + CELLS]
        for k in range(pitch):
            f[to + k] = 0.0
        for k in range(c):
            if i[r + NUMBER]:
                most = f[a + k]
                for cell in range(1, cells):
                    most = max(most, f[a + cell * pitch + k])
                f[to + k] = most
            else:
                total = 0.0
                for cell in range(cells):
                    total += f[a + cell * pitch + k]
                f[to + k] = np.float32(total / cells)

    # A vector has no mask of cells.
    answer = body

    def c(self, writer, row, n):
        x, out, c = writer.at[row.inputs[0]], writer.buffer(row), row.channels
        cells = writer.program[row.inputs[0]].cells
        begin, step, end = "0.0", f"value += {x}[i * {c} + k]", f"value / {cells}"
        if row.settings["kind"] == "max":
            begin, step, end = f"{x}[k]", f"value = {x}[i * {c} + k] > value ? {x}[i * {c} + k] : value", "value"
        return [
            f"for (k = 0; k < {c}; k++) {{",
            f"    double value = {begin};",
            f"    for (i = 0; i < {cells}; i++) {step};",
            f"    {out}[k] = (float)({end});",
            "}",
        ]

    def example(self, net):
        net.part = VoxelMean(net.stream, net.camera, 3, 4000)

        def call(x, geometry, memory):
            grid = net.part(x, geometry, memory)
            return grid.mean((1, 2, 3)) + grid.amax((1, 2, 3))

        return call
