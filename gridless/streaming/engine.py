"""The speed path: the program of a trained event network in one compiled loop, event by event, in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gridless.streaming.lowering import Lowered
from gridless.streaming.packets import Prediction, Stream
from gridless.streaming.program import Program, Row
from gridless.streaming.table import ANSWERS, AT, DONE, FINISHED, S_COUNT, S_EVENT, SEEN, START, TIME, WATCH, WINDOW
from gridless.structures import Events


class Engine(Stream):
    """A live stream through a compiled loop: float32, one thread, no allocation per event.

    Equal to the network's scan form at every event, within the rounding of float32. `print(engine)` shows the program
    that it runs: streams, and the rows of work that each of their events causes, with multiply-adds and bytes.
    """

    def _prepare(self) -> None:
        # Imported here: compiled code takes a moment to load.
        from gridless.kernels.products import lanes
        from gridless.streaming import loop, work

        program = self.program = Program.of(self.model)
        self.duration = program.duration
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
        self._lane = lanes(np.float32)
        lowered = self._lowered = Lowered(program, rows.values(), self._lane)
        self._i, self._f, self._d = lowered.i, lowered.f, lowered.d
        self._answers = -1
        if program.answers is not None:
            self._answers = lowered.at(list(lowered.streams).index(program.answers))
            self._i[ANSWERS] = self._answers
        self._i[WATCH] = 2 if rows else 1 if program.answers is not None else 0
        self._run, self._answer = loop.run, work.answer
        self._output = lowered.place(program.output)
        self._each = lowered.place(program[program.output].inputs[0]) if program.answers is not None else None
        lowered.clear()
        self.predict()
        lowered.settle()

    def __str__(self) -> str:
        return str(self.program)

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

    def reset(self) -> None:
        self._lowered.clear()
        self._numbers([0, -(2**63), 0])
        self._recorded: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in self._names}

    def _take(self, events: Events) -> Iterator[Prediction]:
        found = []
        for status in self._steps(events):
            if status == WINDOW:
                found.append(Prediction(int(self._i[FINISHED]), self._logits()))
            elif self._answers >= 0:
                found += self._predictions()
        if self._answers < 0 and self.duration is None:
            found.append(Prediction(self.time, self.predict()))
        return iter(found)

    def _steps(self, events: Events) -> Iterator[int]:
        """Run the events, and stop wherever there is something to see."""
        for parts in self._recorded.values():
            parts.clear()
        self._i[AT] = 0
        arguments = events.pixel.data_ptr(), events.time.data_ptr(), events.polarity.data_ptr(), len(events)  # type: ignore
        while (status := self._run(self._i, self._f, self._d, *arguments, self._lane)) != DONE:
            for name, row in self._rows.items() if status != WINDOW else ():
                self._recorded[name].append(self._lowered.rows(row))
            yield status

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

    def predict(self) -> Tensor:
        self._lowered.answer(self._answer)
        return self._logits()

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
        return {name: torch.from_numpy(array) for name, array in self._lowered.state.items()}
