"""The row of a table for the pixel of an event."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor, nn

from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.simd import copy
from gridless.live.table import PITCH, S_EVENT, S_WIDTH, WEIGHT
from gridless.live.values import PixelIndex, Unknown, array_of


def embedding(r: Any, index: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, **rest: Any) -> Any:
    if max_norm is not None:
        raise Unknown(f"{r.name} (embedding with max_norm)")
    if not isinstance(index, PixelIndex) or not isinstance(weight, Tensor):
        return NotImplemented
    width, height = index.stream.sensor
    y, x = np.divmod(np.arange(width * height), width)
    at = index.columns * x + index.rows * y + index.constant
    if at.min() < 0 or at.max() >= len(weight):
        raise Unknown(f"{r.name} (rows {at.min()} to {at.max()} of a table of {len(weight)})")
    table = array_of(weight)[at]
    return r.add(r.name, "place", index.stream.name, (), table.shape[1:], table=table)


class PixelTable(Operation):
    name = "place"
    modules = (nn.Embedding,)
    functions = {
        "embedding": embedding,
        "getitem": lambda r, table, index: embedding(r, index, table),
        "index_select": lambda r, table, dim, index: embedding(r, index, table) if dim == 0 else NotImplemented,
    }

    def module(self, r: Any, layer: nn.Embedding, index: Any) -> Any:  # type: ignore[override]
        row = embedding(r, index, layer.weight, max_norm=layer.max_norm)
        if row is NotImplemented:
            raise Unknown(f"{r.name} (embedding)")
        return row

    def lower(self, lowered, row, entry):
        table = row.constants["table"]
        return [entry | {"weight": lowered.flat.add("weight", lowered.fill(table, len(table), entry["pitch"]))}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch = i[r + PITCH]
        to, _, _ = places(i, r, first)
        for j in range(n):
            event = i[s + S_EVENT] + 4 * (first + j)
            of = i[r + WEIGHT] + (i[event + 1] * i[s + S_WIDTH] + i[event]) * pitch
            for k in range(0, pitch, 8):
                copy(f, to + j * pitch + k, of + k)

    def c(self, writer, row, n):
        out, c, table = writer.buffer(row), row.channels, writer.constant(row.constants["table"])
        width = writer.streams[str(row.stream)].sensor[0]
        return [
            f"for (i = 0; i < {n}; i++)",
            f"    for (k = 0; k < {c}; k++) {out}[i * {c} + k] = {table}[(e[i].y * {width} + e[i].x) * {c} + k];",
        ]

    def example(self, net):
        net.part = nn.Embedding(net.sensor[0], 6)
        return lambda x, geometry, memory: x + net.part(geometry[net.stream].pixel[:, 0].long())
