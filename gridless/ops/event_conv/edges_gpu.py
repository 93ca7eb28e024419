"""The edge form of the event convolution in Triton: a program takes a few rows of the CSR (or of its transpose).

Kernels see microseconds: rates are scaled as they are read.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv, power_of_two
from gridless.ops.event_conv.neighbourhoods import Neighbourhoods
from gridless.ops.event_conv.reference import CUTOFF
from gridless.structures import Edges

_ELEMENTS = 256
_CUTOFF = tl.constexpr(CUTOFF)


def along_edges(features: Tensor, rate: Tensor, near: Neighbourhoods, edges: Edges) -> Tensor:
    """A (S', U V Q)."""
    link = near.link
    (taps, temporal), channels, targets = rate.shape, features.shape[1], len(link.target)
    gathered = features.new_empty(targets, taps * temporal * channels)
    if not gathered.numel():
        return gathered
    lanes = min(power_of_two(temporal * channels), _ELEMENTS // 2)
    rows = _ELEMENTS // lanes
    _GATHER(
        (cdiv(targets, rows), taps, cdiv(temporal * channels, lanes)),
        (edges.splits, edges.source, link.source.time, link.target.time,
         per_microsecond(near.decay_time, rate.dtype, rate.device), features, rate, gathered),
        (targets, near.first_tap),
        (edges.num_target // targets, temporal, channels, rows, lanes, rate.dtype == torch.float64),
        2,
    )  # fmt: skip
    return gathered


def back_along_edges(
    grad: Tensor, features: Tensor, rate: Tensor, near: Neighbourhoods, edges: Edges, wanted: bool, total: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    """The gradients of the features, if wanted (added to `total`, where that is given), and of the rate."""
    link = near.link
    (taps, temporal), channels, targets = rate.shape, features.shape[1], len(link.target)
    adds = total is not None
    if not (grad.numel() and len(edges)):
        return torch.zeros_like(features) if wanted and not adds else total, torch.zeros_like(rate)
    all_taps = edges.num_target // targets
    times = (link.source.time, link.target.time, per_microsecond(near.decay_time, rate.dtype, rate.device))
    # Two at least: Triton 3.6 does not compile every shape of one.
    vs = max(power_of_two(temporal), 2)
    lanes = min(power_of_two(channels), max(_ELEMENTS // vs, 1))
    rows = max(_ELEMENTS // (vs * lanes), 1)
    sizes = (temporal, channels, rows, vs, lanes, rate.dtype == torch.float64)
    if wanted:
        back = edges.transpose()
        total = total if adds else torch.empty_like(features)
        _SCATTER(
            (cdiv(len(features), rows), cdiv(channels, lanes), 1),
            (back.splits, back.source, *times, grad, rate, total),
            # Not constants: with those Triton 3.6 does not compile every shape of this one.
            (len(features), near.first_tap, temporal, channels),
            (all_taps, taps, adds, *sizes[2:]),
            2,
        )
    grid = (cdiv(targets, rows), taps, cdiv(channels, lanes))
    partial = rate.new_empty(*grid, vs)
    _TURN(
        grid,
        (edges.splits, edges.source, *times, grad, features, rate, partial),
        (targets, near.first_tap),
        (all_taps, *sizes),
        2,
    )
    return total, (partial.sum((0, 2), dtype=torch.float64)[:, :temporal] / near.decay_time).to(rate.dtype)


@cache
def per_microsecond(decay_time: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 / decay_time (1): what a rate is multiplied by where ages are microseconds."""
    return torch.full((1,), 1 / decay_time, dtype=dtype, device=device)


@triton.jit
def decay(rate, age):
    """exp(-rate age), and 0 where that is under exp(-80)."""
    x = rate * age
    return tl.where(x > _CUTOFF, 0.0, tl.exp(-x)).to(rate.dtype)


@triton.jit(do_not_specialize=["targets", "first_tap"])
def _gather(
    splits, source, s_time, t_time, scale, features, rate, gathered, targets, first_tap, ALL_TAPS: tl.constexpr,
    TEMPORAL: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    u = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(2) * LANES + tl.arange(0, LANES)
    inner = TEMPORAL * CHANNELS
    ok = lane < inner
    r = (tl.load(rate + u * TEMPORAL + lane // CHANNELS, ok, other=0.0) * tl.load(scale))[None, :]
    live = i < targets
    begin = tl.load(splits + i * ALL_TAPS + first_tap + u, live, other=0)
    count = tl.load(splits + i * ALL_TAPS + first_tap + u + 1, live, other=0) - begin
    now = tl.load(t_time + i, live, other=0)
    sums = tl.zeros([ROWS, LANES], wide)
    for k in range(tl.max(count, 0)):
        j = tl.load(source + begin + k, k < count, other=0).to(tl.int64)
        age = tl.where(k < count, now - tl.load(s_time + j, k < count, other=0), 0).to(wide)
        f = tl.load(
            features + j[:, None] * CHANNELS + (lane % CHANNELS)[None, :], (k < count)[:, None] & ok[None, :], other=0.0
        )
        sums += f * decay(r, age[:, None])
    out = (i * tl.num_programs(1) + u)[:, None] * inner + lane[None, :]
    tl.store(gathered + out, sums, live[:, None] & ok[None, :])


@triton.jit(do_not_specialize=["sources", "first_tap", "temporal", "channels"])
def _scatter(
    splits, row, s_time, t_time, scale, grad, rate, total, sources, first_tap, temporal, channels,
    ALL_TAPS: tl.constexpr, TAPS: tl.constexpr, ADDS: tl.constexpr, ROWS: tl.constexpr, VS: tl.constexpr,
    LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    v = tl.arange(0, VS)
    channel = tl.program_id(1) * LANES + tl.arange(0, LANES)
    live = j < sources
    begin = tl.load(splits + j, live, other=0)
    count = tl.load(splits + j + 1, live, other=0) - begin
    then = tl.load(s_time + j, live, other=0)
    per = tl.load(scale)
    sums = tl.zeros([ROWS, LANES], wide)
    for k in range(tl.max(count, 0)):
        at = tl.load(row + begin + k, k < count, other=0).to(tl.int64)
        i = at // ALL_TAPS
        u = at % ALL_TAPS - first_tap
        mine = (k < count) & (u >= 0) & (u < TAPS)
        age = (tl.load(t_time + i, mine, other=0) - then).to(wide)
        ok = mine[:, None] & (v < temporal)[None, :]
        r = tl.load(rate + u[:, None] * temporal + v[None, :], ok, other=0.0) * per
        factor = decay(r, age[:, None])
        at_grad = ((i * TAPS + u) * temporal)[:, None] + v[None, :]
        value = tl.load(
            grad + at_grad[:, :, None] * channels + channel[None, None, :],
            ok[:, :, None] & (channel < channels)[None, None, :],
            other=0.0,
        )
        sums += tl.sum(value * factor[:, :, None], 1)
    out = total + j[:, None] * channels + channel[None, :]
    ok_out = live[:, None] & (channel < channels)[None, :]
    if ADDS:
        sums += tl.load(out, ok_out, other=0.0)
    tl.store(out, sums, ok_out)


@triton.jit(do_not_specialize=["targets", "first_tap"])
def _turn(
    splits, source, s_time, t_time, scale, grad, features, rate, partial, targets, first_tap, ALL_TAPS: tl.constexpr,
    TEMPORAL: tl.constexpr, CHANNELS: tl.constexpr, ROWS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr,
    DOUBLE: tl.constexpr,
):  # fmt: skip
    """The gradient of the rate of one tap, from a few targets."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    u = tl.program_id(1).to(tl.int64)
    v = tl.arange(0, VS)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    live = i < targets
    r = (tl.load(rate + u * TEMPORAL + v, v < TEMPORAL, other=0.0) * tl.load(scale))[None, :]
    begin = tl.load(splits + i * ALL_TAPS + first_tap + u, live, other=0)
    count = tl.load(splits + i * ALL_TAPS + first_tap + u + 1, live, other=0) - begin
    now = tl.load(t_time + i, live, other=0)
    at_grad = ((i * tl.num_programs(1) + u) * TEMPORAL)[:, None] + v[None, :]
    ok = (live[:, None] & (v < TEMPORAL)[None, :])[:, :, None] & (channel < CHANNELS)[None, None, :]
    value = tl.load(grad + at_grad[:, :, None] * CHANNELS + channel[None, None, :], ok, other=0.0)
    turned = tl.zeros([ROWS, VS], wide)
    for k in range(tl.max(count, 0)):
        j = tl.load(source + begin + k, k < count, other=0).to(tl.int64)
        age = tl.where(k < count, now - tl.load(s_time + j, k < count, other=0), 0).to(wide)[:, None]
        f = tl.load(
            features + j[:, None] * CHANNELS + channel[None, :],
            (k < count)[:, None] & (channel < CHANNELS)[None, :],
            other=0.0,
        )
        turned -= age * decay(r, age) * tl.sum(value * f[:, None, :], 2)
    at = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + u) * tl.num_programs(2) + tl.program_id(2)
    tl.store(partial + at * VS + v, tl.sum(turned, 0))


_GATHER, _SCATTER, _TURN = Launcher(_gather), Launcher(_scatter), Launcher(_turn)
