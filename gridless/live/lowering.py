"""Lowering: a program as the table, constants, memory and buffers that the compiled loop runs on."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gridless.geometry.lif import Rule
from gridless.live.operation import Sink
from gridless.live.operations import OPERATIONS, number_of, of
from gridless.live.program import EventStream, Program, Row
from gridless.live.table import HEAD, NUMBER, ROW, ROW_FIELDS, ROWS, S_COUNT, STREAM

# Bytes of a cache line.
LINE = 64

# Input events of a chunk, and room for the events of other streams. The room is larger than needed for one event, so
# that the large weights of the last levels are read once for a chunk.
CAPACITY = 4096
FIRED = 1024
FEWEST = 64

# Events of a stream that one event of the input may fire.
MOST = 2**16


def lines(size: int) -> np.ndarray:
    """An array of zero bytes that begins with a cache line."""
    room = np.zeros(size + LINE, np.uint8)
    return room[-room.ctypes.data % LINE :][:size]


class Place(NamedTuple):
    """The begin of a part: its section, and the offset there."""

    section: str
    at: int


class Flat:
    """The three arrays of the loop while they grow, each in sections."""

    ARRAYS = {
        "i": (np.int64, ("table", "whole", "clock", "event")),
        "f": (np.float32, ("weight", "trace", "work")),
        "d": (np.float64, ("sum",)),
    }
    TYPES = {section: kind for kind, sections in ARRAYS.values() for section in sections}

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {section: [] for section in self.TYPES}
        self.ends = dict.fromkeys(self.parts, 0)

    def add(self, section: str, values: Any) -> Place:
        part = np.asarray(values, self.TYPES[section]).reshape(-1)
        # Parts begin at cache lines and end with a spare one, because the loop reads eights.
        part = np.pad(part, (0, 16 - len(part) % 16))
        self.parts[section].append(part)
        self.ends[section] += len(part)
        return Place(section, self.ends[section] - len(part))

    def room(self, section: str, size: int) -> Place:
        return self.add(section, np.zeros(size, self.TYPES[section]))

    def begins(self) -> dict[str, int]:
        """Offset of each section in its array."""
        begins = {}
        for _, sections in self.ARRAYS.values():
            at = 0
            for section in sections:
                begins[section], at = at, at + self.ends[section]
        return begins

    def arrays(self) -> list[np.ndarray]:
        """The three arrays, each at the begin of a cache line."""
        arrays = []
        for kind, sections in self.ARRAYS.values():
            size = sum(self.ends[section] for section in sections) * np.dtype(kind).itemsize
            array = lines(size).view(kind)
            np.concatenate([np.empty(0, kind), *(p for s in sections for p in self.parts[s])], out=array)
            arrays.append(array)
        return arrays


class Buffers:
    """Buffers of values, which are reused when they are free."""

    def __init__(self, flat: Flat) -> None:
        self.flat, self.free, self.all = flat, [], []

    def take(self, size: int) -> tuple[Place, int]:
        fitting = [buffer for buffer in self.free if buffer[1] >= size]
        if fitting:
            best = min(fitting, key=lambda buffer: buffer[1])
            self.free.remove(best)
            return best
        self.all.append((self.flat.room("work", size), size))
        return self.all[-1]

    def give(self, buffer: tuple[Place, int]) -> None:
        self.free.append(buffer)


class Lowered:
    """The arrays `i`, `f` and `d` of a program, and the places of its parts.

    `watched`: rows whose values must stay until Python has read them. `lane`: floats of a vector of the CPU. `panel`:
    vectors of a panel of weights.
    """

    def __init__(self, program: Program, watched: Iterable[str], lane: int, panel: int) -> None:
        self.program, self.lane, self.panel, self.flat = program, lane, panel * lane, Flat()
        self.unit = max(8, lane)
        self.watched = {*watched, *([self._answered] if program.answers else [])}
        self.streams: dict[str, dict[str, Any]] = {}
        for stream in program.streams:
            self.streams[stream.name] = self._stream(stream)
        # Memory that does not begin as 0: times before the first event are -1, values are constants.
        self.minus_one: list[tuple[Place, int]] = []
        self.before: list[tuple[Place, np.ndarray]] = []
        # Lists in `i` with places among their numbers.
        self.lists_of_places: list[tuple[Place, list[Any]]] = []
        self.values: dict[str, dict[str, Any]] = {}
        self.buffers = Buffers(self.flat)
        self.gathered, self.listed = 0, ROWS
        entries: dict[str | None, list[dict[str, Any]]] = {name: [] for name in (*self.streams, None)}
        for name in self.streams:
            self._rows(name, entries)
        self.buffers = Buffers(self.flat)
        self._rows(None, entries)
        self._finish(entries)

    @property
    def _answered(self) -> str:
        """The row whose values are the predictions of the events of a stream."""
        row = self.program[self.program.output]
        return row.inputs[0] if of(row).is_newest else row.name

    # Methods for operations.

    def pitch(self, channels: int) -> int:
        """Floats from one row of a value to the next."""
        return -(-channels // self.unit) * self.unit

    def panels(self, matrix: np.ndarray) -> np.ndarray:
        """A matrix (steps, columns) in the order of the loop's products: panels of columns, each with all steps."""
        columns = range(0, matrix.shape[1], self.panel)
        return np.concatenate([matrix[:, at : at + self.panel].reshape(-1) for at in columns])

    @staticmethod
    def fill(array: np.ndarray, *shape: int) -> np.ndarray:
        """The array padded with zeros to `shape`."""
        return np.pad(array, [(0, big - small) for big, small in zip(shape, array.shape, strict=True)])

    def clock(self, size: int) -> Place:
        """Room for times, -1 before the first event."""
        place = self.flat.room("clock", size)
        self.minus_one.append((place, size))
        return place

    def gather(self, steps: int, lists: int = 1) -> None:
        """Reserve room for a block of rows with `steps` floats each, in a number of lists."""
        self.gathered, self.listed = max(self.gathered, ROWS * steps), max(self.listed, lists * (ROWS + 1))

    def later(self, values: list[Any]) -> Place:
        """Add whole numbers, some of which are places that are known at the end."""
        place = self.flat.room("whole", len(values))
        self.lists_of_places.append((place, values))
        return place

    # Streams.

    def _stream(self, stream: EventStream) -> dict[str, Any]:
        width, height = stream.sensor
        fields: dict[str, Any] = dict.fromkeys(STREAM, 0) | {
            "width": width,
            "height": height,
            "source": -1,
            "bound": 1,
            "depth": 0,
        }
        if stream.source is None:
            fields["capacity"] = CAPACITY
        else:
            above = self.streams[stream.source]
            fields["source"] = list(self.streams).index(stream.source)
            rule = Rule.of((above["width"], above["height"]), **stream.lif)
            fields["bound"] = above["bound"] * max(rule.most, 1)
            if fields["bound"] > MOST:
                raise ValueError(
                    f"stream: one event may fire {fields['bound']:,} events of {stream.name}, more than {MOST:,}. "
                    "Use gl.streaming.Session(model), or larger strides."
                )
            fields["capacity"] = fields["bound"] + max(FIRED >> above["depth"], FEWEST)
            fields["depth"] = above["depth"] + 1
            fields |= {"bits": rule.bits, "coarse_size": len(rule.coarse)}
            whole = {"low_x": rule.low[0], "high_x": rule.high[0], "low_y": rule.low[1], "high_y": rule.high[1]}
            floats = {"share": rule.share, "coarse": rule.coarse, "fine": rule.fine}
            floats["limits"] = np.array([rule.threshold, rule.reset])
            fields |= {key: self.flat.add("whole", value) for key, value in whole.items()}
            fields |= {key: self.flat.add("weight", value) for key, value in floats.items()}
            fields["charged"] = self.flat.room("clock", stream.pixels)
            fields["potential"] = self.flat.room("trace", stream.pixels)
        fields["event"] = self.flat.room("event", 4 * fields["capacity"])
        return fields

    # Rows.

    def _rows(self, stream: str | None, entries: dict[str | None, list[dict[str, Any]]]) -> None:
        """Lower the rows of a stream, or those without one, with buffers for their values."""
        rows = [row for row in self.program.rows if row.stream == stream]
        uses = {row.name: [other for other in self.program.rows if row.name in other.inputs] for row in rows}
        last = {name: n for n, row in enumerate(rows) for name in row.inputs}
        local: dict[str, tuple[Place, int]] = {}
        for n, row in enumerate(rows):
            operation, pitch = of(row), self.pitch(row.channels)
            is_kept = stream is not None and (
                row.name in self.watched or any(s.stream not in (stream, None) for s in uses[row.name])
            )
            value = {"c": row.channels, "pitch": pitch, "cells": row.cells, "kept": int(is_kept)}
            if (skipped := operation.view(self, row)) is not None:
                # The input must stay in its place.
                self.values[row.name] = value | self._part(self.values[row.inputs[0]], *skipped)
                last |= dict.fromkeys(row.inputs, len(rows))
                continue
            if operation.in_events and all(of(user).reads_events for user in uses[row.name]):
                self.values[row.name] = value | {"value": -1, "mask": 0}
                self._sinks(row, uses[row.name], entries)
                continue
            ending = [name for name in set(row.inputs) if name in local and last[name] == n]
            over = [name for name in ending if operation.over_input and self.values[name]["pitch"] == pitch]
            if is_kept:
                place = self.flat.room("work", self.streams[str(stream)]["capacity"] * pitch)
            else:
                if over:
                    local[row.name] = local.pop(over[0])
                    ending.remove(over[0])
                else:
                    local[row.name] = self.buffers.take((ROWS if stream else row.cells) * pitch)
                place = local[row.name][0]
            self.values[row.name] = value | {"value": place, "mask": self._mask(row)}
            inputs = () if operation.is_sink else row.inputs[:2]
            entry = self.entry(row, *inputs) | self.values.get(f"{row.name} memory", {})
            entries[stream] += operation.lower(self, row, entry)
            for name in ending:
                self.buffers.give(local.pop(name))
            self._sinks(row, uses[row.name], entries)
        for buffer in local.values():
            if stream:
                self.buffers.give(buffer)

    @staticmethod
    def _part(value: dict[str, Any], floats: int, cells: int) -> dict[str, Place]:
        """Places of a part of a value, behind a number of floats and cells."""
        skipped = {"value": floats, "mask": cells}
        return {key: Place(value[key].section, value[key].at + skip) for key, skip in skipped.items()}

    def _mask(self, row: Row) -> Any:
        """Place of the mask of cells that differ from an empty window: that of the inputs, if they share one."""
        if len(row.shape) == 1:
            return 0
        operation = of(row)
        masks = {self.values[name]["mask"] for name in row.inputs} if not operation.is_sink else ()
        return min(masks) if len(masks) == 1 and not operation.own_mask else self.flat.room("event", row.cells)

    def _sinks(self, row: Row, uses: list[Row], entries: dict[str | None, list[dict[str, Any]]]) -> None:
        """Add the entries of sinks right behind their input: they take it in now, and are computed when asked for."""
        for user in uses if row.stream else ():
            operation = of(user)
            if isinstance(operation, Sink):
                memory = self.values[f"{user.name} memory"] = operation.remember(self, user)
                entries[row.stream].append(self.entry(user, row.name) | memory)

    def entry(self, row: Row, a: str | None = None, b: str | None = None) -> dict[str, Any]:
        """The common fields of a row with up to two inputs."""
        entry: dict[str, Any] = dict.fromkeys((*ROW, *of(row).fields), 0) | {"op": number_of(row)}
        entry |= self.values.get(row.name, {"c": row.channels, "pitch": self.pitch(row.channels), "cells": row.cells})
        if a is not None:
            value = self.values[a]
            entry |= {"a": value["value"], "a_pitch": value["pitch"], "a_kept": value["kept"], "a_mask": value["mask"]}
        if b is not None:
            value = self.values[b]
            entry |= {"b": value["value"], "b_kept": value["kept"], "b_mask": value["mask"]}
        return entry

    # The arrays.

    def _finish(self, entries: dict[str | None, list[dict[str, Any]]]) -> None:
        gathered, listed = self.flat.room("work", self.gathered), self.flat.room("event", self.listed)
        order = [*self.streams, None]
        begin = len(HEAD) + len(STREAM) * len(self.streams)
        for name in order:
            if name is not None:
                self.streams[name] |= {"rows": begin, "row_count": len(entries[name])}
            else:
                self.whole = begin
            begin += ROW_FIELDS * len(entries[name])
        self.flat.room("table", begin)
        begins = self.flat.begins()

        def number(value: Any) -> int:
            return begins[value.section] + value.at if isinstance(value, Place) else int(value)

        self.i, self.f, self.d = self.flat.arrays()
        head = dict.fromkeys(HEAD, 0) | {"streams": len(self.streams), "duration": self.program.duration or 0}
        head |= {"whole": self.whole, "wholes": len(entries[None]), "lane": self.lane}
        head |= {"floats": self.f.ctypes.data, "float_count": len(self.f)}
        head |= {"doubles": self.d.ctypes.data, "double_count": len(self.d)}
        table = list(head.values())
        for fields in self.streams.values():
            fields = {key: number(fields[key]) for key in STREAM}
            fields["source"] = -1 if fields["source"] < 0 else self.at(fields["source"])
            table += fields.values()
        for name in order:
            for entry in entries[name]:
                entry["row"], entry["list"] = gathered, listed
                fields = [number(value) for value in entry.values()]
                table += fields + [0] * (ROW_FIELDS - len(fields))
        self.i[: len(table)] = table
        for place, values in self.lists_of_places:
            self.i[number(place) :][: len(values)] = [number(value) for value in values]
        self.entries = {name: entries[name] for name in order}
        self.number = number
        self.minus_ones = [slice(number(place), number(place) + size) for place, size in self.minus_one]
        sections = {name: slice(begins[name], begins[name] + self.flat.ends[name]) for name in Flat.TYPES}
        self.state = {"trace": self.f[sections["trace"]], "clock": self.i[sections["clock"]], "sum": self.d}

    def at(self, stream: int) -> int:
        """Index in `i` at which the fields of a stream begin."""
        return len(HEAD) + stream * len(STREAM)

    def place(self, row: str) -> tuple[int, int, int]:
        """Index of a row's value in `f`, its pitch and its channels."""
        value = self.values[row]
        return self.number(value["value"]), value["pitch"], value["c"]

    def rows(self, row: str) -> tuple[np.ndarray, np.ndarray]:
        """The events (x, y, t, cause) in the buffer of a row's stream, and the values (S, C) of the row."""
        stream = self.streams[self.program[row].stream]  # type: ignore[index]
        at, fields = self.number(stream["event"]), self.at(list(self.streams.values()).index(stream))
        count, (place, pitch, c) = int(self.i[fields + S_COUNT]), self.place(row)
        events = self.i[at : at + 4 * count].reshape(count, 4).copy()
        return events, self.f[place : place + pitch * count].reshape(count, pitch)[:, :c].copy()

    def answer(self, run: Any) -> None:
        """Compute all rows without a stream, by `work.answer`."""
        run(self.i, self.f, self.d)

    def settle(self) -> None:
        """Keep the answer of an empty window: from now on grids compute only cells that differ from it."""
        operations = list(OPERATIONS.values())
        for n, entry in enumerate(self.entries[None]):
            if operations[entry["op"]].settles:
                self.i[self.whole + n * ROW_FIELDS + NUMBER] = 0

    @property
    def memory_bytes(self) -> int:
        sections = ("clock", "event", "trace", "work", "sum")
        return sum(self.flat.ends[name] * np.dtype(Flat.TYPES[name]).itemsize for name in sections)

    def clear(self) -> None:
        """Reset the memory to the state before the first event."""
        self.state["trace"][:] = 0
        self.state["clock"][:] = 0
        self.d[:] = 0
        for place, values in self.before:
            self.f[self.number(place) :][: len(values)] = values
        for part in self.minus_ones:
            self.i[part] = -1
