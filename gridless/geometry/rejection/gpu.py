"""Rejection sampling on the GPU: index order in one launch.

A point is kept when none of its earlier neighbours is. Each waits until those are decided, or one of them is kept;
blocks of rows take a ticket in the order in which they start, so that whatever a row waits for is already running.
The samples do not depend on timing.
"""

from __future__ import annotations

import weakref
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.backends import current
from gridless.geometry import gpu_common as common
from gridless.geometry.ball.gpu import ball
from gridless.geometry.checks import CROSSING, refuse_crossing
from gridless.geometry.gpu_common import load_point, squared_to
from gridless.geometry.rejection import reference
from gridless.geometry.rejection.reference import doubtful_depth as doubtful_depth  # torch, a few rounds
from gridless.kernels.launch import INT32, Launcher, cdiv
from gridless.structures import Cloud, Edges

_BLOCK = 128

# Cache key of a sample: a weak reference to the edges that it was sampled by, and `Collected`.
SAMPLED_BY = "sampled by"


def sample(cloud: Cloud, near: Edges | None, radius: float | None, distance: bool) -> Cloud:
    rows = rejecting_rows(cloud, near, radius)
    marks = decide(cloud, rows)
    to_sample = squared_to_sample(cloud, rows, marks).sqrt() if distance else None
    return sampled(cloud, rows if rows is near else None, collect(cloud, marks), to_sample)


def sampled(cloud: Cloud, near: Edges | None, known: Collected, distance: Tensor | None = None) -> Cloud:
    """The samples as a cloud, which knows the edges it was sampled by, and the bounding box of the whole."""
    sample = cloud.sampled(known.index, known.splits, distance, known.coords)
    common.inherit_facts(cloud, sample, *known.sizes)
    if near is not None:
        sample.cached(SAMPLED_BY, lambda: (weakref.ref(near), known))
    return sample


def rejecting_rows(cloud: Cloud, near: Edges | None, radius: float | None) -> Edges:
    """Row i: the points that reject point i when they are kept."""
    if near is None:
        splits, source = ball(cloud, cloud, radius or 0.0, None)
        return Edges(splits, source, len(cloud), symmetric=True)
    if near.symmetric:
        return near
    check_within_examples(cloud, near)
    return near.transpose()


def check_within_examples(cloud: Cloud, near: Edges) -> None:
    """Refuse edges between examples; edges are looked at once in their life, those of a ball search never."""

    def look() -> bool:
        end = len(near) - near.padding
        example = cloud.example
        return bool((example[near.target[:end].long()] == example[near.source[:end].long()]).all())

    if not near.symmetric and cloud.num_examples > 1 and not near.cached("within examples", look):
        refuse_crossing([CROSSING])


