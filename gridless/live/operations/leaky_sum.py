"""Leaky sums of a stream so far, at several decays."""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live import simd
from gridless.live.operation import Operation, own_fields
from gridless.live.panels import places
from gridless.live.table import A_PITCH, CLOCK, PITCH, S_EVENT, SUM, C
from gridless.live.values import array_of
from gridless.nn.events import LeakySum

RATE, FACTOR, DECAYS = own_fields(3)

# Decays that are computed at once.
AT_ONCE = 4


class LeakySums(Operation):
    name = "leaky_sum"
    modules = (LeakySum,)
    # In `f`: the rates, and room for what is left; how many rates.
    fields = ("rate", "factor", "decays")

    def module(self, r: Any, layer: LeakySum, x: Any, geometry: Any, memory: Any = None):  # type: ignore[override]
        r.remembers(memory)
        x = r.of(x, layer.stream)
        rate = array_of(layer.log_rate.double().exp() / layer.UNIT).reshape(-1)
        channels = x.channels * len(rate)
        return r.add(r.name, "leaky_sum", x.stream, (x,), (channels,), state=8 * (channels + 1), rate=rate)

    def multiply_adds(self, row):
        return row.channels, 0

    def lower(self, lowered, row, entry):
        flat, rate = lowered.flat, row.constants["rate"]
        room = -(-len(rate) // AT_ONCE) * AT_ONCE
        entry |= {"rate": flat.add("weight", np.pad(rate, (0, room - len(rate)))), "factor": flat.room("work", room)}
        return [entry | {"clock": lowered.clock(1), "sum": flat.room("sum", row.channels), "decays": len(rate)}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, a_pitch, count = i[r + C], i[r + PITCH], i[r + A_PITCH], i[r + DECAYS]
        total, clock, factor = i[r + SUM], i[r + CLOCK], i[r + FACTOR]
        to, a, _ = places(i, r, first)
        for j in range(n):
            t = i[i[s + S_EVENT] + 4 * (first + j) + 2]
            age = np.float32(t - i[clock]) if i[clock] >= 0 else np.float32(0.0)
            i[clock] = t
            for k in range(0, count, 4):
                simd.decays(4, f, factor + k, i[r + RATE] + k, age)
            for q in range(c // count):
                x = float(f[a + j * a_pitch + q])
                for k in range(count):
                    at = q * count + k
                    d[total + at] = d[total + at] * f[factor + k] + x
                    f[to + j * pitch + at] = np.float32(d[total + at])
            for k in range(c, pitch):
                f[to + j * pitch + k] = 0.0

    def c(self, writer, row, n):
        x, out, index = writer.at[row.inputs[0]], writer.buffer(row), writer.index[row.name]
        count = len(row.constants["rate"])
        channels = row.channels // count
        total = writer.memory.add("double", f"total{index}", row.channels)
        time = writer.memory.add("int64_t", f"time{index}")
        rate = writer.rates(row.constants["rate"])
        return [
            f"for (i = 0; i < {n}; i++) {{",
            f"    float age = elapsed(e[i].time, {time});",
            f"    double left[{count}];",
            f"    for (k = 0; k < {count}; k++) left[k] = decay(constants.value[{rate} + k] * age);",
            f"    {time} = e[i].time;",
            f"    for (j = 0; j < {channels}; j++) {{",
            f"        double *restrict sum = {total} + j * {count}, value = {x}[i * {channels} + j];",
            f"        float *restrict to = {out} + i * {row.channels} + j * {count};",
            f"        for (k = 0; k < {count}; k++) {{",
            "            sum[k] = sum[k] * left[k] + value;",
            "            to[k] = (float)sum[k];",
            "        }",
            "    }",
            "}",
        ]

    def example(self, net):
        net.part = LeakySum(net.stream, (300.0, 700.0, 2000.0, 9000.0, 20000.0))
        return lambda x, geometry, memory: net.part(x, geometry, memory)
