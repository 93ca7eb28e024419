"""Rejection sampling on the GPU: index order in one launch.

A point is kept when none of its earlier neighbours is. Each waits until those are decided, or one of them is kept;
blocks of rows take a ticket in the order in which they start, so that whatever a row waits for is already running.
The samples do not depend on timing.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.ball.gpu import ball
from gridless.geometry.gpu_common import load_point, squared_to
from gridless.geometry.rejection.reference import doubtful_depth as doubtful_depth  # torch, a few rounds
from gridless.geometry.work import CROSSING, refuse_crossing
from gridless.kernels.launch import Launcher, cdiv
from gridless.structures import Cloud, Edges

_BLOCK = 128


def sample(
    cloud: Cloud, near: Edges | None, radius: float | None, distance: bool
) -> tuple[Tensor, Tensor, Tensor | None, tuple[int, int]]:
    rows = rejecting_rows(cloud, near, radius)
    kept = decide(cloud, rows)
    index, splits, sizes = collect(cloud, kept)
    return index, splits, squared_to_sample(cloud, rows, kept).sqrt() if distance else None, sizes


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
    """1 for every point that is kept, else 0 (S) int32."""
    points, end, device = len(cloud), len(cloud) - cloud.padding, cloud.device
    # Kept or not, a ticket counter, and the state of every point.
    memory = torch.zeros(2 * points + 1, dtype=torch.int32, device=device)
    if end:
        _DECIDE((cdiv(end, 32), 1, 1), (rows.splits, rows.source, memory), (points, end), (32, 8), 1)
    return memory[:points]


def collect(cloud: Cloud, kept: Tensor) -> tuple[Tensor, Tensor, tuple[int, int]]:
    """Rows of the samples (S') int64, their splits, and the sizes of the smallest and largest; one read-back."""
    device, examples = cloud.device, cloud.num_examples
    at = torch.cumsum(kept, 0)
    splits = torch.empty(examples + 1, dtype=torch.int64, device=device)
    result = torch.empty(3, dtype=torch.int64, device=device)
    _SAMPLE_SPLITS((1, 1, 1), (cloud.splits, at, splits, result), (examples,), (1024,))
    total, smallest, largest = result.tolist()
    index = torch.empty(total, dtype=torch.int64, device=device)
    if total:
        _COLLECT((cdiv(len(kept), 1024), 1, 1), (kept, at, index), (len(kept),), (1024,))
    return index, splits, (smallest, largest)


def squared_to_sample(cloud: Cloud, rows: Edges, kept: Tensor) -> Tensor:
    """The squared distance of every point to the closest sample that rejects it; 0 for samples and padding."""
    result = torch.zeros(len(cloud), dtype=cloud.coords.dtype, device=cloud.device)
    end = len(cloud) - cloud.padding
    if end:
        tensors = (cloud.coords, rows.splits, rows.source, kept, result)
        _CLOSEST((cdiv(end, _BLOCK), 1, 1), tensors, (end,), (cloud.dim, _BLOCK))
    return result


@triton.jit(do_not_specialize=["points", "end"])
def _decide(splits, source, kept, points, end, ROWS: tl.constexpr, WINDOW: tl.constexpr):
    """state: 0 undecided, 1 kept, 2 rejected."""
    block = tl.atomic_add(kept + points, 1)
    state = kept + points + 1
    row = block * ROWS + tl.arange(0, ROWS)
    # Open rows hold 1: integers, because reductions and loops carry them.
    waiting = (row < end).to(tl.int32)
    at = tl.load(splits + row, mask=row < end, other=0)
    stop = tl.load(splits + row + 1, mask=row < end, other=0)
    k = tl.arange(0, WINDOW)[None, :]
    left = tl.max(waiting, 0)
    while left > 0:
        look = (waiting[:, None] > 0) & (at[:, None] + k < stop[:, None])
        j = tl.load(source + at[:, None] + k, mask=look, other=0x7FFFFFFF)
        before = j < row[:, None]
        s = tl.load(state + j, mask=before, other=2, volatile=True)
        some_kept = tl.max((s == 1).to(tl.int32), 1)
        some_open = tl.max((s == 0).to(tl.int32), 1)
        # Sources ascend: past the row itself, or past its end, nothing earlier follows.
        done = tl.max((j >= row[:, None]).to(tl.int32), 1)
        clear = (some_kept == 0) & (some_open == 0)
        keep = (waiting > 0) & clear & (done > 0)
        reject = (waiting > 0) & (some_kept > 0)
        tl.store(state + row, tl.where(keep, 1, 2), mask=keep | reject)
        tl.store(kept + row, keep.to(tl.int32), mask=keep)
        waiting = tl.where(keep | reject, 0, waiting)
        at = tl.where(clear, at + WINDOW, at)
        left = tl.max(waiting, 0)


@triton.jit(do_not_specialize=["examples"])
def _sample_splits(cloud_splits, at, splits, result, examples, BLOCK: tl.constexpr):
    """splits of the samples; result: their number, the smallest and the largest example."""
    lane = tl.arange(0, BLOCK)
    smallest = tl.full([BLOCK], 0x7FFFFFFFFFFFFFFF, tl.int64)
    largest = tl.zeros([BLOCK], tl.int64)
    for start in range(0, examples + 1, BLOCK):
        e = start + lane
        end = tl.load(cloud_splits + e, mask=e <= examples, other=0)
        before = tl.load(cloud_splits + e - 1, mask=(e > 0) & (e <= examples), other=0)
        here = tl.load(at + end - 1, mask=end > 0, other=0)
        past = tl.load(at + before - 1, mask=before > 0, other=0)
        tl.store(splits + e, here, mask=e <= examples)
        real = (e > 0) & (e <= examples)
        smallest = tl.where(real, tl.minimum(smallest, here - past), smallest)
        largest = tl.where(real, tl.maximum(largest, here - past), largest)
        tl.store(result + lane * 0, here, mask=e == examples)
    tl.store(result + 1, tl.min(smallest, 0))
    tl.store(result + 2, tl.max(largest, 0))


@triton.jit(do_not_specialize=["rows"])
def _collect(kept, at, index, rows, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    take = tl.load(kept + row, mask=row < rows, other=0) > 0
    tl.store(index + tl.load(at + row, mask=take, other=1) - 1, row.to(tl.int64), mask=take)


@triton.jit(do_not_specialize=["end"])
def _closest(coords, splits, source, kept, result, end, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = row < end
    rejected = ok & (tl.load(kept + row, mask=ok, other=1) == 0)
    point = load_point(coords, row, ok, D)
    start = tl.load(splits + row, mask=ok, other=0)
    count = tl.where(rejected, (tl.load(splits + row + 1, mask=ok, other=0) - start).to(tl.int32), 0)
    best = tl.where(rejected, float("inf"), 0.0).to(result.dtype.element_ty)
    for k in range(0, tl.max(count, 0)):
        j = tl.load(source + start + k, mask=k < count, other=0).to(tl.int64)
        sample = (k < count) & (tl.load(kept + j, mask=k < count, other=0) > 0)
        d2 = squared_to(coords, j * D, sample, 1, point, D)
        best = tl.where(sample, tl.minimum(best, d2), best)
    tl.store(result + row, best, mask=ok)


_DECIDE, _SAMPLE_SPLITS, _COLLECT, _CLOSEST = (
    Launcher(kernel, exact=True) for kernel in (_decide, _sample_splits, _collect, _closest)
)