def decide(cloud: Cloud, rows: Edges) -> Tensor:
    """1 + 2^32 times the edges of its row for every point that is kept, else 0: (S) int64."""
    points, end, device = len(cloud), len(cloud) - cloud.padding, cloud.device
    # Then a ticket counter and the state of every point, from a multiple of 16 bytes on.
    begin = points + points % 2
    memory = torch.zeros(begin + points // 2 + 1, dtype=torch.int64, device=device)
    marks, state = memory[:points], memory[begin:].view(torch.int32)
    if end:
        tensors = (rows.splits, rows.source, cloud.splits, marks, state)
        _DECIDE((cdiv(end, 32), 1, 1), tensors, (points, cloud.num_examples, len(rows.source)), (32, 8), 1)
    return marks


class Collected(NamedTuple):
    """The samples of a cloud of S points, and the rows that they have in the edges they were sampled by."""

    index: Tensor  # (S') int64
    splits: Tensor  # (B + 1) int64
    coords: Tensor  # (S', D)
    place: Tensor  # (S) int32: the position among the samples, or -1
    row_splits: Tensor  # (S' + 1) int64
    edges: int = 0
    sizes: tuple[int, int] = (0, 0)  # of the smallest and the largest example

    def cut(self, samples: int, points: int) -> Collected:
        """The same without what is past so many samples, and points."""
        index, splits, coords, place, row_splits, *_ = self
        return Collected(index[:samples], splits, coords[:samples], place[:points], row_splits[: samples + 1])


def collect(cloud: Cloud, marks: Tensor) -> Collected:
    """The samples that `decide` found; one read-back."""
    totals = torch.empty(3, dtype=torch.int64, device=cloud.device)
    at, splits = number(cloud, marks, totals)
    last, smallest, largest = totals.tolist()
    edges, total = divmod(last, 1 << 32)
    return gather(cloud, marks, at, splits, total)._replace(edges=edges, sizes=(smallest, largest))


def number(
    cloud: Cloud, marks: Tensor, totals: Tensor, room: int = INT32 - 1, most: int = INT32 - 1
) -> tuple[Tensor, Tensor]:
    """The cumulative sum of `marks`, and the splits of the samples (B + 1).

    These are zeros where there are more than `room` samples, or where an example has more than `most`. totals (3) get
    the last of the sums, and the sizes of the smallest and of the largest example.
    """
    at = torch.cumsum(marks, 0)
    splits = torch.empty(cloud.num_examples + 1, dtype=torch.int64, device=cloud.device)
    _SAMPLE_SPLITS((1, 1, 1), (cloud.splits, at, splits, totals), (cloud.num_examples, room, most), (1024,))
    return at, splits


def gather(cloud: Cloud, marks: Tensor, at: Tensor, splits: Tensor, total: int) -> Collected:
    """The first `total` samples; edges and sizes are not known."""
    device = cloud.device
    index = torch.empty(total, dtype=torch.int64, device=device)
    row_splits = torch.empty(total + 1, dtype=torch.int64, device=device)
    coords = torch.empty((total, cloud.dim), dtype=cloud.coords.dtype, device=device)
    place = torch.empty(len(cloud), dtype=torch.int32, device=device)
    tensors = (cloud.coords, marks, at, index, coords, place, row_splits)
    _COLLECT((cdiv(len(cloud) + 1, 256), 1, 1), tensors, (len(cloud), total), (cloud.dim, 256))
    return Collected(index, splits, coords, place, row_splits)


def squared_to_sample(cloud: Cloud, rows: Edges, marks: Tensor) -> Tensor:
    """The squared distance of every point to the closest sample that rejects it; 0 for samples and padding."""
    result = torch.zeros(len(cloud), dtype=cloud.coords.dtype, device=cloud.device)
    end = len(cloud) - cloud.padding
    if end:
        tensors = (cloud.coords, rows.splits, rows.source, marks, result)
        _CLOSEST((cdiv(end, _BLOCK), 1, 1), tensors, (end,), (cloud.dim, _BLOCK))
    return result


def ball_of_samples(near: Edges, sample: Cloud) -> Edges:
    by, known = sample.cached(SAMPLED_BY, lambda: (None, None))
    if known is None or by() is not near:
        return reference.ball_of_samples(near, sample)
    return edges_of_samples(near, known, take(near, known, known.edges))


def take(near: Edges, known: Collected, room: int) -> Tensor:
    """The first `room` edges of the rows of the samples."""
    source, rows = torch.empty(room, dtype=torch.int32, device=near.device), len(known.index)
    if rows:
        tensors = (near.splits, near.source, known.index, known.splits, known.row_splits, source)
        _TAKE((cdiv(rows, _BLOCK), 1, 1), tensors, (len(known.splits) - 1, room), (_BLOCK,))
    return source


def edges_of_samples(near: Edges, known: Collected, source: Tensor) -> Edges:
    edges = Edges.made(splits=known.row_splits, source=source, num_source=near.num_source).trusted()
    # Seen from the points, they are those neighbours that are samples.
    edges.cached("transposed by", lambda: lambda _: _samples_near(near, known))
    return edges


def _samples_near(near: Edges, known: Collected) -> Edges:
    """Edges from samples to all points: the rows of a symmetric `near`, without what is no sample."""
    rows, device = near.num_target, near.device
    if not rows:
        return Edges.made(splits=near.splits, source=near.source, num_source=len(known.index)).trusted()
    counts = torch.empty(rows + 1, dtype=torch.int64, device=device)
    neighbours = torch.empty(known.edges, dtype=torch.int32, device=device)
    grid, tensors = (cdiv(rows, _BLOCK), 1, 1), (near.splits, near.source, known.place)
    with current(device):
        _SAMPLES_NEAR(grid, (*tensors, counts, neighbours), (rows,), (_BLOCK, False))
        splits = torch.cumsum(counts, 0)
        _SAMPLES_NEAR(grid, (*tensors, splits, neighbours), (rows,), (_BLOCK, True))
    return Edges.made(splits=splits, source=neighbours, num_source=len(known.index)).trusted()


@triton.jit(do_not_specialize=["points", "examples", "room"])
def _decide(
    splits, source, cloud_splits, marks, state, points, examples, room, ROWS: tl.constexpr, WINDOW: tl.constexpr
):
    """state: 0 undecided, 1 kept, 2 rejected; before it the number of blocks that have begun."""
    # No point is kept if there was no room for the edges.
    end = tl.where(tl.load(splits + points) <= room, tl.load(cloud_splits + examples), 0)
    block = tl.atomic_add(state, 1)
    state = state + 1
    row = block * ROWS + tl.arange(0, ROWS)
    # Open rows hold 1: integers, because reductions and loops carry them.
    waiting = (row < end).to(tl.int32)
    first = tl.load(splits + row, mask=row < end, other=0)
    at = first
    stop = tl.load(splits + row + 1, mask=row < end, other=0)
    k = tl.arange(0, WINDOW)[None, :]
    left = tl.max(waiting, 0)
    while left > 0:
        look = (waiting[:, None] > 0) & (at[:, None] + k < stop[:, None])
        j = tl.load(source + at[:, None] + k, mask=look, other=0x7FFFFFFF)
        # Rows that were too long to be sorted hold anything.
        before = (j >= 0) & (j < row[:, None])
        s = tl.load(state + j, mask=before, other=2, volatile=True)
        some_kept = tl.max((s == 1).to(tl.int32), 1)
        some_open = tl.max((s == 0).to(tl.int32), 1)
        # Sources ascend: past the row itself, or past its end, nothing earlier follows.
        done = tl.max((j >= row[:, None]).to(tl.int32), 1)
        clear = (some_kept == 0) & (some_open == 0)
        keep = (waiting > 0) & clear & (done > 0)
        reject = (waiting > 0) & (some_kept > 0)
        tl.store(state + row, tl.where(keep, 1, 2), mask=keep | reject)
        tl.store(marks + row, (stop - first) << 32 | 1, mask=keep)
        waiting = tl.where(keep | reject, 0, waiting)
        at = tl.where(clear, at + WINDOW, at)
        left = tl.max(waiting, 0)


@triton.jit(do_not_specialize=["examples", "room", "most"])
def _sample_splits(cloud_splits, at, splits, result, examples, room, most, BLOCK: tl.constexpr):
    """splits of the samples; result: the last of `at`, the smallest and the largest example."""
    lane = tl.arange(0, BLOCK)
    smallest = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64)
    largest = tl.zeros([BLOCK], tl.int64)
    for start in range(0, examples, BLOCK):
        e = start + lane
        size = _before(cloud_splits, at, e + 1, examples) - _before(cloud_splits, at, e, examples)
        smallest = tl.where(e < examples, tl.minimum(smallest, size & 0xFFFFFFFF), smallest)
        largest = tl.where(e < examples, tl.maximum(largest, size & 0xFFFFFFFF), largest)
    end = tl.load(cloud_splits + examples)
    last = tl.load(at + end - 1, mask=end > 0, other=0)
    tl.store(result, last)
    tl.store(result + 1, tl.min(smallest, 0))
    tl.store(result + 2, tl.max(largest, 0))
    fits = ((last & 0xFFFFFFFF) <= room) & (tl.max(largest, 0) <= most)
    for start in range(0, examples + 1, BLOCK):
        e = start + lane
        tl.store(splits + e, tl.where(fits, _before(cloud_splits, at, e, examples) & 0xFFFFFFFF, 0), mask=e <= examples)


