"""Channels of a value, from `begin` to `end`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.simd import copy
from gridless.live.table import A_PITCH, FIRST, LAST, NUMBER, PITCH, C
from gridless.live.values import Unknown


def channels(r: Any, x: Row, begin: int, end: int) -> Row:
    return r.add(r.name, "slice", x.stream, (x,), (*x.shape[:-1], end - begin), {"begin": begin, "end": end})


def index(r: Any, x: Any, key: Any) -> Any:
    if not isinstance(x, Row):
        return NotImplemented
    # The first axis is that of the events or examples.
    keys = key if isinstance(key, tuple) else (key,)
    every = len(keys) == len(x.shape) + 1 and all(k == slice(None) for k in keys[:-1])
    if (every or (keys[0] is Ellipsis and len(keys) == 2)) and isinstance(keys[-1], slice):
        begin, end, step = keys[-1].indices(x.channels)
        if step == 1:
            return channels(r, x, begin, end)
    return NotImplemented


def split(r: Any, x: Any, size: int | list[int], dim: int = 0) -> list[Row]:
    x = r.value(x)
    if dim not in (-1, len(x.shape)):
        raise Unknown(f"{r.name} (a cut along axis {dim}, not of channels)")
    ends = [*range(size, x.channels, size), x.channels] if isinstance(size, int) else np.cumsum(size).tolist()
    if ends[-1] != x.channels:
        raise Unknown(f"{r.name} (parts of {size}, of {x.channels} channels)")
    return [channels(r, x, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def chunk(r: Any, x: Any, chunks: int, dim: int = 0) -> list[Row]:
    return split(r, x, -(-r.value(x).channels // chunks), dim)


def copy_channels(i, f, d, r, s, first, n, lane):
    """Copy channels first to last of the input to those from `number` on, with zeros after all."""
    pitch, a_pitch, begin, last, at = i[r + PITCH], i[r + A_PITCH], i[r + FIRST], i[r + LAST], i[r + NUMBER]
    end, whole = at + last - begin, (last - begin) // 8 * 8
    to, a, _ = places(i, r, first)
    for j in range(n):
        for k in range(0, whole, 8):
            copy(f, to + j * pitch + at + k, a + j * a_pitch + begin + k)
        for k in range(whole, last - begin):
            f[to + j * pitch + at + k] = f[a + j * a_pitch + begin + k]
        if end == i[r + C]:
            for k in range(end, pitch):
                f[to + j * pitch + k] = 0.0


class Slice(Operation):
    name = "slice"
    functions = {"getitem": index, "split": split, "chunk": chunk}
    is_part = True

    def lower(self, lowered, row, entry):
        return [entry | {"first": row.settings["begin"], "last": row.settings["end"]}]

    body = staticmethod(copy_channels)

    def c(self, writer, row, n):
        x, out, c = writer.at[row.inputs[0]], writer.buffer(row), row.channels
        wide, begin = writer.program[row.inputs[0]].channels, row.settings["begin"]
        return [
            f"for (i = 0; i < {n}; i++)",
            f"    for (k = 0; k < {c}; k++) {out}[i * {c} + k] = {x}[i * {wide} + {begin} + k];",
        ]

    def example(self, net):
        return lambda x, geometry, memory: x[:, 1:4] + x.chunk(2, 1)[1]
