"""The same PyTorch `forward`, packet by packet: the short reference that the engine is tested against."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.live.packets import Prediction, Stream, alone
from gridless.live.reading import ONE, packet_of
from gridless.live.values import CUT, WAITS
from gridless.nn.events import EventConv, Last, LeakyCount, VoxelMean, VoxelMemory
from gridless.structures import Events, Geometry


class Session(Stream):
    """A live stream through the network's own layers, with their memory passed in and out; any precision.

    Outside the layers with a memory, `forward` must treat each row for itself. An operation over the rows of several
    events, such as a mean, would see one packet alone, and depend on the size of packets.
    """

    def _prepare(self, model: nn.Module) -> None:
        self.model = model
        layers = dict(model.named_modules())
        for layer in layers.values():
            if isinstance(layer, EventConv) and layer.near.window is not None:
                raise ValueError(CUT)
            if isinstance(layer, VoxelMean) and layer.duration is None:
                raise ValueError(WAITS)
        self._noted = {n: layer for n, layer in layers.items() if n in self._names or isinstance(layer, Last)}
        self._remember: set[nn.Module] = set()
        called = self._look()
        windows = {layer.duration for layer in called if isinstance(layer, VoxelMean)}
        windows |= {layer.every for layer in called if isinstance(layer, LeakyCount)}
        durations = sorted(duration for duration in windows if duration is not None)
        if len(durations) > 1:
            raise ValueError(f"stream: the voxels have the durations {durations}. Give all of them the same duration.")
        self.duration: int | None = durations[0] if durations else None

    @torch.no_grad()
    def _look(self) -> set[nn.Module]:
        """The layers that a forward calls. Also finds those with a memory, and the streams of outputs."""
        called: set[nn.Module] = set()
        hooks = [m.register_forward_hook(lambda m, args, out: called.add(m)) for m in self.model.modules()]
        memory: dict[Any, Any] = {}
        geometry = self._numbered()
        try:
            out = self._called(geometry, memory)
        finally:
            for hook in hooks:
                hook.remove()
        self._remember = called.intersection(memory)
        if not isinstance(out, Tensor) or out.ndim != 2:
            kind = f"{out.ndim} axes" if isinstance(out, Tensor) else type(out).__name__
            raise TypeError(f"stream: forward must return one tensor of rows, not {kind}. {ONE}")
        streams = {len(events): name for name, events in geometry.items() if isinstance(events, Events)}
        self._streams: dict[str, str] = {}
        for name in self._names:
            rows = self._returned[name][-1][1] if name in self._returned else None
            if not isinstance(rows, Tensor) or not rows.ndim or len(rows) not in streams:
                raise ValueError(
                    f"stream: module {name!r} does not return one row per event. Leave it out of features=."
                )
            self._streams[name] = streams[len(rows)]
        self._each = streams.get(len(out))
        if self._each is None and len(out) != 1:
            raise ValueError(
                f"stream: forward returns {len(out)} rows, not one row or one row per event. Keep the rows of one "
                "stream, or reduce them with gl.nn.Last, MeanPool or MaxPool."
            )
        return called

    def _numbered(self) -> Geometry:
        """A packet in which the number of events tells streams apart: it is not 1, and no sum of others."""
        plan: Any = self.model.plan
        geometry: dict[str, Any] = dict(plan.step(packet_of(plan, self._nothing()))[0])
        names = [name for name, value in geometry.items() if isinstance(value, Events)]
        for n, name in enumerate(names):
            count = 16 * (len(names) + 1 + n)
            zeros, like = torch.zeros(count, dtype=torch.int64), geometry[name]
            pixel, polarity = zeros[:, None].expand(-1, 2).int(), None if like.polarity is None else zeros.bool()
            events = Events(pixel, zeros, polarity, torch.tensor([0, count]), like.sensor)
            if like.cause is not None:
                events = replace(events, cause=zeros, num_parent=len(geometry[plan.steps[name].inputs[0]]))
            geometry[name] = events.trusted()
        return Geometry(geometry)

    @alone
    def reset(self) -> None:
        self._numbers([0, -(2**63), 0])
        self._lif: dict[str, Any] | None = None
        # Memory of each call of a layer in a forward, by (layer, number of the call).
        self._layers: dict[Any, Any] = {}
        self._parts: dict[str, list[tuple[Events, Tensor]]] = {name: [] for name in self._names}
        # An empty packet gives every layer its memory.
        geometry, out = self._forward(self._nothing())
        self._none = {name: (geometry[self._streams[name]], self._returned[name][-1][1]) for name in self._names}
        self._newest = out.new_zeros(1, out.shape[1])

    def _nothing(self) -> Events:
        none = torch.zeros(0, dtype=torch.int64)
        return Events(none.view(0, 2).int(), none, none.bool(), torch.zeros(2, dtype=torch.int64), self.sensor)

    @torch.no_grad()
    def _forward(self, events: Events) -> tuple[Geometry, Tensor]:
        start = torch.tensor([self.start])
        memory = {
            key: state._replace(start=start) if isinstance(state, VoxelMemory) else state
            for key, state in self._layers.items()
        }
        plan: Any = self.model.plan
        geometry, lif = plan.step(packet_of(plan, events), self._lif)
        out = self._called(geometry, memory)
        self._lif, self._layers = lif, memory
        return geometry, out

    def _called(self, geometry: Geometry, memory: dict[Any, Any]) -> Any:
        """Run the forward. The n-th call of a layer finds the n-th memory under the layer's own name."""
        calls: Counter[nn.Module] = Counter()
        self._returned: dict[str, list[tuple[Any, Any]]] = {}

        def begin(layer: nn.Module, args: Any) -> None:
            if (layer, calls[layer]) in memory:
                memory[layer] = memory.pop((layer, calls[layer]))

        def end(layer: nn.Module, args: Any, out: Any) -> None:
            if layer in memory:
                memory[layer, calls[layer]] = memory.pop(layer)
            calls[layer] += 1

        hooks = [layer.register_forward_pre_hook(begin) for layer in self._remember]
        hooks += [layer.register_forward_hook(end) for layer in self._remember]
        # Inputs and outputs of the noted layers.
        for name, layer in self._noted.items():
            hooks.append(layer.register_forward_hook(partial(_note, self._returned, name), with_kwargs=True))
        try:
            return self.model(geometry, memory)
        finally:
            for hook in hooks:
                hook.remove()

    def _take(self, events: Events) -> list[Prediction]:
        self._parts = {name: [] for name in self._names}
        if not len(events):
            return []
        times = events.time.numpy()
        if self.events_seen == 0:
            self.start = int(times[0])
        predictions: list[Prediction] = []
        at = 0
        while self.duration is not None and times[-1] >= self.start + self.duration:
            end = int(np.searchsorted(times, self.start + self.duration, side="left"))
            if end > at:
                self._advance(events[at:end])
            if end > at or self.time >= self.start:
                predictions.append(Prediction(self.start + self.duration, self.predict()))
            self._layers = {key: _emptied(state) for key, state in self._layers.items()}
            self.start += int((times[end] - self.start) // self.duration) * self.duration
            # All events before `end` lie in windows that have ended.
            at = end
        if at < len(times):
            predictions += self._advance(events[at:] if at else events)
        self.events_seen, self.time = self.events_seen + len(times), int(times[-1])
        return predictions

    def _advance(self, events: Events) -> list[Prediction]:
        """Push events of one window, and return the predictions after them."""
        geometry, out = self._forward(events)
        for name in self._names:
            self._parts[name].append((geometry[self._streams[name]], self._returned[name][-1][1]))
        if self.duration is not None:
            return []
        if self._each is not None:
            stream, rows = self._each, out
            self._newest = torch.cat([self._newest, out])[-1:]
        else:
            calls = [(layer, call) for n, layer in self._noted.items() for call in self._returned.get(n, ())]
            lasts = [(m.stream, values) for m, (values, result) in calls if result is out and isinstance(m, Last)]
            if not lasts:
                return [Prediction(int(events.time[-1]), out[0])]
            stream, rows = lasts[0]
        return [Prediction(int(t), row) for t, row in zip(geometry[stream].time, rows, strict=True)]

    @alone
    def predict(self) -> Tensor:
        if self._each is not None:
            return self._newest[0].clone()
        return self._forward(self._nothing())[1][0].clone()

    @alone
    def features(self, name: str) -> tuple[Events, Tensor]:
        self._check_name(name)
        parts = self._parts[name] or [self._none[name]]
        if len(parts) == 1:
            return parts[0]
        # The packet was cut at windows.
        pixel, time = (torch.cat([getattr(events, part) for events, _ in parts]) for part in ("pixel", "time"))
        ends = torch.tensor([0, len(time)])
        return Events(pixel, time, None, ends, parts[0][0].sensor), torch.cat([rows for _, rows in parts])

    def _memory(self) -> dict[str, Tensor]:
        names = {layer: name for name, layer in self.model.named_modules()}
        states = dict(self._lif or {})
        for key, state in self._layers.items():
            layer, number = key if isinstance(key, tuple) else (key, 0)
            states[names[layer] + (f"#{number + 1}" if number else "")] = state
        memory: dict[str, Tensor] = {"newest": self._newest} if self._each is not None else {}
        for name, state in states.items():
            if isinstance(state, Tensor):
                memory[name] = state
            else:
                memory |= {f"{name}.{part}": value for part, value in state._asdict().items()}
        return memory


def _emptied(state: Any) -> Any:
    """A memory after the end of a window."""
    if isinstance(state, VoxelMemory):
        return state._replace(total=torch.zeros_like(state.total), count=torch.zeros_like(state.count))
    return state


def _note(returned: dict[str, list], name: str, layer: nn.Module, args: tuple, named: dict, out: Any) -> None:
    returned.setdefault(name, []).append((args[0] if args else named.get("values"), out))