@triton.jit
def _before(cloud_splits, at, e, examples):
    """The sum of what is kept before example e."""
    end = tl.load(cloud_splits + e, mask=e <= examples, other=0)
    return tl.load(at + end - 1, mask=end > 0, other=0)


@triton.jit(do_not_specialize=["rows", "room"])
def _collect(coords, marks, at, index, sampled, place, row_splits, rows, room, D: tl.constexpr, BLOCK: tl.constexpr):
    """Rows, coordinates and splits of the samples among BLOCK points, and the place of each point among the samples."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = row < rows
    take = tl.load(marks + row, mask=ok, other=0) > 0
    here = tl.load(at + row, mask=take, other=0)
    number = (here & 0xFFFFFFFF) - 1
    tl.store(place + row, number.to(tl.int32), mask=ok)
    take = take & (number < room)
    tl.store(index + number, row.to(tl.int64), mask=take)
    tl.store(row_splits + number + 1, here >> 32, mask=take)
    tl.store(row_splits + row, 0, mask=row == 0)
    for k in tl.static_range(D):
        tl.store(sampled + number * D + k, tl.load(coords + row.to(tl.int64) * D + k, mask=take), mask=take)


@triton.jit(do_not_specialize=["end"])
def _closest(coords, splits, source, marks, result, end, D: tl.constexpr, BLOCK: tl.constexpr):
    """Squared distance of each rejected point among BLOCK to the nearest sample along its edges."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = row < end
    rejected = ok & (tl.load(marks + row, mask=ok, other=1) == 0)
    point = load_point(coords, row, ok, D)
    start = tl.load(splits + row, mask=ok, other=0)
    count = tl.where(rejected, (tl.load(splits + row + 1, mask=ok, other=0) - start).to(tl.int32), 0)
    best = tl.where(rejected, float("inf"), 0.0).to(result.dtype.element_ty)
    for k in range(0, tl.max(count, 0)):
        j = tl.load(source + start + k, mask=k < count, other=0).to(tl.int64)
        sample = (k < count) & (tl.load(marks + j, mask=k < count, other=0) > 0)
        d2 = squared_to(coords, j * D, sample, 1, point, D)
        best = tl.where(sample, tl.minimum(best, d2), best)
    tl.store(result + row, best, mask=ok)


