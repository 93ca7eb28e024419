"""The event convolution in Triton.

Scan: a program takes a few target pixels and one tap, and merges, in order of arrival, the run of the source pixel
(which updates a state) with that of the target pixel (which reads it); lanes are (pixel, v, channel). The transpose
takes a few source pixels and a few taps, one after the other, and merges back in time. No atomics: what programs have
in common they write side by side, and `_fold` adds it up. Kernels see microseconds: rates are scaled as they are read.
Grids, channels and temporal taps are constants of a kernel, so that index arithmetic folds away and rows are moved in
vectors.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.causal import Link, by_pixel
from gridless.geometry.causal.gpu import tap_table
from gridless.kernels.launch import EXACT, Launcher, cdiv, power_of_two
from gridless.ops.event_conv.neighbourhoods import Neighbourhoods
from gridless.ops.event_conv.reference import CUTOFF
from gridless.structures import Events

# Lanes of a program, and of a warp.
_ELEMENTS = 256
_PER_WARP = 256
# Programs of the backward walk that keep the device busy; with more, a program takes several taps.
_ENOUGH = 4096
# Programs that clear rows of no pixel: of a padded batch those are a tenth.
_STRAYS = 1024
_FOLD = 4096
_CUTOFF = tl.constexpr(CUTOFF)


def gather(features: Tensor, rate: Tensor, near: Neighbourhoods) -> Tensor:
    return _scan(features, rate, near.link, near.decay_time, None, None)


def scatter(
    grad: Tensor, features: Tensor, rate: Tensor, near: Neighbourhoods, wanted: bool, total: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    link, (taps, temporal), (rows, channels), device = near.link, rate.shape, features.shape, rate.device
    cells = _visited(link.source)
    if not (cells and channels and grad.numel()):
        return torch.zeros_like(features) if wanted and total is None else total, torch.zeros_like(rate)
    shape = _shape(temporal, channels, _ELEMENTS, _PER_WARP)
    programs = cdiv(cells, shape.pixels)
    walks = programs * shape.blocks
    groups = _groups(taps, walks)
    # Each group's share of the gradient of the features. Rows that no target sees keep their zeros.
    shares = features
    if wanted and groups > 1:
        shares = features.new_zeros(groups, rows, channels)
    elif wanted:
        shares = total = torch.zeros_like(features) if total is None else total
    partial = rate.new_empty(taps, walks, shape.vs)
    scale = per_microsecond(near.decay_time, rate.dtype, device)
    double = rate.dtype == torch.float64
    _SCATTER(
        (programs, groups, shape.blocks),
        (*_runs(link), _busy(link.source), tap_table(link.offsets, device), scale, features, rate, grad, shares,
         partial),
        (cells, rows, taps),
        (*_grids(link), temporal, channels, wanted, shape.pixels, shape.vs, shape.lanes, double),
        shape.warps,
    )  # fmt: skip
    d_rate = torch.empty_like(rate)
    adds = total is not None
    more = 0
    if wanted and groups > 1:
        more = cdiv(rows * channels, _FOLD)
        total = total if adds else torch.empty_like(features)
    _FOLD_UP(
        (taps + more, 1, 1),
        (partial, scale, d_rate, shares, features if total is None else total),
        (walks, rows, channels, taps, groups),
        (temporal, adds, shape.vs, max(_FOLD // shape.vs, 1), _FOLD, double),
        8,
    )
    return total, d_rate


def scan_step(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    trace = trace.clone()
    gathered = _scan(features, rate, link, decay_time, trace, time).view(len(link.target), *trace.shape[1:])
    order, splits = by_pixel(link.source)
    if not len(order):
        return gathered, trace, time.clone()
    last = link.source.time[order[(splits[1:] - 1).clamp(min=0)].long()]
    return gathered, trace, torch.where(splits.diff() > 0, last, time)


def _scan(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor | None, time: Tensor | None
) -> Tensor:
    (taps, temporal), channels, device = rate.shape, features.shape[1], rate.device
    gathered = features.new_empty(len(link.target), taps * temporal * channels)
    remembers = trace is not None
    # A memory also moves on where there are no targets.
    cells = _cells(link.target) if remembers else _visited(link.target)
    if not (cells and taps and temporal and channels):
        return gathered.zero_()
    _clear_strays(gathered, link.target)
    shape = _shape(temporal, channels, _ELEMENTS, _PER_WARP)
    scale = per_microsecond(decay_time, rate.dtype, device)
    _GATHER(
        (cdiv(cells, shape.pixels), taps, shape.blocks),
        (*_runs(link), _busy(link.target), tap_table(link.offsets, device), scale, features, rate, gathered,
         features if trace is None else trace, link.source.time if time is None else time),
        (cells,),
        (*_grids(link), temporal, channels, remembers, shape.pixels, shape.vs, shape.lanes,
         rate.dtype == torch.float64),
        shape.warps,
    )  # fmt: skip
    return gathered


def _cells(events: Events) -> int:
    return events.num_examples * events.sensor[0] * events.sensor[1]


def _visited(events: Events) -> int:
    """At most so many pixels have events, and `_busy` puts them first."""
    return min(_cells(events), len(events))


def _grids(link: Link) -> tuple[int, int, int, int, int]:
    return *link.source.sensor, *link.target.sensor, link.stride


class _Shape(NamedTuple):
    """Temporal taps, channels, pixels and warps of a program, powers of two; and blocks of channels."""

    vs: int
    lanes: int
    pixels: int
    warps: int
    blocks: int


@cache
def _shape(temporal: int, channels: int, elements: int, per_warp: int) -> _Shape:
    vs = power_of_two(temporal)
    lanes = min(power_of_two(channels), max(elements // vs, 1))
    pixels = max(elements // (vs * lanes), 1)
    return _Shape(vs, lanes, pixels, max(min(pixels * vs * lanes // per_warp, 8), 1), cdiv(channels, lanes))


def _groups(taps: int, programs: int) -> int:
    """Into how many groups taps are divided so that there are enough programs: all alike, or one for each tap."""
    groups = min(cdiv(_ENOUGH, programs), taps)
    return groups if 2 * groups <= taps else taps


def _runs(link: Link) -> tuple[Tensor, ...]:
    """Rows, times and splits of the source's runs; rows, causes, times and splits of the target's."""
    return (*_source_runs(link.source), *_target_runs(link))


def _source_runs(events: Events) -> tuple[Tensor, Tensor, Tensor]:
    def make() -> tuple[Tensor, Tensor, Tensor]:
        order, splits = by_pixel(events)
        return order, events.time[order], splits

    return events.cached("event_runs", make)


def _target_runs(link: Link) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order, time, splits = _source_runs(link.target)
    if link.until is not link.target.cause:
        return order, order, time, splits
    return order, link.target.cached("until", lambda: link.until[order].int()), time, splits


def _busy(events: Events) -> Tensor:
    """Pixels by the length of their runs, longest first: those of one program then end together."""

    def make() -> Tensor:
        return torch.sort(by_pixel(events).splits.diff(), descending=True, stable=True)[1].int()

    return events.cached("busy", make)


def _clear_strays(gathered: Tensor, target: Events) -> None:
    """Rows that belong to no pixel (padding, or outside the sensor) see nothing."""
    if target.is_checked and not target.padding:
        return
    runs = by_pixel(target)
    size = gathered.shape[1]
    if gathered.numel():
        _clear[(_STRAYS,)](
            gathered, runs.order, runs.splits, _cells(target), len(gathered), size, _STRAYS, 1024, **EXACT
        )


@cache
def per_microsecond(decay_time: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 / decay_time (1): what a rate is multiplied by where ages are microseconds."""
    return torch.full((1,), 1 / decay_time, dtype=dtype, device=device)


