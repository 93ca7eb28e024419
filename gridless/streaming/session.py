"""The same PyTorch `forward`, packet by packet: short, obviously right, and what the engine is tested against."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.nn.events import EventConv, Last, LeakyCount, VoxelMean
from gridless.streaming.packets import Prediction, Stream
from gridless.streaming.reading import CUT, ONE, WAITS, Reader
from gridless.structures import Events, Geometry


class Session(Stream):
    """A live stream through the network's own layers, with their memory passed in and out; any precision."""

    def _prepare(self) -> None:
        layers = dict(self.model.named_modules())
        for layer in layers.values():
            if isinstance(layer, EventConv) and layer.near.window is not None:
                raise ValueError(CUT)
            if isinstance(layer, VoxelMean) and layer.duration is None:
                raise ValueError(WAITS)
        calls = self._calls()
        self._means = [layer for layer in calls if isinstance(layer, VoxelMean)]
        found = {mean.duration for mean in self._means}
        found |= {layer.every for layer in calls if isinstance(layer, LeakyCount)}
        durations = sorted(duration for duration in found if duration is not None)
        if len(durations) > 1:
            raise ValueError(f"stream: all voxels of a network share one duration, these have {durations}")
        self.duration: int | None = durations[0] if durations else None
        self._noted = {n: layer for n, layer in layers.items() if n in self._names or isinstance(layer, Last)}
        self._returned: dict[str, Any] = {}

    @torch.no_grad()
    def _calls(self) -> Counter[nn.Module]:
        """How often a forward calls each layer. One that remembers, and is called again, would take its own call for
        the packet before."""
        calls: Counter[nn.Module] = Counter()
        layers = {layer: name for name, layer in self.model.named_modules()}
        notes = [layer.register_forward_hook(lambda layer, args, out: calls.update([layer])) for layer in layers]
        memory: dict[nn.Module, Any] = {}
        try:
            self.model(self.model.plan.step(self._nothing())[0], memory)  # type: ignore[union-attr]
        finally:
            for note in notes:
                note.remove()
        for layer in memory:
            if calls[layer] > 1:
                raise ValueError(
                    f"stream: the layer {layers[layer]!r} is called {calls[layer]} times in a forward, but remembers "
                    "one of them: give each call a layer of its own (they may share parameters), or use gl.stream"
                )
        return calls

    def reset(self) -> None:
        self._numbers([0, -(2**63), 0])
        self._lif: dict[str, Any] | None = None
        self._layers: dict[nn.Module, Any] = {}
        self._parts: dict[str, list[tuple[Events, Tensor]]] = {name: [] for name in self._names}
        # An empty packet gives every layer its memory, and shows what the network returns.
        out = self._forward(self._nothing())[1]
        if not isinstance(out, Tensor) or out.ndim != 2:
            kind = f"{out.ndim} axes" if isinstance(out, Tensor) else type(out).__name__
            raise TypeError(f"stream: forward must return one tensor of rows, not {kind}: {ONE}")
        self._each = len(out) == 0
        self._newest = out.new_zeros(1, out.shape[1])

    def _nothing(self) -> Events:
        none = torch.zeros(0, dtype=torch.int64)
        return Events(none.view(0, 2).int(), none, none.bool(), torch.zeros(2, dtype=torch.int64), self.sensor)

    @torch.no_grad()
    def _forward(self, events: Events) -> tuple[Geometry, Tensor]:
        for mean in self._means:
            if mean in self._layers:
                self._layers[mean] = self._layers[mean]._replace(start=torch.tensor([self.start]))
        plan: Any = self.model.plan
        geometry, self._lif = plan.step(events, self._lif)
        # What these layers were given, and what they return.
        notes = [layer.register_forward_hook(partial(_note, self._returned, n)) for n, layer in self._noted.items()]
        try:
            return geometry, self.model(geometry, self._layers)
        finally:
            for note in notes:
                note.remove()

    def _take(self, events: Events) -> list[Prediction]:
        self._parts = {name: [] for name in self._names}
        times = events.time.numpy()
        if self.events_seen == 0:
            self.start = int(times[0])
        self.events_seen += len(times)
        predictions: list[Prediction] = []
        at = 0
        while self.duration is not None and times[-1] >= self.start + self.duration:
            end = int(np.searchsorted(times, self.start + self.duration, side="left"))
            if end > at:
                self._advance(events[at:end])
            if end > at or self.time >= self.start:
                predictions.append(Prediction(self.start + self.duration, self.predict()))
            for mean in self._means:
                mean.restart(self._layers)
            self.start += int((times[end] - self.start) // self.duration) * self.duration
            # The events so far lie in windows that have ended.
            at = end
        if at < len(times):
            predictions += self._advance(events[at:] if at else events)
        self.time = int(times[-1])
        return predictions

    def _advance(self, events: Events) -> list[Prediction]:
        """Events of one window; the predictions that they bring by themselves."""
        geometry, out = self._forward(events)
        for name in self._names:
            self._parts[name].append((geometry[self._stream_of(name)], self._returned[name][1]))
        if self.duration is not None:
            return []
        if self._each:
            stream, rows = geometry[self._stream_of("")], out
            self._newest = torch.cat([self._newest, out])[-1:]
        else:
            last = [(name, values) for name, (values, result) in self._returned.items() if result is out]
            if not last or not isinstance(self.model.get_submodule(last[0][0]), Last):
                return [Prediction(int(events.time[-1]), out[0])]
            ((name, rows),) = last[:1]
            stream = geometry[self.model.get_submodule(name).stream]  # type: ignore[arg-type]
        return [Prediction(int(t), row) for t, row in zip(stream.time, rows, strict=True)]

    def _stream_of(self, name: str) -> str:
        """The stream whose events the rows of a module (of the network itself: "") belong to."""
        if not hasattr(self, "_streams"):
            reader = Reader(self.model, strict=False)
            out = reader.read()
            self._streams = {path: row.stream for path, row in reader.outputs.items()} | {"": out.stream}
        stream = self._streams.get(name)
        if stream is None:
            raise ValueError(f"stream: what {name or 'forward'!r} returns is not a row for every event of a stream")
        return stream

    def predict(self) -> Tensor:
        if self._each:
            return self._newest[0].clone()
        return self._forward(self._nothing())[1][0].clone()

    def features(self, name: str) -> tuple[Events, Tensor]:
        self._kept(name)
        parts = self._parts[name] or [(self._nothing(), torch.zeros(0, 0))]
        if len(parts) == 1:
            return parts[0]
        # The parts of a packet in several windows.
        pixel, time = (torch.cat([getattr(events, part) for events, _ in parts]) for part in ("pixel", "time"))
        ends = torch.tensor([0, len(time)])
        return Events(pixel, time, None, ends, parts[0][0].sensor), torch.cat([rows for _, rows in parts])

    def _memory(self) -> dict[str, Tensor]:
        names = {layer: name for name, layer in self.model.named_modules()}
        states = dict(self._lif or {}) | {names[layer]: state for layer, state in self._layers.items()}
        memory: dict[str, Tensor] = {"newest": self._newest} if self._each else {}
        for name, state in states.items():
            if isinstance(state, Tensor):
                memory[name] = state
            else:
                memory |= {f"{name}.{part}": value for part, value in state._asdict().items()}
        return memory


def _note(returned: dict[str, Any], name: str, layer: nn.Module, args: tuple, out: Any) -> None:
    returned[name] = args[0], out
