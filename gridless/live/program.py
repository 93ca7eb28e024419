"""The live program of an event network: its plan and its `forward`, read once into streams and rows of work.

    >>> print(Program.of(model))

An engine runs a program, and C is written from it; neither knows a class of networks. `streams` are the input and the
streams that LIF layers fire, every stream after the one that fires it. `rows` are values, every row after its inputs.

A row of a stream is a value (C) of each of its events:

| operation | value | settings and constants |
|---|---|---|
| polarity | (1, 0) of an OFF event, (0, 1) of an ON event | |
| convolve | bias + sum over taps u, decays v of trace_uv weight_uv, see `gridless.ops.event_conv` | source, kernel, stride; rate (U, V) per microsecond, weight (U, V, Q, P), bias (P) |
| cause | the input, of the event that fired this one | |
| place | the row of a table that the event's pixel has | table (H W, C) |
| mean | the leaky mean of the stream so far | rate (1) per microsecond |
| dense | x weight + bias | weight (Q, P), bias (P) |
| affine | x scale + shift | scale (C), shift (C) |
| layer_norm | (x - mean) / sqrt(var + eps) scale + shift, over the channels | eps; scale (C), shift (C) |
| softmax, log_softmax | over the channels | |
| relu, leaky_relu, elu, sigmoid, tanh, silu, gelu, softplus, log1p, exp, abs | of each element | leaky_relu: slope |
| add, multiply | of two values | |
| concatenate, slice | of channels | slice: begin, end |

A row without a stream is a value of the window or of the stream so far, a vector (C) or a grid (T, H, W, C) of voxels.
It is made by one of the first five from a row of a stream, and then by any of the above on the last axis, or by:

| operation | value | settings and constants |
|---|---|---|
| voxel | (T, H, W, C): means of the events of each voxel of the window, 0 where there are none | frames, duration (microseconds) |
| leaky_count | (1, H, W, 2 K): sums over the OFF, then the ON events of the camera in each cell of `size` x `size` pixels of exp(-rate age), age that at the last event | size; rate (K) per microsecond |
| magnify | the rectangle of the cells of a grid (1, H, W, C) that hold `least` or more in some channel (of all, where none does), magnified to H x W cells about the middle, the ratio of its sides kept; between cells linearly, zeros outside | least |
| last | (C): the value at the last event | before (C): the value before the first |
| pool | (C): mean or max of all events so far, 0 before the first | kind |
| convolve_cells | kernel (t, h, w) at a stride, zeros outside the grid, `padding` before its beginning | kernel, stride, padding; weight (t h w, Q, P), bias (P) |
| frame | (H, W, C): one frame of a grid | index |
| reduce | (C): mean or max over all cells | kind |
| flatten | (cells C) | |

The output is a row of a stream or its `last` (a prediction after each event), or any other row without a stream: a
prediction at the end of each window of `duration` (voxels), or when it is asked for.
"""  # noqa: E501

from __future__ import annotations

import shutil
import textwrap
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from torch import nn

from gridless.live.operations import of
from gridless.live.reading import Reader, eager, private_copy
from gridless.live.rows import EventStream, Row

__all__ = ["EventStream", "Program", "Row"]


@dataclass(frozen=True, eq=False)
class Program:
    """The `streams` and `rows` of a network; `output` is the name of a row.

    `duration`: microseconds of the windows of voxels, if any. `modules`: the row that each module of the network
    returns, by name.
    """

    streams: tuple[EventStream, ...]
    rows: tuple[Row, ...]
    output: str
    duration: int | None = None
    modules: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module) -> Program:
        """Read a network in evaluation mode, on a copy. Parts that it cannot read are refused by name."""
        return cls(*Reader(private_copy(eager(model))).parts())

    def __getitem__(self, name: str) -> Row:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Row]:
        return {row.name: row for row in self.rows}

    @cached_property
    def sketch(self) -> np.ndarray:
        """A projection and the norm of every array of constants, (arrays, 2) float64, which tell other weights apart.

        A digest would not do: constants that are computed from weights differ in the last bit between processors.
        """
        arrays = [np.array(list(stream.lif.values())) for stream in self.streams]
        arrays += [array.reshape(-1) for row in self.rows for array in row.constants.values()]
        finite = [np.where(np.isfinite(array), array, 0.0).astype(np.float64) for array in arrays]
        return np.array([(array @ np.cos(np.arange(len(array))), np.linalg.norm(array)) for array in finite])

    @property
    def answers(self) -> str | None:
        """The stream whose every event brings a prediction."""
        row = self[self.output]
        return self[row.inputs[0]].stream if of(row).is_newest else row.stream

    @property
    def state_bytes(self) -> int:
        """Bytes of memory from event to event, without buffers."""
        return sum(part.state_bytes for part in (*self.streams, *self.rows))

    @property
    def constant_bytes(self) -> int:
        return sum(row.constant_bytes for row in self.rows)

    def __str__(self) -> str:
        """Each stream, then the rows that its events cause: shape, multiply-adds, bytes of constants and state.

        In a terminal, lines are wrapped at its width.
        """
        lines = [("", "shape", "multiply-adds", "weights", "state")]
        for stream in (*self.streams, None):
            rows = [row for row in self.rows if row.stream == (stream and stream.name)]
            if stream is not None:
                width, height = stream.sensor
                lines.append((str(stream), f"{width} x {height}", "", "", _bytes(stream.state_bytes)))
            elif rows:
                asked = f"after every event of {self.answers}" if self.answers else "when asked"
                lines.append((f"every {self.duration:,} us" if self.duration else asked, "", "", "", ""))
            for row in rows:
                own, source = of(row).multiply_adds(row)
                work = " + ".join([f"{own:,}"] * (own > 0) + [f"{source:,} per source event"] * (source > 0))
                shape = " x ".join(map(str, row.shape))
                lines.append((f"  {row}", shape, work, _bytes(row.constant_bytes), _bytes(row.state_bytes)))
        lines.append((f"output {self.output}", "", "", _bytes(self.constant_bytes), _bytes(self.state_bytes)))
        return _table(lines, shutil.get_terminal_size((UNLIMITED, 24)).columns)


# Width of an output that is no terminal.
UNLIMITED = 10**6


def _table(lines: list[tuple[str, ...]], width: int) -> str:
    """Lines in columns. If these are too wide, the numbers of a line follow it, with their column names."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        first = [line[0].ljust(widths[0]) for line in lines]
        rest = ["  ".join(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True)) for line in lines]
        return "\n".join(f"{a}  {b}".rstrip() for a, b in zip(first, rest, strict=True))
    text: list[str] = []
    for first, *cells in lines[1:]:
        numbers = ", ".join(f"{name} {cell}" for name, cell in zip(lines[0][1:], cells, strict=True) if cell)
        text += textwrap.wrap(first, width, subsequent_indent=" " * 6)
        text += textwrap.wrap(numbers, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(text)


def _bytes(count: int) -> str:
    return f"{count:,} B" if count else ""
