"""Searches among sites on the GPU: a hash table of the sources, then one look-up for each target and tap. New sites are
sorted as numbers.

The table holds row numbers, and a look-up compares whole coordinates: sites may be as far apart as their dtype allows.
Programs race for the slots of the hash table, but what a look-up returns does not depend on who wins. The host waits
for the insertions, not for the look-ups: it must know whether a site is there twice.
"""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.voxels import reference
from gridless.geometry.voxels.window import numbers
from gridless.kernels.launch import Launcher, cdiv, power_of_two

distinct = reference.distinct

# Sites that a program inserts, and targets times taps that it looks up: one warp, whose lanes wait for the longest run
# of taken slots.
_INSERTED, _LOOKED_UP = 32, 128
# Keys of new sites that a program writes or reads.
_KEYS = 512
# A large odd number, whose products scatter sites over the table.
_MIX = tl.constexpr(-7046029254386353131)
# Larger than any key.
_BEHIND = tl.constexpr((1 << 63) - 1)


def search(source: Tensor, target: Tensor, offsets: Tensor, stride: Tensor) -> Tensor:
    (rows, columns), taps, sources = target.shape, len(offsets), len(source)
    table = torch.empty(rows, taps, dtype=torch.int32, device=target.device)
    if not rows or not sources:
        return table.fill_(-1)
    # At most a quarter full: runs of taken slots are short. Behind the slots: a row whose site is there twice.
    size = power_of_two(4 * sources)
    slots = torch.full((size + 1,), -1, dtype=torch.int32, device=target.device)
    _INSERT((cdiv(sources, _INSERTED), 1, 1), (source, slots), (sources, size), (columns, _INSERTED), 1)
    repeated = _reading(slots[size : size + 1])
    side = min(power_of_two(taps), 32)
    together = _LOOKED_UP // side
    tensors = (source, target, slots, offsets, stride, table)
    constants = (columns, taps, together, side)
    _SEARCH((cdiv(rows, together), cdiv(taps, side), 1), tensors, (rows, size), constants, 1)
    if repeated()[0] >= 0:
        reference.refuse_repeats(source)
    return table


def seeing(sites: Tensor, low: list[int], sides: list[int], *window: list[int]) -> Tensor:
    columns, reaches = sites.shape[1], []
    for kernel, stride, _, dilation in zip(*window, strict=True):
        reaches.append(cdiv(kernel, stride) if dilation == 1 else kernel)
    settings = numbers((*low, *sides, *itertools.chain(*window, reaches)), sites.device)
    each = math.prod(reaches)
    candidates = len(sites) * each
    # One key behind all others is cut off again: the host does not read whether there are some that see nothing.
    keys = torch.empty(candidates + 1, dtype=torch.int64, device=sites.device)
    grid = (cdiv(candidates + 1, _KEYS), 1, 1)
    _SEEING(grid, (sites, settings, keys), (candidates, each), (columns, _KEYS))
    keys = torch.unique(keys)
    new = sites.new_empty(len(keys) - 1, columns)
    _SPLIT((cdiv(len(keys), _KEYS), 1, 1), (keys, settings, new), (len(new),), (columns, _KEYS))
    return new


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


@triton.jit
def _mixed(code, x):
    code = (code ^ x) * _MIX
    return code ^ (code >> 29)


