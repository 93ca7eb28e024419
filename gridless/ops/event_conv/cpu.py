"""The event convolution in Numba.

Scan: for every (target pixel, tap) one merge, in order of arrival, of the run of its source pixel, whose events update
a state, with its own run, whose events read it. The transpose is the same merge back in time, with the roles exchanged.
The times are known before the states, so the decays of a merge are made at once, in vectors. Threads share pixels;
what they add up is added in a fixed number of parts, so that the number of threads does not change a bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.causal import Link, by_pixel
from gridless.geometry.causal.cpu import share_cells, source_cell
from gridless.kernels.compile import njit
from gridless.kernels.threads import in_threads
from gridless.ops.event_conv.neighbourhoods import Neighbourhoods
from gridless.ops.event_conv.reference import CUTOFF
from gridless.structures import Structure

_PARTS = 8


def gather(features: Tensor, rate: Tensor, near: Neighbourhoods) -> Tensor:
    gathered = features.new_empty(len(near.link.target), *rate.shape, features.shape[1])
    values = (features.detach().numpy(), rate.detach().numpy(), gathered.numpy())
    _zero_padding(gathered, near.link)
    nothing = np.empty((0, 0, 0, 0), values[0].dtype), np.empty(0, np.int64)
    cuts = share_cells(by_pixel(near.link.target).splits, _PARTS)
    shared = _arrays(near.link, near.decay_time)
    in_threads(_gather, [(a, b, *shared, *values, *nothing) for a, b in cuts])
    return gathered.flatten(1)


def scatter(
    grad: Tensor, features: Tensor, rate: Tensor, near: Neighbourhoods, wanted: bool, total: Tensor | None
) -> tuple[Tensor | None, Tensor]:
    if wanted and total is None:
        total = torch.zeros_like(features)
    add_to = (features.detach()[:0] if total is None else total).numpy()
    arrays = _arrays(near.link, near.decay_time)
    jobs = [(a, b, *arrays) for a, b in share_cells(by_pixel(near.link.source).splits, _PARTS)]
    parts = np.zeros((len(jobs), *rate.shape))
    grad = grad.view(len(grad), *rate.shape, features.shape[1])
    values = (features.detach().numpy(), rate.detach().numpy(), grad.numpy(), wanted, add_to)
    in_threads(_scatter, [(*job, *values, part) for job, part in zip(jobs, parts, strict=True)])
    return total, torch.from_numpy(parts.sum(0)).to(rate.dtype)


def scan_step(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    gathered = features.new_empty(len(link.target), *rate.shape, features.shape[1])
    trace, since = trace.clone(), time
    _zero_padding(gathered, link)
    values = (features.numpy(), rate.detach().contiguous().numpy(), gathered.numpy())
    cuts = share_cells(by_pixel(link.target).splits, _PARTS)
    shared = (*_arrays(link, decay_time), *values, trace.numpy(), since.numpy())
    in_threads(_gather, [(a, b, *shared) for a, b in cuts])
    order, splits = by_pixel(link.source)
    met = splits.diff() > 0
    last = order[(splits[1:] - 1)[met]].long()
    time = time.clone()
    time[met] = link.source.time[last]
    return gathered, trace, time


def _zero_padding(gathered: Tensor, link: Link) -> None:
    if link.target.padding:
        # The splits say what is padding: `padding` belongs to the first of the batches that fill one place.
        gathered[int(link.target.splits[-1]) :] = 0


def _arrays(link: Link, decay_time: float) -> tuple:
    grids = np.array([*link.source.sensor, *link.target.sensor, link.stride], np.int64)
    taps = np.array(link.offsets, np.int64).reshape(-1, 2)
    runs = (t.numpy() for t in (*by_pixel(link.source), *by_pixel(link.target)))
    times = (link.source.time.numpy(), link.target.time.numpy())
    longest = _longest(link.source, by_pixel(link.source).splits) + _longest(link.target, by_pixel(link.target).splits)
    return taps, grids, *runs, link.until.numpy(), *times, 1 / decay_time, longest


def _longest(of: Structure, splits: Tensor) -> int:
    return of.cached("longest", lambda: int(np.diff(splits.numpy()).max(initial=0)))


@njit(nogil=True, cache=True, inner=True)
def _decays(rate, age, count, factor, bits, power):
    """factor[v, n] = exp(-rate[v] age[n]) for the first `count` ages.

    In single precision without a call, so that n is vectorised: exp(-x) = 2^m exp(r), r in +-ln(2)/2, a polynomial in r
    and m written into the exponent; `power` are `bits`, seen as floats. Relative error under 2e-7. Beyond exp(88), to
    which only a negative rate leads, it is infinite; of NaN it is NaN.
    """
    for v in range(len(rate)):
        if rate.itemsize == 8:
            for n in range(count):
                x = rate[v] * age[n]
                factor[v, n] = 0.0 if x > CUTOFF else np.exp(-x)
            continue
        for n in range(count):
            x = -min(rate[v] * age[n], np.float32(CUTOFF))
            m = np.floor(x * np.float32(1.44269504) + np.float32(0.5))
            r = (x - m * np.float32(0.693359375)) + m * np.float32(2.12194440e-4)
            y = np.float32(1.9875691500e-4)
            y = y * r + np.float32(1.3981999507e-3)
            y = y * r + np.float32(8.3334519073e-3)
            y = y * r + np.float32(4.1665795894e-2)
            y = y * r + np.float32(1.6666665459e-1)
            y = y * r + np.float32(5.0000001201e-1)
            factor[v, n] = y * (r * r) + (r + np.float32(1.0))
            bits[n] = (np.int32(m) + np.int32(127)) << np.int32(23)
        for n in range(count):
            x = rate[v] * age[n]
            within = factor[v, n] * power[n] if x >= np.float32(-88.0) else np.float32(np.inf)
            beyond = np.float32(0.0) if x > np.float32(CUTOFF) else x
            factor[v, n] = within if x <= np.float32(CUTOFF) else beyond


@njit(nogil=True, cache=True)
def _gather(
    low, high, taps, grids, s_order, s_splits, t_order, t_splits, until, s_time, t_time, scale, longest,
    features, rate, gathered, trace, since,
):  # fmt: skip
    """A of the target pixels low to high: the trace of each tap, read at each target, with `since` kept for later."""
    channels, temporal = features.shape[1], rate.shape[1]
    state = np.empty((temporal, channels), rate.dtype)
    # Events that meet a state, in order: rows of the source, and complements of the rows of the target.
    step = np.empty(longest, np.int64)
    age = np.empty(longest, rate.dtype)
    factor = np.empty((temporal, longest), rate.dtype)
    bits = np.empty(longest, np.int32)
    power = bits.view(np.float32)
    remembers = len(since) > 0
    for cell in range(low, high):
        first, last = t_splits[cell], t_splits[cell + 1]
        if first == last and not remembers:
            continue
        for u in range(len(taps)):
            p = source_cell(cell, taps[u, 0], taps[u, 1], grids)
            s, end = (s_splits[p], s_splits[p + 1]) if p >= 0 else (s_splits[0], s_splits[0])
            filled = remembers and p >= 0
            at = since[p] if filled else np.int64(0)
            count = 0
            for k in range(first, last + 1):
                if k == last and not remembers:
                    break
                # After the last target, what is left only goes into the memory.
                until_row = until[t_order[k]] if k < last else len(s_time)
                while s < end and s_order[s] <= until_row:
                    j = s_order[s]
                    step[count] = j
                    age[count] = (s_time[j] - at) * scale
                    at = s_time[j]
                    count += 1
                    s += 1
                if k < last:
                    step[count] = ~np.int64(t_order[k])
                    age[count] = (t_time[t_order[k]] - at) * scale
                    count += 1
            _decays(rate[u], age, count, factor, bits, power)
            for v in range(temporal):
                for q in range(channels):
                    state[v, q] = trace[p, u, v, q] if filled else rate.dtype.type(0)
            for n in range(count):
                j = step[n]
                if j < 0:
                    for v in range(temporal):
                        for q in range(channels):
                            gathered[~j, u, v, q] = state[v, q] * factor[v, n]
                else:
                    for v in range(temporal):
                        for q in range(channels):
                            state[v, q] = state[v, q] * factor[v, n] + features[j, q]
            if filled:
                for v in range(temporal):
                    for q in range(channels):
                        trace[p, u, v, q] = state[v, q]


@njit(nogil=True, cache=True)
def _scatter(
    low, high, taps, grids, s_order, s_splits, t_order, t_splits, until, s_time, t_time, scale, longest,
    features, rate, grad, wanted, total, d_rate,
):  # fmt: skip
    """Gradients of the features and the rate from that of A, along the source pixels low to high, back in time."""
    channels, temporal = features.shape[1], rate.shape[1]
    state = np.empty((temporal, channels), rate.dtype)
    slope = np.empty((temporal, channels), rate.dtype)  # d state / d rate
    step = np.empty(longest, np.int64)
    age = np.empty(longest, rate.dtype)
    factor = np.empty((temporal, longest), rate.dtype)
    bits = np.empty(longest, np.int32)
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
            at = t_time[t_order[k]]
            latest = until[t_order[k]]
            count = 0
            for s in range(s_end - 1, begin - 1, -1):
                j = s_order[s]
                # No target sees what came after the last one.
                if j > latest:
                    continue
                while k >= first and until[t_order[k]] >= j:
                    i = t_order[k]
                    step[count] = ~np.int64(i)
                    age[count] = (at - t_time[i]) * scale
                    at = t_time[i]
                    count += 1
                    k -= 1
                step[count] = j
                age[count] = (at - s_time[j]) * scale
                count += 1
            _decays(rate[u], age, count, factor, bits, power)
            state[:] = 0
            slope[:] = 0
            for n in range(count):
                j, old = step[n], age[n]
                if j < 0:
                    for v in range(temporal):
                        for q in range(channels):
                            slope[v, q] = (slope[v, q] - old * state[v, q]) * factor[v, n]
                            state[v, q] = state[v, q] * factor[v, n] + grad[~j, u, v, q]
                else:
                    for v in range(temporal):
                        turned = old * 0
                        for q in range(channels):
                            turned += (slope[v, q] - old * state[v, q]) * features[j, q]
                        d_rate[u, v] += turned * factor[v, n]
                    if wanted:
                        for v in range(temporal):
                            for q in range(channels):
                                total[j, q] += state[v, q] * factor[v, n]
