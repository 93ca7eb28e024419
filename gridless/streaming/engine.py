"""The speed path: a trained event network lowered to one compiled loop, event by event, in constant memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.geometry.lif import Rule
from gridless.geometry.taps import offsets
from gridless.models.events import EventResNet, StreamHead, VoxelHead
from gridless.nn.blocks import Dense
from gridless.nn.events import (
    DownConv,
    EventConv,
    InceptionBlock,
    LeakyMean,
    PolarityConv,
    VoxelMean,
    VoxelMerge,
)
from gridless.nn.norm import BatchNorm
from gridless.streaming.loop import FIELDS, HEAD_FIELDS, ROWS
from gridless.streaming.packets import Prediction, Stream
from gridless.structures import Events

# What the loop knows how to run. Containers are fine; anything else would be left out without a word.
_KNOWN: tuple[type, ...] = (
    EventResNet, DownConv, InceptionBlock, EventConv, PolarityConv, Dense, BatchNorm, VoxelHead, VoxelMerge, VoxelMean,
    StreamHead, LeakyMean, nn.Conv3d, nn.Dropout, nn.ReLU, nn.Sequential, nn.ModuleList,
)  # fmt: skip

# Input events that go through all levels together, and events that a level holds before the next must catch up.
CHUNK, CAPACITY = 4096, 512


class Engine(Stream):
    """A live stream through a compiled loop: float32, one thread, no allocation per event.

    Equal to the network's scan form at every event of every level, within the rounding of float32. With `features`, the
    events that the last packet fired and their features can be asked for.
    """

    def __init__(self, model: nn.Module, features: bool = True, order: str | None = None) -> None:
        if order not in (None, "output", "input"):
            raise ValueError(f"stream: order must be 'output', 'input' or None for the cheaper, not {order!r}")
        for name, layer in model.named_modules():
            if type(layer) not in _KNOWN:
                raise TypeError(
                    f"stream: layer {name or 'model'!r} ({type(layer).__name__}) is not known to the engine: use "
                    "gl.streaming.Session(model), which runs any layer"
                )
        self._keep, self._order = features, order
        super().__init__(model)

    def _prepare(self) -> None:
        from gridless.ops.point_conv.products import lanes

        model: EventResNet = self.model  # type: ignore[assignment]
        self._lane = lanes(np.float32)
        flat = _Flat()
        frames = {str(mean.stream): mean.frames for mean in model.modules() if isinstance(mean, VoxelMean)}
        parts = zip(model.downs, model.blocks, model.streams, strict=True)
        levels = [
            _level(flat, model, down, block, frames.get(str(stream), 0), self._lane, self._keep, self._order)
            for down, block, stream in parts
        ]
        self._sizes = [dict(zip(FIELDS, row, strict=True)) for row in levels]
        head = _head(flat, model, self._lane)
        self._head = dict(zip(HEAD_FIELDS, head, strict=True))
        self._constants = (
            np.array(levels, np.int64),
            np.array(head, np.int64),
            flat.array("whole"),
            flat.array("weight"),
        )
        self._state = {name: flat.array(name) for name in ("trace", "clock", "voxel")}
        self._work, self._event = flat.array("work"), flat.array("event")
        depth = len(levels)
        self._source, self._features = np.empty(4 * CHUNK, np.int64), np.array([1, 0] * 4 + [0, 1] * 4, np.float32)
        self._cursor = np.zeros(2 + 4 * depth, np.int64)
        self.fired, self._kept = self._cursor[2 + 2 * depth : 2 + 3 * depth], self._cursor[2 + 3 * depth :]

    def _clear(self) -> None:
        for array in self._state.values():
            array[:] = 0
        if self._head["room"]:
            self._state["clock"][self._head["time"]] = -1
        self._cursor[:] = 0
        self._recorded: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in self._sizes]

    def _check(self, events: Events) -> None:
        from gridless.streaming.loop import first_bad

        pixel, time = events.pixel.numpy(), events.time.numpy()
        row, reason = first_bad(pixel, time, *self.sensor, self.time)
        if row >= 0:
            before = self.time if row == 0 else time[row - 1]
            what = (
                f"at pixel {tuple(pixel[row].tolist())}, outside the sensor of {self.sensor[0]} x {self.sensor[1]}"
                if reason == 1
                else f"at {time[row]} us, before the one at {before} us"
            )
            raise ValueError(f"stream: event {row} of the packet is {what}: the packet was not taken")

    def _take(self, events: Events) -> list[Prediction]:
        self._recorded = [[] for _ in self._sizes]
        return super()._take(events)

    def _advance(self, events: Events) -> list[Prediction]:
        from gridless.streaming.loop import fill, run

        pixel, time, polarity = events.pixel.numpy(), events.time.numpy(), events.polarity.numpy()  # type: ignore
        window = np.array([self.start, self.duration or 1], np.int64)
        predictions: list[Prediction] = []
        cursor, depth = self._cursor, len(self._sizes)
        for first in range(0, len(time), CHUNK):
            last = min(first + CHUNK, len(time))
            fill(pixel, time, polarity, first, last, self._source)
            cursor[: 2 + 2 * depth] = 0
            cursor[2 + depth] = last - first
            done = False
            while not done:
                done = run(
                    *self._constants, *self._state.values(), self._work, self._event, self._source, self._features,
                    window, cursor, self._lane,
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
        head, classes = self._head, self.model.config["classes"]
        at, wide = head["answer"], head["classes"]
        logits = self._work[at : at + count * wide].reshape(count, wide)[:, :classes].copy()
        times = self._event[head["at"] : head["at"] + count].tolist()
        return [Prediction(t, row) for t, row in zip(times, torch.from_numpy(logits), strict=True)]

    def _restart(self, windows: int) -> None:
        self._state["voxel"][:] = 0
        for size in self._sizes:
            self._count(size)[:] = 0

    def _count(self, size: dict[str, int]) -> np.ndarray:
        cells = size["frames"] * size["columns"] * size["rows"]
        return self._state["clock"][size["count"] : size["count"] + cells]

    @torch.no_grad()
    def _logits(self) -> Tensor:
        head, voxel = self.model.head, self._state["voxel"]
        if isinstance(head, StreamHead):
            return self._answer_now(head)
        grids, channels = [], [down.norm.channels for down in self.model.downs[head.pooled :]]
        for size in self._sizes[head.pooled :]:
            count, p = self._count(size), size["p"]
            total = voxel[size["total"] : size["total"] + len(count) * p].reshape(-1, p)
            mean = torch.from_numpy((total / np.maximum(count, 1)[:, None]).astype(np.float32))
            grids.append(mean.view(1, size["frames"], size["rows"], size["columns"], p)[..., : channels.pop(0)])
        return head.merged(grids)[0]

    def _answer_now(self, head: StreamHead) -> Tensor:
        at, size = self._head["total"], self._head["size"]
        total = torch.from_numpy(self._state["voxel"][at : at + size + 1])
        if total[-1] == 0:
            return head.logits.bias.detach().clone()
        mean = (total[:-1] / total[-1]).float()
        scale, shift = _affine(head.norm)
        return head.logits(mean * torch.from_numpy(scale) + torch.from_numpy(shift))

    def features(self, level: int) -> tuple[Events, Tensor]:
        """The events that the last packet fired at a level (0 is the finest), and their features (S, C)."""
        if not self._keep:
            raise ValueError("features were not kept: make the engine with gl.stream(model, features=True)")
        size, parts = self._sizes[level], self._recorded[level]
        events = np.concatenate([np.empty((0, 3), np.int64), *(part[0] for part in parts)])
        features = np.concatenate([np.empty((0, size["p"]), np.float32), *(part[1] for part in parts)])
        features = features[:, : self.model.downs[level].norm.channels].copy()
        pixel, time = torch.from_numpy(events[:, :2].astype(np.int32)), torch.from_numpy(events[:, 2].copy())
        grid = size["columns"], size["rows"]
        ends = torch.tensor([0, len(time)])
        return Events(pixel, time, None, ends, grid), torch.from_numpy(features)

    @property
    def memory_bytes(self) -> int:
        """Bytes that the stream holds, constant while it runs: its memory and its buffers, without the weights."""
        buffers = self._work, self._event, self._source, self._features
        return sum(array.nbytes for array in (*self._state.values(), *buffers))

    def _memory(self) -> dict[str, Tensor]:
        return {name: torch.from_numpy(array) for name, array in self._state.items()}


class _Flat:
    """The flat arrays of the loop, while they grow: `add` returns where a part begins."""

    TYPES = {"whole": np.int64, "clock": np.int64, "event": np.int64, "voxel": np.float64}

    def __init__(self) -> None:
        self.parts: dict[str, list[np.ndarray]] = {
            n: [] for n in ("whole", "weight", "trace", "clock", "voxel", "work", "event")
        }
        self.ends = dict.fromkeys(self.parts, 0)

    def add(self, name: str, values: np.ndarray | Sequence[int]) -> int:
        part = np.asarray(values, self.TYPES.get(name, np.float32)).reshape(-1)
        # Parts begin at whole cache lines, and end with a spare one, because eights are read.
        part = np.pad(part, (0, 16 - len(part) % 16))
        self.parts[name].append(part)
        self.ends[name] += len(part)
        return self.ends[name] - len(part)

    def room(self, name: str, size: int) -> int:
        return self.add(name, np.zeros(size, self.TYPES.get(name, np.float32)))

    def array(self, name: str) -> np.ndarray:
        return np.concatenate([np.zeros(0, self.TYPES.get(name, np.float32)), *self.parts[name]])


def _array(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.float32))


def _eights(size: int) -> int:
    return -(-size // 8) * 8


def _fill(array: np.ndarray, *shape: int) -> np.ndarray:
    """Grown to `shape` with zeros."""
    return np.pad(array, [(0, big - small) for big, small in zip(shape, array.shape, strict=True)])


def _wide(size: int, lane: int) -> int:
    return -(-size // lane) * lane


def _columns(matrix: np.ndarray, lane: int) -> np.ndarray:
    """(rows, columns rounded up to whole vectors), padded with zeros."""
    flat = matrix.reshape(-1, matrix.shape[-1])
    return np.pad(flat, [(0, 0), (0, _wide(flat.shape[1], lane) - flat.shape[1])])


def _affine(norm: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Batch normalisation of a trained network: x * scale + shift."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    return _array(scale), _array(shift)


def _level(
    flat: _Flat,
    model: EventResNet,
    down: DownConv,
    block: InceptionBlock,
    frames: int,
    lane: int,
    keep: bool,
    order: str | None,
) -> list[int]:
    """The row of the loop's table for one level, its parts added to the flat arrays."""
    near = down.conv.near
    settings = dict(model.plan.steps[near.target].settings)
    if (near.kernel, near.stride) != (3, 2) or (settings["kernel"], settings["stride"]) != (3, 2):
        raise TypeError(f"stream: the engine knows 3 x 3 kernels at stride 2, not {near.kernel} at {near.stride}")
    rule = Rule.of(near.source.sensor, **settings)
    (width, height), (columns, rows) = near.source.sensor, near.target.sensor
    polarity = isinstance(down.conv, PolarityConv)
    _, v, q, p = down.conv.weight.shape
    down_rate, down_weight = _array(down.conv.rate.double() / down.conv.decay_time), _array(down.conv.weight)
    early = order == "input" if order else _cheaper_early(settings, v, q, p)
    if early:
        # One product makes all decays of a tap: (tap, Q, V P).
        p = _eights(p)
        down_weight = _fill(down_weight, 9, v, q, p).transpose(0, 2, 1, 3).reshape(9, q, v * p)
        q = q if polarity else _eights(q)
        down_weight = _fill(down_weight, 9, q, v * p)
    elif polarity:
        # Decays and polarities as one run of channels, every one with its rate; those that only fill up forget at once.
        down_rate, down_weight = np.repeat(down_rate, q, 1), down_weight.reshape(9, 1, v * q, p)
        down_rate = np.pad(down_rate, [(0, 0), (0, -(v * q) % 8)], constant_values=1e30)
        v, q = 1, v * q
    if not early:
        q, p = _eights(q), _eights(p)
        down_weight = _fill(down_weight, 9, v, q, p)

    # The in-place convolutions as one: (tap, decay) entries, those of one tap together.
    taps = [(conv, u, tap) for conv in (block.cross, block.point) for u, tap in enumerate(offsets(conv.near.kernel))]
    rates = [_array(conv.rate[u].double() / conv.decay_time) for conv, u, _ in taps]
    weights = [_fill(_array(conv.weight[u]), len(rate), p, p).reshape(-1, p) for (conv, u, _), rate in zip(taps, rates)]
    entries, wide = sum(map(len, rates)), _wide(p, lane)
    first, first_bias = _dense(block.expand)
    second, second_bias = _dense(block.reduce)
    hidden, broad = len(second), _wide(len(second), lane)
    down_scale, down_shift = (_fill(part, p) for part in _affine(down.norm))
    same_scale, same_shift = (_fill(part, p) for part in _affine(block.norm))
    same_bias = second_bias + _bias(block.cross) + _bias(block.point)

    size = {
        "width": width, "height": height, "columns": columns, "rows": rows, "q": q, "p": p, "p_wide": wide, "v": v,
        "entries": entries, "runs": len(taps), "hidden": hidden, "hidden_wide": broad, "frames": frames,
        "bits": rule.bits, "capacity": CAPACITY, "coarse_size": len(rule.coarse), "keep": 4 * CAPACITY if keep else 0,
        "early": int(early), "made_wide": _wide(v * p, lane),
    }  # fmt: skip
    values = {
        "whole": {
            "low_x": rule.low[0], "high_x": rule.high[0], "low_y": rule.low[1], "high_y": rule.high[1],
            "run_x": [t[0] for *_, t in taps], "run_y": [t[1] for *_, t in taps],
            "run_at": np.cumsum([0, *map(len, rates)]),
        },
        "weight": {
            "share": rule.share, "coarse": rule.coarse, "fine": rule.fine, "limits": [rule.threshold, rule.reset],
            "down_rate": down_rate, "down_weight": _columns(down_weight, lane),
            "down_bias": _columns(_fill(_bias(down.conv), p), lane),
            "down_scale": down_scale, "down_shift": down_shift, "same_rate": np.concatenate(rates),
            "same_weight": _columns(np.concatenate(weights), lane), "same_bias": _columns(_fill(same_bias, p), lane),
            "first": _columns(_fill(first, p, hidden), lane), "first_bias": _columns(first_bias, lane),
            "second": _columns(_fill(second, hidden, p), lane), "same_scale": same_scale, "same_shift": same_shift,
        },
    }  # fmt: skip
    rooms = {
        "trace": {
            "potential": columns * rows, "same_trace": columns * rows * entries * p,
            "down_trace": (width + width // 2) * (height + height // 2) * v * (p if early else q),
        },
        "clock": {
            "charged": columns * rows, "down_time": width * height, "same_time": columns * rows,
            "count": frames * columns * rows,
        },
        "voxel": {"total": frames * columns * rows * p},
        # Products read and write whole blocks of rows, past the last one.
        "work": {
            "raw": (CAPACITY + ROWS) * p, "out": (CAPACITY + ROWS) * p, "row": ROWS * max(9 * v * q, entries * p),
            "sum": ROWS * wide, "middle": ROWS * broad, "factor": max(v, entries) + 8,
            "made": _wide(v * p, lane), "keep_out": size["keep"] * p,
        },
        "event": {"fired": 3 * CAPACITY, "keep_event": 3 * size["keep"]},
    }  # fmt: skip
    at = {key: flat.add(name, part) for name, parts in values.items() for key, part in parts.items()}
    at |= {key: flat.room(name, length) for name, parts in rooms.items() for key, length in parts.items()}
    return [(size | at)[field] for field in FIELDS]


def _cheaper_early(settings: dict[str, Any], v: int, q: int, p: int) -> bool:
    """Whether transforming at the input event costs less than at the output event, in multiply-adds per input event.

    An input event feeds 2.25 of the 9 taps in the mean. Every event adds 1 to the potentials and every event fired
    takes threshold - reset away, so that at most 1 / (threshold - reset) fire; recordings show about half of that.
    Products at the output are made for blocks of events, which is about three times as fast as for single ones.
    """
    fired = 0.5 / max(settings["threshold"] - settings["reset"], 1e-6)
    late = 2.25 * v * q + fired * 9 * v * q * (1 + p / 3)
    return 2.25 * v * p * (1 + q) + fired * 9 * v * p < late


def _bias(conv: EventConv) -> np.ndarray:
    return np.zeros(conv.weight.shape[3], np.float32) if conv.bias is None else _array(conv.bias)


def _dense(layer: Dense) -> tuple[np.ndarray, np.ndarray]:
    """The weight (in, out) and the bias of a dense layer."""
    return _array(layer.weight.T), _array(layer.bias)


def _head(flat: _Flat, model: EventResNet, lane: int) -> list[int]:
    """The loop's table of the stream head; all zero for another head."""
    head = model.head
    if not isinstance(head, StreamHead):
        return [0] * len(HEAD_FIELDS)
    weight, bias = _dense(head.hidden)
    logits, logits_bias = _dense(head.logits)
    scale, shift = _affine(head.norm)
    size, wide, classes = weight.shape[1], _wide(weight.shape[1], lane), _wide(logits.shape[1], lane)
    room = 4 * CAPACITY
    found = {
        "size": size, "wide": wide, "classes": classes, "room": room,
        "rate": flat.add("weight", _array(head.mean.log_rate.double().exp() / head.mean.decay_time)),
        "matrix": flat.add("weight", _columns(_fill(weight, _eights(len(weight)), size), lane)),
        "place": flat.add("weight", _columns(_array(head.place) + bias, lane)),
        "scale": flat.add("weight", scale), "shift": flat.add("weight", shift),
        "logits": flat.add("weight", _columns(logits, lane)), "bias": flat.add("weight", _columns(logits_bias, lane)),
        "total": flat.room("voxel", size + 1), "time": flat.room("clock", 1), "hidden": flat.room("work", wide),
        "mean": flat.room("work", size), "factor": flat.room("work", 8), "answer": flat.room("work", room * classes),
        "at": flat.room("event", room),
    }  # fmt: skip
    return [found[field] for field in HEAD_FIELDS]
