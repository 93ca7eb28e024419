"""(1, 0) of an OFF event of the camera, (0, 1) of an ON event."""

from __future__ import annotations

from typing import Any

from torch import nn

from gridless.live.operation import Operation
from gridless.live.panels import places
from gridless.live.rows import EventStream, Row
from gridless.live.table import PITCH, S_EVENT
from gridless.live.values import Unknown


def polarity(r: Any, stream: EventStream) -> Row:
    """The row of the polarities; a network has one."""
    if stream.source is not None:
        raise Unknown(f"{r.name} (the polarity of {stream.name}, which is not the camera)")
    rows = [row for row in r.rows.values() if row.operation == "polarity"]
    return rows[0] if rows else r.add("polarity", "polarity", stream.name, (), (2,))


class Polarity(Operation):
    name = "polarity"
    functions = {"polarity_features": lambda r, events, *args, **named: polarity(r, events.stream)}
    in_events = is_part = True

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        pitch = i[r + PITCH]
        to, _, _ = places(i, r, first)
        for j in range(n):
            on = i[i[s + S_EVENT] + 4 * (first + j) + 3]
            for k in range(pitch):
                f[to + j * pitch + k] = 0.0
            f[to + j * pitch + on] = 1.0

    def c(self, writer, row, n):
        out = writer.buffer(row)
        off, on = f"{out}[2 * k] = e[k].on ? 0.0f : 1.0f", f"{out}[2 * k + 1] = e[k].on ? 1.0f : 0.0f"
        return [f"for (k = 0; k < {n}; k++) {off}, {on};"]

    def example(self, net):
        net.part = nn.Linear(2, 5)
        return lambda x, geometry, memory: net.part(net.polarity(geometry))
