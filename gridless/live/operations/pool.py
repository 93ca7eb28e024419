"""The mean or the maximum of all events of a stream so far, 0 before the first."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Sink
from gridless.live.panels import places
from gridless.live.table import A_PITCH, CLOCK, NUMBER, PITCH, SUM, VALUE, C
from gridless.nn.pool import MaxPool, MeanPool


def pool(r: Any, layer: Any, x: Any, geometry: Any, memory: Any = None) -> Any:
    r.remembers(memory)
    x = r.of(x, layer.cloud)
    kind = "mean" if isinstance(layer, MeanPool) else "max"
    return r.add(r.name, "pool", None, (x,), x.shape, {"kind": kind}, 4 * x.channels + 8)


class PooledValue(Sink):
    name = "pool"
    modules = {MeanPool: pool, MaxPool: pool}

    def multiply_adds(self, row):
        return 0, row.channels

    def remember(self, lowered, row):
        flat = lowered.flat
        memory = {"clock": flat.room("clock", 1), "sum": flat.room("sum", row.channels)}
        return memory | {"number": int(row.settings["kind"] == "max")}

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, total, count = i[r + C], i[r + A_PITCH], i[r + SUM], i[r + CLOCK]
        _, a, _ = places(i, r, first)
        for j in range(n):
            for k in range(c):
                x = float(f[a + j * pitch + k])
                if i[r + NUMBER]:
                    d[total + k] = max(d[total + k], x) if i[count] else x
                else:
                    d[total + k] += x
            i[count] += 1

    @staticmethod
    def answer(i, f, d, r, s, first, n, lane):
        share = 1.0 if i[r + NUMBER] else 1.0 / max(i[i[r + CLOCK]], 1)
        for k in range(i[r + PITCH]):
            f[i[r + VALUE] + k] = np.float32(d[i[r + SUM] + k] * share) if k < i[r + C] else np.float32(0.0)

    def c_take(self, writer, row):
        x, c, k = writer.at[row.inputs[0]], row.channels, writer.index[row.name]
        total, number = writer.memory.add("double", f"total{k}", c), writer.memory.add("int64_t", f"count{k}")
        value = f"(double){x}[i * {c} + k]"
        join = f"{total}[k] + {value}"
        if row.settings["kind"] == "max":
            join = f"!{number} || {value} > {total}[k] ? {value} : {total}[k]"
        return [
            "for (i = 0; i < count; i++) {",
            f"    for (k = 0; k < {c}; k++) {total}[k] = {join};",
            f"    {number}++;",
            "}",
        ]

    def c(self, writer, row, n):
        k, c, out = writer.index[row.name], row.channels, writer.buffer(row)
        share = f" / (double)s->count{k}" if row.settings["kind"] == "mean" else ""
        return [f"for (k = 0; k < {c}; k++) {out}[k] = s->count{k} ? (float)(s->total{k}[k]{share}) : 0.0f;"]

    def example(self, net):
        net.part, net.other = MeanPool(net.stream), MaxPool(net.stream)
        return lambda x, geometry, memory: net.part(x, geometry, memory) + net.other(-x, geometry, memory)
