"""exp(x) over its sum, over the channels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import nn

from gridless.live.operation import Body, Operation
from gridless.live.panels import places
from gridless.live.table import PITCH, C
from gridless.live.values import Unknown


def softmax_body(logarithm: bool) -> Body:
    """The body of softmax, or of its logarithm."""

    def body(i, f, d, r, s, first, n, lane):
        c, pitch = i[r + C], i[r + PITCH]
        to, a, _ = places(i, r, first)
        for _ in range(n):
            most, total = f[a], 0.0
            for k in range(c):
                most = max(most, f[a + k])
            for k in range(c):
                total += math.exp(f[a + k] - most)
            for k in range(c):
                x = float(f[a + k] - most)
                f[to + k] = np.float32(x - math.log(total)) if logarithm else np.float32(math.exp(x) / total)
            for k in range(c, pitch):
                f[to + k] = 0.0
            to += pitch
            a += pitch

    return body


class Softmax(Operation):
    name = "softmax"
    modules = (nn.Softmax,)
    functions = ("softmax",)
    over_input = True
    logarithm = False

    def module(self, r: Any, layer: Any, x: Any):  # type: ignore[override]
        return self.function(r, x, layer.dim)

    def function(self, r: Any, x: Any, dim: Any = None, **rest: Any):  # type: ignore[override]
        if dim not in (-1, len(r.value(x).shape)):
            raise Unknown(f"{r.name} ({self.name} along axis {dim}, not over channels)")
        return r.same(x, self.name)

    body = staticmethod(softmax_body(logarithm=False))

    c_functions = """INLINE void softmax(float *restrict out, const float *restrict x, int rows, int channels, int logarithm) {
    int i, c;
    for (i = 0; i < rows; i++, x += channels, out += channels) {
        double largest = x[0], sum = 0.0;
        for (c = 1; c < channels; c++) largest = x[c] > largest ? x[c] : largest;
        for (c = 0; c < channels; c++) sum += exp_of(x[c] - largest);
        for (c = 0; c < channels; c++)
            out[c] = (float)(logarithm ? x[c] - largest - log_of(sum) : exp_of(x[c] - largest) / sum);
    }
}
"""  # noqa: E501

    def c(self, writer, row, n):
        x, out = writer.at[row.inputs[0]], writer.buffer(row)
        return [f"softmax({out}, {x}, {n}, {row.channels}, {int(self.logarithm)});"]

    def example(self, net):
        net.part = next(iter(self.layer_readers()))(-1)
        return lambda x, geometry, memory: net.part(x)
