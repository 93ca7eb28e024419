"""The event convolution in Numba.

Scan: for every (target pixel, tap) one merge, in order of arrival, of the run of its source pixel, whose events update
a state, with its own run, whose events read it. The transpose is the same merge back in time, with the roles exchanged.
Edges: one pass over the rows, and in the transpose over the edges by source. Threads share pixels (or rows); what they
add up is added in a fixed number of parts, so that the number of threads does not change a bit.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless.backends import in_threads
from gridless.geometry.causal import Link, by_pixel
from gridless.geometry.causal.cpu import share_cells, source_cell

if TYPE_CHECKING:
    from gridless.ops.event_conv.autograd import Walk

CUTOFF = 80.0
_PARTS = 8


def gather(features: Tensor, rate: Tensor, walk: Walk) -> Tensor:
    gathered = features.new_empty(len(walk.link.target), *rate.shape, features.shape[1])
    values = (features.numpy(), rate.numpy(), gathered.numpy())
    if walk.edges is not None:
        jobs = [(a, b, *_edge_arrays(walk), *values) for a, b in _share_rows(len(gathered))]
        in_threads(_gather_edges, jobs)
        return gathered
    _zero_padding(gathered, walk.link)
    nothing = np.empty((0, 0, 0, 0), values[0].dtype), np.empty(0, np.int64)
    cuts = share_cells(by_pixel(walk.link.target).splits, _PARTS)
    shared = _arrays(walk.link)
    in_threads(_gather, [(a, b, *shared, 1 / walk.decay_time, *values, *nothing) for a, b in cuts])
    return gathered


def scatter(grad: Tensor, features: Tensor, rate: Tensor, walk: Walk, total: Tensor | None) -> Tensor:
    """Adds the gradient of the features to `total`, unless it is None, and returns that of the rate."""
    wanted = total is not None
    add_to = (total if wanted else features[:0]).numpy()
    if walk.edges is not None:
        back = walk.edges.transpose()
        arrays = (back.splits.numpy(), back.source.numpy(), *_edge_arrays(walk)[2:])
        jobs, kernel = [(a, b, *arrays) for a, b in _share_rows(len(features))], _scatter_edges
    else:
        arrays = (*_arrays(walk.link), 1 / walk.decay_time)
        jobs, kernel = [(a, b, *arrays) for a, b in share_cells(by_pixel(walk.link.source).splits, _PARTS)], _scatter
    parts = np.zeros((len(jobs), *rate.shape))
    values = (features.numpy(), rate.numpy(), grad.contiguous().numpy(), wanted, add_to)
    in_threads(kernel, [(*job, *values, part) for job, part in zip(jobs, parts, strict=True)])
    return torch.from_numpy(parts.sum(0)).to(rate.dtype)


def scan_step(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gathered = features.new_empty(len(link.target), *rate.shape, features.shape[1])
    trace, since = trace.clone(), time
    _zero_padding(gathered, link)
    values = (features.numpy(), rate.detach().contiguous().numpy(), gathered.numpy())
    cuts = share_cells(by_pixel(link.target).splits, _PARTS)
    shared = (*_arrays(link), 1 / decay_time, *values, trace.numpy(), since.numpy())
    in_threads(_gather, [(a, b, *shared) for a, b in cuts])
    order, splits = by_pixel(link.source)
    met = splits.diff() > 0
    last = order[(splits[1:] - 1)[met]].long()
    time = time.clone()
    time[met] = link.source.time[last]
    return gathered, trace, time


def _zero_padding(gathered: Tensor, link: Link) -> None:
    if link.target.padding:
        gathered[len(link.target) - link.target.padding :] = 0


def _arrays(link: Link) -> tuple:
    grids = np.array([*link.source.sensor, *link.target.sensor, link.stride], np.int64)
    taps = np.array(link.offsets, np.int64).reshape(-1, 2)
    runs = (t.numpy() for t in (*by_pixel(link.source), *by_pixel(link.target)))
    times = (link.source.time.numpy(), link.target.time.numpy())
    return taps, grids, *runs, link.until.numpy(), *times


def _edge_arrays(walk: Walk) -> tuple:
    edges, link = walk.edges, walk.link
    taps = edges.num_target // max(len(link.target), 1)
    times = (link.source.time.numpy(), link.target.time.numpy())
    return edges.splits.numpy(), edges.source.numpy(), taps, walk.first_tap, *times, 1 / walk.decay_time


def _share_rows(rows: int) -> list[tuple[int, int]]:
    return list(pairwise(np.linspace(0, rows, _PARTS + 1).astype(int).tolist()))


@njit(nogil=True, cache=True)
def _decays(rate, age, factor, bits, power):
    """factor[v] = exp(-rate[v] age). In single precision without a call, so that v is vectorised.

    exp(-x) = 2^n exp(r), r in +-ln(2)/2: a polynomial in r, and n written into the exponent; `power` are `bits`, seen
    as floats. Relative error under 2e-7.
    """
    if rate.itemsize == 8:
        for v in range(len(rate)):
            x = rate[v] * age
            factor[v] = np.exp(-x) if x <= CUTOFF else 0.0
        return
    for v in range(len(rate)):
        x = -min(rate[v] * age, np.float32(CUTOFF))
        n = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
        r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
        y = np.float32(1.9875691500e-4)
        y = y * r + np.float32(1.3981999507e-3)
        y = y * r + np.float32(8.3334519073e-3)
        y = y * r + np.float32(4.1665795894e-2)
        y = y * r + np.float32(1.6666665459e-1)
        y = y * r + np.float32(5.0000001201e-1)
        factor[v] = y * (r * r) + (r + np.float32(1.0))
        bits[v] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for v in range(len(rate)):
        factor[v] = factor[v] * power[v] if rate[v] * age <= np.float32(CUTOFF) else np.float32(0.0)


@njit(nogil=True, cache=True)
def _gather(
    low, high, taps, grids, s_order, s_splits, t_order, t_splits, until, s_time, t_time, scale,
    features, rate, gathered, trace, since,
):  # fmt: skip
    channels = features.shape[1]
    temporal = rate.shape[1]
    state = np.empty((temporal, channels), rate.dtype)
    factor = np.empty(temporal, rate.dtype)
    bits = np.empty(temporal, np.int32)
    power = bits.view(np.float32)
    for cell in range(low, high):
        first, last = t_splits[cell], t_splits[cell + 1]
        if first == last and len(since) == 0:
            continue
        for u in range(len(taps)):
            p = source_cell(cell, taps[u, 0], taps[u, 1], grids)
            if p < 0:
                for k in range(first, last):
                    for v in range(temporal):
                        for q in range(channels):
                            gathered[t_order[k], u, v, q] = 0
                continue
            s, end = s_splits[p], s_splits[p + 1]
            empty = len(since) == 0
            at = t_time[0] * 0 if empty else since[p]
            if not empty:
                for v in range(temporal):
                    for q in range(channels):
                        state[v, q] = trace[p, u, v, q]
            for k in range(first, last + 1):
                # After the last target, what is left only goes into the memory.
                if k == last and len(since) == 0:
                    break
                until_row = until[t_order[k]] if k < last else len(s_time)
                while s < end and s_order[s] <= until_row:
                    j = s_order[s]
                    if empty:
                        for v in range(temporal):
                            for q in range(channels):
                                state[v, q] = features[j, q]
                        empty = False
                    else:
                        _decays(rate[u], rate.dtype.type((s_time[j] - at) * scale), factor, bits, power)
                        for v in range(temporal):
                            for q in range(channels):
                                state[v, q] = state[v, q] * factor[v] + features[j, q]
                    at = s_time[j]
                    s += 1
                if k < last:
                    i = t_order[k]
                    if empty:
                        for v in range(temporal):
                            for q in range(channels):
                                gathered[i, u, v, q] = 0
                    else:
                        _decays(rate[u], rate.dtype.type((t_time[i] - at) * scale), factor, bits, power)
                        for v in range(temporal):
                            for q in range(channels):
                                gathered[i, u, v, q] = state[v, q] * factor[v]
            if len(since):
                for v in range(temporal):
                    for q in range(channels):
                        trace[p, u, v, q] = state[v, q]


@njit(nogil=True, cache=True)
def _scatter(
    low, high, taps, grids, s_order, s_splits, t_order, t_splits, until, s_time, t_time, scale,
    features, rate, grad, wanted, total, d_rate,
):  # fmt: skip
    channels = features.shape[1]
    temporal = rate.shape[1]
    state = np.empty((temporal, channels), rate.dtype)
    slope = np.empty((temporal, channels), rate.dtype)  # d state / d rate
    factor = np.empty(temporal, rate.dtype)
    bits = np.empty(temporal, np.int32)
    power = bits.view(np.float32)
    width, height, grid_width, grid_height, stride = grids[0], grids[1], grids[2], grids[3], grids[4]
    for p in range(low, high):
        begin, s_end = s_splits[p], s_splits[p + 1]
        if begin == s_end:
            continue
        for u in range(len(taps)):
            x, y = p % width - taps[u, 0], p // width % height - taps[u, 1]
            if x < 0 or y < 0 or x % stride or y % stride or x // stride >= grid_width or y // stride >= grid_height:
                continue
            cell = (p // (width * height) * grid_height + y // stride) * grid_width + x // stride
            k, first = t_splits[cell + 1] - 1, t_splits[cell]
            if k < first:
                continue
            empty = True
            at = t_time[t_order[k]]
            latest = until[t_order[k]]
            for s in range(s_end - 1, begin - 1, -1):
                j = s_order[s]
                if j > latest:
                    continue
                while k >= first and until[t_order[k]] >= j:
                    i = t_order[k]
                    if empty:
                        for v in range(temporal):
                            for q in range(channels):
                                slope[v, q] = 0
                                state[v, q] = grad[i, u, v, q]
                        empty = False
                    else:
                        age = rate.dtype.type((at - t_time[i]) * scale)
                        _decays(rate[u], age, factor, bits, power)
                        for v in range(temporal):
                            for q in range(channels):
                                slope[v, q] = (slope[v, q] - age * state[v, q]) * factor[v]
                                state[v, q] = state[v, q] * factor[v] + grad[i, u, v, q]
                    at = t_time[i]
                    k -= 1
                age = rate.dtype.type((at - s_time[j]) * scale)
                _decays(rate[u], age, factor, bits, power)
                for v in range(temporal):
                    turned = age * 0
                    for q in range(channels):
                        turned += (slope[v, q] - age * state[v, q]) * features[j, q]
                    d_rate[u, v] += turned * factor[v]
                if wanted:
                    for v in range(temporal):
                        for q in range(channels):
                            total[j, q] += state[v, q] * factor[v]


@njit(nogil=True, cache=True)
def _gather_edges(low, high, splits, source, taps, first_tap, s_time, t_time, scale, features, rate, gathered):
    temporal, channels = rate.shape[1], features.shape[1]
    factor = np.empty(temporal, rate.dtype)
    bits = np.empty(temporal, np.int32)
    power = bits.view(np.float32)
    for i in range(low, high):
        for u in range(rate.shape[0]):
            row = i * taps + first_tap + u
            for v in range(temporal):
                for q in range(channels):
                    gathered[i, u, v, q] = 0
            for e in range(splits[row], splits[row + 1]):
                j = source[e]
                _decays(rate[u], rate.dtype.type((t_time[i] - s_time[j]) * scale), factor, bits, power)
                for v in range(temporal):
                    for q in range(channels):
                        gathered[i, u, v, q] += features[j, q] * factor[v]


@njit(nogil=True, cache=True)
def _scatter_edges(
    low, high, splits, rows, taps, first_tap, s_time, t_time, scale, features, rate, grad, wanted, total, d_rate
):
    temporal, channels = rate.shape[1], features.shape[1]
    factor = np.empty(temporal, rate.dtype)
    bits = np.empty(temporal, np.int32)
    power = bits.view(np.float32)
    for j in range(low, high):
        for e in range(splits[j], splits[j + 1]):
            i, u = rows[e] // taps, rows[e] % taps - first_tap
            if u < 0 or u >= rate.shape[0]:
                continue
            age = rate.dtype.type((t_time[i] - s_time[j]) * scale)
            _decays(rate[u], age, factor, bits, power)
            for v in range(temporal):
                turned = age * 0
                for q in range(channels):
                    turned += grad[i, u, v, q] * features[j, q]
                d_rate[u, v] -= turned * age * factor[v]
            if wanted:
                for v in range(temporal):
                    for q in range(channels):
                        total[j, q] += grad[i, u, v, q] * factor[v]
