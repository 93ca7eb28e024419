"""The ball search on the CPU: a bisection (see `gridless.geometry.bisection`) in as many threads as torch uses.

Small examples are searched once; their rows are stored and then put in order. Large examples are cut into parts that
threads share, and searched twice, to count and to fill: memory is little more than the edges. If a limit cuts rows, the
nearest search fills them, because it need not visit all points inside.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.bisection import (
    COUNT,
    FILL,
    MORE_OUT,
    MORE_ROWS,
    MORE_WORK,
    SCAN,
    count_inside,
    gather_list,
    halve_list,
    pick_list,
    room,
    search,
    write_list,
)
from gridless.geometry.checks import check_edge_count, squared_radius
from gridless.geometry.nearest.cpu import fill
from gridless.kernels.threads import cut_examples, in_threads
from gridless.structures import Cloud

# Points of an example whose rows may wait to be put in order.
SMALL = 1 << 13
# Edges that may wait so: a batch with more is counted first.
_WAITING = 1 << 27
# Points of a large example that one thread searches at once.
_PART = 1 << 15

AXES = [tuple(range(dim)) for dim in range(9)]
_NOTHING = np.empty(0, np.int32)
_NONE = np.empty(0, np.int64)


@dataclass
class Scratch:
    """Memory of one thread, kept for its next search."""

    dtype: np.dtype
    work: np.ndarray = field(init=False)
    boxes: np.ndarray = field(init=False)
    stack: np.ndarray = field(init=False)
    unordered: np.ndarray = field(default_factory=lambda: np.empty(1 << 17, np.int32))
    rows: np.ndarray = field(default_factory=lambda: np.empty((2, 1 << 11), np.int64))

    def __post_init__(self) -> None:
        self.work = np.empty(1 << 18, self.dtype)
        self.resize_stack(1 << 8)

    def resize_stack(self, nodes: int) -> None:
        self.boxes, self.stack = np.empty((nodes, 16), self.dtype), np.empty((nodes, 8), np.int64)

    def widen(self, targets: int) -> None:
        """Make room for the rows of an example of so many targets."""
        if self.rows.shape[1] < targets:
            self.rows = np.empty((2, targets), np.int64)

    @property
    def unusual(self) -> bool:
        """True for memory that an unusual search needed, which the next search does not reuse."""
        return self.work.nbytes + self.unordered.nbytes > 1 << 24

    def grow(self, what: int) -> None:
        if what == MORE_WORK:
            self.work = np.empty(2 * len(self.work), self.dtype)
            self.resize_stack(2 * len(self.stack))
        elif what == MORE_ROWS:
            self.unordered = np.empty(2 * len(self.unordered), np.int32)


_memories = threading.local()


def scratch(dtype: np.dtype) -> Scratch:
    """The memory of this thread."""
    memory = _memories.__dict__.setdefault(dtype.char, None)
    if memory is None or memory.unusual:
        memory = _memories.__dict__[dtype.char] = Scratch(dtype)
    return memory


@dataclass
class _BallSearch:
    """The clouds of a search as arrays, and what all its kernels are given."""

    x: np.ndarray
    xs: np.ndarray
    y: np.ndarray
    ys: np.ndarray
    same: bool
    most: int  # sources of a target that are worth counting; 0 is all
    axes: tuple[int, ...]
    # A little more than the radius, its square, 1/2 and the spacing of numbers at 1, in the dtype of the clouds.
    numbers: tuple[Any, Any, Any, Any]

    def scan(self, first: int, last: int, splits: np.ndarray) -> np.ndarray | None:
        """The edges of some examples, with the ends of their rows; None if they are too many to wait."""
        rooms = scratch(self.x.dtype)
        targets, sources = self.ys[last] - self.ys[first], self.xs[last] - self.xs[first]
        out = np.empty(int(targets * min(sources // (last - first), 24)) + 1024, np.int32)
        rooms.widen(_largest(self.ys[first : last + 1]))
        total = 0
        while True:
            first, total, short = search(
                self.x, self.xs, self.y, self.ys, first, last, self.same, False, *self.numbers, self.axes,
                rooms.work, rooms.boxes, rooms.stack, SCAN, 0, rooms.unordered, rooms.rows[0], rooms.rows[1],
                splits, total, out,
            )  # fmt: skip
            if not short:
                break
            if short != MORE_OUT:
                rooms.grow(short)
            elif 2 * len(out) > _WAITING:
                return None
            else:
                bigger = np.empty(2 * len(out), np.int32)
                bigger[:total] = out[:total]
                out = bigger
        out.resize(total, refcheck=False)
        return out

    def walk(self, first: int, last: int, mode: int, begin: np.ndarray, count: np.ndarray, out: np.ndarray) -> None:
        """Count the rows of some examples, or write them."""
        rooms = scratch(self.x.dtype)
        while first < last:
            first, _, short = search(
                self.x, self.xs, self.y, self.ys, first, last, self.same, False, *self.numbers, self.axes,
                rooms.work, rooms.boxes, rooms.stack, mode, self.most, rooms.unordered, begin, count,
                _NONE, 0, out,
            )  # fmt: skip
            rooms.grow(short)

    def walk_part(self, part: _BallPart, mode: int, begin: np.ndarray, count: np.ndarray, out: np.ndarray) -> None:
        """Count the rows of a part of an example, or write them."""
        rooms = scratch(self.x.dtype)
        splits = np.array([0, len(part.source)]), np.array([0, part.targets])
        done = 0
        while not done:
            part.place(self, rooms.work)
            done, _, short = search(
                self.x, splits[0], self.y, splits[1], 0, 1, False, True, *self.numbers, self.axes,
                rooms.work, rooms.boxes, rooms.stack, mode, self.most, rooms.unordered, begin, count,
                _NONE, 0, out,
            )  # fmt: skip
            rooms.grow(short)


def ball(source: Cloud, target: Cloud, radius: float, limit: int | None) -> tuple[Tensor, Tensor]:
    same = source is target
    x, xs = _array(source.coords), source.splits.numpy()
    y, ys = (x, xs) if same else (_array(target.coords), target.splits.numpy())
    splits = np.zeros(len(y) + 1, np.int64)
    if len(xs) < 2:
        return torch.from_numpy(splits), torch.from_numpy(np.empty(0, np.int32))
    limit = None if limit is None else min(limit, len(x))
    # One more than the limit tells whether it cuts anything.
    most = 0 if limit is None else limit + 1
    task = _BallSearch(x, xs, y, ys, same, most, AXES[x.shape[1]], numbers(radius, source.coords.dtype))
    small = limit is None and max(_largest(xs), 0 if same else _largest(ys)) <= SMALL
    out = _scanned(task, splits) if small else None
    if out is None:
        splits[:] = 0
        walk = _walk(task, splits)
        walk(COUNT, _NOTHING)
        cut = limit if limit is not None and splits.max() > limit else None
        np.cumsum(splits if cut is None else np.minimum(splits, cut), out=splits)
        check_edge_count("ball", int(splits[-1]))
        if cut is not None:
            out = fill(source, target, cut, task.numbers[1], splits)
        else:
            out = np.empty(int(splits[-1]), np.int32)
            walk(FILL, out)
    return torch.from_numpy(splits), torch.from_numpy(out)


def _array(coords: Tensor) -> np.ndarray:
    return (coords.detach().contiguous() if coords.requires_grad else coords).numpy()


@lru_cache
def numbers(radius: float, dtype: torch.dtype) -> tuple[Any, Any, Any, Any]:
    number = np.float32 if dtype == torch.float32 else np.float64
    eps = torch.finfo(dtype).eps
    # A source whose rounded distance is within the radius may be so much farther away.
    reach = min(radius * (1 + 16 * eps), torch.finfo(dtype).max)
    return number(reach), number(squared_radius(radius, dtype)), number(0.5), number(eps)


def _largest(splits: np.ndarray) -> int:
    return int(splits[1] - splits[0]) if len(splits) == 2 else int((splits[1:] - splits[:-1]).max())


def _scanned(task: _BallSearch, splits: np.ndarray) -> np.ndarray | None:
    """Search once. The ends of the rows are written to `splits`."""
    ys, cuts = task.ys, cut_examples(task.ys) if len(task.ys) > 2 else [(0, 1)]
    parts = in_threads(task.scan, [(a, b, splits[1:]) for a, b in cuts])
    if any(out is None for out in parts):
        return None
    total = sum(map(len, parts))
    check_edge_count("ball", total)
    before = 0
    for (a, b), out in zip(cuts, parts, strict=True):
        if before:
            splits[1 + ys[a] : 1 + ys[b]] += before
        before += len(out)
    splits[1 + ys[-1] :] = total
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _walk(task: _BallSearch, splits: np.ndarray) -> Callable[[int, np.ndarray], object]:
    """A search of everything in shares for threads: it counts rows to splits[1:], or fills them from splits[:-1] on."""
    walks: list[Any] = []
    for e in range(len(task.xs) - 1):
        if max(task.xs[e + 1] - task.xs[e], task.ys[e + 1] - task.ys[e]) > _PART:
            walks += _cut(task, e)
        elif walks and isinstance(walks[-1], tuple) and task.ys[e + 1] - task.ys[walks[-1][0]] < _PART:
            walks[-1] = (walks[-1][0], e + 1)
        else:
            walks.append((e, e + 1))

    def walk(at: Any, mode: int, out: np.ndarray) -> None:
        if isinstance(at, tuple):
            first, last = at
            task.walk(first, last, mode, splits[:-1], splits[1:], out)
        else:
            task.walk_part(at, mode, splits[:-1], splits[1:], out)

    def walk_all(mode: int, out: np.ndarray) -> object:
        return in_threads(walk, [(at, mode, out) for at in walks])

    return walk_all


@dataclass
class _BallPart:
    """The sources that reach a box, and the targets in it (None where they are those of the sources in it), by ids.

    Coordinates would take four times the memory; they are gathered when it is a part's turn.
    """

    source: np.ndarray
    target: np.ndarray | None
    targets: int
    low: np.ndarray
    high: np.ndarray

    def place(self, task: _BallSearch, work: np.ndarray) -> None:
        """Write both lists to where a search expects them, if they fit."""
        width, planes = 64 // work.itemsize, len(task.axes) + 1
        sources, targets = int(room(len(self.source), width)), int(room(self.targets, width))
        free = planes * sources
        if free + planes * targets > len(work):
            return
        gather_list(task.x, self.source, work, 0, sources, task.axes)
        if self.target is None:
            pick_list(work, sources, len(self.source), self.low, self.high, free, targets, task.axes)
        else:
            gather_list(task.y, self.target, work, free, targets, task.axes)


@dataclass
class _List:
    """Points plane by plane, with their ids (see `gridless.kernels.simd_lists`)."""

    points: np.ndarray
    stride: int
    count: int

    @classmethod
    def empty(cls, count: int, planes: int, dtype: np.dtype) -> _List:
        stride = int(room(count, 64 // dtype.itemsize))
        return cls(np.empty(planes * stride, dtype), stride, count)

    def plane(self, d: int) -> np.ndarray:
        return self.points[d * self.stride :][: self.count]

    def ids(self, dim: int) -> np.ndarray:
        return self.points.view(np.int32)[dim * self.stride * (self.points.itemsize // 4) :][: self.count]


@dataclass
class _Uncut:
    """A part that may have to be cut, with the coordinates that decide where."""

    source: _List
    target: _List | None
    low: np.ndarray
    high: np.ndarray

    def part(self, axes: tuple[int, ...]) -> _BallPart:
        dim, source = len(axes), self.source
        if self.target is not None:
            ids = self.target.ids(dim).copy()
            return _BallPart(source.ids(dim).copy(), ids, len(ids), self.low, self.high)
        inside = count_inside(source.points, source.stride, source.count, self.low, self.high, axes)
        return _BallPart(source.ids(dim).copy(), None, int(inside), self.low, self.high)


def _cut(task: _BallSearch, e: int) -> list[_BallPart]:
    """Cut an example at medians until no part has more points than one thread searches at once."""
    dim, dtype = task.x.shape[1], task.x.dtype

    def whole(x: np.ndarray, splits: np.ndarray) -> _List:
        lists = _List.empty(int(splits[e + 1] - splits[e]), dim + 1, dtype)
        write_list(x, splits[e], splits[e + 1], lists.points, lists.stride)
        return lists

    infinite = np.full(dim, np.inf, dtype)
    target = None if task.same else whole(task.y, task.ys)
    waiting, parts = [_Uncut(whole(task.x, task.xs), target, -infinite, infinite)], []
    while waiting:
        part = waiting.pop()
        halves = None
        if max(part.source.count, part.target.count if part.target else 0) > _PART:
            halves = _halves(task, part)
        if halves is None:
            parts.append(part.part(task.axes))
        else:
            waiting += halves
    return parts


def _halves(task: _BallSearch, part: _Uncut) -> tuple[_Uncut, _Uncut] | None:
    """Two parts with about as many targets each; None if all targets are so close that cutting is no use."""
    radius, _, half, eps = task.numbers
    dim = len(task.axes)
    seen = part.target or part.source
    sample = np.stack([seen.plane(d)[:: max(seen.count // 1024, 1)] for d in range(dim)])
    sample = sample[:, ((sample > part.low[:, None]) & (sample <= part.high[:, None])).all(0)]
    if sample.shape[1] < 2:
        return None
    wide = sample.max(1) * half - sample.min(1) * half
    axis = int(wide.argmax())
    if wide[axis] <= radius / 8:
        return None
    order = np.sort(sample[axis])
    middle = order[(len(order) - 1) // 2]
    if middle == order[-1]:
        middle = order[order < middle][-1]
    grown = radius + eps * abs(middle)
    sources = _halve(part.source, axis, middle + grown, middle - grown, task.axes)
    targets = (None, None) if part.target is None else _halve(part.target, axis, middle, middle, task.axes)
    low, high = part.low.copy(), part.high.copy()
    low[axis] = high[axis] = middle
    return _Uncut(sources[0], targets[0], part.low, high), _Uncut(sources[1], targets[1], low, part.high)


def _halve(points: _List, axis: int, upper: Any, lower: Any, axes: tuple[int, ...]) -> tuple[_List, _List]:
    plane, planes = points.plane(axis), len(axes) + 1
    left = _List.empty(int(np.count_nonzero(plane <= upper)), planes, plane.dtype)
    right = _List.empty(int(np.count_nonzero(plane > lower)), planes, plane.dtype)
    halve_list(
        points.points, points.stride, points.count, left.points, left.stride, right.points, right.stride,
        axis, upper, lower, axes,
    )  # fmt: skip
    return left, right
