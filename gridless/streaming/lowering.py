"""Lowering: the sizes, constants and memory of a trained event network, in the flat arrays that the loop runs on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from torch import Tensor

from gridless.geometry.lif import Rule
from gridless.geometry.taps import offsets
from gridless.models.events import EventResNet, StreamHead, StreamMean
from gridless.nn.blocks import Dense
from gridless.nn.events import DownConv, EventConv, InceptionBlock, PolarityConv
from gridless.nn.norm import BatchNorm
from gridless.streaming.table import EIGHTS, HEAD_FIELDS, ROWS, SIXTEENS

# Bytes of a cache line.
LINE = 64

# Float32 in the longest vectors of any CPU.
WIDEST = 16

# Events that the first level holds before the next must catch up; each further level holds half as many. More than the
# events that a chunk of input fires, so that the large weights of the last levels are read once per chunk.
CAPACITY = 1024


class Flat:
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
        """All parts of an array, beginning at a cache line."""
        kind = np.dtype(self.TYPES.get(name, np.float32))
        room = np.empty(self.ends[name] * kind.itemsize + LINE, np.uint8)
        room = room[-room.ctypes.data % LINE :][: self.ends[name] * kind.itemsize].view(kind)
        return np.concatenate(self.parts[name], out=room) if self.parts[name] else room


def array_of(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(tensor.detach().cpu().numpy().astype(np.float32))


def eights(size: int) -> int:
    return -(-size // 8) * 8


def fill(array: np.ndarray, *shape: int) -> np.ndarray:
    """Grown to `shape` with zeros."""
    return np.pad(array, [(0, big - small) for big, small in zip(shape, array.shape, strict=True)])


def _wide(size: int, lane: int) -> int:
    return -(-size // lane) * lane


def columns_of(matrix: np.ndarray, lane: int) -> np.ndarray:
    """(rows, columns rounded up to whole vectors), padded with zeros."""
    flat = matrix.reshape(-1, matrix.shape[-1])
    return np.pad(flat, [(0, 0), (0, _wide(flat.shape[1], lane) - flat.shape[1])])


def panels_of(matrix: np.ndarray, lane: int) -> np.ndarray:
    """A matrix (steps, columns) as the loop's products read it: in panels of two vectors, each with all its steps."""
    wide = columns_of(matrix, lane)
    return np.concatenate([wide[:, at : at + 2 * lane].reshape(-1) for at in range(0, wide.shape[1], 2 * lane)])


