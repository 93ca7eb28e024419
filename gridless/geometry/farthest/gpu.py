"""Farthest sampling on the GPU: a program per example, or several for a large one.

Exact and small: coordinates and distances stay in registers. Exact and large: several programs share an example, and
agree on each sample through an integer maximum in memory. Approximate, or too large for that: distances lie in memory,
in cache, and a program passes over them once per sample.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry import gpu_common as common
from gridless.geometry.gpu_common import load_point, squared_to
from gridless.geometry.rejection.gpu import check_within_examples, collect, decide, rejecting_rows, squared_to_sample
from gridless.kernels.launch import EXACT, Launcher, cdiv, power_of_two
from gridless.structures import Cloud, Edges

# Numbers of a cloud that fit into the registers of one program: points times (dimensions + 1), in float32.
_ON_CHIP = 1 << 15

# Points per program where several share an example.
_SHARES = (2048, 4096, 8192)


def sample(cloud: Cloud, sizes: Tensor, start: int, near: Edges | None, reject: bool) -> Tensor:
    splits = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    _, largest = common.sizes(cloud, "farthest_sample")
    taken = torch.empty(int(splits[-1]), dtype=torch.int64, device=cloud.device)
    if len(taken) == 0:
        return taken
    block = power_of_two(largest)
    width = 2 if cloud.coords.dtype == torch.float64 else 1
    if near is None and block * (cloud.dim + 1) * width <= _ON_CHIP:
        tensors, warps = (cloud.coords, cloud.splits, splits, taken), min(max(block // 256, 1), 16)
        _ALL_ON_CHIP((cloud.num_examples, 1, 1), tensors, (start,), (cloud.dim, block), warps)
        return taken
    if near is None and (share := _share(cloud, largest)):
        _take_together(cloud, splits, taken, start, largest, share)
        return taken
    closest, kept, kept_splits = _begin(cloud, near, reject)
    block = min(block, 4096)
    edges = (cloud.splits, cloud.splits) if near is None else (near.splits, near.source)
    tensors = (cloud.coords, cloud.splits, splits, *edges, kept, kept_splits, closest, taken)
    constants = (cloud.dim, block, near is not None)
    _IN_MEMORY((cloud.num_examples, 1, 1), tensors, (start,), constants, min(max(block // 256, 1), 16))
    return taken


def _share(cloud: Cloud, largest: int) -> int:
    """Points per program so that all programs run at once, one on each multiprocessor; 0 where that is impossible."""
    if cloud.coords.dtype != torch.float32 or cloud.dim > 3 or cloud.device.type != "cuda":
        return 0
    at_once = torch.cuda.get_device_properties(cloud.device).multi_processor_count
    return next((n for n in _SHARES if cloud.num_examples * cdiv(largest, n) <= at_once), 0)


def _take_together(cloud: Cloud, splits: Tensor, taken: Tensor, start: int, largest: int, share: int) -> None:
    best = torch.zeros(len(taken), dtype=torch.int64, device=cloud.device)
    arrived = torch.zeros(len(taken), dtype=torch.int32, device=cloud.device)
    _together[(cloud.num_examples, cdiv(largest, share))](
        cloud.coords,
        cloud.splits,
        splits,
        taken,
        best,
        arrived,
        start,
        D=cloud.dim,
        BLOCK=share,
        num_warps=8 if share == 2048 else 16,
        **EXACT,
        launch_cooperative_grid=True,
    )


def _begin(cloud: Cloud, near: Edges | None, reject: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances before the queue begins, and what rejection sampling has kept."""
    if near is not None:
        check_within_examples(cloud, near)
    if near is not None and reject:
        rows = rejecting_rows(cloud, near, None)
        kept = decide(cloud, rows)
        return squared_to_sample(cloud, rows, kept), *collect(cloud, kept)[:2]
    closest = torch.full((len(cloud),), torch.inf, dtype=cloud.coords.dtype, device=cloud.device)
    return closest, torch.zeros_like(cloud.splits), torch.zeros_like(cloud.splits)


@triton.jit(do_not_specialize=["start"])
def _on_chip(coords, splits, taken_splits, taken, start, D: tl.constexpr, BLOCK: tl.constexpr):
    example = tl.program_id(0)
    first = tl.load(splits + example)
    points = (tl.load(splits + example + 1) - first).to(tl.int32)
    out = tl.load(taken_splits + example)
    size = (tl.load(taken_splits + example + 1) - out).to(tl.int32)
    lane = tl.arange(0, BLOCK)
    here = lane < points
    point = load_point(coords, first + lane, here, D)
    # Taken points have -1, lanes without a point -2.
    closest = tl.where(here, float("inf"), -2.0).to(coords.dtype.element_ty)
    current = points * 0 + start
    for k in range(0, size):
        tl.store(taken + out + k, first + current)
        d2 = squared_to(coords, (first + current) * D, None, 1, point, D)
        closest = tl.minimum(closest, d2)
        closest = tl.where(lane == current, -1.0, closest)
        current = tl.argmax(closest, 0)


