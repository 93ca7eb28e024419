"""The speed path: a trained event network lowered to one compiled loop, event by event, in constant memory."""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from gridless.models.events import EventResNet, StreamHead, StreamMean, VoxelHead
from gridless.nn.blocks import Dense
from gridless.nn.events import (
    DownConv,
    EventConv,
    InceptionBlock,
    Last,
    LeakyMean,
    PolarityConv,
    VoxelMean,
    VoxelMerge,
)
from gridless.nn.norm import BatchNorm
from gridless.streaming.lowering import Flat, head_rows, level_rows
from gridless.streaming.packets import Prediction, Stream, event_network
from gridless.streaming.table import FIELDS, HEAD_FIELDS
from gridless.streaming.voxels import FoldedHead
from gridless.structures import Events

# What the loop knows how to run. Containers are fine; anything else would be left out without a word.
_KNOWN: tuple[type, ...] = (
    EventResNet, DownConv, InceptionBlock, EventConv, PolarityConv, Dense, BatchNorm, VoxelHead, VoxelMerge, VoxelMean,
    StreamHead, StreamMean, Last, LeakyMean, nn.Conv3d, nn.Dropout, nn.ReLU, nn.Sequential, nn.ModuleList,
)  # fmt: skip

# Input events that go through all levels together.
CHUNK = 4096


