"""(1, H, W, 2 K): sums over the OFF, then the ON events in each cell of size x size pixels of exp(-rate age)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gridless.live.operation import Sink, own_fields
from gridless.live.operations.polarity import polarity
from gridless.live.table import CELLS, CLOCK, FIRST, MASK, PITCH, S_EVENT, STEPS, SUM, TIME, VALUE, C
from gridless.live.values import Unknown
from gridless.nn.events import LEFT, LeakyCount

(RATE,) = own_fields(1)


class LeakyCounts(Sink):
    name = "leaky_count"
    modules = (LeakyCount,)
    # In `f`: the rate of each decay.
    fields = ("rate",)
    reads_events = has_window = True

    def module(  # type: ignore[override]
        self, r: Any, layer: LeakyCount, geometry: Any, memory: Any = None, at: Any = None
    ):
        r.remembers(memory)
        if at is not None:
            raise Unknown(f"{r.name} (counts at given events)")
        (height, width), rate = layer.grid, (1 / np.array(layer.decay_times)).astype(np.float32)
        shape, events = (1, height, width, 2 * len(rate)), polarity(r, r.streams[str(layer.stream)])
        state = 8 * height * width * (1 + 2 * len(rate))
        if layer.every is not None:
            r.durations.add(layer.every)
        counts = r.add(r.name, "leaky_count", None, (events,), shape, {"size": layer.size}, state, rate=rate)
        if layer.fit:
            counts = r.add(f"{r.name}.fit", "magnify", None, (counts,), shape, {"least": LEFT})
        return r.same(counts, "log1p")

    def multiply_adds(self, row):
        return 0, row.channels

    def remember(self, lowered, row):
        flat = lowered.flat
        memory = {"clock": lowered.clock(row.cells), "sum": flat.room("sum", row.cells * row.channels)}
        memory |= {"first": row.shape[2], "steps": row.settings["size"]}
        return memory | {"rate": flat.add("weight", row.constants["rate"])}

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c = i[r + C]
        for j in range(n):
            event = i[s + S_EVENT] + 4 * (first + j)
            cell = i[event + 1] // i[r + STEPS] * i[r + FIRST] + i[event] // i[r + STEPS]
            clock, total = i[r + CLOCK] + cell, i[r + SUM] + cell * c
            for k in range(c // 2):
                left = math.exp(-float(f[i[r + RATE] + k]) * (i[event + 2] - i[clock])) if i[clock] >= 0 else 0.0
                d[total + k] *= left
                d[total + c // 2 + k] *= left
                d[total + i[event + 3] * (c // 2) + k] += 1.0
            i[clock] = i[event + 2]

    @staticmethod
    def answer(i, f, d, r, s, first, n, lane):
        c, pitch, to = i[r + C], i[r + PITCH], i[r + VALUE]
        for cell in range(i[r + CELLS]):
            clock, total = i[i[r + CLOCK] + cell], i[r + SUM] + cell * c
            i[i[r + MASK] + cell] = clock >= 0
            for k in range(pitch):
                f[to + cell * pitch + k] = 0.0
            if clock >= 0:
                for k in range(c // 2):
                    left = math.exp(-float(f[i[r + RATE] + k]) * (i[TIME] - clock))
                    f[to + cell * pitch + k] = d[total + k] * left
                    f[to + cell * pitch + c // 2 + k] = d[total + c // 2 + k] * left

    def c_take(self, writer, row):
        c, k, columns = row.channels, writer.index[row.name], row.shape[2]
        total, time = writer.memory.add("double", f"total{k}", row.cells * c), f"s->time{k}"
        writer.memory.add("int64_t", f"time{k}", row.cells)
        writer.reset.append(f"for (i = 0; i < {row.cells}; i++) {time}[i] = NEVER;")
        size, rate = row.settings["size"], writer.rates(row.constants["rate"])
        writer.notes[row.name] = rate
        return [
            "for (i = 0; i < count; i++) {",
            f"    int32_t cell = e[i].y / {size} * {columns} + e[i].x / {size};",
            f"    double *total = {total} + cell * {c};",
            f"    float age = elapsed(e[i].time, {time}[cell]), left[{c // 2} + LANES];",
            f"    {time}[cell] = e[i].time;",
            *self.c_left(writer, row),
            f"    for (k = 0; k < {c // 2}; k++) {{",
            f"        total[k] *= left[k], total[{c // 2} + k] *= left[k], total[e[i].on * {c // 2} + k] += 1.0;",
            "    }",
            "}",
        ]

    def c_left(self, writer, row):
        """Factor by which each count decays in `age`, as for traces: whole vectors of floats."""
        rate = f"constants.value + {writer.notes[row.name]}"
        return [f"    for (k = 0; k < {row.channels // 2}; k += LANES) KEEP(left + k, decays(LOAD({rate} + k) * age));"]

    def c(self, writer, row, n):
        k, out, half = writer.index[row.name], writer.buffer(row), row.channels // 2
        at = f"i * {2 * half} + k"
        return [
            f"for (i = 0; i < {n}; i++) {{",
            f"    float age = elapsed(s->time, s->time{k}[i]), left[{half} + LANES];",
            *self.c_left(writer, row),
            f"    for (k = 0; k < {half}; k++) {{",
            f"        {out}[{at}] = (float)(s->total{k}[{at}] * left[k]);",
            f"        {out}[{at} + {half}] = (float)(s->total{k}[{at} + {half}] * left[k]);",
            "    }",
            "}",
        ]

    def example(self, net):
        net.part = LeakyCount(net.camera, 2, (300.0, 5000.0), 4000)
        return lambda x, geometry, memory: net.part(geometry, memory)
