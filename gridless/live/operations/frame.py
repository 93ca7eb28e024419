"""(H, W, C): one frame of a grid of voxels, not copied."""

from __future__ import annotations

import math
from typing import Any

from gridless.live.operation import Operation
from gridless.live.rows import Row
from gridless.nn.events import VoxelMean


class GridFrame(Operation):
    name = "frame"
    functions = ("getitem",)
    is_part = True

    def function(self, r: Any, x: Any, key: Any) -> Any:  # type: ignore[override]
        # The first axis is that of the examples.
        is_frame = isinstance(key, tuple) and len(key) == 2 and key[0] == slice(None) and isinstance(key[1], int)
        if not isinstance(x, Row) or len(x.shape) != 4 or not is_frame:
            return NotImplemented
        return r.add(r.name, "frame", None, (x,), x.shape[1:], {"index": key[1] % x.shape[0]})

    def view(self, lowered, row):
        cells = row.settings["index"] * math.prod(row.shape[:-1])
        return cells * lowered.pitch(row.channels), cells

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        return

    def c(self, writer, row, n):
        skipped = row.settings["index"] * row.cells * row.channels
        first = writer.at[row.inputs[0]]
        writer.share(row.name, f"({first} + {skipped})" if skipped else first)
        writer.shared.add(row.inputs[0])
        return []

    def example(self, net):
        net.part = VoxelMean(net.stream, net.camera, 3, 4000)
        return lambda x, geometry, memory: net.part(x, geometry, memory)[:, 1]
