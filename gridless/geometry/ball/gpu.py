"""The ball search on the GPU.

Small examples: every target against every source of its example, a target per thread. One kernel tests all pairs and
keeps one bit for each; after the counts are summed, another turns bits into sources, which so come out in ascending
order. Large examples: a hashed grid, see `grid_gpu.py`.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.geometry import gpu_common as common
from gridless.geometry.ball import grid_gpu
from gridless.geometry.checks import check_edge_count
from gridless.geometry.gpu_common import count_bits, from_bits, load_point, lowest_bit, squared_to
from gridless.kernels.launch import Launcher, cdiv, compiling_ahead
from gridless.structures import Cloud

# The largest example whose pairs are all tested.
ALL_PAIRS = 2048

_FILL_ROWS = 32
_BLOCK = 128


def ball(source: Cloud, target: Cloud, radius: float, limit: int | None) -> tuple[Tensor, Tensor]:
    if len(source) <= ALL_PAIRS * source.num_examples:
        _compile_once(source.device, source.coords.dtype, source.dim)
    if len(source) > ALL_PAIRS and len(target) and common.alone(source) and common.alone(target):
        # The search itself looks whether the points are finite.
        most_source, most_target = len(source), len(target)
    else:
        _, most_source = common.sizes(source, "ball: source")
        _, most_target = common.sizes(target, "ball: target")
    if most_source == 0 or most_target == 0:
        empty = torch.zeros(len(target) + 1, dtype=torch.int64, device=target.device)
        return empty, empty.new_zeros(0, dtype=torch.int32)
    if most_source <= ALL_PAIRS:
        counts, bits = test_pairs(source, target, radius, most_source, most_target)
        splits = counts.cumsum(0)
        wanted = splits if limit is None else counts.clamp(max=limit).cumsum(0)
        total, limited_total = _totals(splits, wanted, limit)
        neighbours = fill(source, target, splits, bits, total, most_target)
    else:
        splits, wanted, neighbours, limited_total = grid_gpu.ball(source, target, radius, limit)
    if limit is None:
        return splits, neighbours
    return wanted, keep_nearest(source, target, splits, neighbours, limit, limited_total)


@cache
def _compile_once(device: torch.device, dtype: torch.dtype, dim: int) -> None:
    """All that searches of small examples launch begins to compile while the first one looks at its points."""
    if interpreting():
        return
    # Types are all that counts.
    splits = torch.empty(2, dtype=torch.int64, device=device)
    cloud = Cloud.made(coords=torch.empty(1, dim, dtype=dtype, device=device), splits=splits)
    with compiling_ahead():
        for most in (ALL_PAIRS, 64, 32):
            _, bits = test_pairs(cloud, cloud, 1.0, 1, most)
            fill(cloud, cloud, splits, bits, 1, 1)


def _totals(splits: Tensor, wanted: Tensor, limit: int | None) -> tuple[int, int]:
    """The number of edges, and of those within the limit: the one read-back of a search."""
    total, limited_total = [int(splits[-1])] * 2 if limit is None else torch.stack([splits[-1], wanted[-1]]).tolist()
    check_edge_count("ball", total)
    return total, limited_total


def test_pairs(
    source: Cloud, target: Cloud, radius: float, most_source: int, most_target: int
) -> tuple[Tensor, Tensor]:
    """0 and the neighbours of each target (1 + S') int64, and a bit for each source of its example (words, S')."""
    coords = source.coords
    counts = torch.zeros(len(target) + 1, dtype=torch.int64, device=coords.device)
    bits = torch.empty((cdiv(most_source, 32), len(target)), dtype=torch.int32, device=coords.device)
    # Four targets per thread share each load of a source; small examples would leave them idle.
    rows = 128 if most_target > 64 else 64 if most_target > 32 else 32
    blocks = cdiv(most_target, rows)
    tensors = (coords, source.splits, target.coords, target.splits, counts, bits)
    sizes = (len(target), blocks, *common.squared_bits(radius, coords.dtype))
    _TEST((source.num_examples * blocks, 1, 1), tensors, sizes, (source.dim, rows, coords.dtype == torch.float64), 1)
    return counts, bits


def fill(source: Cloud, target: Cloud, splits: Tensor, bits: Tensor, room: int, most_target: int) -> Tensor:
    """The first `room` edges."""
    neighbours = torch.empty(room, dtype=torch.int32, device=splits.device)
    if room:
        blocks = cdiv(most_target, _FILL_ROWS)
        tensors = (source.splits, target.splits, splits, bits, neighbours)
        _EXPAND((source.num_examples * blocks, 1, 1), tensors, (len(target), room, blocks), (_FILL_ROWS,), 1)
    return neighbours


def keep_nearest(
    source: Cloud, target: Cloud, splits: Tensor, neighbours: Tensor, limit: int, limited_total: int
) -> Tensor:
    """The `limit` nearest sources of every row of a search, of equally near ones the first; order unchanged."""
    total = len(neighbours)
    if limited_total == total:
        return neighbours
    device = neighbours.device
    row = torch.searchsorted(splits[1:], torch.arange(total, device=device), right=True, out_int32=True)
    distance = torch.empty(total, dtype=source.coords.dtype, device=device)
    keep = torch.empty(total, dtype=torch.int32, device=device)
    chosen = torch.empty(limited_total, dtype=torch.int32, device=device)
    grid = (cdiv(total, _BLOCK), 1, 1)
    _MEASURE(grid, (source.coords, target.coords, neighbours, row, distance), (total,), (source.dim, _BLOCK))
    _RANK(grid, (splits, row, distance, keep), (total, limit), (_BLOCK,))
    at = torch.cumsum(keep, 0)
    _CHOOSE(grid, (neighbours, keep, at, chosen), (total,), (_BLOCK,))
    return chosen


@triton.jit(do_not_specialize=["targets", "blocks", "high", "low"])
def _test(
    source,
    source_splits,
    target,
    target_splits,
    counts,
    bits,
    targets,
    blocks,
    high,
    low,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    DOUBLE: tl.constexpr,
):
    """A few targets of one example, a row each: a bit for every source within reach, and their number."""
    example = tl.program_id(0) // blocks
    first = tl.load(target_splits + example)
    here = (tl.load(target_splits + example + 1) - first).to(tl.int32)
    at_row = tl.program_id(0) % blocks * ROWS
    local = at_row + tl.arange(0, ROWS)
    if at_row < here:
        inside = local < here
        row = first + local
        point = load_point(target, row, inside, D)
        begin = tl.load(source_splits + example)
        size = (tl.load(source_splits + example + 1) - begin).to(tl.int32)
        reach = from_bits(high, low, DOUBLE)
        near = source + begin * D
        total = tl.zeros([ROWS], tl.int32)
        out = bits + row
        for _ in range(0, size // 32):
            hits = _test_word(near, 32, point, reach, ROWS, D)
            tl.store(out, hits, mask=inside)
            total += count_bits(hits)
            out += targets
            near += 32 * D
        left = size % 32
        if left > 0:
            hits = _test_word(near, left, point, reach, ROWS, D) & ((1 << left) - 1)
            tl.store(out, hits, mask=inside)
            total += count_bits(hits)
        tl.store(counts + 1 + row, total, mask=inside)


@triton.jit
def _test_word(near, size, point, reach, ROWS: tl.constexpr, D: tl.constexpr):
    """A bit for each of the next 32 sources; past `size` the last one is tested again."""
    hits = tl.zeros([ROWS], tl.int32)
    for k in tl.static_range(32):
        hit = squared_to(near, tl.minimum(k, size - 1) * D, None, 1, point, D) <= reach
        hits |= tl.where(hit, (1 << k) if k < 31 else -2147483648, 0)
    return hits


@triton.jit(do_not_specialize=["targets", "room", "blocks"])
def _expand(source_splits, target_splits, splits, bits, neighbours, targets, room, blocks, ROWS: tl.constexpr):
    """A row per thread: walk its words, and write the source of every one."""
    example = tl.program_id(0) // blocks
    first = tl.load(target_splits + example)
    here = (tl.load(target_splits + example + 1) - first).to(tl.int32)
    at_row = tl.program_id(0) % blocks * ROWS
    local = at_row + tl.arange(0, ROWS)
    if at_row < here:
        inside = local < here
        row = first + local
        begin = tl.load(source_splits + example)
        size = (tl.load(source_splits + example + 1) - begin).to(tl.int32)
        at = tl.load(splits + row, mask=inside, other=0)
        words = (size + 31) // 32
        name = tl.zeros([ROWS], tl.int32) + begin.to(tl.int32)
        out = bits + row
        following = tl.load(out, mask=inside, other=0)
        for word in range(0, words):
            hits = following
            out += tl.where(word + 1 < words, targets, 0)
            following = tl.load(out, mask=inside, other=0)
            for _ in range(0, tl.max(count_bits(hits), 0)):
                has_bit = hits != 0
                tl.store(neighbours + at, name + lowest_bit(hits), mask=has_bit & (at < room))
                at += has_bit.to(tl.int32)
                hits = hits & (hits - 1)
            name += 32


@triton.jit(do_not_specialize=["total"])
def _measure(source, target, neighbours, row, distance, total, D: tl.constexpr, BLOCK: tl.constexpr):
    """The squared distance of every edge."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = edge < total
    i = tl.load(row + edge, mask=ok, other=0).to(tl.int64)
    j = tl.load(neighbours + edge, mask=ok, other=0).to(tl.int64)
    point = load_point(target, i, ok, D)
    tl.store(distance + edge, squared_to(source, j * D, ok, 1, point, D), mask=ok)


