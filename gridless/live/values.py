"""Values of a forward while it is read: rows in place of tensors, and parts of the geometry. `RowBuilder` adds rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gridless.live.rows import EventStream, Row

CUT = (
    "stream: this network cuts its history (form='edges'), and a live stream does not. Build it with form='scan' and "
    "load the same weights."
)
WAITS = "stream: the voxel head waits for the end of the recording. Build the network with duration=..."


def array_of(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().float().numpy(), order="C")


class Unknown(TypeError):
    """Raised for a part of a forward that a live program does not have."""

    def __init__(self, part: str) -> None:
        super().__init__(f"{part} is not known to the live program")


@dataclass(frozen=True)
class GeometryValue:
    """The first argument of a forward."""


@dataclass(frozen=True)
class MemoryValue:
    """The second argument of a forward."""


@dataclass(frozen=True)
class EventsValue:
    """`geometry[name]`, or its pixels or polarities."""

    stream: EventStream
    part: str = ""


@dataclass(frozen=True)
class PixelIndex:
    """x columns + y rows + constant, for the pixels of a stream."""

    stream: EventStream
    columns: int
    rows: int
    constant: int = 0


@dataclass(frozen=True)
class CauseIndex:
    """For every event of the last stream of the chain, the row of the event at its beginning that caused it."""

    chain: tuple[str, ...]


VALUES = (Row, EventsValue, PixelIndex, CauseIndex, GeometryValue, MemoryValue)


def describe(x: Any) -> str:
    kind = type(x).__name__.removesuffix("Value").lower()
    return (
        f"the value {x.name}" if isinstance(x, Row) else f"{kind} {x!r}" if isinstance(x, int | float | str) else kind
    )


class RowBuilder:
    """Collects the rows of a program. A new row is called `name`, after the layer or function that is read."""

    def __init__(self, streams: dict[str, EventStream]) -> None:
        self.streams = streams
        self.rows: dict[str, Row] = {}
        self.durations: set[int] = set()
        self.name = ""

    def add(
        self, name: str, operation: str, stream: str | None, inputs: tuple[Row, ...], shape: tuple[int, ...],
        settings: dict[str, Any] | None = None, state: int = 0, **constants: Any,
    ) -> Row:  # fmt: skip
        """Add a row. A name that another row has gets a number. `state`: bytes of its memory."""
        free, number = name, 1
        while free in self.rows:
            number += 1
            free = f"{name}#{number}"
        names = tuple(row.name for row in inputs)
        row = Row(free, operation, stream, names, tuple(map(int, shape)), settings or {}, constants, state)
        self.rows[free] = row
        return row

    def value(self, x: Any) -> Row:
        """The value as a row; other values are refused."""
        if not isinstance(x, Row):
            raise Unknown(f"{self.name} with {describe(x)}")
        return x

    def of(self, x: Any, stream: Any) -> Row:
        """The features as a row of a stream; rows of other streams are refused."""
        x = self.value(x)
        if x.stream != str(stream):
            raise ValueError(
                f"stream: {self.name} is a layer of {stream}, its features are of {x.stream}. Pass those of {stream}."
            )
        return x

    def channels(self, x: Any, channels: int) -> Row:
        """The features as a row with this number of channels."""
        x = self.value(x)
        if x.channels != channels:
            raise ValueError(
                f"stream: {self.name} needs {channels} channels, its input has {x.channels}. Change one of them."
            )
        return x

    def same(self, x: Any, operation: str, settings: dict | None = None, **constants: Any) -> Row:
        """Add a row of the same shape."""
        x = self.value(x)
        return self.add(self.name, operation, x.stream, (x,), x.shape, settings, **constants)

    def joined(self, operation: str, rows: tuple[Row, ...], shape: tuple[int, ...], **settings: Any) -> Row:
        """Add a row with several inputs of one stream."""
        streams = {row.stream for row in rows}
        if len(streams) > 1:
            raise Unknown(f"{self.name} ({operation}) of different streams ({', '.join(map(str, streams))})")
        return self.add(self.name, operation, rows[0].stream, rows, shape, settings)

    def remembers(self, memory: Any) -> None:
        """Refuse a call of a layer with a memory that does not pass the memory."""
        if not isinstance(memory, MemoryValue):
            raise Unknown(f"{self.name} without the memory, layer(..., geometry, memory),")
