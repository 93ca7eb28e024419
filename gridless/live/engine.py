"""The speed path: the program of a trained event network in one compiled loop, event by event, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.live.agreement import compare
from gridless.live.lowering import Lowered
from gridless.live.packets import Prediction, ProgramStream, alone
from gridless.live.program import Program, Row

from gridless.live.table import (  # isort: skip
    ANSWERS, CHUNK, DONE, FINISHED, REFUSED, S_COUNT, S_EVENT, SEEN, START, TIME, WATCH, WINDOW,
)  # fmt: skip
from gridless.structures import Events

# Events of a structured array that are read by its bytes; longer ones take the way of all arrays.
MANY = 256


class Engine(ProgramStream):
    """A live stream through a compiled loop: float32, one thread, no allocation per event.

    Equal to the network's scan form at every event, within the rounding of float32. `print(engine)` shows the program
    that it runs: streams, and the rows of work that each of their events causes, with multiply-adds and bytes.
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
        rows = {name: program.modules.get(name, "") for name in self._names}
        for name, row in rows.items():
            if not row or program[row].stream is None:
                raise ValueError(f"stream: what {name!r} returns is not a row for every event of a stream")
        self._rows = rows
        out = program[program.output]
        if out.stream is not None:
            # The newest row is the answer at any moment.
            last = {"before": np.zeros(out.channels, np.float32)}
            newest = Row(f"{out.name} now", "last", None, (out.name,), out.shape, {}, last, 4 * out.channels)
            program = replace(program, rows=(*program.rows, newest), output=newest.name)
        lowered = self._lowered = Lowered(program, rows.values(), lanes(np.float32), PANEL)
        self._i, self._f, self._d = lowered.i, lowered.f, lowered.d
        self._answers = -1
        if program.answers is not None:
            self._answers = lowered.at(list(lowered.streams).index(program.answers))
            self._i[ANSWERS] = self._answers
        self._i[WATCH] = 2 if rows else 1 if program.answers is not None else 0
        self._run, self._unpack, self._answer = loop.run, loop.unpack, loop.answer
        # Of short arrays, events go through these columns.
        self._columns = np.empty((MANY, 2), np.int32), np.empty(MANY, np.int64), np.empty(MANY, np.bool_)
        self._addresses = [column.ctypes.data for column in self._columns]
        self._layouts: dict[np.dtype, np.ndarray] = {}
        self._when_asked = program.answers is None and program.duration is None
        self._plain = not self._when_asked and not rows
        self._given: tuple[int, ...] = (0, 0, 0, 0)
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

    @alone
    def reset(self) -> None:
        self._lowered.clear()
        self._numbers([0, -(2**63), 0])
        self._recorded: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._names}

    def __call__(self, packet: Any) -> Tensor | None:
        # Most packets of one event bring no prediction: for them this is all there is, and every microsecond counts.
        with self._lock:
            if type(packet) is Events and self._plain and packet.sensor == self.sensor and not packet.padding:
                pixel, time, polarity = packet.pixel, packet.time, packet.polarity
                if polarity is not None and packet.splits.numel() == 2 and pixel.is_cpu:
                    self._given = given = pixel.data_ptr(), time.data_ptr(), polarity.data_ptr(), time.numel()
                    status = self._run(self._i, *given, True)
                    if status == DONE:
                        return None
                    self._packet = packet
                    return self._newest(self._seen(status))
            return self._newest(self._begin(packet))

    def _newest(self, status: int) -> Tensor | None:
        """Run to the end of the packet: its last answer."""
        last = None
        while status != DONE:
            if status == WINDOW:
                last = self._logits()
            elif self._answers >= 0 and (count := int(self._i[self._answers + S_COUNT])):
                place, pitch, classes = self._each  # type: ignore[misc]
                at = place + (count - 1) * pitch
                last = torch.from_numpy(self._f[at : at + classes].copy())
            status = self._go(False)
        return self.predict() if self._when_asked and self._given[3] else last

    @alone
    def push(self, packet: Any) -> Iterator[Prediction]:
        found: list[Prediction] = []
        status = self._begin(packet)
        while status != DONE:
            if status == WINDOW:
                found.append(Prediction(int(self._i[FINISHED]), self._logits()))
            elif self._answers >= 0:
                found += self._predictions()
            status = self._go(False)
        if self._when_asked and self._given[3]:
            found.append(Prediction(self.time, self.predict()))
        return iter(found)

    def _begin(self, packet: Any) -> int:
        """Check a packet and run its events, until there is something to see."""
        given = self._unpacked(packet) if isinstance(packet, np.ndarray | np.void) else None
        if given is None:
            packet = self._events(packet)
            columns = packet.pixel, packet.time, packet.polarity
            given = *(column.data_ptr() for column in columns), len(packet)
        self._given, self._packet = given, packet
        for parts in self._recorded.values():
            parts.clear()
        return self._go(True)

    def _go(self, fresh: bool) -> int:
        return self._seen(self._run(self._i, *self._given, fresh))

    def _seen(self, status: int) -> int:
        """Refuse a bad packet, and keep the features of a chunk."""
        if status == REFUSED:
            events, self._given = self._packet, (0, 0, 0, 0)
            self._check(events if isinstance(events, Events) else Events.of(np.atleast_1d(events), sensor=self.sensor))
        if status == CHUNK:
            for name, row in self._rows.items():
                self._recorded[name].append(self._lowered.rows(row))
        return status

    def _unpacked(self, packet: Any) -> tuple[int, ...] | None:
        """The addresses of the events of a short structured array of whole numbers, copied; None for other arrays."""
        if isinstance(packet, np.void):
            packet = np.array(packet, ndmin=1)
        layout = self._layouts.get(packet.dtype)
        if layout is None:
            layout = self._layouts[packet.dtype] = _layout(packet.dtype)
        flags = packet.flags
        count = len(packet) if packet.ndim == 1 and flags.c_contiguous and len(layout) else MANY + 1
        if count <= MANY and not flags.writeable:
            # An array that cannot be written to is another type, for which code would be compiled here.
            packet = packet.copy()
        if count > MANY or not self._unpack(packet.view(np.uint8), layout, count, *self._columns):
            return None
        return *self._addresses, count

    def _predictions(self) -> list[Prediction]:
        """Those of the events of the stream that answers, which are in its buffer."""
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
        self._kept(name)
        row = self.program[self._rows[name]]
        sensor = next(stream.sensor for stream in self.program.streams if stream.name == row.stream)
        parts = self._recorded[name]
        events = np.concatenate([np.empty((0, 4), np.int64), *(part[0] for part in parts)])
        values = np.concatenate([np.empty((0, row.channels), np.float32), *(part[1] for part in parts)])
        pixel, time = torch.from_numpy(events[:, :2].astype(np.int32)), torch.from_numpy(events[:, 2].copy())
        return Events(pixel, time, None, torch.tensor([0, len(time)]), sensor), torch.from_numpy(values)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the stream holds, constant while it runs: its memory and its buffers, without the weights."""
        return self._lowered.memory_bytes

    def _memory(self) -> dict[str, Tensor]:
        weights = {"weights": torch.tensor(self.program.sketch)}
        return weights | {name: torch.from_numpy(array) for name, array in self._lowered.state.items()}

    def _fits(self, state: dict[str, Tensor]) -> bool:
        mine, given = self.program.sketch, state["weights"].numpy()
        return bool((np.abs(mine - given) <= 1e-5 * mine[:, 1:]).all())


def _layout(dtype: np.dtype) -> np.ndarray:
    """Offset and size (negative: signed) of t, x, y and p, and the size of all; empty where these are no fields."""
    fields = dtype.fields or {}
    numbers: list[int] = []
    for name in "txyp":
        kind, at = fields.get(name, (np.dtype(object), 0))[:2]
        if kind.kind not in "iub" or not kind.isnative:
            return np.empty(0, np.int64)
        numbers += [at, -kind.itemsize if kind.kind == "i" else kind.itemsize]
    return np.array([*numbers, dtype.itemsize], np.int64)
