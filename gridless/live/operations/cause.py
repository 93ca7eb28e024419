"""The value of the event that fired each event of a stream."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn import functional

from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.rows import Row
from gridless.live.simd import copy
from gridless.live.table import PITCH, S_EVENT, A
from gridless.live.values import CauseIndex, Unknown


def caused(r: Any, x: Any, index: CauseIndex) -> Row:
    """Add one row for every stream of the chain."""
    x = r.value(x)
    for name in index.chain:
        if x.stream != r.streams[name].source:
            raise Unknown(f"{r.name} (rows of {x.stream} by the causes of {name})")
        x = r.add(r.name, "cause", name, (x,), x.shape)
    return x


def index(r: Any, x: Any, key: Any) -> Any:
    if not isinstance(key, CauseIndex):
        return NotImplemented
    return CauseIndex(x.chain + key.chain) if isinstance(x, CauseIndex) else caused(r, x, key)


def embedding(r: Any, key: Any, x: Any, *rest: Any, **named: Any) -> Any:
    return index(r, x, key)


def index_select(r: Any, x: Any, dim: int, key: Any) -> Any:
    return index(r, x, key) if dim == 0 else NotImplemented


class Cause(Operation):
    name = "cause"
    modules = {}
    functions = {"getitem": index, "embedding": embedding, "index_select": index_select}

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch = i[r + PITCH]
        to, _, _ = places(i, r, first)
        for j in range(n):
            of = i[r + A] + i[i[s + S_EVENT] + 4 * (first + j) + 3] * pitch
            for k in range(0, pitch, 8):
                copy(f, to + j * pitch + k, of + k)

    def c(self, writer, row, n):
        out, c, x = writer.buffer(row), row.channels, writer.at[row.inputs[0]]
        return [
            f"for (i = 0; i < {n}; i++)",
            f"    for (k = 0; k < {c}; k++) {out}[i * {c} + k] = {x}[e[i].cause * {c} + k];",
        ]

    def example(self, net):
        net.part = nn.Linear(2, 6)

        def call(x, geometry, memory):
            fine = net.part(net.polarity(geometry))
            cause = geometry[net.stream].cause
            return x + fine[cause] + functional.embedding(cause, fine)

        return call