@triton.jit(do_not_specialize=["total", "limit"])
def _rank(splits, row, distance, keep, total, limit, BLOCK: tl.constexpr):
    """Keep an edge when fewer than `limit` of its row are nearer, or as near and before it."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = edge < total
    i = tl.load(row + edge, mask=ok, other=0)
    start = tl.load(splits + i, mask=ok, other=0)
    count = (tl.load(splits + i + 1, mask=ok, other=0) - start).to(tl.int32)
    own_distance = tl.load(distance + edge, mask=ok, other=0.0)
    before = tl.zeros([BLOCK], tl.int32)
    for k in range(0, tl.max(count, 0)):
        other = tl.load(distance + start + k, mask=ok & (k < count), other=float("inf"))
        nearer = (other < own_distance) | ((other == own_distance) & (start + k < edge))
        before += (nearer & (k < count)).to(tl.int32)
    tl.store(keep + edge, (before < limit).to(tl.int32), mask=ok)


@triton.jit(do_not_specialize=["total"])
def _choose(neighbours, keep, at, chosen, total, BLOCK: tl.constexpr):
    """Write the neighbours of `keep` to `chosen`, at the places `at`."""
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    take = tl.load(keep + edge, mask=edge < total, other=0) > 0
    tl.store(
        chosen + tl.load(at + edge, mask=take, other=1) - 1, tl.load(neighbours + edge, mask=take, other=0), mask=take
    )


_TEST, _EXPAND, _MEASURE, _RANK, _CHOOSE = (
    Launcher(kernel, exact=True) for kernel in (_test, _expand, _measure, _rank, _choose)
)