@triton.jit(do_not_specialize=["examples", "room"])
def _take(splits, source, index, sample_splits, row_splits, taken, examples, room, BLOCK: tl.constexpr):
    """The rows `index` of edges, one after the other."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = row < tl.load(sample_splits + examples)
    first = tl.load(splits + tl.load(index + row, mask=ok, other=0), mask=ok, other=0)
    out = tl.load(row_splits + row, mask=ok, other=0)
    count = (tl.load(row_splits + row + 1, mask=ok, other=0) - out).to(tl.int32)
    for k in range(0, tl.max(count, 0)):
        exists = (k < count) & (out + k < room)
        tl.store(taken + out + k, tl.load(source + first + k, mask=exists, other=0), mask=exists)


@triton.jit(do_not_specialize=["rows"])
def _samples_near_kernel(splits, source, place, counts, neighbours, rows, BLOCK: tl.constexpr, FILL: tl.constexpr):
    """Count the samples in each row, after a 0; or, with their splits, write them."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = row < rows
    at = tl.load(splits + row, mask=ok, other=0)
    count = (tl.load(splits + row + 1, mask=ok, other=0) - at).to(tl.int32)
    total = tl.zeros([BLOCK], tl.int64)
    if FILL:
        total = tl.load(counts + row, mask=ok, other=0)
    for k in range(0, tl.max(count, 0)):
        j = tl.load(source + at + k, mask=k < count, other=0)
        number = tl.load(place + j, mask=k < count, other=-1)
        if FILL:
            tl.store(neighbours + total, number, mask=number >= 0)
        total += (number >= 0).to(tl.int64)
    if not FILL:
        tl.store(counts + row, 0, mask=row == 0)
        tl.store(counts + row + 1, total, mask=ok)


_DECIDE, _SAMPLE_SPLITS, _COLLECT, _CLOSEST, _TAKE, _SAMPLES_NEAR = (
    Launcher(kernel, exact=True)
    for kernel in (_decide, _sample_splits, _collect, _closest, _take, _samples_near_kernel)
)
