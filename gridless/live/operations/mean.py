"""The leaky mean of a stream so far."""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Operation, own_fields
from gridless.live.panels import places
from gridless.live.simd import decays, mean
from gridless.live.table import CLOCK, PITCH, S_EVENT, SUM, C
from gridless.live.values import array_of
from gridless.nn.events import LeakyMean

RATE, FACTOR = own_fields(2)


class Mean(Operation):
    name = "mean"
    modules = (LeakyMean,)
    # Both in `f`: the rate, and room for decays.
    fields = ("rate", "factor")

    def module(self, r: Any, layer: LeakyMean, x: Any, geometry: Any, memory: Any = None):  # type: ignore[override]
        r.remembers(memory)
        x = r.of(x, layer.stream)
        rate = array_of(layer.log_rate.double().exp() / layer.decay_time).reshape(1)
        return r.add(r.name, "mean", x.stream, (x,), x.shape, state=8 * (x.channels + 2), rate=rate)

    def multiply_adds(self, row):
        return 2 * row.channels, 0

    def lower(self, lowered, row, entry):
        flat = lowered.flat
        entry |= {"rate": flat.add("weight", row.constants["rate"]), "factor": flat.room("work", 8)}
        return [entry | {"clock": lowered.clock(1), "sum": flat.room("sum", row.channels + 1)}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, total, clock, factor = i[r + C], i[r + PITCH], i[r + SUM], i[r + CLOCK], i[r + FACTOR]
        to, a, _ = places(i, r, first)
        for j in range(n):
            t = i[i[s + S_EVENT] + 4 * (first + j) + 2]
            left = 0.0
            if i[clock] >= 0:
                decays(4, f, factor, i[r + RATE], np.float32(t - i[clock]))
                left = float(f[factor])
            i[clock] = t
            # The sum of the weights follows the sums.
            d[total + c] = d[total + c] * left + 1.0
            share = 1.0 / d[total + c]
            whole = c // 8 * 8
            for k in range(0, whole, 8):
                mean(f, to + j * pitch + k, a + j * pitch + k, d, total + k, left, share)
            for k in range(whole, c):
                d[total + k] = d[total + k] * left + f[a + j * pitch + k]
                f[to + j * pitch + k] = np.float32(d[total + k] * share)
            for k in range(c, pitch):
                f[to + j * pitch + k] = 0.0

    def c(self, writer, row, n):
        x, out, c, k = writer.at[row.inputs[0]], writer.buffer(row), row.channels, writer.index[row.name]
        total, time = writer.memory.add("double", f"total{k}", c + 1), writer.memory.add("int64_t", f"time{k}")
        rate = writer.rates(row.constants["rate"])
        return [
            f"for (i = 0; i < {n}; i++) {{",
            f"    double left = decay(constants.value[{rate}] * elapsed(e[i].time, {time}));",
            f"    {time} = e[i].time;",
            f"    {total}[{c}] = {total}[{c}] * left + 1.0;",
            f"    for (k = 0; k < {c}; k++) {{",
            f"        {total}[k] = {total}[k] * left + (double){x}[i * {c} + k];",
            f"        {out}[i * {c} + k] = (float)({total}[k] / {total}[{c}]);",
            "    }",
            "}",
        ]

    def example(self, net):
        net.part = LeakyMean(net.stream, 700.0)
        return lambda x, geometry, memory: net.part(x, geometry, memory)
