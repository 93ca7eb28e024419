"""The parts of a live program: streams of events, and rows of work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EventStream:
    """The input (`source` is None), or the events that `source` fires. `lif`: the settings of `gl.geometry.lif`."""

    name: str
    sensor: tuple[int, int]
    source: str | None = None
    lif: dict[str, Any] = field(default_factory=dict)

    @property
    def pixels(self) -> int:
        return self.sensor[0] * self.sensor[1]

    @property
    def state_bytes(self) -> int:
        """A float32 potential and an int64 time for each pixel."""
        return 12 * self.pixels if self.source else 0

    def __str__(self) -> str:
        settings = ", ".join(f"{k}={v:g}" for k, v in self.lif.items())
        return f"{self.name} = {f'lif({self.source}, {settings})' if self.source else 'events()'}"


@dataclass(frozen=True, eq=False)
class Row:
    """A value: one for each event of `stream`; or one value of the whole window, without a stream."""

    name: str
    operation: str
    stream: str | None
    inputs: tuple[str, ...]
    shape: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    state_bytes: int = 0

    @property
    def channels(self) -> int:
        return self.shape[-1]

    @property
    def cells(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def constant_bytes(self) -> int:
        return sum(array.nbytes for array in self.constants.values())

    def __str__(self) -> str:
        arguments = [*self.inputs, *(f"{k}={v}" for k, v in self.settings.items())]
        return f"{self.name} = {self.operation}({', '.join(arguments)})"
