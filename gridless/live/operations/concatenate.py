"""The channels of several values side by side."""

from __future__ import annotations

from typing import Any

import torch

from gridless.live.operation import Operation
from gridless.live.operations.slice import copy_channels
from gridless.live.rows import Row
from gridless.live.values import Unknown


class Concatenate(Operation):
    name = "concatenate"
    functions = ("cat", "concat", "concatenate")

    def function(self, r: Any, values: Any, dim: int = 0) -> Row:  # type: ignore[override]
        rows = tuple(r.value(value) for value in values)
        if dim not in (-1, len(rows[0].shape)) or len({row.shape[:-1] for row in rows}) > 1:
            raise Unknown(f"{r.name} (a concatenation along axis {dim}, not of channels)")
        return r.joined("concatenate", rows, (*rows[0].shape[:-1], sum(row.channels for row in rows)))

    def lower(self, lowered, row, entry):
        at, entries = 0, []
        for name in row.inputs:
            end, entry = lowered.values[name]["c"], lowered.entry(row, name)
            # A cell differs where any of the inputs differs.
            mask = entry["mask"] if entries else entry["a_mask"]
            entries.append(entry | {"first": 0, "last": end, "number": at, "b_mask": mask})
            at += end
        return entries

    body = staticmethod(copy_channels)

    def c(self, writer, row, n):
        out, at, lines = writer.buffer(row), 0, [f"for (i = 0; i < {n}; i++) {{"]
        for name in row.inputs:
            c = writer.program[name].channels
            to = f"{out}[i * {row.channels} + {at} + k]"
            lines.append(f"    for (k = 0; k < {c}; k++) {to} = {writer.at[name]}[i * {c} + k];")
            at += c
        return [*lines, "}"]

    def example(self, net):
        return lambda x, geometry, memory: torch.cat([x, x.tanh(), x[:, :1]], -1)