def affine(norm: BatchNorm) -> tuple[np.ndarray, np.ndarray]:
    """Batch normalisation of a trained network: x * scale + shift."""
    scale = (norm.running_var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -norm.running_mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    return array_of(scale), array_of(shift)


def level_rows(
    flat: Flat, model: EventResNet, frames: list[int], lane: int, keep: bool, order: str | None
) -> list[dict[str, int]]:
    """The rows of the loop's table, their parts added to the flat arrays."""
    if model.config["squash"]:
        raise NotImplementedError("the live engine does not know squash: use gl.streaming.Session")
    downs, blocks = cast(list[DownConv], list(model.downs)), cast(list[InceptionBlock], list(model.blocks))
    rows, scratch = [], []
    for k, (down, block, count) in enumerate(zip(downs, blocks, frames, strict=True)):
        row, needs = _level(flat, model, down, block, count, max(CAPACITY >> k, 64), lane, keep, order)
        rows.append(row)
        scratch.append(needs)
    # One level works at a time: all share these buffers.
    shared = {name: flat.room("work", max(needs[name] for needs in scratch)) for name in scratch[0]}
    return [row | shared for row in rows]


def _level(
    flat: Flat,
    model: EventResNet,
    down: DownConv,
    block: InceptionBlock,
    frames: int,
    capacity: int,
    lane: int,
    keep: bool,
    order: str | None,
) -> tuple[dict[str, int], dict[str, int]]:
    """The row of one level without its shared buffers, and the sizes of these."""
    near = down.conv.near
    settings = dict(model.plan.steps[near.target].settings)
    if (near.kernel, near.stride) != (3, 2) or (settings["kernel"], settings["stride"]) != (3, 2):
        raise TypeError(f"stream: the engine knows 3 x 3 kernels at stride 2, not {near.kernel} at {near.stride}")
    rule = Rule.of(near.source.sensor, **settings)
    (width, height), (columns, rows) = near.source.sensor, near.target.sensor
    polarity = isinstance(down.conv, PolarityConv)
    _, v, q, p = down.conv.weight.shape
    down_rate, down_weight = array_of(down.conv.rate.double() / down.conv.decay_time), array_of(down.conv.weight)
    early = order == "input" if order else _cheaper_early(settings, v, q, p)
    if early:
        # One product makes all decays of a tap: (tap, Q, V P).
        p = eights(p)
        down_weight = fill(down_weight, 9, v, q, p).transpose(0, 2, 1, 3).reshape(9, q, v * p)
        q = q if polarity else eights(q)
        down_panels = np.concatenate([panels_of(tap, lane) for tap in fill(down_weight, 9, q, v * p)])
    else:
        if polarity:
            # Decays and polarities are one run of channels, each with its own rate. Padding channels get rate 1e30, so
            # they decay to zero.
            down_rate, down_weight = np.repeat(down_rate, q, 1), down_weight.reshape(9, 1, v * q, p)
            down_rate = np.pad(down_rate, [(0, 0), (0, -(v * q) % 8)], constant_values=1e30)
            v, q = 1, v * q
        q, p = eights(q), eights(p)
        down_panels = panels_of(fill(down_weight, 9, v, q, p).reshape(-1, p), lane)

    # The in-place convolutions as one: (tap, decay) entries, those of one tap together.
    taps = [(conv, u, tap) for conv in (block.cross, block.point) for u, tap in enumerate(offsets(conv.near.kernel))]
    rates = [array_of(conv.rate[u].double() / conv.decay_time) for conv, u, _ in taps]
    weights = np.concatenate(
        [fill(array_of(conv.weight[u]), len(rate), p, p) for (conv, u, _), rate in zip(taps, rates, strict=True)]
    )
    entries, wide, run_at = sum(map(len, rates)), _wide(p, lane), np.cumsum([0, *map(len, rates)])
    first, first_bias = _dense(block.expand)
    second, second_bias = _dense(block.reduce)
    hidden, broad = len(second), _wide(len(second), lane)
    down_scale, down_shift = (fill(part, p) for part in affine(down.norm))
    same_scale, same_shift = (fill(part, p) for part in affine(block.norm))
    same_bias = second_bias + _bias(block.cross) + _bias(block.point)

    size = {
        "width": width, "height": height, "columns": columns, "rows": rows, "q": q, "p": p, "p_wide": wide, "v": v,
        "entries": entries, "runs": len(taps), "hidden": hidden, "hidden_wide": broad, "frames": frames,
        "bits": rule.bits, "capacity": capacity, "coarse_size": len(rule.coarse), "keep": 2 * capacity if keep else 0,
        "early": int(early), "made_wide": _wide(v * p, lane), "down_kind": _kind(q), "same_kind": _kind(p),
    }  # fmt: skip
    values = {
        "whole": {
            "low_x": rule.low[0], "high_x": rule.high[0], "low_y": rule.low[1], "high_y": rule.high[1],
            "run_x": [t[0] for *_, t in taps], "run_y": [t[1] for *_, t in taps], "run_at": run_at,
        },
        "weight": {
            "share": rule.share, "coarse": rule.coarse, "fine": rule.fine, "limits": [rule.threshold, rule.reset],
            "down_rate": down_rate, "down_weight": down_panels,
            "down_bias": columns_of(fill(_bias(down.conv), p), lane),
            "down_scale": down_scale, "down_shift": down_shift, "same_rate": np.concatenate(rates),
            "same_weight": panels_of(weights.reshape(-1, p), lane), "same_bias": columns_of(fill(same_bias, p), lane),
            "first": panels_of(fill(first, p, hidden), lane), "first_bias": columns_of(first_bias, lane),
            "second": panels_of(fill(second, hidden, p), lane), "same_scale": same_scale, "same_shift": same_shift,
        },
    }  # fmt: skip
    slots = (width + width // 2) * (height + height // 2)
    rooms = {
        "trace": {
            "potential": columns * rows, "down_trace": slots * v * (p if early else q),
            "same_trace": columns * rows * entries * p,
        },
        "clock": {
            "charged": columns * rows, "down_time": width * height, "same_time": columns * rows,
            "count": frames * columns * rows,
        },
        "voxel": {"total": frames * columns * rows * p},
        # Products read and write whole blocks of rows, past the last one.
        "work": {"raw": (capacity + ROWS) * p, "out": (capacity + ROWS) * p, "keep_out": size["keep"] * p},
        "event": {"fired": 3 * capacity, "cause": capacity, "keep_event": 3 * size["keep"]},
    }  # fmt: skip
    at = {key: flat.add(name, part) for name, parts in values.items() for key, part in parts.items()}
    at |= {key: flat.room(name, length) for name, parts in rooms.items() for key, length in parts.items()}
    needs = {
        "row": ROWS * max(9 * v * q, entries * p), "sum": ROWS * wide, "middle": ROWS * broad,
        "factor": max(v, entries) + 8, "made": _wide(v * p, lane),
    }  # fmt: skip
    return size | at, needs


def _kind(channels: int) -> int:
    return EIGHTS if channels % 16 else SIXTEENS


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
    return np.zeros(conv.weight.shape[3], np.float32) if conv.bias is None else array_of(conv.bias)


def _dense(layer: Dense) -> tuple[np.ndarray, np.ndarray]:
    """The weight (in, out) and the bias of a dense layer."""
    return array_of(layer.weight.T), array_of(layer.bias)


def head_rows(flat: Flat, model: EventResNet, capacities: list[int], lane: int) -> list[dict[str, int]]:
    """The loop's table of the stream head, a row for every level; all zero for another head."""
    head = model.head
    rows: list[dict[str, int]] = [dict.fromkeys(HEAD_FIELDS, 0) for _ in capacities]
    if not isinstance(head, StreamHead):
        return rows
    logits, bias = _dense(head.logits)
    scale, shift = affine(head.norm)
    classes, begin = _wide(logits.shape[1], lane), 0
    for k, mean in enumerate(cast(list[StreamMean], list(head.means)), head.pooled):
        weight, own = _dense(mean.hidden)
        size, last = weight.shape[1], k + 1 == len(rows)
        wide, room = _wide(size, lane), 4 * capacities[k] if last else 0
        mine = slice(begin, begin + size)
        rows[k] = {
            "size": size, "wide": wide, "classes": classes, "room": room,
            "rate": flat.add("weight", array_of(mean.mean.log_rate.double().exp() / mean.mean.decay_time)),
            "matrix": flat.add("weight", panels_of(fill(weight, eights(len(weight)), size), lane)),
            "place": flat.add("weight", columns_of(array_of(mean.place) + own, lane)),
            "scale": flat.add("weight", scale[mine]), "shift": flat.add("weight", shift[mine]),
            "logits": flat.add("weight", panels_of(logits[mine], lane)),
            "bias": flat.add("weight", columns_of(bias, lane)),
            "total": flat.room("voxel", size + 1), "time": flat.room("clock", 1),
            # Saved state is of the same shape whatever the vectors of the CPU.
            "last": flat.room("trace", _wide(classes, WIDEST)),
            "hidden": flat.room("work", wide), "mean": flat.room("work", size), "factor": flat.room("work", 8),
            "answer": flat.room("work", (room or capacities[k]) * classes), "at": flat.room("event", room),
        }  # fmt: skip
        begin += size
    return rows
