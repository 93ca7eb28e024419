"""(cells C): all cells of a grid side by side."""

from __future__ import annotations

import math
from typing import Any

from gridless.live.operation import Operation
from gridless.live.table import A_PITCH, CELLS, PITCH, STEPS, VALUE, A, C
from gridless.live.values import Unknown
from gridless.nn.events import VoxelMean


class Flatten(Operation):
    name = "flatten"
    functions = ("flatten",)
    is_part = True

    def function(self, r: Any, x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:  # type: ignore[override]
        x = r.value(x)
        if start_dim != 1 or end_dim not in (-1, len(x.shape)):
            raise Unknown(f"{r.name} (flatten)")
        return r.add(r.name, "flatten", None, (x,), (math.prod(x.shape),)) if len(x.shape) > 1 else x

    def lower(self, lowered, row, entry):
        value = lowered.values[row.inputs[0]]
        return [entry | {"steps": value["c"], "cells": value["cells"]}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        to, steps = i[r + VALUE], i[r + STEPS]
        for cell in range(i[r + CELLS]):
            for k in range(steps):
                f[to + cell * steps + k] = f[i[r + A] + cell * i[r + A_PITCH] + k]
        for k in range(i[r + C], i[r + PITCH]):
            f[to + k] = 0.0

    # A vector has no mask of cells.
    answer = body

    def c(self, writer, row, n):
        # Cells lie side by side already.
        writer.share(row.name, writer.at[row.inputs[0]])
        writer.shared.add(row.inputs[0])
        return []

    def example(self, net):
        net.part = VoxelMean(net.stream, net.camera, 3, 4000)
        return lambda x, geometry, memory: net.part(x, geometry, memory).flatten(1)