class Engine(Stream):
    """A live stream through a compiled loop: float32, one thread, no allocation per event.

    Equal to the network's scan form at every event of every level, within the rounding of float32. With `features`, the
    events that the last packet fired and their features can be asked for.
    """

    def __init__(self, model: nn.Module, features: bool = True, order: str | None = None) -> None:
        if order not in (None, "output", "input"):
            raise ValueError(f"stream: order must be 'output', 'input' or None for the cheaper, not {order!r}")
        for name, layer in event_network(model).named_modules():
            if type(layer) not in _KNOWN:
                raise TypeError(
                    f"stream: layer {name or 'model'!r} ({type(layer).__name__}) is not known to the engine: use "
                    "gl.streaming.Session(model), which runs any layer of an event network"
                )
        self._keep, self._order = features, order
        super().__init__(model)

    def _prepare(self) -> None:
        from gridless.kernels.products import lanes

        model = self.model
        self._lane = lanes(np.float32)
        flat = Flat()
        frames = {str(mean.stream): mean.frames for mean in model.modules() if isinstance(mean, VoxelMean)}
        counts = [frames.get(str(stream), 0) for stream in model.streams]
        self._sizes = level_rows(flat, model, counts, self._lane, self._keep, self._order)
        levels = [[size[field] for field in FIELDS] for size in self._sizes]
        heads = head_rows(flat, model, [size["capacity"] for size in self._sizes], self._lane)
        if isinstance(model.head, VoxelHead):
            self._voxel_head = FoldedHead(model.head, self._sizes[model.head.pooled :], self._lane)
        self._heads = heads
        self._constants = (
            np.array(levels, np.int64),
            np.array([[row[field] for field in HEAD_FIELDS] for row in heads], np.int64),
            flat.array("whole"),
            flat.array("weight"),
        )
        self._state = {name: flat.array(name) for name in ("trace", "clock", "voxel")}
        self._work, self._event = flat.array("work"), flat.array("event")
        depth = len(levels)
        self._source, self._features = np.empty(4 * CHUNK, np.int64), np.array([1, 0] * 4 + [0, 1] * 4, np.float32)
        self._cursor = np.zeros(2 + 4 * depth, np.int64)
        self.fired, self._kept = self._cursor[2 + 2 * depth : 2 + 3 * depth], self._cursor[2 + 3 * depth :]

    @property
    def _downs(self) -> list[DownConv]:
        return cast(list[DownConv], list(self.model.downs))

    def _clear(self) -> None:
        for array in self._state.values():
            array[:] = 0
        for row in self._heads:
            if row["size"]:
                self._state["clock"][row["time"]] = -1
        self._cursor[:] = 0
        self._recorded: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in self._sizes]

    def _take(self, events: Events) -> list[Prediction]:
        self._recorded = [[] for _ in self._sizes]
        return super()._take(events)

    def _advance(self, events: Events, begin: int, end: int) -> list[Prediction]:
        from gridless.streaming.loop import fill, run

        pixel, time, polarity = events.pixel.numpy(), events.time.numpy(), events.polarity.numpy()  # type: ignore
        window = np.array([self.start, self.duration or 1], np.int64)
        predictions: list[Prediction] = []
        cursor, depth, state = self._cursor, len(self._sizes), self._state
        for first in range(begin, end, CHUNK):
            last = min(first + CHUNK, end)
            fill(pixel, time, polarity, first, last, self._source)
            cursor[: 2 + 2 * depth] = 0
            cursor[2 + depth] = last - first
            done = False
            while not done:
                done = run(
                    *self._constants, state["trace"], state["clock"], state["voxel"], self._work, self._event,
                    self._source, self._features, window, cursor, self._lane,
                )  # fmt: skip
                predictions += self._drain()
        return predictions

    def _drain(self) -> list[Prediction]:
        """Empty the buffers of predictions and of features."""
        for size, count, recorded in zip(self._sizes, self._kept.tolist(), self._recorded, strict=True):
            if count:
                at, features = size["keep_event"], size["keep_out"]
                events = self._event[at : at + 3 * count].reshape(-1, 3).copy()
                rows = self._work[features : features + size["p"] * count].reshape(count, size["p"])
                recorded.append((events, rows.copy()))
        self._kept[:] = 0
        count, self._cursor[1] = int(self._cursor[1]), 0
        if not count:
            return []
        head, classes = self._heads[-1], self.model.config["classes"]
        at, wide = head["answer"], head["classes"]
        logits = self._work[at : at + count * wide].reshape(count, wide)[:, :classes].copy()
        times = self._event[head["at"] : head["at"] + count].tolist()
        return [Prediction(t, row) for t, row in zip(times, torch.from_numpy(logits), strict=True)]

    def _restart(self, windows: int) -> None:
        self._voxel_head.forget(self._state["clock"], self._state["voxel"])

    @torch.no_grad()
    def _logits(self) -> Tensor:
        head = self.model.head
        if isinstance(head, StreamHead):
            return self._answer_now(head)
        return self._voxel_head(self._state["clock"], self._state["voxel"])

    def _answer_now(self, head: StreamHead) -> Tensor:
        row = self._heads[-1]
        if self._state["clock"][row["time"]] < 0:
            return head.logits.bias.detach().clone()
        last = self._state["trace"][row["last"] : row["last"] + self.model.config["classes"]]
        return torch.from_numpy(last.copy())

    def features(self, level: int) -> tuple[Events, Tensor]:
        """The events that the last packet fired at a level (0 is the finest), and their features (S, C)."""
        if not self._keep:
            raise ValueError("features were not kept: make the engine with gl.stream(model, features=True)")
        size, parts = self._sizes[level], self._recorded[level]
        events = np.concatenate([np.empty((0, 3), np.int64), *(part[0] for part in parts)])
        features = np.concatenate([np.empty((0, size["p"]), np.float32), *(part[1] for part in parts)])
        features = features[:, : self._downs[level].norm.channels].copy()
        pixel, time = torch.from_numpy(events[:, :2].astype(np.int32)), torch.from_numpy(events[:, 2].copy())
        grid = size["columns"], size["rows"]
        ends = torch.tensor([0, len(time)])
        return Events(pixel, time, None, ends, grid), torch.from_numpy(features)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the stream holds, constant while it runs: its memory and its buffers, without the weights."""
        buffers = [self._work, self._event, self._source, self._features]
        if isinstance(self.model.head, VoxelHead):
            buffers += self._voxel_head.buffers
        return sum(array.nbytes for array in (*self._state.values(), *buffers))

    def _memory(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array) for name, array in self._state.items()}