@triton.jit(do_not_specialize=["rows", "size"])
def _insert(SITES, SLOTS, rows, size, D: tl.constexpr, B: tl.constexpr):
    """Puts B rows of SITES into the hash table SLOTS (size + 1), and a row whose site another row holds into
    SLOTS[size]."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    waiting = row < rows
    at = row.to(tl.int64) * D
    code = tl.zeros([B], tl.int64)
    for d in tl.static_range(D):
        code = _mixed(code, tl.load(SITES + at + d, waiting, other=0).to(tl.int64))
    slot = code & (size - 1)
    while tl.max(waiting.to(tl.int32), 0) > 0:
        # Rows that have a slot compare another with what none holds. One slot for all of them would be a queue.
        held = tl.atomic_cas(SLOTS + slot, tl.where(waiting, -1, -2), row)
        taken = waiting & (held >= 0)
        same = taken
        for d in tl.static_range(D):
            x = tl.load(SITES + at + d, taken, other=0)
            same = same & (x == tl.load(SITES + held.to(tl.int64) * D + d, taken, other=0))
        tl.store(SLOTS + size + tl.zeros([B], tl.int32), row, same)
        waiting = taken & (same == 0)
        slot = (slot + 1) & (size - 1)


@triton.jit(do_not_specialize=["rows", "size"])
def _search(
    SITES, TARGET, SLOTS, OFFSETS, STRIDE, TABLE, rows, size,
    D: tl.constexpr, T: tl.constexpr, R: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """TABLE[row, tap] of R targets and K taps: the row of SITES that is at target * STRIDE + OFFSETS[tap], or -1."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    tap = tl.program_id(1) * K + tl.arange(0, K)
    waiting = (row < rows)[:, None] & (tap < T)[None, :]
    at = row.to(tl.int64) * D
    code = tl.zeros([R, K], tl.int64)
    for d in tl.static_range(D):
        code = _mixed(code, _wanted(TARGET, OFFSETS, STRIDE, at, tap, row < rows, tap < T, d, D))
    slot = code & (size - 1)
    source = tl.full([R, K], -1, tl.int32)
    while tl.max(tl.max(waiting.to(tl.int32), 1), 0) > 0:
        held = tl.load(SLOTS + slot, waiting, other=-1)
        taken = held >= 0
        same = taken
        for d in tl.static_range(D):
            x = tl.load(SITES + held.to(tl.int64) * D + d, taken, other=0).to(tl.int64)
            same = same & (x == _wanted(TARGET, OFFSETS, STRIDE, at, tap, row < rows, tap < T, d, D))
        source = tl.where(same, held, source)
        waiting = taken & (same == 0)
        slot = (slot + 1) & (size - 1)
    inside = (row < rows)[:, None] & (tap < T)[None, :]
    tl.store(TABLE + row.to(tl.int64)[:, None] * T + tap[None, :], source, inside)


@triton.jit
def _wanted(TARGET, OFFSETS, STRIDE, at, tap, is_row, is_tap, d: tl.constexpr, D: tl.constexpr):
    """Column d of what each target sees at each tap; column 0 is the example."""
    x = tl.load(TARGET + at + d, is_row, other=0).to(tl.int64)[:, None]
    offset = tl.zeros_like(tap).to(tl.int64)[None, :]
    if d > 0:
        x = x * tl.load(STRIDE + d - 1)
        offset = tl.load(OFFSETS + tap * (D - 1) + d - 1, is_tap, other=0)[None, :]
    return x + offset


@triton.jit(do_not_specialize=["candidates", "each"])
def _seeing(SITES, SETTINGS, KEYS, candidates, each, D: tl.constexpr, B: tl.constexpr):
    """KEYS (candidates + 1): `each` for each site, of the new sites that may see it, counted in the box; the largest
    number for those that do not, and at the end."""
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    sees = at < candidates
    row = at // each
    rest = at - row * each
    key = tl.load(SITES + row * D, sees, other=0).to(tl.int64) - tl.load(SETTINGS)
    for d in tl.static_range(1, D):
        low, side = tl.load(SETTINGS + d), tl.load(SETTINGS + D + d)
        axis = SETTINGS + 2 * D + d - 1
        kernel, stride = tl.load(axis), tl.load(axis + D - 1)
        padding, dilation = tl.load(axis + 2 * (D - 1)), tl.load(axis + 3 * (D - 1))
        reach = tl.load(axis + 4 * (D - 1))
        n = rest % reach
        rest = rest // reach
        x = tl.load(SITES + row * D + d, at < candidates, other=0).to(tl.int64) + padding - low * stride
        # Without dilation the new sites follow each other, and with it they are tried tap by tap.
        shifted = tl.where(dilation == 1, x, x - n * dilation)
        cell = shifted // stride - tl.where(dilation == 1, n, 0)
        behind = shifted - cell * stride
        inside = (shifted >= 0) & (cell >= 0) & (cell < side)
        sees = sees & inside & (behind < tl.where(dilation == 1, kernel, 1))
        key = key * side + cell
    tl.store(KEYS + at, tl.where(sees, key, _BEHIND), at <= candidates)


@triton.jit(do_not_specialize=["rows"])
def _split(KEYS, SETTINGS, NEW, rows, D: tl.constexpr, B: tl.constexpr):
    """NEW (rows, D): the sites of KEYS."""
    row = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    key = tl.load(KEYS + row, row < rows, other=0)
    for n in tl.static_range(1, D):
        side = tl.load(SETTINGS + 2 * D - n)
        before = key // side
        x = key - before * side + tl.load(SETTINGS + D - n)
        tl.store(NEW + row * D + D - n, x.to(NEW.dtype.element_ty), row < rows)
        key = before
    tl.store(NEW + row * D, (key + tl.load(SETTINGS)).to(NEW.dtype.element_ty), row < rows)


_INSERT, _SEARCH, _SEEING, _SPLIT = (Launcher(kernel, exact=True) for kernel in (_insert, _search, _seeing, _split))
