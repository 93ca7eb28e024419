"""What a forward holds while it is read: rows in place of tensors, parts of the geometry, and what makes new rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from gridless.live.rows import Row, Stream

CUT = (
    "stream: this network cuts its history (form='edges'), which a live stream does not: build it with form='scan' and "
    "load the same weights"
)
WAITS = "stream: the voxel head waits for the end of the recording: build the network with duration=..."


def array_of(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().float().numpy(), order="C")


class Unknown(TypeError):
    """Something that a live program does not have."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not known to the live program")


@dataclass(frozen=True)
class GeometryValue:
    """The first argument of a forward."""


@dataclass(frozen=True)
class MemoryValue:
    """The second argument of a forward."""


@dataclass(frozen=True)
class EventsValue:
    """`geometry[name]`, or its pixels or polarities."""

    stream: Stream
    part: str = ""


@dataclass(frozen=True)
class PixelIndex:
    """x columns + y rows + constant, of the pixels of a stream."""

    stream: Stream
    columns: int
    rows: int
    constant: int = 0


@dataclass(frozen=True)
class CauseIndex:
    """For every event of the last stream, the row of the event of `source` that fired the one that ... fired it."""

    chain: tuple[str, ...]


VALUES = (Row, EventsValue, PixelIndex, CauseIndex, GeometryValue, MemoryValue)


def describe(x: Any) -> str:
    kind = type(x).__name__.removesuffix("Value").lower()
    return (
        f"the value {x.name}" if isinstance(x, Row) else f"{kind} {x!r}" if isinstance(x, int | float | str) else kind
    )


class RowBuilder:
    """The rows of a program while it is read. `name` is that of what is read now; rows get it."""

    def __init__(self, streams: dict[str, Stream]) -> None:
        self.streams = streams
        self.rows: dict[str, Row] = {}
        self.durations: set[int] = set()
        self.name = ""

    def add(
        self, name: str, operation: str, stream: str | None, inputs: tuple[Row, ...], shape: tuple[int, ...],
        settings: dict[str, Any] | None = None, state: int = 0, **constants: Any,
    ) -> Row:  # fmt: skip
        """A new row; a number follows a name that another row has. `state`: the bytes that it remembers."""
        free, number = name, 1
        while free in self.rows:
            number += 1
            free = f"{name}#{number}"
        names = tuple(row.name for row in inputs)
        row = Row(free, operation, stream, names, tuple(map(int, shape)), settings or {}, constants, state)
        self.rows[free] = row
        return row

    def value(self, x: Any, what: str = "") -> Row:
        """A row, or it is refused."""
        if not isinstance(x, Row):
            raise Unknown(f"{self.name} with {what or describe(x)}")
        return x

    def of(self, x: Any, stream: Any) -> Row:
        """The features of a layer that belongs to a stream."""
        x = self.value(x)
        if x.stream != str(stream):
            raise ValueError(f"stream: {self.name} is a layer of {stream}, but is given features of {x.stream}")
        return x

    def channels(self, x: Any, channels: int) -> Row:
        """The features of a layer with weights for so many channels."""
        x = self.value(x)
        if x.channels != channels:
            raise ValueError(f"stream: {self.name} has weights for {channels} channels, but is given {x.channels}")
        return x

    def same(self, x: Any, operation: str, settings: dict | None = None, **constants: Any) -> Row:
        """A row of the same shape."""
        x = self.value(x)
        return self.add(self.name, operation, x.stream, (x,), x.shape, settings, **constants)

    def joined(self, operation: str, rows: tuple[Row, ...], shape: tuple[int, ...], **settings: Any) -> Row:
        """A row of several, which belong to one stream."""
        streams = {row.stream for row in rows}
        if len(streams) > 1:
            raise Unknown(f"{self.name} ({operation}) of different streams ({', '.join(map(str, streams))})")
        return self.add(self.name, operation, rows[0].stream, rows, shape, settings)

    def remembers(self, memory: Any) -> None:
        """Refuse a layer with a memory that is called without it."""
        if not isinstance(memory, MemoryValue):
            raise Unknown(f"{self.name} is called without the memory: call it as layer(..., geometry, memory). This")
