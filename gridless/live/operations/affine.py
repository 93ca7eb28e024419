"""x scale + shift: normalisation with the statistics of training, and sums and products with constants."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

from gridless.live import simd
from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.table import PITCH, SCALE, SHIFT
from gridless.live.values import Unknown, array_of
from gridless.nn.norm import BatchNorm


def affine(r: Any, x: Any, scale: Any, shift: Any) -> Row:
    """Add the row x scale + shift, for numbers, or arrays with an element for each channel."""
    x = r.value(x)
    parts = [np.asarray(part, np.float32) for part in (scale, shift)]
    fits = [part.size == 1 or (part.size, part.shape[-1]) == (x.channels, x.channels) for part in parts]
    if not all(fits) or any(part.ndim > len(x.shape) + 1 for part in parts):
        raise Unknown(f"{r.name} with a constant of this shape")
    values = [np.array(np.broadcast_to(part.reshape(-1), x.channels)) for part in parts]
    return r.same(x, "affine", scale=values[0], shift=values[1])


def copied(r: Any, x: Any) -> Row:
    """Add a row with the same value, which later changes in place do not change."""
    return affine(r, x, 1, 0)


def batch_norm(r: Any, layer: Any, x: Any, geometry: Any = None) -> Row:
    """Add normalisation with the statistics of training, and the ReLU of gridless's layer."""
    mean, var, relu = layer.running_mean, layer.running_var, getattr(layer, "relu", None)
    if mean is None or var is None:
        raise Unknown(f"layer {r.name!r} ({type(layer).__name__}) without running statistics")
    scale = (var.double() + layer.eps).rsqrt()
    if layer.weight is not None:
        scale = scale * layer.weight.double()
    shift = -mean.double() * scale
    if layer.bias is not None:
        shift = shift + layer.bias.double()
    x = r.same(x, "relu") if relu == "before" else x
    x = affine(r, x, array_of(scale), array_of(shift))
    return r.same(x, "relu") if relu == "after" else x


class Affine(Operation):
    name = "affine"
    modules = {BatchNorm: batch_norm, nn.BatchNorm1d: batch_norm}
    functions = {"neg": lambda r, x: affine(r, x, -1, 0), "clone": copied}
    over_input = over_input_in_c = True

    def multiply_adds(self, row):
        return row.cells * row.channels, 0

    def lower(self, lowered, row, entry):
        constants = {key: lowered.fill(row.constants[key], entry["pitch"]) for key in ("scale", "shift")}
        return [entry | {key: lowered.flat.add("weight", array) for key, array in constants.items()}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch, scale, shift = i[r + PITCH], i[r + SCALE], i[r + SHIFT]
        to, a, _ = places(i, r, first)
        for j in range(n):
            for k in range(0, pitch, 8):
                simd.affine(f, to + j * pitch + k, a + j * pitch + k, scale + k, shift + k)

    def c(self, writer, row, n):
        x, out, c = writer.at[row.inputs[0]], writer.buffer(row), row.channels
        scale, shift = writer.constant(row.constants["scale"]), writer.constant(row.constants["shift"])
        return [
            f"for (i = 0; i < {n}; i++)",
            f"    for (k = 0; k < {c}; k++) {{",
            f"        float z = {x}[i * {c} + k] * {scale}[k];",
            f"        {out}[i * {c} + k] = z + {shift}[k];",
            "    }",
        ]

    def example(self, net):
        net.part = BatchNorm(6, relu="after")
        return lambda x, geometry, memory: net.part(-x)
