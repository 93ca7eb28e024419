"""(x - mean) / sqrt(var + eps) scale + shift, with mean and variance over the channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import nn

from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.table import PITCH, SCALE, SHIFT, WEIGHT, C
from gridless.live.values import Unknown, array_of


class LayerNorm(Operation):
    name = "layer_norm"
    modules = (nn.LayerNorm,)
    over_input = True

    def module(self, r: Any, layer: nn.LayerNorm, x: Any):  # type: ignore[override]
        x = r.value(x)
        if tuple(layer.normalized_shape) != x.shape[-1:]:
            raise Unknown(f"layer {r.name!r} (LayerNorm over {layer.normalized_shape})")
        one, zero = np.ones(x.channels, np.float32), np.zeros(x.channels, np.float32)
        scale = one if layer.weight is None else array_of(layer.weight)
        shift = zero if layer.bias is None else array_of(layer.bias)
        return r.same(x, "layer_norm", {"eps": layer.eps}, scale=scale, shift=shift)

    def multiply_adds(self, row):
        return row.cells * row.channels, 0

    def lower(self, lowered, row, entry):
        constants = {key: lowered.fill(row.constants[key], entry["pitch"]) for key in ("scale", "shift")}
        entry |= {key: lowered.flat.add("weight", array) for key, array in constants.items()}
        entry["weight"] = lowered.flat.add("weight", [row.settings["eps"]])
        return [entry]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, scale, shift, eps = i[r + C], i[r + PITCH], i[r + SCALE], i[r + SHIFT], f[i[r + WEIGHT]]
        to, a, _ = places(i, r, first)
        for _ in range(n):
            mean, var = 0.0, 0.0
            for k in range(c):
                mean += f[a + k]
            mean /= c
            for k in range(c):
                var += (f[a + k] - mean) ** 2
            share = 1 / math.sqrt(var / c + eps)
            for k in range(c):
                f[to + k] = np.float32((f[a + k] - mean) * share) * f[scale + k] + f[shift + k]
            for k in range(c, pitch):
                f[to + k] = 0.0
            to += pitch
            a += pitch

    c_functions = """INLINE void layer_norm(float *restrict out, const float *restrict x, int rows, int channels,
                       const float *scale, const float *shift, double eps) {
    int i, c;
    for (i = 0; i < rows; i++, x += channels, out += channels) {
        double mean = 0.0, var = 0.0;
        for (c = 0; c < channels; c++) mean += x[c];
        mean /= channels;
        for (c = 0; c < channels; c++) {
            double away = x[c] - mean;
            var += away * away;
        }
        var = root_of(var / channels + eps);
        for (c = 0; c < channels; c++) {
            float z = (float)((x[c] - mean) / var) * scale[c];
            out[c] = z + shift[c];
        }
    }
}
"""

    def c(self, writer, row, n):
        x, out = writer.at[row.inputs[0]], writer.buffer(row)
        scale, shift = writer.constant(row.constants["scale"]), writer.constant(row.constants["shift"])
        return [f"layer_norm({out}, {x}, {n}, {row.channels}, {scale}, {shift}, {float(row.settings['eps'])!r});"]

    def example(self, net):
        net.part = nn.LayerNorm(6, eps=0.1)
        return lambda x, geometry, memory: net.part(x)
