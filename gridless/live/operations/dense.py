"""x weight + bias, of the channels."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from gridless.live.operation import Operation
from gridless.live.panels import places, product, spread
from gridless.live.rows import Row
from gridless.live.table import A_PITCH, LIST, PITCH, ROWS, SHIFT, WEIGHT
from gridless.live.values import Unknown, array_of


def dense(r: Any, x: Any, weight: Tensor, bias: Tensor | None = None) -> Row:
    """Add the row x weight.T + bias, as torch's `linear`."""
    x = r.channels(x, weight.shape[1])
    added = np.zeros(len(weight), np.float32) if bias is None else array_of(bias)
    shape = (*x.shape[:-1], len(weight))
    return r.add(r.name, "dense", x.stream, (x,), shape, weight=array_of(weight.T), bias=added)


def matmul(r: Any, x: Any, weight: Any) -> Row:
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise Unknown(f"{r.name} (a product that is not of a value and a constant matrix)")
    return dense(r, x, weight.T)


class DenseProduct(Operation):
    name = "dense"
    modules = {nn.Linear: lambda r, layer, x: dense(r, x, layer.weight, layer.bias)}
    functions = {"linear": dense, "matmul": matmul}

    def multiply_adds(self, row):
        return row.cells * row.constants["weight"].size, 0

    def lower(self, lowered, row, entry):
        matrix = lowered.fill(row.constants["weight"], entry["a_pitch"], entry["pitch"])
        entry["weight"] = lowered.flat.add("weight", lowered.panels(matrix))
        entry["shift"] = lowered.flat.add("weight", lowered.fill(row.constants["bias"], entry["pitch"]))
        return [entry]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch, a_pitch = i[r + PITCH], i[r + A_PITCH]
        to, a, _ = places(i, r, first)
        spread(f, i[r + SHIFT], to, n, pitch)
        for k in range(min(n, ROWS)):
            i[i[r + LIST] + k] = k
        for k in range(0, n, ROWS):
            at, of, rows = to + k * pitch, a + k * a_pitch, min(ROWS, n - k)
            product(f, at, pitch, i, i[r + LIST], of, i[r + WEIGHT], rows, a_pitch, lane)

    def c(self, writer, row, n):
        x, out, p = writer.at[row.inputs[0]], writer.buffer(row), row.channels
        matrix, q = writer.matrix(row.constants["weight"], row.constants["bias"]), len(row.constants["weight"])
        if writer.bits == 32:
            return [f"product({out}, {n}, {p}, {x}, {matrix});"]
        return writer.blocks(n, [f"round_all(s->row, {x} + i * {q}, some * {q});"], out, p, matrix)

    def example(self, net):
        net.part = nn.Linear(6, 13)
        return lambda x, geometry, memory: net.part(x)
