"""The nearest search on the GPU.

Small examples: the distances of a target to all sources of its example stay on chip, and the k-th smallest is found bit
by bit (distances are not negative, so their bits ascend as they do). Large examples: ball searches that keep the k
nearest, with a radius that grows for the targets that found too few.
"""

# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry import gpu_common as common
from gridless.geometry.ball import gpu as ball_gpu
from gridless.geometry.ball import grid_gpu
from gridless.geometry.gpu_common import load_point, squared_to
from gridless.kernels.launch import Launcher, cdiv, power_of_two
from gridless.structures import Cloud

# The largest example whose distances are kept on chip.
ON_CHIP = 4096
# Numbers of 32 bits that a warp keeps of them.
_OF_WARP = 512
_BLOCK = 128


def search(source: Cloud, target: Cloud, k: int) -> tuple[Tensor, Tensor]:
    least, most = common.sizes(source, "nearest: source")
    _, most_target = common.sizes(target, "nearest: target")
    splits, total = _splits(source, target, min(k, most), least)
    neighbours = torch.empty(total, dtype=torch.int32, device=target.device)
    if total == 0:
        return splits, neighbours
    if most <= ON_CHIP:
        _select_all(source, target, k, splits, neighbours, most, most_target)
    else:
        _grow(source, target, min(k, most), splits, neighbours)
    return splits, neighbours


def _splits(source: Cloud, target: Cloud, k: int, least: int) -> tuple[Tensor, int]:
    """Row splits and the number of edges, which is known where every example has k sources."""
    end = len(target) - target.padding
    if least >= k:
        row = torch.arange(len(target) + 1, device=target.device)
        return row.clamp_(max=end) * k, end * k
    counts = torch.zeros(len(target) + 1, dtype=torch.int64, device=target.device)
    counts[1 : end + 1] = torch.repeat_interleave(source.sizes.clamp(max=k), target.sizes, output_size=end)
    splits = counts.cumsum(0)
    return splits, int(splits[-1])


