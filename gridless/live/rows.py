"""What a live program is made of: streams of events, and rows of work."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gridless.geometry.taps import offsets

ACTIVATIONS = (
    "relu", "leaky_relu", "elu", "sigmoid", "tanh", "silu", "gelu", "softplus", "log1p", "exp", "abs",
)  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """The input (`source` is None), or the events that `source` fires; `lif` are the settings of `gl.geometry.lif`."""

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
        how = ", ".join(f"{k}={v:g}" for k, v in self.lif.items())
        return f"{self.name} = {f'lif({self.source}, {how})' if self.source else 'events()'}"


@dataclass(frozen=True, eq=False)
class Row:
    """A value: of each event of `stream`, or without a stream."""

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

    @property
    def multiply_adds(self) -> tuple[int, int]:
        """Of an event of the stream (without a stream: of an answer), and of an event of the source of a convolution,
        or of the stream that a value without one takes in."""
        c = self.channels
        if self.operation == "convolve":
            taps, decays, q, p = self.constants["weight"].shape
            return taps * decays * q * (1 + p), round(taps * decays * q / self.settings["stride"] ** 2)
        if self.operation == "mean":
            return 2 * c, 0
        if self.operation in ("voxel", "pool", "leaky_count"):
            return 0, c
        if self.operation in ("dense", "convolve_cells"):
            return self.cells * self.constants["weight"].size, 0
        return self.cells * c * (self.operation in ("affine", "multiply", "layer_norm")), 0

    def __str__(self) -> str:
        words = [*self.inputs, *(f"{k}={v}" for k, v in self.settings.items())]
        return f"{self.name} = {self.operation}({', '.join(words)})"


def fed_pixels(kernel: int | str, stride: int, source: tuple[int, int], target: tuple[int, int]) -> list[int]:
    """How many source pixels each tap of a convolution is fed by."""

    def along(size: int, grid: int, offset: int) -> int:
        return sum(0 <= stride * o + offset < size for o in range(grid))

    return [along(source[0], target[0], dx) * along(source[1], target[1], dy) for dx, dy in offsets(kernel)]
