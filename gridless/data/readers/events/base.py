"""Shared by the readers of event files: the bytes, the error, the header lines, the columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from gridless.data.errors import FormatError
from gridless.data.limits import Limits


@dataclass(frozen=True)
class File:
    """A file, brought into memory when its bytes are first asked for."""

    path: Path
    limits: Limits
    stream: int | None = None
    sensor: tuple[int, int] | None = None  # as the caller says
    cut: bool = False  # whether what is not whole at its end is left out
    topic: str | None = None  # of a bag

    @cached_property
    def head(self) -> bytes:
        if self.path.is_dir():
            return b""
        with self.path.open("rb") as file:
            return file.read(4096)

    @cached_property
    def data(self) -> np.ndarray:
        """(bytes,) uint8"""
        return np.fromfile(self.path, np.uint8)

    def __len__(self) -> int:
        return self.path.stat().st_size if "data" not in self.__dict__ else len(self.data)

    def bytes(self, start: int, end: int) -> bytes:
        return self.data[start:end].tobytes()

    def error(self, message: str, offset: int | None = None) -> FormatError:
        return FormatError(self.path, message, offset)

    def truncated(self, message: str, offset: int) -> None:
        """The file ends within something, which is refused unless it is to be left out."""
        if not self.cut:
            raise self.error(f"truncated: {message}. Pass repair='cut' to keep the events before it.", offset)

    def records(self, start: int, dtype: np.dtype | str, what: str) -> np.ndarray:
        """Everything from byte `start` on, as an array of `dtype`; refuses half a record, or leaves it out."""
        dtype = np.dtype(dtype)
        over = (len(self) - start) % dtype.itemsize
        if over:
            self.truncated(f"the last {over} bytes are not a whole {what} of {dtype.itemsize} bytes", len(self) - over)
        return self.data[start : len(self) - over].view(dtype)

    def lines(self, mark: bytes, last: bytes | None = None) -> tuple[list[str], int]:
        """The header lines, each of which begins with `mark`, and the byte where the data begins.

        A line with control characters is data that happens to begin like a header; `last` ends the header for sure.
        """
        lines, start = [], 0
        head = self.bytes(0, min(len(self), 1 << 20))
        while head[start : start + 1] == mark:
            end = head.find(b"\n", start)
            text = head[start : end if end >= 0 else len(head)].rstrip(b"\r")
            if any(c < 32 and c != 9 for c in text):
                break
            if end < 0:
                raise self.error("the header has no end", start)
            lines.append(text[len(mark) :].decode("latin-1").strip())
            start = end + 1
            if last is not None and text.startswith(last):
                break
        return lines, start


@dataclass
class Recording:
    """The result of a reader: the columns of the events, in file order, and the sensor if the file says.

    `cameras` are the sensors to choose from when it does not: the first that holds every event. `locate(row)` is the
    byte where an event is stored, where that can be told. `rows` are what else the file has for each event.
    """

    pixel: np.ndarray  # (S, 2) int32
    time: np.ndarray  # (S,) int64, microseconds
    polarity: np.ndarray  # (S,) bool
    sensor: tuple[int, int] | None = None
    cameras: tuple[tuple[int, int], ...] = ()
    locate: Callable[[int], int] | None = field(default=None, repr=False)
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    def guess_sensor(self) -> tuple[int, int]:
        """The smallest known camera that holds all events, or else the smallest rectangle."""
        if not len(self.time):
            return self.cameras[0] if self.cameras else (1, 1)
        # A sensor has fewer than 2**31 columns and rows; an event beyond them is outside.
        width, height = (min(int(v) + 1, 2**31 - 1) for v in (self.pixel[:, 0].max(), self.pixel[:, 1].max()))
        fits = [c for c in self.cameras if width <= c[0] and height <= c[1]]
        return fits[0] if fits else (max(width, 1), max(height, 1))


def fixed(first: int, stride: int, rows: np.ndarray | None = None) -> Callable[[int], int]:
    """`locate` for events of equal size; `rows` are those of the file that were kept, if not all were."""
    return lambda row: first + stride * int(row if rows is None else rows[row])


def columns(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(S, 2) int32 from two integer arrays."""
    pixel = np.empty((len(x), 2), np.int32)
    pixel[:, 0], pixel[:, 1] = x, y
    return pixel


def shrink(array: np.ndarray, length: int) -> np.ndarray:
    """The first rows of an array that owns its memory, and the rest of the memory given back."""
    array.resize((length, *array.shape[1:]), refcheck=False)
    return array
