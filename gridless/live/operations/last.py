"""The value at the last event of a stream; before the first, a constant."""

from __future__ import annotations

from typing import Any

import numpy as np

from gridless.live.operation import Sink
from gridless.live.panels import places
from gridless.live.table import PITCH, TRACE, VALUE
from gridless.live.values import array_of
from gridless.nn.events import Last


class LastValue(Sink):
    name = "last"
    modules = (Last,)
    is_newest = True

    def module(self, r: Any, layer: Last, x: Any, geometry: Any, memory: Any = None, before: Any = None):  # type: ignore[override]
        r.remembers(memory)
        x = r.of(x, layer.stream)
        first = np.zeros(x.channels, np.float32) if before is None else array_of(before)
        return r.add(r.name, "last", None, (x,), x.shape, state=4 * x.channels, before=first)

    def remember(self, lowered, row):
        before = row.constants["before"]
        place = lowered.flat.add("trace", lowered.fill(before, -(-row.channels // 16) * 16))
        lowered.before.append((place, before))
        return {"trace": place}

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch = i[r + PITCH]
        _, a, _ = places(i, r, first)
        for k in range(pitch):
            f[i[r + TRACE] + k] = f[a + (n - 1) * pitch + k]

    @staticmethod
    def answer(i, f, d, r, s, first, n, lane):
        for k in range(i[r + PITCH]):
            f[i[r + VALUE] + k] = f[i[r + TRACE] + k]

    def c_take(self, writer, row):
        x, c = writer.at[row.inputs[0]], row.channels
        last = writer.memory.add("float", f"last{writer.index[row.name]}", c)
        writer.share(row.name, last)
        before = writer.constant(row.constants["before"])
        writer.reset.append(f"for (i = 0; i < {c}; i++) {last}[i] = {before}[i];")
        return [f"for (k = 0; k < {c}; k++) {last}[k] = {x}[(count - 1) * {c} + k];"]

    def c(self, writer, row, n):
        return []

    def example(self, net):
        net.part = Last(net.stream)
        return lambda x, geometry, memory: net.part(x, geometry, memory)
