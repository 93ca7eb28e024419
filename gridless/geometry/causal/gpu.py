"""Causal neighbourhoods in Triton: runs by a radix sort, then a binary search for every (target, tap)."""

# pyright: reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.causal import by_pixel as runs_of
from gridless.geometry.causal.link import Link
from gridless.kernels.launch import EXACT
from gridless.structures import MAX_EDGES, Events

_ROWS = 128


def by_pixel(events: Events) -> tuple[Tensor, Tensor]:
    width, height = events.sensor
    cells = events.num_examples * width * height
    key = torch.empty(len(events), dtype=torch.int32 if cells < 2**31 - 1 else torch.int64, device=events.device)
    if len(events):
        grid = (triton.cdiv(len(events), 1024),)
        _keys[grid](
            events.pixel, events.example, key, len(events), events.num_examples, width, height, cells, 1024, **EXACT
        )
    sorted_key, order = torch.sort(key, stable=True)
    ends = torch.arange(cells + 1, dtype=key.dtype, device=key.device)
    return order.int(), torch.searchsorted(sorted_key, ends)


def causal(link: Link, window: int) -> tuple[Tensor, Tensor]:
    first, count = _find(link, window)
    splits = torch.zeros(len(count) + 1, dtype=torch.int64, device=count.device)
    torch.cumsum(count, 0, out=splits[1:])
    total = int(splits[-1])
    if total > MAX_EDGES:
        raise ValueError(f"causal: {total} edges are more than {MAX_EDGES}. Use a window or smaller batches.")
    source = torch.empty(total, dtype=torch.int32, device=count.device)
    if total:
        order = runs_of(link.source).order
        _fill[(triton.cdiv(len(count), _ROWS),)](order, first, count, splits, source, len(count), _ROWS, **EXACT)
    return splits, source


@cache
def tap_table(offsets: tuple[tuple[int, int], ...], device: torch.device) -> Tensor:
    """The offsets (U, 2) int32, on the device, copied once."""
    return torch.tensor(offsets, dtype=torch.int32, device=device)


def _find(link: Link, window: int) -> tuple[Tensor, Tensor]:
    """First edge in the source's runs (int64) and number of edges (int32) of every (target, tap)."""
    source, target, taps = link.source, link.target, len(link.offsets)
    rows = len(target) * taps
    first = torch.zeros(rows, dtype=torch.int64, device=target.device)
    count = torch.zeros(rows, dtype=torch.int32, device=target.device)
    if rows:
        order, splits = runs_of(source)
        table = tap_table(link.offsets, source.device)
        _search[(triton.cdiv(rows, _ROWS),)](
            order, splits, source.time, target.pixel, target.example, target.time, link.until, table, first, count,
            rows, target.num_examples, *source.sensor, *target.sensor, link.stride, window, taps, _ROWS, **EXACT,
        )  # fmt: skip
    return first, count


@triton.jit(do_not_specialize=["rows", "examples", "cells"])
def _keys(pixel, example, key, rows, examples, width, height, cells, BLOCK: tl.constexpr):
    """The number of each event's pixel, by which events are sorted."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = i < rows
    x = tl.load(pixel + 2 * i, live, other=-1).to(tl.int64)
    y = tl.load(pixel + 2 * i + 1, live, other=-1).to(tl.int64)
    b = tl.load(example + i, live, other=0).to(tl.int64)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (b < examples)
    # Events outside the sensor sort behind the last pixel.
    cell = tl.where(inside, (b * height + y) * width + x, cells)
    tl.store(key + i, cell.to(key.dtype.element_ty), live)


@triton.jit(do_not_specialize=["rows", "examples"])
def _search(
    order, splits, s_time, t_pixel, t_example, t_time, until, taps, first, count, rows, examples,
    width, height, grid_width, grid_height, stride, window, TAPS, BLOCK: tl.constexpr,
):  # fmt: skip
    """First edge and number of edges of BLOCK (target, tap) pairs, by bisection of the events of a pixel."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < rows
    i = at // TAPS
    u = at % TAPS
    gx = tl.load(t_pixel + 2 * i, live, other=0).to(tl.int64)
    gy = tl.load(t_pixel + 2 * i + 1, live, other=0).to(tl.int64)
    b = tl.load(t_example + i, live, other=0).to(tl.int64)
    known = live & (gx >= 0) & (gx < grid_width) & (gy >= 0) & (gy < grid_height) & (b < examples)
    x = gx * stride + tl.load(taps + 2 * u, live, other=0)
    y = gy * stride + tl.load(taps + 2 * u + 1, live, other=0)
    inside = known & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    cell = tl.where(inside, (b * height + y) * width + x, 0)
    begin = tl.load(splits + cell, inside, other=0)
    end = tl.load(splits + cell + 1, inside, other=0)
    last = tl.load(until + i, live, other=-1)
    now = tl.load(t_time + i, live, other=0)
    # The first of the run that arrived after `last`.
    low, high = begin, end
    # The condition is a number: Triton 3.6 cannot lay out every loop whose condition reduces a vector.
    left = tl.max(high - low, 0)
    while left > 0:
        middle = (low + high) // 2
        j = tl.load(order + middle, low < high, other=0)
        seen = (low < high) & (j <= last)
        high = tl.where((low < high) & (j > last), middle, high)
        low = tl.where(seen, middle + 1, low)
        left = tl.max(high - low, 0)
    stop = low
    # The first of those that is not too old.
    low, high = begin, stop
    left = tl.max(high - low, 0)
    while left > 0:
        middle = (low + high) // 2
        j = tl.load(order + middle, low < high, other=0)
        age = now - tl.load(s_time + j, low < high, other=0)
        old = (low < high) & (age > window)
        high = tl.where((low < high) & (age <= window), middle, high)
        low = tl.where(old, middle + 1, low)
        left = tl.max(high - low, 0)
    tl.store(first + at, low, live)
    tl.store(count + at, (stop - low).to(tl.int32), live)


@triton.jit(do_not_specialize=["rows"])
def _fill(order, first, count, splits, source, rows, BLOCK: tl.constexpr):
    """Write the sources of BLOCK rows, a row per lane."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    n = tl.load(count + at, at < rows, other=0)
    begin = tl.load(first + at, at < rows, other=0)
    out = tl.load(splits + at, at < rows, other=0)
    for k in range(tl.max(n, 0)):
        tl.store(source + out + k, tl.load(order + begin + k, k < n, other=0), k < n)
