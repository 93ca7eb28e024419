"""A network that follows one object: its position from decaying counts of events."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gridless.nn.blocks import Dense
from gridless.nn.events import LeakyCount, Memory, VoxelConv
from gridless.nn.norm import BatchNorm
from gridless.plan import Plan
from gridless.structures import Geometry

# Pixels that are 1 inside the network.
SCALE = 8.0


class CountTracker(nn.Module):
    """The position (x, y) of one object, in pixels, from decaying counts of events (`LeakyCount`).

    relu(norm(conv)) of 3 x 3 cells, once for each of `widths`; then a perceptron of all cells. An event costs one cell
    of the grid. The rest is computed for an answer, so it can be asked at any time, in constant memory.

    `model(geometry)` is the position (B, 2) after the last event of each recording. `positions(geometry, at)` are those
    (B, P, 2) after the events `at` (B, P), which are numbers of events in the batch, ascending in each row.

    Args:
        sensor: (width, height) of the camera.
        widths: channels of each convolution.
        strides: strides of each convolution, in cells.
        hidden: hidden units of the perceptron.
        size: `size` x `size` pixels are a cell of the grid.
        decay_times: microseconds after which an event counts 1/e; each has an OFF and an ON channel.
        every: microseconds between live answers; one after each packet when left out.
    """

    task = "track"
    middle: Tensor

    def __init__(
        self,
        sensor: tuple[int, int],
        widths: Sequence[int] = (24, 32, 32),
        strides: Sequence[int] = (2, 2, 1),
        hidden: int = 64,
        size: int = 2,
        decay_times: Sequence[float] = (3_000.0, 15_000.0, 80_000.0),
        every: int | None = None,
    ) -> None:
        arguments = {name: value for name, value in locals().items() if name not in ("self", "__class__")}
        super().__init__()
        if not widths or len(widths) != len(strides):
            raise ValueError(f"CountTracker: widths {widths} and strides {strides} differ in length. Give one of each.")
        lists = {name: list(arguments[name]) for name in ("sensor", "widths", "strides", "decay_times")}
        self.config: dict[str, Any] = {"model": "CountTracker", **arguments, **lists}
        self.plan = Plan()
        self.camera = self.plan.events(sensor)
        self.count = LeakyCount(self.camera, size, decay_times, every)
        (height, width), channels = self.count.grid, 2 * len(decay_times)
        layers: list[nn.Module] = []
        for p, stride in zip(widths, strides, strict=True):
            layers += [VoxelConv(channels, p, stride), BatchNorm(p, relu="after")]
            height, width, channels = -(-height // stride), -(-width // stride), p
        self.layers = nn.Sequential(*layers)
        self.head = nn.Sequential(Dense(height * width * channels, hidden), nn.ReLU(), Dense(hidden, 2))
        middle = (torch.tensor([float(side) for side in sensor]) - 1) / 2
        self.register_buffer("middle", middle, persistent=False)

    def answer(self, counts: Tensor) -> Tensor:
        """The positions (N, 2) of counts (N, 1, H, W, C)."""
        return self.head(self.layers(counts).flatten(1)) * SCALE + self.middle

    def positions(self, geometry: Geometry, at: Tensor) -> Tensor:
        counts = self.count(geometry, at=at)
        return self.answer(counts.flatten(0, 1)[:, None]).view(*at.shape, 2)

    def forward(self, geometry: Geometry, memory: Memory | None = None) -> Tensor:
        return self.answer(self.count(geometry, memory))