@triton.jit
def decay(rate, age):
    """exp(-rate age), and 0 where that is under exp(-80)."""
    x = rate * age
    return tl.where(x > _CUTOFF, 0.0, tl.exp(-x)).to(rate.dtype)


@triton.jit(do_not_specialize=["cells", "rows"])
def _clear(gathered, order, splits, cells, rows, size, PROGRAMS: tl.constexpr, BLOCK: tl.constexpr):
    """Zero the rows of A of events outside the sensor."""
    for k in range(tl.load(splits + cells) + tl.program_id(0), rows, PROGRAMS):
        i = tl.load(order + k).to(tl.int64)
        for start in range(0, size, BLOCK):
            at = start + tl.arange(0, BLOCK)
            tl.store(gathered + i * size + at, tl.zeros([BLOCK], gathered.dtype.element_ty), at < size)


@triton.jit(do_not_specialize=["cells"])
def _gather(
    s_row, s_time, s_splits, t_row, t_until, t_time, t_splits, busy, taps, scale, features, rate, gathered, trace,
    since, cells, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, GRID_WIDTH: tl.constexpr, GRID_HEIGHT: tl.constexpr,
    STRIDE: tl.constexpr, TEMPORAL: tl.constexpr, CHANNELS: tl.constexpr, REMEMBERS: tl.constexpr,
    PIXELS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """A of PIXELS target pixels at one tap: the trace runs in registers, and is read at each target."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    INNER: tl.constexpr = TEMPORAL * CHANNELS
    slot = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    live = slot < cells
    cell = tl.load(busy + slot, live, other=0)
    u = tl.program_id(1)
    tap_count = tl.num_programs(1)
    v = tl.arange(0, VS)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    ok = ((v < TEMPORAL)[:, None] & (channel < CHANNELS)[None, :])[None, :, :]
    r = (tl.load(rate + u * TEMPORAL + v, v < TEMPORAL, other=0.0) * tl.load(scale))[None, :, None]
    x = cell % GRID_WIDTH * STRIDE + tl.load(taps + 2 * u)
    y = cell // GRID_WIDTH % GRID_HEIGHT * STRIDE + tl.load(taps + 2 * u + 1)
    inside = live & (x >= 0) & (x < WIDTH) & (y >= 0) & (y < HEIGHT)
    p = tl.where(inside, (cell // (GRID_WIDTH * GRID_HEIGHT) * HEIGHT + y) * WIDTH + x, 0)
    s = tl.load(s_splits + p, inside, other=0).to(tl.int32)
    s_end = tl.load(s_splits + p + 1, inside, other=0).to(tl.int32)
    t = tl.load(t_splits + cell, live, other=0).to(tl.int32)
    t_end = tl.load(t_splits + cell + 1, live, other=0).to(tl.int32)
    row = tl.load(s_row + s, s < s_end, other=0)
    until = tl.load(t_until + t, t < t_end, other=0)
    lane = v[:, None] * CHANNELS + channel[None, :]
    at = tl.zeros([PIXELS], tl.int64)
    state = tl.zeros([PIXELS, VS, LANES], wide)
    if REMEMBERS:
        here = ((p.to(tl.int64) * tap_count + u) * INNER)[:, None, None] + lane[None, :, :]
        state = tl.load(trace + here, inside[:, None, None] & ok, other=0.0)
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
        i = tl.load(t_row + t, gives, other=0)
        value = tl.load(
            features + (row.to(tl.int64) * CHANNELS)[:, None, None] + (channel[None, :] + 0 * v[:, None])[None, :, :],
            takes[:, None, None] & ok, other=0.0,
        )  # fmt: skip
        s = s + takes.to(tl.int32)
        t = t + gives.to(tl.int32)
        row = tl.where(takes, tl.load(s_row + s, takes & (s < s_end), other=0), row)
        until = tl.where(gives, tl.load(t_until + t, gives & (t < t_end), other=0), until)
        age = tl.maximum(now - at, 0).to(wide)
        decayed = state * decay(r, age[:, None, None])
        out = ((i.to(tl.int64) * tap_count + u) * INNER)[:, None, None] + lane[None, :, :]
        tl.store(gathered + out, decayed, gives[:, None, None] & ok)
        state = tl.where(takes[:, None, None], decayed + value, state)
        at = tl.where(takes, now, at)
        if REMEMBERS:
            left = tl.max(tl.maximum(s_end - s, 0) + t_end - t, 0)
        else:
            left = tl.max(t_end - t, 0)
    if REMEMBERS:
        tl.store(trace + here, state, inside[:, None, None] & ok)


@triton.jit(do_not_specialize=["cells", "rows", "tap_count"])
def _scatter(
    s_row, s_time, s_splits, t_row, t_until, t_time, t_splits, busy, taps, scale, features, rate, grad, total, partial,
    cells, rows, tap_count, WIDTH: tl.constexpr, HEIGHT: tl.constexpr, GRID_WIDTH: tl.constexpr,
    GRID_HEIGHT: tl.constexpr, STRIDE: tl.constexpr, TEMPORAL: tl.constexpr, CHANNELS: tl.constexpr,
    WANTED: tl.constexpr, PIXELS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """Taps group, group + groups, ... of a few source pixels; each group adds to its own copy of the features."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    slot = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    live = slot < cells
    p = tl.load(busy + slot, live, other=0)
    group = tl.program_id(1)
    v = tl.arange(0, VS)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    ok_v = v < TEMPORAL
    ok_channel = channel < CHANNELS
    ok = (ok_v[:, None] & ok_channel[None, :])[None, :, :]
    lane = (v[:, None] * CHANNELS + channel[None, :])[None, :, :]
    first = tl.load(s_splits + p, live, other=0).to(tl.int32)
    s_last = tl.load(s_splits + p + 1, live, other=0).to(tl.int32) - 1
    share = total + group.to(tl.int64) * rows * CHANNELS
    program = tl.program_id(0) * tl.num_programs(2) + tl.program_id(2)
    programs = tl.num_programs(0) * tl.num_programs(2)
    per_microsecond = tl.load(scale)
    for u in range(group, tap_count, tl.num_programs(1)):
        r = (tl.load(rate + u * TEMPORAL + v, ok_v, other=0.0) * per_microsecond)[None, :, None]
        x = p % WIDTH - tl.load(taps + 2 * u)
        y = p // WIDTH % HEIGHT - tl.load(taps + 2 * u + 1)
        fits = live & (x >= 0) & (y >= 0) & (x % STRIDE == 0) & (y % STRIDE == 0)
        fits = fits & (x // STRIDE < GRID_WIDTH) & (y // STRIDE < GRID_HEIGHT)
        cell = tl.where(fits, (p // (WIDTH * HEIGHT) * GRID_HEIGHT + y // STRIDE) * GRID_WIDTH + x // STRIDE, 0)
        begin = tl.load(t_splits + cell, fits, other=0).to(tl.int32)
        t = tl.load(t_splits + cell + 1, fits, other=0).to(tl.int32) - 1
        # Rows without targets are skipped.
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
            i = tl.load(t_row + t, takes, other=0)
            at_row = (row.to(tl.int64) * CHANNELS)[:, None] + channel[None, :]
            is_given = gives[:, None] & ok_channel[None, :]
            f = tl.load(features + at_row, is_given, other=0.0)
            if WANTED:
                sofar = tl.load(share + at_row, is_given, other=0.0)
            at_grad = ((i.to(tl.int64) * tap_count + u) * (TEMPORAL * CHANNELS))[:, None, None] + lane
            value = tl.load(grad + at_grad, takes[:, None, None] & ok, other=0.0)
            t = t - takes.to(tl.int32)
            s = s - gives.to(tl.int32)
            until = tl.where(takes, tl.load(t_until + t, takes & (t >= begin), other=0), until)
            row = tl.where(gives, tl.load(s_row + s, gives & (s >= first), other=0), row)
            age = tl.maximum(at - now, 0).to(wide)[:, None, None]
            factor = decay(r, age)
            slope_now = (slope - age * state) * factor
            state_now = state * factor
            turned += tl.where(gives[:, None, None], slope_now * f[:, None, :], 0.0)
            if WANTED:
                tl.store(share + at_row, sofar + tl.sum(state_now, 1), is_given)
            slope = tl.where(takes[:, None, None], slope_now, slope)
            state = tl.where(takes[:, None, None], state_now + value, state)
            at = tl.where(takes, now, at)
            left = tl.max(s - first, 0)
        tl.store(partial + (programs.to(tl.int64) * u + program) * VS + v, tl.sum(tl.sum(turned, 2), 0))
        # The next tap reads what this one wrote, perhaps in another thread.
        if WANTED:
            tl.debug_barrier()


@triton.jit(do_not_specialize=["programs", "rows", "channels", "tap_count", "groups"])
def _fold(
    partial, scale, d_rate, shares, total, programs, rows, channels, tap_count, groups, TEMPORAL: tl.constexpr,
    ADDS: tl.constexpr, VS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """The first programs: the gradient of the rate of a tap. The others: the sum of the shares of the groups."""
    pid = tl.program_id(0)
    if pid < tap_count:
        v = tl.arange(0, VS)
        turned = tl.zeros([ROWS, VS], tl.float64)
        for start in range(0, programs, ROWS):
            k = start + tl.arange(0, ROWS)
            of_program = (pid.to(tl.int64) * programs + k) * VS
            more = tl.load(partial + of_program[:, None] + v[None, :], (k < programs)[:, None], other=0.0)
            turned += more.to(tl.float64)
        d = tl.sum(turned, 0) * tl.load(scale).to(tl.float64)
        tl.store(d_rate + pid * TEMPORAL + v, d.to(d_rate.dtype.element_ty), v < TEMPORAL)
    else:
        at = (pid - tap_count).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        size = rows.to(tl.int64) * channels
        sums = tl.zeros([BLOCK], tl.float64 if DOUBLE else tl.float32)
        if ADDS:
            sums += tl.load(total + at, at < size, other=0.0)
        for group in range(groups):
            sums += tl.load(shares + group * size + at, at < size, other=0.0)
        tl.store(total + at, sums, at < size)


_GATHER, _SCATTER, _FOLD_UP = Launcher(_gather), Launcher(_scatter), Launcher(_fold)
