"""The live program of an event network: its plan and its `forward`, read once into streams and rows of work.

    >>> print(Program.of(model))

A program is what an engine runs and what C is written from: no model class is known to either. `streams` are the input
and what LIF layers fire, every stream after the one that fires it. `rows` are values, every row after its inputs.

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
It is made by one of the first three from a row of a stream, and then by any of the above on the last axis, or by:

| operation | value | settings and constants |
|---|---|---|
| voxel | (T, H, W, C): means of the events of each voxel of the window, 0 where there are none | frames, duration (microseconds) |
| last | (C): the value at the last event | before (C): the value before the first |
| pool | (C): mean or max of all events so far, 0 before the first | kind |
| convolve_cells | kernel (t, h, w) at a stride, zeros outside the grid, `padding` before its beginning | kernel, stride, padding; weight (t h w, Q, P), bias (P) |
| frame | (H, W, C): one frame of a grid | index |
| reduce | (C): mean or max over all cells | kind |
| flatten | (cells C) | |

The output is a row of a stream (a prediction after each of its events), a `last` (likewise), or any other row without a
stream: with voxels a prediction at the end of each window of `duration`, else one when it is asked for.
"""  # noqa: E501

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gridless.geometry.taps import offsets

if TYPE_CHECKING:
    from torch import nn

ACTIVATIONS = (
    "relu", "leaky_relu", "elu", "sigmoid", "tanh", "silu", "gelu", "softplus", "log1p", "exp", "abs",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """The input (`source` is None), or the events that `source` fires; `lif` are the settings of `gl.geometry.lif`."""

    name: str
    sensor: tuple[int, int]
    source: str | None = None
    lif: dict[str, Any] = field(default_factory=dict)

    @property
    def pixels(self) -> int:
        return self.sensor[0] * self.sensor[1]

    @property
    def state_bytes(self) -> int:
        """A float32 potential and an int64 time for each pixel."""
        return 12 * self.pixels if self.source else 0

    def __str__(self) -> str:
        how = ", ".join(f"{k}={v:g}" for k, v in self.lif.items())
        return f"{self.name} = {f'lif({self.source}, {how})' if self.source else 'events()'}"


@dataclass(frozen=True, eq=False)
class Row:
    """A value: of each event of `stream`, or without a stream."""

    name: str
    operation: str
    stream: str | None
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    state_bytes: int = 0

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def cells(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants.values())

    @property
    def multiply_adds(self) -> tuple[int, int]:
        """Of an event of the stream (without a stream: of an answer), and of an event of the source of a convolution,
        or of the stream that a value without one takes in."""
        c = self.channels
        if self.operation == "convolve":
            taps, decays, q, p = self.constants["weight"].shape
            return taps * decays * q * (1 + p), round(taps * decays * q / self.settings["stride"] ** 2)
        if self.operation == "mean":
            return 2 * c, 0
        if self.operation in ("voxel", "pool"):
            return 0, c
        if self.operation in ("dense", "convolve_cells"):
            return self.cells * self.constants["weight"].size, 0
        return self.cells * c * (self.operation in ("affine", "multiply", "layer_norm")), 0

    def __str__(self) -> str:
        words = [*self.inputs, *(f"{k}={v}" for k, v in self.settings.items())]
        return f"{self.name} = {self.operation}({', '.join(words)})"


@dataclass(frozen=True, eq=False)
class Program:
    """Streams and rows; `output` is the name of a row, `duration` that of the windows of voxels, if there are any."""

    streams: tuple[Stream, ...]
    rows: tuple[Row, ...]
    output: str
    duration: int | None = None

    @classmethod
    def of(cls, model: nn.Module) -> Program:
        """The program of a network in evaluation mode. What it cannot read is refused by name."""
        # Imported here: it knows the layers, which run time does not need.
        from gridless.streaming.reading import Reader

        return Reader(model).program()

    def __getitem__(self, name: str) -> Row:
        return self._by_name[name]

    @cached_property
    def _by_name(self) -> dict[str, Row]:
        return {row.name: row for row in self.rows}

    @property
    def answers(self) -> str | None:
        """The stream whose every event brings a prediction."""
        row = self[self.output]
        return self[row.inputs[0]].stream if row.operation == "last" else row.stream

    @property
    def state_bytes(self) -> int:
        """What must be remembered from event to event, without buffers."""
        return sum(part.state_bytes for part in (*self.streams, *self.rows))

    @property
    def constant_bytes(self) -> int:
        return sum(row.constant_bytes for row in self.rows)

    def __str__(self) -> str:
        """Each stream, then the rows that its events cause: shape, multiply-adds, bytes of constants and state."""
        lines = [("", "shape", "multiply-adds", "weights", "state")]
        for stream in (*self.streams, None):
            rows = [row for row in self.rows if row.stream == (stream and stream.name)]
            if stream is not None:
                width, height = stream.sensor
                lines.append((str(stream), f"{width} x {height}", "", "", _bytes(stream.state_bytes)))
            elif rows:
                when = f"after every event of {self.answers}" if self.answers else "when asked"
                lines.append((f"every {self.duration:,} us" if self.duration else when, "", "", "", ""))
            for row in rows:
                own, source = row.multiply_adds
                work = " + ".join([f"{own:,}"] * (own > 0) + [f"{source:,} per source event"] * (source > 0))
                shape = " x ".join(map(str, row.shape))
                lines.append((f"  {row}", shape, work, _bytes(row.constant_bytes), _bytes(row.state_bytes)))
        lines.append((f"output {self.output}", "", "", _bytes(self.constant_bytes), _bytes(self.state_bytes)))
        wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
        first = [line[0].ljust(wide[0]) for line in lines]
        rest = ["  ".join(word.rjust(w) for word, w in zip(line[1:], wide[1:], strict=True)) for line in lines]
        return "\n".join(f"{a}  {b}".rstrip() for a, b in zip(first, rest, strict=True))


def _bytes(count: int) -> str:
    return f"{count:,} B" if count else ""


def fed_pixels(kernel: int | str, stride: int, source: tuple[int, int], target: tuple[int, int]) -> list[int]:
    """How many source pixels each tap of a convolution is fed by."""

    def along(size: int, grid: int, offset: int) -> int:
        return sum(0 <= stride * o + offset < size for o in range(grid))

    return [along(source[0], target[0], dx) * along(source[1], target[1], dy) for dx, dy in offsets(kernel)]
