"""The same PyTorch `forward`, packet by packet: short, obviously right, and what the engine is tested against."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from gridless.models.events import StreamHead, VoxelHead
from gridless.nn.events import VoxelMean
from gridless.streaming.packets import Prediction, Stream
from gridless.structures import Events


class Session(Stream):
    """A live stream through the network's own layers, with their memory passed in and out; any precision."""

    def _clear(self) -> None:
        self._lif: dict[str, Any] | None = None
        self._layers: dict[nn.Module, Any] = {}
        self._means = [layer for layer in self.model.modules() if isinstance(layer, VoxelMean)]
        # An empty packet gives every layer its memory.
        self._advance(self._nothing(), 0, 0)

    def _nothing(self) -> Events:
        none = torch.zeros(0, dtype=torch.int64)
        return Events(none.view(0, 2).int(), none, none.bool(), torch.zeros(2, dtype=torch.int64), self.sensor)

    @torch.no_grad()
    def _advance(self, events: Events, begin: int, end: int) -> list[Prediction]:
        head, memory = self.model.head, self._layers
        if end - begin < len(events):
            events = events[begin:end]
        for mean in self._means:
            if mean in memory:
                memory[mean] = memory[mean]._replace(start=torch.tensor([self.start]))
        geometry, self._lif = self.model.plan.step(events, self._lif)
        levels = self.model.trunk(geometry, memory)
        self._levels = [(geometry[name], features) for name, features in zip(self.model.streams, levels, strict=True)]
        if not isinstance(head, StreamHead):
            self._answer = head(levels, geometry, memory)[0]
            return []
        logits = head.predictions(levels, geometry, memory)
        before = memory.get(head, head.logits.bias[None])
        memory[head] = torch.cat([before, logits])[-1:].clone()
        return [Prediction(int(t), row) for t, row in zip(self._levels[-1][0].time, logits, strict=True)]

    def _restart(self, windows: int) -> None:
        cast(VoxelHead, self.model.head).restart(self._layers)

    def _logits(self) -> Tensor:
        if isinstance(self.model.head, StreamHead):
            return self._layers[self.model.head][0].clone()
        levels = self._levels
        self._advance(self._nothing(), 0, 0)
        self._levels = levels
        return self._answer

    def features(self, level: int) -> tuple[Events, Tensor]:
        """The events that the last packet fired at a level (0 is the finest), and their features (S, C)."""
        return self._levels[level]

    def _memory(self) -> dict[str, Tensor]:
        names = {layer: name for name, layer in self.model.named_modules()}
        states = dict(self._lif or {}) | {names[layer]: state for layer, state in self._layers.items()}
        memory: dict[str, Tensor] = {}
        for name, state in states.items():
            if isinstance(state, Tensor):
                memory[name] = state
            else:
                memory |= {f"{name}.{part}": value for part, value in state._asdict().items()}
        return memory