@triton.jit
def _together(coords, splits, taken_splits, taken, best, arrived, start, D: tl.constexpr, BLOCK: tl.constexpr):
    """Each program holds a share of an example. A sample is the largest (distance, -index) of all shares."""
    example = tl.program_id(0)
    programs = tl.num_programs(1)
    first = tl.load(splits + example)
    points = (tl.load(splits + example + 1) - first).to(tl.int32)
    out = tl.load(taken_splits + example)
    size = (tl.load(taken_splits + example + 1) - out).to(tl.int32)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = lane < points
    point = load_point(coords, first + lane, here, D)
    closest = tl.where(here, float("inf"), -2.0)
    current = points * 0 + start
    for k in range(0, size):
        if tl.program_id(1) == 0:
            tl.store(taken + out + k, first + current)
        d2 = squared_to(coords, (first + current) * D, None, 1, point, D)
        closest = tl.minimum(closest, d2)
        closest = tl.where(lane == current, -1.0, closest)
        # Bits of distances ascend as they do; 0 is below all of them, for what was taken.
        rank = tl.where(closest >= 0, closest.to(tl.int32, bitcast=True) + 1, 0).to(tl.int64)
        mine = tl.max((rank << 32) | (0x7FFFFFFF - lane), 0)
        tl.atomic_max(best + out + k, mine, sem="release")
        count = tl.atomic_add(arrived + out + k, 1, sem="acq_rel") + 1
        while count < programs:
            count = tl.atomic_add(arrived + out + k, 0, sem="acquire")
        current = 0x7FFFFFFF - (tl.load(best + out + k, volatile=True) & 0x7FFFFFFF).to(tl.int32)


@triton.jit(do_not_specialize=["start"])
def _in_memory(
    coords,
    splits,
    taken_splits,
    near_splits,
    near,
    kept,
    kept_splits,
    closest,
    taken,
    start,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    NEAR: tl.constexpr,
):
    example = tl.program_id(0)
    first = tl.load(splits + example)
    last = tl.load(splits + example + 1)
    out = tl.load(taken_splits + example)
    size = tl.load(taken_splits + example + 1) - out
    begin = tl.load(kept_splits + example)
    already = tl.minimum(tl.load(kept_splits + example + 1) - begin, size)
    lane = tl.arange(0, BLOCK)
    for at in range(0, already, BLOCK):
        mine = tl.load(kept + begin + at + lane, mask=at + lane < already, other=0)
        tl.store(taken + out + at + lane, mine, mask=at + lane < already)
        gone = tl.full([BLOCK], -1.0, coords.dtype.element_ty)
        tl.store(closest + mine, gone, mask=at + lane < already)
    tl.debug_barrier()
    current = first + start
    for k in range(already, size):
        if NEAR:
            if k > 0:
                current = _farthest(closest, first, last, lane, BLOCK)
            tl.store(taken + out + k, current)
            # Every lane has read before any writes.
            tl.debug_barrier()
            point = load_point(coords, current + lane * 0, lane >= 0, D)
            end = tl.load(near_splits + current + 1)
            for at in range(tl.load(near_splits + current), end, BLOCK):
                ok = at + lane < end
                j = tl.load(near + at + lane, mask=ok, other=0).to(tl.int64)
                d2 = squared_to(coords, j * D, ok, 1, point, D)
                lower = tl.minimum(tl.load(closest + j, mask=ok, other=0.0), d2)
                tl.store(closest + j, tl.where(j == current, -1.0, lower), mask=ok)
            # The point itself, where a search does not list it.
            tl.store(closest + current, -1.0)
            tl.debug_barrier()
        else:
            tl.store(taken + out + k, current)
            best = tl.full([BLOCK], -2.0, coords.dtype.element_ty)
            where = tl.zeros([BLOCK], tl.int64) + first
            for at in range(first, last, BLOCK):
                row = at + lane
                ok = row < last
                point = load_point(coords, row, ok, D)
                d2 = squared_to(coords, current * D, None, 1, point, D)
                value = tl.minimum(tl.load(closest + row, mask=ok, other=-2.0), d2)
                value = tl.where(row == current, -1.0, value)
                tl.store(closest + row, value, mask=ok)
                more = ok & (value > best)
                best = tl.where(more, value, best)
                where = tl.where(more, row, where)
            current = tl.min(tl.where(best == tl.max(best, 0), where, last), 0)


@triton.jit
def _farthest(closest, first, last, lane, BLOCK: tl.constexpr):
    """The first row of the largest distance."""
    best = tl.full([BLOCK], -2.0, closest.dtype.element_ty)
    where = tl.zeros([BLOCK], tl.int64) + first
    for at in range(first, last, BLOCK):
        value = tl.load(closest + at + lane, mask=at + lane < last, other=-2.0)
        more = value > best
        best = tl.where(more, value, best)
        where = tl.where(more, at + lane, where)
    return tl.min(tl.where(best == tl.max(best, 0), where, last), 0)


_ALL_ON_CHIP, _IN_MEMORY = Launcher(_on_chip, exact=True), Launcher(_in_memory, exact=True)
