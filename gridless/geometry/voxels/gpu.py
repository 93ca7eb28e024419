"""Searches among sites on the GPU: a sort by keys, then bisection, one for each row of taps along the last axis.

The host waits once, for what it must refuse or do in another way: sites that are there twice, and boxes of more cells
than int64 counts.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.voxels import reference
from gridless.kernels.launch import Launcher, cdiv

distinct = reference.distinct

_ROOM = 1 << 62
_ROWS = 128
# Programs that look for the box of the sites.
_PARTS = 64


def search(source: Tensor, target: Tensor, offsets: Tensor, stride: Tensor) -> Tensor:
    (rows, columns), taps, sources = target.shape, len(offsets), len(source)
    table = torch.empty(rows, taps, dtype=torch.int32, device=target.device)
    if not rows or not sources:
        return table.fill_(-1)
    partial = source.new_empty(_PARTS, 2, columns)
    # Low and high corner of the box of the sources, and of every part whether it has a site twice.
    facts, keys = source.new_empty(2 * columns + _PARTS), source.new_empty(sources)
    _BOUNDS((_PARTS, 1, 1), (source, partial), (sources,), (columns, 1024))
    _KEYS((cdiv(sources, 1024), 1, 1), (source, partial, facts, keys), (sources,), (columns, _PARTS, 1024))
    ordered, order = torch.sort(keys)
    _REPEATS((_PARTS, 1, 1), (ordered, facts), (sources,), (2 * columns, 1024))
    read = _reading(facts)
    tensors = (target, facts, ordered, order, offsets, stride, table)
    _SEARCH((cdiv(rows, _ROWS), taps, 1), tensors, (rows, sources), (columns, taps, _ROWS))
    box = read()
    if math.prod(box[columns + d] - box[d] + 1 for d in range(columns)) >= _ROOM:
        return reference.search(source, target, offsets, stride)
    if any(box[2 * columns :]):
        reference.refuse_repeats(source, order, ordered)
    return table


def _reading(values: Tensor) -> Callable[[], list[int]]:
    """Begins to copy values to the host; the result waits for them, but not for what is launched meanwhile."""
    if not values.is_cuda:
        return values.tolist
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.cuda.Event()
    copied.record()

    def read() -> list[int]:
        copied.synchronize()
        return host.tolist()

    return read


@triton.jit(do_not_specialize=["rows"])
def _bounds(SITES, PARTIAL, rows, D: tl.constexpr, B: tl.constexpr):
    """PARTIAL (programs, 2, D): the least and the greatest number of each column, of every so many rows."""
    for d in tl.static_range(D):
        low = tl.load(SITES + d)
        least = tl.zeros([B], tl.int64) + low
        most = least
        for first in range(tl.program_id(0) * B, rows, tl.num_programs(0) * B):
            row = first + tl.arange(0, B)
            x = tl.load(SITES + row.to(tl.int64) * D + d, row < rows, other=low)
            least = tl.minimum(least, x)
            most = tl.maximum(most, x)
        tl.store(PARTIAL + tl.program_id(0) * (2 * D) + d, tl.min(least, 0))
        tl.store(PARTIAL + tl.program_id(0) * (2 * D) + D + d, tl.max(most, 0))


@triton.jit(do_not_specialize=["rows"])
def _keys(SITES, PARTIAL, BOUNDS, KEYS, rows, D: tl.constexpr, PARTS: tl.constexpr, B: tl.constexpr):
    """The place of a site in the box BOUNDS (2, D), the last column fastest; it wraps where the box is too large."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    key = tl.zeros([B], tl.int64)
    part = tl.arange(0, PARTS) * (2 * D)
    for d in tl.static_range(D):
        low = tl.min(tl.load(PARTIAL + part + d), 0)
        high = tl.max(tl.load(PARTIAL + part + D + d), 0)
        if tl.program_id(0) == 0:
            tl.store(BOUNDS + d, low)
            tl.store(BOUNDS + D + d, high)
        x = tl.load(SITES + row.to(tl.int64) * D + d, row < rows, other=0)
        key = key * (high - low + 1) + x - low
    tl.store(KEYS + row, key, row < rows)


@triton.jit(do_not_specialize=["rows"])
def _repeats(ORDERED, FACTS, rows, FIRST: tl.constexpr, B: tl.constexpr):
    """FACTS[FIRST + program]: whether two neighbours among every so many ORDERED keys are equal."""
    repeated = tl.zeros([B], tl.int32)
    for first in range(tl.program_id(0) * B, rows, tl.num_programs(0) * B):
        row = first + tl.arange(0, B)
        inside = row + 1 < rows
        key = tl.load(ORDERED + row, inside, other=0)
        repeated = repeated | (inside & (key == tl.load(ORDERED + row + 1, inside, other=1))).to(tl.int32)
    tl.store(FACTS + FIRST + tl.program_id(0), tl.max(repeated, 0).to(tl.int64))


@triton.jit(do_not_specialize=["rows", "sources"])
def _search(
    TARGET, BOUNDS, ORDERED, ORDER, OFFSETS, STRIDE, TABLE, rows, sources,
    D: tl.constexpr, T: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """TABLE[row, tap] of B targets and one tap: bisection among the ORDERED keys of the sources."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    tap = tl.program_id(1)
    inside = row < rows
    at = row.to(tl.int64) * D
    key = tl.zeros([B], tl.int64)
    for d in tl.static_range(D):
        low = tl.load(BOUNDS + d)
        extent = tl.load(BOUNDS + D + d) - low + 1
        x = tl.load(TARGET + at + d, inside, other=0)
        if d > 0:
            x = x * tl.load(STRIDE + d - 1) + tl.load(OFFSETS + tap * (D - 1) + d - 1)
        x = x - low
        inside = inside & (x >= 0) & (x < extent)
        key = key * extent + x
    first = tl.zeros([B], tl.int32)
    length = sources
    while length > 1:
        half = length // 2
        further = tl.load(ORDERED + first + half, inside, other=0) <= key
        first = tl.where(further, first + half, first)
        length = length - half
    found = inside & (tl.load(ORDERED + first, inside, other=0) == key)
    source = tl.load(ORDER + first, found, other=-1)
    tl.store(TABLE + row.to(tl.int64) * T + tap, source.to(tl.int32), row < rows)


_BOUNDS, _KEYS, _REPEATS, _SEARCH = (Launcher(k, exact=True) for k in (_bounds, _keys, _repeats, _search))
