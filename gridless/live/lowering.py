"""Lowering: a program as the table, constants, memory and buffers that the compiled loop runs on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from gridless.geometry.lif import Rule
from gridless.geometry.taps import offsets
from gridless.live.program import Program, Row, Stream
from gridless.ops.event_conv.reference import CUTOFF

from gridless.live.table import (  # isort: skip
    CONVOLVE_CELLS, EACH, EIGHTS, HEAD, LONGEST, NUMBER, OPERATIONS, ROW, ROWS, SIXTEENS, STREAM, S_COUNT,
)  # fmt: skip

# Bytes of a cache line.
LINE = 64

# Input events that go through the network together, and events of other streams that there is room for: more than the
# input fires, so that the large weights of the last levels are read once for a chunk.
CAPACITY = 4096
FIRED = 1024
FEWEST = 64

# Taps with fewer floats than this are multiplied together.
SHORT = 16

# One event of the input must not fire more than this.
MOST = 2**16


def lines(size: int) -> np.ndarray:
    """So many bytes, all zero, from the beginning of a cache line on."""
    room = np.zeros(size + LINE, np.uint8)
    return room[-room.ctypes.data % LINE :][:size]


class Place(NamedTuple):
    """Where a part begins: in which section, and how far from its beginning."""

    section: str
    at: int


class Flat:
    """The three arrays of the loop, while they grow: sections of each, one behind the other."""

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
        # Parts begin at whole cache lines, and end with a spare one, because eights are read.
        part = np.pad(part, (0, 16 - len(part) % 16))
        self.parts[section].append(part)
        self.ends[section] += len(part)
        return Place(section, self.ends[section] - len(part))

    def room(self, section: str, size: int) -> Place:
        return self.add(section, np.zeros(size, self.TYPES[section]))

    def begins(self) -> dict[str, int]:
        """Where each section begins in its array."""
        found = {}
        for _, sections in self.ARRAYS.values():
            at = 0
            for section in sections:
                found[section], at = at, at + self.ends[section]
        return found

    def arrays(self) -> list[np.ndarray]:
        """The arrays, beginning at a cache line."""
        made = []
        for kind, sections in self.ARRAYS.values():
            size = sum(self.ends[section] for section in sections) * np.dtype(kind).itemsize
            array = lines(size).view(kind)
            np.concatenate([np.empty(0, kind), *(p for s in sections for p in self.parts[s])], out=array)
            made.append(array)
        return made


class Buffers:
    """Buffers of values that are used again when they are free."""

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
    """The arrays `i`, `f` and `d` of a program, and where things are in them.

    `watched` are rows whose values must stay until Python has seen them; vectors of the CPU have `lane` floats, and
    panels of weights `panel` vectors.
    """

    def __init__(self, program: Program, watched: Iterable[str], lane: int, panel: int) -> None:
        self.program, self.lane, self.panel, self.flat = program, lane, panel * lane, Flat()
        self.unit = max(8, lane)
        self.watched = {*watched, *([self._answered] if program.answers else [])}
        self.streams: dict[str, dict[str, Any]] = {}
        for stream in program.streams:
            self.streams[stream.name] = self._stream(stream)
        # What does not begin as 0: times of nothing, and values before the first event.
        self.minus_one: list[tuple[Place, int]] = []
        self.before: list[tuple[Place, np.ndarray]] = []
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
        return row.inputs[0] if row.operation == "last" else row.name

    def _pitch(self, channels: int) -> int:
        return -(-channels // self.unit) * self.unit

    # Streams.

    def _stream(self, stream: Stream) -> dict[str, Any]:
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
                    f"stream: one event may fire {fields['bound']:,} events of {stream.name} at once, more than the "
                    f"{MOST:,} that the engine has room for: use gl.streaming.Session(model), or larger strides"
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
        """The rows of a stream, or those without one, with buffers for their values."""
        program = self.program
        rows = [row for row in program.rows if row.stream == stream]
        uses = {row.name: [other for other in program.rows if row.name in other.inputs] for row in rows}
        last = {}
        for n, row in enumerate(rows):
            for name in row.inputs:
                last[name] = n
        local: dict[str, tuple[Place, int]] = {}
        for n, row in enumerate(rows):
            kept = stream is not None and (
                row.name in self.watched or any(s.stream not in (stream, None) for s in uses[row.name])
            )
            pitch = self._pitch(row.channels)
            ending = [name for name in set(row.inputs) if name in local and last[name] == n]
            over = row.operation in _IN_PLACE and [name for name in ending if self.values[name]["pitch"] == pitch]
            value = {"c": row.channels, "pitch": pitch, "cells": row.cells, "kept": int(kept)}
            if row.operation == "frame":
                source = self.values[row.inputs[0]]
                place = source["value"]
                skip = row.settings["index"] * math.prod(row.shape[:-1])
                self.values[row.name] = value | {
                    "value": Place(place.section, place.at + skip * pitch),
                    "mask": Place(source["mask"].section, source["mask"].at + skip),
                }
                # The grid itself stays.
                for name in row.inputs:
                    last[name] = len(rows)
                continue
            if row.operation == "polarity" and all(r.operation in _OF_EVENTS for r in uses[row.name]):
                # It is read from the events.
                self.values[row.name] = value | {"value": -1, "mask": 0}
                self._sinks(row, uses[row.name], entries)
                continue
            if kept:
                size = self.streams[row.stream]["capacity"]  # type: ignore[index]
                place = self.flat.room("work", size * pitch)
            elif over:
                local[row.name] = local.pop(over[0])
                ending.remove(over[0])
                place = local[row.name][0]
            else:
                local[row.name] = self.buffers.take((ROWS if stream else row.cells) * pitch)
                place = local[row.name][0]
            self.values[row.name] = value | {"value": place, "mask": 0}
            if len(row.shape) > 1:
                masks = [self.values[name]["mask"] for name in row.inputs] if row.operation not in _SINKS else []
                one = len(set(masks)) == 1 and row.operation not in ("convolve_cells", "magnify")
                self.values[row.name]["mask"] = masks[0] if one else self.flat.room("event", row.cells)
            made = self._row(row)
            entries[stream] += made
            for name in ending:
                self.buffers.give(local.pop(name))
            self._sinks(row, uses[row.name], entries)
        for buffer in local.values():
            if stream:
                self.buffers.give(buffer)

    def _sinks(self, row: Row, uses: list[Row], entries: dict[str | None, list[dict[str, Any]]]) -> None:
        """Values without a stream take a row in as soon as it is there, and are computed when they are asked for."""
        for sink in uses if row.stream else ():
            if sink.stream is None:
                self._sink(sink)
                entries[row.stream].append(self._entry(sink, row.name) | self.values[f"{sink.name} memory"])

    def _entry(self, row: Row, a: str | None = None, b: str | None = None) -> dict[str, Any]:
        """The fields of a row that all operations have."""
        name = _NAMES.get(row.operation, row.operation)
        name += f"_{row.settings['kind']}" if row.operation in ("pool", "reduce") else ""
        entry: dict[str, Any] = dict.fromkeys(ROW, 0) | {"op": OPERATIONS.index(name), "number": 0}
        entry |= self.values.get(row.name, {"c": row.channels, "pitch": self._pitch(row.channels), "cells": row.cells})
        if a is not None:
            value = self.values[a]
            entry |= {"a": value["value"], "a_pitch": value["pitch"], "a_kept": value["kept"], "a_mask": value["mask"]}
        if b is not None:
            value = self.values[b]
            entry |= {"b": value["value"], "b_kept": value["kept"], "b_mask": value["mask"]}
        return entry

    def _row(self, row: Row) -> list[dict[str, Any]]:
        """The entries of the table for a row."""
        inputs = row.inputs if row.operation not in _SINKS else ()
        entry = self._entry(row, *inputs[:2])
        add, pitch, constants = self.flat.add, entry["pitch"], row.constants
        if row.operation == "concatenate":
            at, entries = 0, []
            for name in inputs:
                end, made = self.values[name]["c"], self._entry(row, name)
                # Cells that any of the inputs differs in.
                mask = made["mask"] if entries else made["a_mask"]
                entries.append(made | {"first": 0, "last": end, "number": at, "b_mask": mask})
                at += end
            return entries
        if row.operation == "slice":
            entry |= {"first": row.settings["begin"], "last": row.settings["end"]}
        elif row.operation == "convolve":
            entry |= self._convolve(row)
        elif row.operation == "dense":
            matrix = fill(constants["weight"], entry["a_pitch"], pitch)
            entry |= {"weight": add("weight", panels_of(matrix, self.panel))}
            entry |= {"shift": add("weight", fill(constants["bias"], pitch))}
        elif row.operation in ("affine", "layer_norm"):
            entry |= {key: add("weight", fill(constants[key], pitch)) for key in ("scale", "shift")}
            if row.operation == "layer_norm":
                entry["weight"] = add("weight", [row.settings["eps"]])
        elif row.operation == "leaky_relu":
            entry["weight"] = add("weight", [row.settings["slope"]])
        elif row.operation == "place":
            entry["weight"] = add("weight", fill(constants["table"], len(constants["table"]), pitch))
        elif row.operation == "mean":
            clock = self.flat.room("clock", 1)
            self.minus_one.append((clock, 1))
            entry |= {"rate": add("weight", constants["rate"]), "clock": clock, "factor": self.flat.room("work", 8)}
            entry["sum"] = self.flat.room("sum", row.channels + 1)
        elif row.operation in _SINKS:
            entry |= self.values[f"{row.name} memory"]
        elif row.operation == "convolve_cells":
            entry |= self._cells(row)
        elif row.operation == "flatten":
            value = self.values[row.inputs[0]]
            entry |= {"steps": value["c"], "cells": value["cells"]}
        elif row.operation == "magnify":
            entry |= {"weight": add("weight", [row.settings["least"]]), "first": row.shape[2], "last": row.shape[1]}
        elif row.operation == "reduce":
            entry["cells"] = self.values[row.inputs[0]]["cells"]
        return [entry]

    def _sink(self, row: Row) -> None:
        """What a value without a stream remembers of the events that it takes in."""
        c, memory = row.channels, {}
        if row.operation == "last":
            memory["trace"] = self.flat.add("trace", fill(row.constants["before"], -(-c // 16) * 16))
            self.before.append((memory["trace"], row.constants["before"]))
        elif row.operation == "leaky_count":
            clock = self.flat.room("clock", row.cells)
            self.minus_one.append((clock, row.cells))
            memory = {"clock": clock, "sum": self.flat.room("sum", row.cells * c), "first": row.shape[2]}
            memory |= {"steps": row.settings["size"], "rate": self.flat.add("weight", row.constants["rate"])}
        else:
            memory = {"clock": self.flat.room("clock", row.cells), "sum": self.flat.room("sum", row.cells * c)}
            memory["number"] = row.settings.get("frames", 0)
        self.values[f"{row.name} memory"] = memory

    def _convolve(self, row: Row) -> dict[str, Any]:
        flat, settings = self.flat, row.settings
        stream, source = self.streams[row.stream], self.streams[settings["source"]]  # type: ignore[index]
        weight, rate = row.constants["weight"], row.constants["rate"]
        (taps, v, q, p), stride = weight.shape, settings["stride"]
        pitch = self._pitch(p)
        each = q < 8
        if each:
            # Decays and channels are one run of floats, each with a rate of its own. Those that fill it up get the rate
            # 1e30, so that they decay to nothing.
            size = -(-v * q // 8) * 8
            rates = np.pad(np.repeat(rate, q, 1), [(0, 0), (0, size - v * q)], constant_values=1e30)
            matrix = fill(weight.reshape(taps, v * q, p), taps, size, pitch)
        else:
            wide = -(-q // 8) * 8
            size, rates, matrix = v * wide, rate, fill(weight, taps, v, wide, pitch)
        # The taps that a pixel of each phase is of some target; slots of a pixel are in the order of taps.
        fed: dict[tuple[int, int], list[int]] = {(y, x): [] for y in range(stride) for x in range(stride)}
        table = []
        for u, (dx, dy) in enumerate(offsets(settings["kernel"])):
            phase = fed[dy % stride, dx % stride]
            # Beyond this age every decay of the tap is 0, by a margin for the rounding of their product.
            table += [dx, dy, len(phase), math.ceil(CUTOFF / max(rate[u].min(), CUTOFF / LONGEST) * 1.001)]
            phase.append(u)
        phases: list[Any] = []
        for own in fed.values():
            phases += [flat.add("weight", rates[own]), len(own)]
        width, height = source["width"], source["height"]
        columns, lines, at = [], [], 0
        for y in range(stride):
            counts = [len(fed[y, x % stride]) for x in range(width)]
            begins = np.concatenate([[0], np.cumsum(counts)])
            columns += [n for x in range(width) for n in (int(begins[x]), y * stride + x % stride)]
        totals = [sum(len(fed[y, x % stride]) for x in range(width)) for y in range(stride)]
        for y in range(height):
            lines += [at, y % stride * width]
            at += totals[y % stride]
        most = max(len(own) for own in fed.values()) * v
        clock = flat.room("clock", width * height)
        self.minus_one.append((clock, width * height))
        pattern: Any = -1
        if each and self.values[row.inputs[0]]["value"] == -1:
            tiled = [np.tile(np.eye(2, dtype=np.float32)[on], v) for on in range(2)]
            pattern = flat.add("weight", np.stack([fill(part, size) for part in tiled]))
        # Short slots are better multiplied together, though some of them are empty.
        lists = taps if size >= SHORT else 1
        parts = [panels_of(part, self.panel) for part in matrix.reshape(lists, -1, pitch)]
        self.gathered, self.listed = max(self.gathered, ROWS * taps * size), max(self.listed, lists * (ROWS + 1))
        return {
            "weight": flat.add("weight", np.concatenate(parts)), "lists": lists,
            "shift": flat.add("weight", fill(row.constants["bias"], pitch)),
            "trace": flat.room("trace", at * size), "clock": clock, "steps": q, "taps": taps, "decays": v, "size": size,
            "kind": EACH if each else SIXTEENS if size // v % 16 == 0 else EIGHTS, "stride": stride,
            "in_place": int(source is stream), "tap": flat.add("whole", table), "row_at": flat.add("whole", lines),
            "column_at": flat.add("whole", columns), "phase": [flat.room("whole", len(phases)), phases],
            "rate": flat.add("weight", rates), "factor": flat.room("work", max(most, size) + 8), "pattern": pattern,
        }  # fmt: skip

    def _cells(self, row: Row) -> dict[str, Any]:
        """A convolution over a grid: sizes of the input, kernel, stride, padding, columns and rows, room for cells."""
        flat, settings, pitch = self.flat, row.settings, self._pitch(row.channels)
        weight = row.constants["weight"]
        weight = fill(weight, len(weight), self._pitch(weight.shape[1]), pitch).reshape(-1, pitch)
        numbers = [*self.program[row.inputs[0]].shape[:3], *settings["kernel"], *settings["stride"]]
        numbers += [*settings["padding"], row.shape[2], row.shape[1]]
        self.gathered = max(self.gathered, ROWS * len(weight))
        return {
            "weight": flat.add("weight", panels_of(weight, self.panel)), "steps": len(weight),
            "shift": flat.add("weight", fill(row.constants["bias"], pitch)), "grid": flat.add("whole", numbers),
            "number": 1, "empty": flat.room("weight", row.cells * pitch),
        }  # fmt: skip

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
            begin += len(ROW) * len(entries[name])
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
                if entry["phase"]:
                    place, phases = entry["phase"]
                    entry["phase"] = place
                    self.i[number(place) : number(place) + len(phases)] = [number(value) for value in phases]
                entry["row"], entry["list"] = gathered, listed
                table += [number(entry[key]) for key in ROW]
        self.i[: len(table)] = table
        self.entries = {name: entries[name] for name in order}
        self.number = number
        self.minus_ones = [slice(number(place), number(place) + size) for place, size in self.minus_one]
        sections = {name: slice(begins[name], begins[name] + self.flat.ends[name]) for name in Flat.TYPES}
        self.state = {"trace": self.f[sections["trace"]], "clock": self.i[sections["clock"]], "sum": self.d}

    def at(self, stream: int) -> int:
        """Where the fields of a stream begin in `i`."""
        return len(HEAD) + stream * len(STREAM)

    def place(self, row: str) -> tuple[int, int, int]:
        """Where the value of a row is in `f`, its pitch and its channels."""
        value = self.values[row]
        return self.number(value["value"]), value["pitch"], value["c"]

    def rows(self, row: str) -> tuple[np.ndarray, np.ndarray]:
        """The events (x, y, t, cause) in the buffer of a row's stream, and the values (S, C) of the row."""
        stream = self.streams[self.program[row].stream]  # type: ignore[index]
        at, count = (
            self.number(stream["event"]),
            int(self.i[self.at(list(self.streams.values()).index(stream)) + S_COUNT]),
        )
        place, pitch, c = self.place(row)
        events = self.i[at : at + 4 * count].reshape(count, 4).copy()
        return events, self.f[place : place + pitch * count].reshape(count, pitch)[:, :c].copy()

    def answer(self, run: Any) -> None:
        """Compute all rows without a stream, by `work.answer`."""
        run(self.i, self.f, self.d)

    def settle(self) -> None:
        """After the answer before the first event: from now on grids compute what differs from it."""
        for n, entry in enumerate(self.entries[None]):
            if entry["op"] == CONVOLVE_CELLS:
                self.i[self.whole + n * len(ROW) + NUMBER] = 0

    @property
    def memory_bytes(self) -> int:
        sections = ("clock", "event", "trace", "work", "sum")
        return sum(self.flat.ends[name] * np.dtype(Flat.TYPES[name]).itemsize for name in sections)

    def clear(self) -> None:
        """The memory before the first event."""
        self.state["trace"][:] = 0
        self.state["clock"][:] = 0
        self.d[:] = 0
        for place, values in self.before:
            self.f[self.number(place) :][: len(values)] = values
        for part in self.minus_ones:
            self.i[part] = -1


_SINKS = ("voxel", "leaky_count", "last", "pool")
# What takes the polarity of events from the events themselves.
_OF_EVENTS = ("convolve", "leaky_count")
_IN_PLACE = ("affine", "add", "multiply", "relu", "abs", "leaky_relu", "elu", "sigmoid", "tanh", "silu", "gelu",
             "softplus", "log1p", "exp", "layer_norm", "softmax", "log_softmax")  # fmt: skip
# What rows are called in the table.
_NAMES = {"concatenate": "copy", "slice": "copy"}


def fill(array: np.ndarray, *shape: int) -> np.ndarray:
    """Grown to `shape` with zeros."""
    return np.pad(array, [(0, big - small) for big, small in zip(shape, array.shape, strict=True)])


def panels_of(matrix: np.ndarray, wide: int) -> np.ndarray:
    """A matrix (steps, columns) as the loop's products read it: in panels of `wide` columns, each with all steps."""
    columns = range(0, matrix.shape[1], wide)
    return np.concatenate([matrix[:, at : at + wide].reshape(-1) for at in columns])
