"""The event convolution in Triton.

Scan: a program takes a few target pixels and one tap, and merges, in order of arrival, the run of the source pixel
(which updates a state) with that of the target pixel (which reads it); lanes are (pixel, v, channel). The transpose
takes a few source pixels and one tap, and merges back in time. No atomics: what programs have in common they write side
by side, and torch adds it up. Rates are divided by the decay time beforehand, so that kernels see microseconds.
"""

# Triton compiles these functions itself; to a type checker they are plain Python.
# pyright: reportArgumentType=false, reportAssignmentType=false, reportCallIssue=false, reportIndexIssue=false
# pyright: reportOperatorIssue=false, reportAttributeAccessIssue=false, reportPossiblyUnboundVariable=false

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.causal import Link, by_pixel
from gridless.geometry.causal.gpu import tap_table
from gridless.ops.event_conv.edges_gpu import along_edges, back_along_edges, decay
from gridless.structures import Events

if TYPE_CHECKING:
    from gridless.ops.event_conv.autograd import Walk

# Lanes of a program, and of a warp: `benchmarks/event_conv.py --tune` times others.
_ELEMENTS = 256
_PER_WARP = 256
_STRAYS = 32


def gather(features: Tensor, rate: Tensor, walk: Walk) -> Tensor:
    if walk.edges is not None:
        return along_edges(features, rate, walk, walk.edges)
    return _scan(features, rate, walk.link, walk.decay_time, None, None)


def scatter(grad: Tensor, features: Tensor, rate: Tensor, walk: Walk, total: Tensor | None) -> Tensor:
    """Adds the gradient of the features to `total`, unless it is None, and returns that of the rate."""
    if walk.edges is not None:
        return back_along_edges(grad.contiguous(), features, rate, walk, walk.edges, total)
    link, (taps, temporal), channels = walk.link, rate.shape, features.shape[1]
    cells = _visited(link.source)
    vs, lanes, pixels = _shape(temporal, channels)
    programs = triton.cdiv(cells, pixels)
    if not (programs and features.numel() and grad.numel()):
        return torch.zeros_like(rate)
    grid = (programs, taps, triton.cdiv(channels, lanes))
    partial = rate.new_empty(grid[0], grid[2], taps, vs)
    # Each tap's share of the gradient of the features; a tap that no target uses leaves its zeros.
    shares = features if total is None else features.new_zeros(taps, *features.shape)
    _scatter[grid](
        *_runs(link), grad.contiguous(), features, rate / walk.decay_time, shares, partial,
        tap_table(link.offsets, rate.device), _busy(link.source), cells, len(features),
        *link.source.sensor, *link.target.sensor, link.stride,
        temporal, channels, total is not None, pixels, vs, lanes, rate.dtype == torch.float64,
        num_warps=_warps(pixels * vs * lanes),
    )  # fmt: skip
    if total is not None:
        total += shares.sum(0)
    return (partial.sum((0, 1), dtype=torch.float64)[:, :temporal] / walk.decay_time).to(rate.dtype)


