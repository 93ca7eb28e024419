"""Searches among sites on the CPU: a hash table of the sources, made once, in which threads look up their targets.

A site is one number, its key, counted in the box of the sources and what a kernel can reach around it: a tap adds the
same number to every key. Cells that follow each other along the last axis lie side by side in the table.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.voxels import reference
from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads

distinct = reference.distinct

# A large odd number, whose products scatter blocks over the table.
_MIX = -7046029254386353131
# Neighbouring cells of a block: their keys fill a cache line.
_BLOCK = 8
# From a taken slot to the next one: odd, so that all slots are tried.
_STEP = _BLOCK + 1
# Targets that are worth a thread of their own.
_SHARE = 2048


def search(source: Tensor, target: Tensor, offsets: Tensor, stride: Tensor) -> Tensor:
    table = torch.empty(len(target), len(offsets), dtype=torch.int32)
    if not len(source):
        return table.fill_(-1)
    reach = torch.cat([offsets.new_zeros(1), offsets.amax(0) - offsets.amin(0)])
    source, target = source.long(), target.long()
    low, high = source.aminmax(dim=0)
    extent = high - low + 1 + 2 * reach
    if math.prod(extent.tolist()) >= 1 << 62:
        return reference.search(source, target, offsets, stride)
    # Keys have room for what a kernel reaches beyond the box: no two cells share one.
    steps = torch.cat([extent[1:].flip(0).cumprod(0).flip(0), extent.new_ones(1)])
    size = max(1 << (2 * len(source) - 1).bit_length(), _BLOCK)
    keys, places = np.full(size, -1), np.empty(size, np.int32)
    box = (low - reach).numpy(), steps.numpy()
    repeated = _insert(source.numpy(), *box, keys, places)
    if repeated >= 0:
        raise reference.repeated_site(source[repeated].tolist())
    last = (high - low + 2 * reach).numpy()
    taps = (offsets @ steps[1:]).numpy(), offsets.amin(0).numpy(), offsets.amax(0).numpy()
    given = target.numpy(), stride.numpy(), *box, last, *taps, keys, places, table.numpy()
    parts = max(min(num_threads(), len(target) // _SHARE), 1)
    in_threads(_look_up, [(a, b, *given) for a, b in even_ranges(len(target), parts)])
    return table


def seeing(sites: Tensor, low: list[int], sides: list[int], *window: list[int]) -> Tensor:
    box, axes = np.array([low, sides]), np.array(window)
    size, count = max(1 << (4 * len(sites)).bit_length(), _BLOCK), -1
    while count < 0:
        found = np.empty(size // 2, np.int64)
        count, size = _seen_from(sites.numpy(), box, axes, np.full(size, -1), found), 2 * size
    out = torch.empty(count, sites.shape[1], dtype=sites.dtype)
    _split(np.sort(found[:count]), box, out.numpy())
    return out


@njit(nogil=True, cache=True, inner=True)
def _place(keys, key):
    """The slot of a key in the table, or the free slot for it."""
    mask = len(keys) - 1
    block = (key // _BLOCK) * _MIX
    at = (((block ^ (block >> 32)) * _BLOCK) + key % _BLOCK) & mask
    while keys[at] >= 0 and keys[at] != key:
        at = (at + _STEP) & mask
    return at


@njit(nogil=True, cache=True)
def _insert(sites, low, steps, keys, places):
    """Puts all sites into the table; returns the first that is there twice, or -1."""
    for row in range(len(sites)):
        key = np.int64(0)
        for d in range(len(steps)):
            key += (sites[row, d] - low[d]) * steps[d]
        at = _place(keys, key)
        if keys[at] >= 0:
            return row
        keys[at], places[at] = key, row
    return -1


@njit(nogil=True, cache=True)
def _look_up(first, end, target, stride, low, steps, last, taps, least, most, keys, places, table):
    """The rows of `table` from `first` to before `end`. Taps reach from `least` to `most` along each axis."""
    for row in range(first, end):
        key, near = (target[row, 0] - low[0]) * steps[0], 0 <= target[row, 0] - low[0] <= last[0]
        for d in range(len(stride)):
            at = target[row, 1 + d] * stride[d] - low[1 + d]
            # Where one tap is in the box of the sources, all taps are in the room around it.
            near = near and at + least[d] >= 0 and at + most[d] <= last[1 + d]
            key += at * steps[1 + d]
        for k in range(len(taps)):
            table[row, k] = -1
            if near:
                at = _place(keys, key + taps[k])
                if keys[at] >= 0:
                    table[row, k] = places[at]


@njit(nogil=True, cache=True)
def _seen_from(sites, box, axes, keys, found):
    """Writes the distinct keys of new sites that see `sites` to `found`: their number, or -1 without room for all."""
    low, sides = box
    kernel, stride, padding, dilation = axes
    dim, number = len(kernel), 0
    along, counts = np.empty((dim, kernel.max()), np.int64), np.empty(dim, np.int64)
    for row in range(len(sites)):
        total = 1
        for d in range(dim):
            counts[d], begin = 0, low[1 + d] * stride[d]
            for k in range(kernel[d]):
                shifted = sites[row, 1 + d] + padding[d] - k * dilation[d] - begin
                if shifted >= 0 and shifted % stride[d] == 0 and shifted // stride[d] < sides[1 + d]:
                    along[d, counts[d]] = shifted // stride[d]
                    counts[d] += 1
            total *= counts[d]
        for n in range(total):
            key, rest = sites[row, 0] - low[0], n
            for d in range(dim):
                key = key * sides[1 + d] + along[d, rest % counts[d]]
                rest //= counts[d]
            at = _place(keys, key)
            if keys[at] < 0:
                if number == len(found):
                    return -1
                keys[at], found[number] = key, key
                number += 1
    return number


@njit(nogil=True, cache=True)
def _split(keys, box, out):
    """The sites of keys."""
    low, sides = box
    for row in range(len(keys)):
        key = keys[row]
        for d in range(len(sides) - 1, 0, -1):
            out[row, d] = key % sides[d] + low[d]
            key //= sides[d]
        out[row, 0] = key + low[0]
