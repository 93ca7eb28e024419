"""The edge form of the event convolution in Triton: a program takes a few rows of the CSR (or of its transpose).

Rates are divided by the decay time beforehand, so that kernels see microseconds.
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

from gridless.structures import Edges

if TYPE_CHECKING:
    from gridless.ops.event_conv.autograd import Walk

_ELEMENTS = 256


def along_edges(features: Tensor, rate: Tensor, walk: Walk, edges: Edges) -> Tensor:
    """A (S', u, V, Q)."""
    link = walk.link
    (taps, temporal), channels = rate.shape, features.shape[1]
    rate = rate / walk.decay_time
    gathered = features.new_empty(len(link.target), taps, temporal, channels)
    if not gathered.numel():
        return gathered
    lanes = min(triton.next_power_of_2(temporal * channels), _ELEMENTS // 2)
    rows = _ELEMENTS // lanes
    grid = (triton.cdiv(len(link.target), rows), taps, triton.cdiv(temporal * channels, lanes))
    _gather[grid](
        edges.splits, edges.source, link.source.time, link.target.time, features, rate, gathered, len(link.target),
        edges.num_target // len(link.target), walk.first_tap, temporal, channels,
        rows, lanes, rate.dtype == torch.float64, num_warps=2,
    )  # fmt: skip
    return gathered


def back_along_edges(
    grad: Tensor, features: Tensor, rate: Tensor, walk: Walk, edges: Edges, total: Tensor | None
) -> Tensor:
    """Adds the gradient of the features to `total`, unless it is None, and returns that of the rate."""
    link = walk.link
    (taps, temporal), channels = rate.shape, features.shape[1]
    if not (grad.numel() and len(edges)):
        return torch.zeros_like(rate)
    all_taps = edges.num_target // len(link.target)
    times = (link.source.time, link.target.time)
    # Two at least: Triton 3.6 does not compile every shape of one.
    vs = max(triton.next_power_of_2(temporal), 2)
    lanes = min(triton.next_power_of_2(channels), max(_ELEMENTS // vs, 1))
    rows = max(_ELEMENTS // (vs * lanes), 1)
    rate = rate / walk.decay_time
    sizes = (temporal, channels, rows, vs, lanes, rate.dtype == torch.float64)
    if total is not None:
        back = edges.transpose()
        grid = (triton.cdiv(len(features), rows), triton.cdiv(channels, lanes))
        _scatter[grid](
            back.splits, back.source, *times, grad, rate, total, len(features), all_taps, walk.first_tap, taps, *sizes,
            num_warps=2,
        )  # fmt: skip
    grid = (triton.cdiv(len(link.target), rows), taps, triton.cdiv(channels, lanes))
    partial = rate.new_empty(*grid, vs)
    _turn[grid](
        edges.splits, edges.source, *times, grad, features, rate, partial, len(link.target), all_taps, walk.first_tap,
        *sizes, num_warps=2,
    )  # fmt: skip
    return (partial.sum((0, 2), dtype=torch.float64)[:, :temporal] / walk.decay_time).to(rate.dtype)


@triton.jit
def decay(rate, age):
    """exp(-rate age), and 0 from a product of 80 on."""
    x = rate * age
    return tl.where(x > 80, 0.0, tl.exp(-x)).to(rate.dtype)


@triton.jit
def _gather(
    splits, source, s_time, t_time, features, rate, gathered, targets, all_taps, first_tap, temporal, channels,
    ROWS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    u = tl.program_id(1).to(tl.int64)
    lane = tl.program_id(2) * LANES + tl.arange(0, LANES)
    inner = temporal * channels
    ok = lane < inner
    r = tl.load(rate + u * temporal + lane // channels, ok, other=0.0)[None, :]
    live = i < targets
    begin = tl.load(splits + i * all_taps + first_tap + u, live, other=0)
    count = tl.load(splits + i * all_taps + first_tap + u + 1, live, other=0) - begin
    now = tl.load(t_time + i, live, other=0)
    sums = tl.zeros([ROWS, LANES], wide)
    for k in range(tl.max(count, 0)):
        j = tl.load(source + begin + k, k < count, other=0).to(tl.int64)
        age = (now - tl.load(s_time + j, k < count, other=0)).to(wide)
        f = tl.load(
            features + j[:, None] * channels + (lane % channels)[None, :], (k < count)[:, None] & ok[None, :], other=0.0
        )
        sums += f * decay(r, age[:, None])
    out = (i * tl.num_programs(1) + u)[:, None] * inner + lane[None, :]
    tl.store(gathered + out, sums, live[:, None] & ok[None, :])


@triton.jit
def _scatter(
    splits, row, s_time, t_time, grad, rate, total, sources, all_taps, first_tap, taps, temporal, channels,
    ROWS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    j = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    v = tl.arange(0, VS)
    channel = tl.program_id(1) * LANES + tl.arange(0, LANES)
    live = j < sources
    begin = tl.load(splits + j, live, other=0)
    count = tl.load(splits + j + 1, live, other=0) - begin
    then = tl.load(s_time + j, live, other=0)
    sums = tl.zeros([ROWS, LANES], wide)
    for k in range(tl.max(count, 0)):
        at = tl.load(row + begin + k, k < count, other=0).to(tl.int64)
        i = at // all_taps
        u = at % all_taps - first_tap
        mine = (k < count) & (u >= 0) & (u < taps)
        age = (tl.load(t_time + i, mine, other=0) - then).to(wide)
        ok = mine[:, None] & (v < temporal)[None, :]
        r = tl.load(rate + u[:, None] * temporal + v[None, :], ok, other=0.0)
        factor = decay(r, age[:, None])
        at_grad = ((i * taps + u) * temporal)[:, None] + v[None, :]
        value = tl.load(
            grad + at_grad[:, :, None] * channels + channel[None, None, :],
            ok[:, :, None] & (channel < channels)[None, None, :],
            other=0.0,
        )
        sums += tl.sum(value * factor[:, :, None], 1)
    out = total + j[:, None] * channels + channel[None, :]
    ok_out = live[:, None] & (channel < channels)[None, :]
    tl.store(out, tl.load(out, ok_out, other=0.0) + sums, ok_out)


@triton.jit
def _turn(
    splits, source, s_time, t_time, grad, features, rate, partial, targets, all_taps, first_tap, temporal,
    channels, ROWS: tl.constexpr, VS: tl.constexpr, LANES: tl.constexpr, DOUBLE: tl.constexpr,
):  # fmt: skip
    """The gradient of the rate of one tap, from a few targets."""
    wide: tl.constexpr = tl.float64 if DOUBLE else tl.float32
    i = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    u = tl.program_id(1).to(tl.int64)
    v = tl.arange(0, VS)
    channel = tl.program_id(2) * LANES + tl.arange(0, LANES)
    live = i < targets
    r = tl.load(rate + u * temporal + v, v < temporal, other=0.0)[None, :]
    begin = tl.load(splits + i * all_taps + first_tap + u, live, other=0)
    count = tl.load(splits + i * all_taps + first_tap + u + 1, live, other=0) - begin
    now = tl.load(t_time + i, live, other=0)
    at_grad = ((i * tl.num_programs(1) + u) * temporal)[:, None] + v[None, :]
    ok = (live[:, None] & (v < temporal)[None, :])[:, :, None] & (channel < channels)[None, None, :]
    value = tl.load(grad + at_grad[:, :, None] * channels + channel[None, None, :], ok, other=0.0)
    turned = tl.zeros([ROWS, VS], wide)
    for k in range(tl.max(count, 0)):
        j = tl.load(source + begin + k, k < count, other=0).to(tl.int64)
        age = (now - tl.load(s_time + j, k < count, other=0)).to(wide)[:, None]
        f = tl.load(
            features + j[:, None] * channels + channel[None, :],
            (k < count)[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        turned -= age * decay(r, age) * tl.sum(value * f[:, None, :], 2)
    at = (tl.program_id(0).to(tl.int64) * tl.num_programs(1) + u) * tl.num_programs(2) + tl.program_id(2)
    tl.store(partial + at * VS + v, tl.sum(turned, 0))
