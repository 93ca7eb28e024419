"""The fast path: the program of a trained event network in one compiled loop, event by event, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.live.agreement import compare
from gridless.live.lowering import Lowered
from gridless.live.packets import CHECKED, Prediction, ProgramStream, alone
from gridless.live.program import Program, Row

from gridless.live.table import (  # isort: skip
    ANSWERS, CHUNK, DONE, FINISHED, MORE, NEW, REFUSED, S_COUNT, S_EVENT, SEEN, START, TIME, TRUSTED, WATCH, WINDOW,
)  # fmt: skip
from gridless.structures import Events

# Longest structured array, in events, that is read by its bytes; longer ones are converted by `Events.of`.
SHORT = 256


class Engine(ProgramStream):
    """A live stream through a compiled loop: float32, one thread, no allocation per event.

    Equal to the network's scan form at every event, within the rounding of float32. `print(engine)` shows its program:
    streams, and the rows of work that each of their events causes, with multiply-adds and bytes.
    """

    def _prepare(self, model: nn.Module) -> None:
        self.program = Program.of(model)
        self._build()
        compare(model, self.program, self._of)

    def _of(self, program: Program) -> Engine:
        """Another engine, of a program for the same sensor."""
        engine = Engine.__new__(Engine)
        engine.__dict__.update(program=program, sensor=self.sensor, _title=self._title, _names=[])
        engine._build()
        engine.reset()
        return engine

    def _build(self) -> None:
        # Imported here: compiled code takes a moment to load.
        from gridless.kernels.products import lanes
        from gridless.live import loop
        from gridless.live.panels import PANEL

        program = self.program
        self._rows = {name: program.modules.get(name, "") for name in self._names}
        for name, row in self._rows.items():
            if not row or program[row].stream is None:
                raise ValueError(
                    f"stream: module {name!r} does not return one row per event. Leave it out of features=."
                )
        program = _with_newest(program)
        lowered = self._lowered = Lowered(program, self._rows.values(), lanes(np.float32), PANEL)
        self._i, self._f = lowered.i, lowered.f
        self._answers = -1
        if program.answers is not None:
            self._answers = lowered.at(list(lowered.streams).index(program.answers))
            self._i[ANSWERS] = self._answers
        self._i[WATCH] = 2 if self._rows else 1 if program.answers is not None else 0
        self._run, self._unpack, self._answer = loop.run, loop.unpack, loop.answer
        # Columns for the events of short arrays.
        self._columns = np.empty((SHORT, 2), np.int32), np.empty(SHORT, np.int64), np.empty(SHORT, np.bool_)
        self._column_addresses = [column.ctypes.data for column in self._columns]
        self._layouts: dict[np.dtype, np.ndarray] = {}
        self._when_asked = program.answers is None and program.duration is None
        self._plain = not self._when_asked and not self._rows
        # Addresses of the columns of the packet, and its events.
        self._addresses: tuple[int, ...] = (0, 0, 0, 0)
        self._output = lowered.place(program.output)
        self._each = lowered.place(program[program.output].inputs[0]) if program.answers is not None else None
        lowered.clear()
        self.predict()
        lowered.settle()

    @property
    def events_seen(self) -> int:  # type: ignore[override]
        return int(self._i[SEEN])

    @property
    def time(self) -> int:  # type: ignore[override]
        return int(self._i[TIME])

    @property
    def start(self) -> int:  # type: ignore[override]
        return int(self._i[START])

    def _numbers(self, numbers: list[int]) -> None:
        self._i[SEEN], self._i[TIME], self._i[START] = numbers
        self._i[FINISHED] = 0

    @alone
    def reset(self) -> None:
        self._lowered.clear()
        self._numbers([0, -(2**63), 0])
        self._recorded: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._names}

    def __call__(self, packet: Any) -> Tensor | None:
        # Most packets of one event bring no prediction. They take this path only, and every microsecond counts.
        with self._lock:
            if type(packet) is Events and self._plain and packet.sensor == self.sensor and not packet.padding:
                pixel, time, polarity = packet.pixel, packet.time, packet.polarity
                if polarity is not None and packet.splits.numel() == 2 and pixel.is_cpu:
                    addresses = pixel.data_ptr(), time.data_ptr(), polarity.data_ptr(), time.numel()
                    self._addresses = addresses
                    status = self._run(self._i, *addresses, TRUSTED if CHECKED in packet.__dict__ else NEW)
                    if status == DONE:
                        return None
                    self._packet = packet
                    return self._newest(self._seen(status))
            return self._newest(self._begin(packet))

    def _newest(self, status: int) -> Tensor | None:
        """Run to the end of the packet, and return its last prediction."""
        last = None
        while status != DONE:
            if status == WINDOW:
                last = self.predict()
            elif self._answers >= 0 and (count := int(self._i[self._answers + S_COUNT])):
                place, pitch, classes = self._each  # type: ignore[misc]
                at = place + (count - 1) * pitch
                last = torch.from_numpy(self._f[at : at + classes].copy())
            status = self._go(MORE)
        return self.predict() if self._when_asked and self._addresses[3] else last

    @alone
    def push(self, packet: Any) -> Iterator[Prediction]:
        predictions: list[Prediction] = []
        status = self._begin(packet)
        while status != DONE:
            if status == WINDOW:
                predictions.append(Prediction(int(self._i[FINISHED]), self.predict()))
            elif self._answers >= 0:
                predictions += self._predictions()
            status = self._go(MORE)
        if self._when_asked and self._addresses[3]:
            predictions.append(Prediction(self.time, self.predict()))
        return iter(predictions)

    def _begin(self, packet: Any) -> int:
        """Check a packet and run its events, until the loop returns for the first time."""
        addresses = self._unpacked(packet) if isinstance(packet, np.ndarray | np.void) else None
        trusted = False
        if addresses is None:
            packet = self._events(packet)
            columns = packet.pixel, packet.time, packet.polarity
            addresses = *(column.data_ptr() for column in columns), len(packet)
            trusted = CHECKED in packet.__dict__
        self._addresses, self._packet = addresses, packet
        for parts in self._recorded.values():
            parts.clear()
        return self._go(TRUSTED if trusted else NEW)

    def _go(self, packet: int) -> int:
        return self._seen(self._run(self._i, *self._addresses, packet))

    def _seen(self, status: int) -> int:
        """Raise for a bad packet, and keep the features of a chunk."""
        if status == REFUSED:
            events, self._addresses = self._packet, (0, 0, 0, 0)
            self._check(events if isinstance(events, Events) else Events.of(np.atleast_1d(events), sensor=self.sensor))
        if status == CHUNK:
            for name, row in self._rows.items():
                self._recorded[name].append(self._lowered.rows(row))
        return status

    def _unpacked(self, packet: Any) -> tuple[int, ...] | None:
        """Copy a short structured array of whole numbers into columns; their addresses, or None for other arrays."""
        if isinstance(packet, np.void):
            packet = np.array(packet, ndmin=1)
        layout = self._layouts.get(packet.dtype)
        if layout is None:
            layout = self._layouts[packet.dtype] = _layout_of(packet.dtype)
        flags = packet.flags
        if packet.ndim != 1 or not flags.c_contiguous or not len(layout) or len(packet) > SHORT:
            return None
        if not flags.writeable:
            # Numba would compile the loop again for a read-only array.
            packet = packet.copy()
        if not self._unpack(packet.view(np.uint8), layout, len(packet), *self._columns):
            return None
        return *self._column_addresses, len(packet)

    def _predictions(self) -> list[Prediction]:
        """Predictions of the events in the buffer of the stream that answers."""
        count, at = int(self._i[self._answers + S_COUNT]), int(self._i[self._answers + S_EVENT])
        place, pitch, classes = self._each  # type: ignore[misc]
        times = self._i[at : at + 4 * count].reshape(count, 4)[:, 2].tolist()
        logits = self._f[place : place + count * pitch].reshape(count, pitch)[:, :classes].copy()
        return [Prediction(t, row) for t, row in zip(times, torch.from_numpy(logits), strict=True)]

    def _logits(self) -> Tensor:
        place, _, classes = self._output
        return torch.from_numpy(self._f[place : place + classes].copy())

    @alone
    def predict(self) -> Tensor:
        self._lowered.answer(self._answer)
        return self._logits()

    @alone
    def features(self, name: str) -> tuple[Events, Tensor]:
        self._check_name(name)
        row = self.program[self._rows[name]]
        sensor = next(stream.sensor for stream in self.program.streams if stream.name == row.stream)
        parts = self._recorded[name]
        events = np.concatenate([np.empty((0, 4), np.int64), *(part[0] for part in parts)])
        values = np.concatenate([np.empty((0, row.channels), np.float32), *(part[1] for part in parts)])
        pixel, time = torch.from_numpy(events[:, :2].astype(np.int32)), torch.from_numpy(events[:, 2].copy())
        return Events(pixel, time, None, torch.tensor([0, len(time)]), sensor), torch.from_numpy(values)

    @property
    def memory_bytes(self) -> int:
        """Bytes of the stream's memory and buffers, without the weights; constant while it runs."""
        return self._lowered.memory_bytes

    def _memory(self) -> dict[str, Tensor]:
        weights = {"weights": torch.tensor(self.program.sketch)}
        return weights | {name: torch.from_numpy(array) for name, array in self._lowered.state.items()}

    def _fits(self, state: dict[str, Tensor]) -> bool:
        own, saved = self.program.sketch, state["weights"].numpy()
        return bool((np.abs(own - saved) <= 1e-5 * own[:, 1:]).all())


def _with_newest(program: Program) -> Program:
    """A program that answers with the newest row of a stream as one that answers at any moment."""
    row = program[program.output]
    if row.stream is None:
        return program
    before = {"before": np.zeros(row.channels, np.float32)}
    newest = Row(f"{row.name} now", "last", None, (row.name,), row.shape, {}, before, 4 * row.channels)
    return replace(program, rows=(*program.rows, newest), output=newest.name)


def _layout_of(dtype: np.dtype) -> np.ndarray:
    """Offset and size (negative: signed) of t, x, y and p, and the size of a record; empty for other dtypes."""
    fields = dtype.fields or {}
    numbers: list[int] = []
    for name in "txyp":
        kind, at = fields.get(name, (np.dtype(object), 0))[:2]
        if kind.kind not in "iub" or not kind.isnative:
            return np.empty(0, np.int64)
        numbers += [at, -kind.itemsize if kind.kind == "i" else kind.itemsize]
    return np.array([*numbers, dtype.itemsize], np.int64)