def _select_all(
    source: Cloud, target: Cloud, k: int, splits: Tensor, neighbours: Tensor, most: int, most_target: int
) -> None:
    double = source.coords.dtype == torch.float64
    block = max(power_of_two(most), 32)
    words = block * (2 if double else 1)
    # Few warps to a target: they wait for each other each time they count.
    rows, warps = max(_OF_WARP // words, 1), max(words // _OF_WARP, 1)
    blocks = cdiv(most_target, rows)
    tensors = (source.coords, source.splits, target.coords, target.splits, splits, neighbours)
    _SELECT((source.num_examples * blocks, 1, 1), tensors, (k, blocks), (source.dim, rows, block, double), warps)


def _grow(source: Cloud, target: Cloud, k: int, splits: Tensor, neighbours: Tensor) -> None:
    """Search balls, larger and larger, until every target has found what it needs."""
    device = target.device
    end = len(target) - target.padding
    row = torch.arange(end, device=device)
    rest = Cloud.made(coords=target.coords[:end], splits=target.splits).trusted()
    radius = _first_radius(source, rest, k)
    while len(row):
        full, limited_splits, near, limited_total = grid_gpu.ball(source, rest, radius, k)
        near = ball_gpu.keep_nearest(source, rest, full, near, k, limited_total)
        counts = limited_splits.diff()
        done = counts == splits[row + 1] - splits[row]
        tensors = (limited_splits, near, done, row, splits, neighbours)
        _PLACE((cdiv(len(row), _BLOCK), 1, 1), tensors, (len(row),), (_BLOCK,))
        left = ~done
        before = torch.cat([left.new_zeros(1, dtype=torch.int64), left.cumsum(0)])
        rest = Cloud.made(coords=rest.coords[left], splits=before[rest.splits]).trusted()
        row = row[left]
        if len(row) and math.isinf(radius):
            # Every source was inside: these have come to be not finite since the clouds were read.
            raise ValueError(
                f"nearest: {len(row)} targets have points that are not finite near them. Remove them first."
            )
        radius = _larger(radius, 1.6, source.coords.dtype)


def _larger(radius: float, factor: float, dtype: torch.dtype) -> float:
    """The radius times the factor; infinite, and so with every source inside, before its square overflows."""
    return radius * factor if (radius * factor) ** 2 < torch.finfo(dtype).max / 4 else math.inf


def _first_radius(source: Cloud, target: Cloud, k: int) -> float:
    """A radius within which about half of the targets or more find k sources, from a few hundred of them."""
    dtype = source.coords.dtype
    box = common.facts(source, "nearest: source")
    extent = [high / 2 - low / 2 for low, high in zip(box.low, box.high, strict=True)][: min(source.dim, 3)]
    widest = max(max(extent), 1e-15 if dtype == torch.float32 else 1e-120)
    radius = widest * min((k * source.num_examples / max(len(source), 1)) ** (1 / len(extent)), 2.0)
    step = max(len(target) // 512, 1)
    at = torch.arange(0, len(target), step, device=target.device)
    few = Cloud.made(coords=target.coords[at], splits=torch.searchsorted(at, target.splits)).trusted()
    for _ in range(12):
        counts = grid_gpu.count(source, few, radius)
        middle = int(counts.median())
        if middle > 3 * k:
            radius /= 1.6
        elif middle < k and not math.isinf(radius):
            radius = _larger(radius, 1.4, dtype)
        else:
            break
    return radius


@triton.jit(do_not_specialize=["k", "blocks"])
def _select(
    source,
    source_splits,
    target,
    target_splits,
    splits,
    neighbours,
    k,
    blocks,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """The k nearest sources of ROWS targets of one example, whose distances stay on chip."""
    example = tl.program_id(0) // blocks
    first = tl.load(target_splits + example)
    here = (tl.load(target_splits + example + 1) - first).to(tl.int32)
    at = tl.program_id(0) % blocks * ROWS
    local = at + tl.arange(0, ROWS)
    if at < here:
        row = first + local
        inside = local < here
        begin = tl.load(source_splits + example)
        size = (tl.load(source_splits + example + 1) - begin).to(tl.int32)
        lane = tl.arange(0, BLOCK)[None, :]
        exists = lane < size
        point = load_point(target, row[:, None], inside[:, None], D)
        d2 = squared_to(source, (begin + lane) * D, exists, 1, point, D)
        if DOUBLE:
            value = tl.where(exists, d2.to(tl.int64, bitcast=True), 0x7FFFFFFFFFFFFFFF)
            one = tl.full([ROWS], 1, tl.int64)
            bit = 62
        else:
            value = tl.where(exists, d2.to(tl.int32, bitcast=True), 0x7FFFFFFF)
            one = tl.full([ROWS], 1, tl.int32)
            bit = 30
        # The largest number that fewer than k distances are below is the k-th smallest of them; a number that has k
        # below it already tells which they are.
        last = one - one
        undecided = one > 0
        while (bit >= 0) & (tl.max(undecided.to(tl.int32), 0) > 0):
            trial = last | (one << bit)
            below = tl.sum((value < trial[:, None]).to(tl.int32), 1)
            last = tl.where(undecided & (below <= k), trial, last)
            undecided &= below != k
            bit -= 1
        less = value < last[:, None]
        keep = exists & less
        if tl.max(undecided.to(tl.int32), 0) > 0:
            equal = (exists & (value == last[:, None])).to(tl.int32)
            wanted = k - tl.sum(less.to(tl.int32), 1)
            keep |= (equal > 0) & (tl.cumsum(equal, 1) <= wanted[:, None])
        place = tl.cumsum(keep.to(tl.int32), 1) - 1
        out = neighbours + tl.load(splits + row, mask=inside, other=0)[:, None] + place
        name = begin.to(tl.int32) + lane + tl.zeros([ROWS, BLOCK], tl.int32)
        tl.store(out, name, mask=keep & inside[:, None])


@triton.jit(do_not_specialize=["rows"])
def _place(near_splits, near, done, row, splits, neighbours, rows, BLOCK: tl.constexpr):
    """Copy the rows that are done to where they belong."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = at < rows
    ready = ok & (tl.load(done + at, mask=ok, other=0) != 0)
    start = tl.load(near_splits + at, mask=ready, other=0)
    count = tl.load(near_splits + at + 1, mask=ready, other=0) - start
    out = tl.load(splits + tl.load(row + at, mask=ready, other=0), mask=ready, other=0)
    for k in range(0, tl.max(count, 0)):
        tl.store(neighbours + out + k, tl.load(near + start + k, mask=k < count, other=0), mask=k < count)


_SELECT, _PLACE = Launcher(_select, exact=True), Launcher(_place, exact=True)