def scan_step(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    trace = trace.clone()
    gathered = _scan(features, rate, link, decay_time, trace, time)
    order, splits = by_pixel(link.source)
    if not len(order):
        return gathered, trace, time.clone()
    last = link.source.time[order[(splits[1:] - 1).clamp(min=0)].long()]
    return gathered, trace, torch.where(splits.diff() > 0, last, time)


def _scan(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor | None, time: Tensor | None
) -> Tensor:
    taps, temporal = rate.shape
    channels = features.shape[1]
    rate = rate / decay_time
    gathered = features.new_empty(len(link.target), taps, temporal, channels)
    remembers = trace is not None
    # A memory also moves on where there are no targets.
    cells = _cells(link.target) if remembers else _visited(link.target)
    if not (cells and rate.numel() and channels):
        return gathered
    _clear_strays(gathered, link.target)
    lanes = min(triton.next_power_of_2(temporal * channels), _ELEMENTS)
    pixels = _ELEMENTS // lanes
    _gather[(triton.cdiv(cells, pixels), taps, triton.cdiv(temporal * channels, lanes))](
        *_runs(link), features, rate, gathered, trace if remembers else features, time if remembers else link.until,
        tap_table(link.offsets, rate.device), _busy(link.target), cells,
        *link.source.sensor, *link.target.sensor, link.stride,
        temporal, channels, remembers, pixels, lanes, rate.dtype == torch.float64, num_warps=_warps(pixels * lanes),
    )  # fmt: skip
    return gathered


def _cells(events: Events) -> int:
    return events.num_examples * events.sensor[0] * events.sensor[1]


def _visited(events: Events) -> int:
    """At most so many pixels have events, and `_busy` puts them first."""
    return min(_cells(events), len(events))


def _warps(elements: int) -> int:
    return max(min(elements // _PER_WARP, 8), 1)


def _shape(temporal: int, channels: int) -> tuple[int, int, int]:
    """Powers of two: temporal taps, channels of a program, and pixels of a program."""
    vs = triton.next_power_of_2(temporal)
    lanes = min(triton.next_power_of_2(channels), max(_ELEMENTS // vs, 1))
    return vs, lanes, max(_ELEMENTS // (vs * lanes), 1)


def _runs(link: Link) -> tuple[Tensor, ...]:
    """Rows, times and splits of the source's runs; rows, causes, times and splits of the target's."""
    source, target = by_pixel(link.source), by_pixel(link.target)
    until = target.order
    if link.until is link.target.cause:
        until = link.target.cached("until", lambda: link.until[target.order])
    return (
        source.order,
        _sorted_time(link.source),
        source.splits,
        target.order,
        until,
        _sorted_time(link.target),
        target.splits,
    )


def _busy(events: Events) -> Tensor:
    """Pixels by the length of their runs, longest first: those of one program then end together."""

    def make() -> Tensor:
        return torch.sort(by_pixel(events).splits.diff(), descending=True, stable=True)[1].int()

    return events.cached("busy", make)


def _sorted_time(events: Events) -> Tensor:
    return events.cached("sorted_time", lambda: events.time[by_pixel(events).order])


def _clear_strays(gathered: Tensor, target: Events) -> None:
    """Rows that belong to no pixel (padding, or outside the sensor) see nothing."""
    if target.is_checked and not target.padding:
        return
    runs = by_pixel(target)
    size = gathered[0].numel() if len(gathered) else 0
    if size:
        _clear[(_STRAYS,)](gathered, runs.order, runs.splits, _cells(target), len(gathered), size, _STRAYS, 1024)


@triton.jit
def _clear(gathered, order, splits, cells, rows, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    for k in range(tl.load(splits + cells) + tl.program_id(0), rows, PROGRAMS):
        i = tl.load(order + k).to(tl.int64)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(gathered + i * size + at, tl.zeros([BLOCK], gathered.dtype.element_ty), at < size)


@triton.jit
def _gather(
    s_row, s_time, s_splits, t_row, t_until, t_time, t_splits, features, rate, gathered, trace, since, taps, busy,
    cells, width, height, grid_width, grid_height, stride, temporal, channels,
    REMEMBERS: tl.constexpr, PIXELS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    slot = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    live = slot < cells
    cell = tl.load(busy + slot, live, other=0).to(tl.int64)
    u = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(2) * LANES + tl.arange(0, LANES)
    inner = temporal * channels
    ok = lane < inner
    channel = lane % channels
    r = tl.load(rate + u * temporal + lane // channels, ok, other=0.0)[None, :]
    x = cell % grid_width * stride + tl.load(taps + 2 * u)
    y = cell // grid_width % grid_height * stride + tl.load(taps + 2 * u + 1)
    inside = live & (x >= 0) & (x < width) & (y >= 0) & (y < height)
    p = tl.where(inside, (cell // grid_width // grid_height * height + y) * width + x, 0)
    s = tl.load(s_splits + p, inside, other=0)
    s_end = tl.load(s_splits + p + 1, inside, other=0)
    t = tl.load(t_splits + cell, live, other=0)
    t_end = tl.load(t_splits + cell + 1, live, other=0)
    row = tl.load(s_row + s, s < s_end, other=0)
    until = tl.load(t_until + t, t < t_end, other=0)
    at = tl.zeros([PIXELS], tl.int64)
    state = tl.zeros([PIXELS, LANES], wide)
    if REMEMBERS:
        here = (p * tl.num_programs(1) + u)[:, None] * inner + lane[None, :]
        state = tl.load(trace + here, inside[:, None] & ok[None, :], other=0.0)
        at = tl.load(since + p, inside, other=0)
        left = tl.max(tl.maximum(s_end - s, 0) + t_end - t, 0)
    else:
        left = tl.max(t_end - t, 0)
    # A number, not a vector: Triton 3.6 cannot lay out a loop whose condition reduces one.
    while left > 0:
        reads = t < t_end
        if REMEMBERS:
            takes = (s < s_end) & ((row <= until) | (t >= t_end))
        else:
            takes = (s < s_end) & reads & (row <= until)
        gives = reads & (takes == 0)
        now = tl.where(takes, tl.load(s_time + s, takes, other=0), tl.load(t_time + t, gives, other=0))
        age = tl.maximum(now - at, 0).to(wide)
        decayed = state * decay(r, age[:, None])
        i = tl.load(t_row + t, gives, other=0).to(tl.int64)
        out = (i * tl.num_programs(1) + u)[:, None] * inner + lane[None, :]
        tl.store(gathered + out, decayed, gives[:, None] & ok[None, :])
        value = tl.load(
            features + row.to(tl.int64)[:, None] * channels + channel[None, :], takes[:, None] & ok[None, :], other=0.0
        )
        state = tl.where(takes[:, None], decayed + value, state)
        at = tl.where(takes, now, at)
        s = s + takes.to(tl.int64)
        t = t + gives.to(tl.int64)
        row = tl.where(takes, tl.load(s_row + s, takes & (s < s_end), other=0), row)
        until = tl.where(gives, tl.load(t_until + t, gives & (t < t_end), other=0), until)
        if REMEMBERS:
            left = tl.max(tl.maximum(s_end - s, 0) + t_end - t, 0)
        else:
            left = tl.max(t_end - t, 0)
    if REMEMBERS:
        tl.store(trace + here, state, inside[:, None] & ok[None, :])


@triton.jit
def _scatter(
    s_row, s_time, s_splits, t_row, t_until, t_time, t_splits, grad, features, rate, shares, partial, taps, busy,
    cells, rows, width, height, grid_width, grid_height, stride, temporal, channels,
    WANTED: tl.constexpr, PIXELS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    slot = tl.program_id(0).to(tl.int64) * PIXELS + tl.arange(0, PIXELS)
    live = slot < cells
    p = tl.load(busy + slot, live, other=0).to(tl.int64)
    u = tl.program_id(1).to(tl.int64)
    tap_count = tl.num_programs(1)
    v = tl.arange(0, VS)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    ok_v = v < temporal
    ok_channel = channel < channels
    first = tl.load(s_splits + p, live, other=0)
    s_last = tl.load(s_splits + p + 1, live, other=0) - 1
    r = tl.load(rate + u * temporal + v, ok_v, other=0.0)[None, :, None]
    x = p % width - tl.load(taps + 2 * u)
    y = p // width % height - tl.load(taps + 2 * u + 1)
    fits = live & (x >= 0) & (y >= 0) & (x % stride == 0) & (y % stride == 0)
    fits = fits & (x // stride < grid_width) & (y // stride < grid_height)
    cell = tl.where(fits, (p // width // height * grid_height + y // stride) * grid_width + x // stride, 0)
    begin = tl.load(t_splits + cell, fits, other=0)
    t = tl.load(t_splits + cell + 1, fits, other=0) - 1
    # Without targets there is nothing to do.
    s = tl.where(t >= begin, s_last, first - 1)
    row = tl.load(s_row + s, s >= first, other=0)
    until = tl.load(t_until + t, t >= begin, other=0)
    at = tl.load(t_time + t, t >= begin, other=0)
    state = tl.zeros([PIXELS, VS, LANES], wide)
    slope = tl.zeros([PIXELS, VS, LANES], wide)
    turned = tl.zeros([PIXELS, VS, LANES], wide)
    left = tl.max(s - first, 0)
    while left >= 0:
        gives = s >= first
        takes = gives & (t >= begin) & (until >= row)
        gives = gives & (takes == 0)
        now = tl.where(takes, tl.load(t_time + t, takes, other=0), tl.load(s_time + s, gives, other=0))
        age = tl.maximum(at - now, 0).to(wide)[:, None, None]
        factor = decay(r, age)
        slope_now = (slope - age * state) * factor
        state_now = state * factor
        i = tl.load(t_row + t, takes, other=0).to(tl.int64)
        inside = (ok_v[:, None] & ok_channel[None, :])[None, :, :] & takes[:, None, None]
        at_grad = ((i * tap_count + u) * temporal)[:, None, None] + v[None, :, None]
        value = tl.load(grad + at_grad * channels + channel[None, None, :], inside, other=0.0)
        at_row = row.to(tl.int64)[:, None] * channels + channel[None, :]
        mine = gives[:, None] & ok_channel[None, :]
        f = tl.load(features + at_row, mine, other=0.0)
        turned += tl.where(gives[:, None, None], slope_now * f[:, None, :], 0.0)
        if WANTED:
            tl.store(shares + u * rows * channels + at_row, tl.sum(state_now, 1), mine)
        slope = tl.where(takes[:, None, None], slope_now, slope)
        state = tl.where(takes[:, None, None], state_now + value, state)
        at = tl.where(takes, now, at)
        t = t - takes.to(tl.int64)
        s = s - gives.to(tl.int64)
        until = tl.where(takes, tl.load(t_until + t, takes & (t >= begin), other=0), until)
        row = tl.where(gives, tl.load(s_row + s, gives & (s >= first), other=0), row)
        left = tl.max(s - first, 0)
    where_partial = partial + (tl.program_id(0).to(tl.int64) * tl.num_programs(2) + tl.program_id(2)) * tap_count * VS
    tl.store(where_partial + u * VS + v, tl.sum(tl.sum(turned, 2), 0))
