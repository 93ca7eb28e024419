"""(T, H, W, C): means of the events in each voxel of the window, 0 where there are none."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Sink
from gridless.live.panels import places
from gridless.live.table import (
    A_PITCH,
    CELLS,
    CLOCK,
    DURATION,
    MASK,
    NUMBER,
    PITCH,
    S_EVENT,
    S_HEIGHT,
    S_WIDTH,
    START,
    SUM,
    VALUE,
    C,
)  # fmt: skip
from gridless.live.values import WAITS
from gridless.nn.events import VoxelMean


class Voxel(Sink):
    name = "voxel"
    modules = (VoxelMean,)
    has_window = True

    def module(self, r: Any, layer: VoxelMean, x: Any, geometry: Any, memory: Any = None):  # type: ignore[override]
        r.remembers(memory)
        x = r.of(x, layer.stream)
        if layer.duration is None:
            raise ValueError(WAITS)
        r.durations.add(layer.duration)
        frames, (width, height) = layer.frames, r.streams[str(layer.stream)].sensor
        shape, settings = (frames, height, width, x.channels), {"frames": frames, "duration": layer.duration}
        return r.add(r.name, "voxel", None, (x,), shape, settings, 4 * frames * height * width * (x.channels + 1))

    def multiply_adds(self, row):
        return 0, row.channels

    def remember(self, lowered, row):
        flat = lowered.flat
        memory = {"clock": flat.room("clock", row.cells), "sum": flat.room("sum", row.cells * row.channels)}
        return memory | {"number": row.settings["frames"]}

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        # The loop cuts packets at the ends of windows, so all events are inside this one.
        c, pitch, total, count = i[r + C], i[r + A_PITCH], i[r + SUM], i[r + CLOCK]
        _, a, _ = places(i, r, first)
        for j in range(n):
            event = i[s + S_EVENT] + 4 * (first + j)
            frame = i[r + NUMBER] * (i[event + 2] - i[START]) // i[DURATION]
            cell = (frame * i[s + S_HEIGHT] + i[event + 1]) * i[s + S_WIDTH] + i[event]
            i[count + cell] += 1
            for k in range(c):
                d[total + cell * c + k] += f[a + j * pitch + k]

    @staticmethod
    def answer(i, f, d, r, s, first, n, lane):
        c, pitch, to = i[r + C], i[r + PITCH], i[r + VALUE]
        for cell in range(i[r + CELLS]):
            seen = i[i[r + CLOCK] + cell]
            i[i[r + MASK] + cell] = seen
            share, total = 1.0 / max(seen, 1), i[r + SUM] + cell * c
            for k in range(pitch):
                f[to + cell * pitch + k] = np.float32(d[total + k] * share) if k < c and seen else np.float32(0.0)

    @staticmethod
    def restart(i, f, d, r, s, first, n, lane):
        # Cells without events are 0 already.
        for cell in range(i[r + CELLS]):
            if i[i[r + CLOCK] + cell]:
                i[i[r + CLOCK] + cell] = 0
                for c in range(i[r + C]):
                    d[i[r + SUM] + cell * i[r + C] + c] = 0.0

    def c_take(self, writer, row):
        x, c, k = writer.at[row.inputs[0]], row.channels, writer.index[row.name]
        frames, rows, columns, _ = row.shape
        total = writer.memory.add("double", f"total{k}", row.cells * c)
        number = writer.memory.add("int32_t", f"count{k}", row.cells)
        writer.restart += [
            f"for (i = 0; i < {row.cells}; i++) {{",
            f"    if ({number}[i])",
            f"        for (k = 0; k < {c}; k++) {total}[i * {c} + k] = 0.0;",
            f"    {number}[i] = 0;",
            "}",
        ]
        # The frame of an event, without a division.
        return [
            "for (i = 0; i < count; i++) {",
            "    int32_t frame = 0, cell;",
            f"    int64_t since = {frames} * (e[i].time - s->start);",
            f"    while (frame < {frames - 1} && since >= (int64_t)NET_DURATION * (frame + 1)) frame++;",
            f"    cell = (frame * {rows} + e[i].y) * {columns} + e[i].x;",
            f"    {number}[cell]++;",
            f"    for (k = 0; k < {c}; k++) {total}[cell * {c} + k] += (double){x}[i * {c} + k];",
            "}",
        ]

    def c(self, writer, row, n):
        k, c, out = writer.index[row.name], row.channels, writer.buffer(row)
        return [
            f"for (i = 0; i < {n}; i++)",
            f"    for (k = 0; k < {c}; k++)",
            f"        {out}[i * {c} + k] = s->count{k}[i] ? (float)(s->total{k}[i * {c} + k] / s->count{k}[i]) : 0.0f;",
        ]

    def example(self, net):
        net.part = VoxelMean(net.stream, net.camera, 3, 4000)
        return lambda x, geometry, memory: net.part(x, geometry, memory)
