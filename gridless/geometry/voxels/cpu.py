"""Searches among sites on the CPU: a hash table of the sources, made once, in which threads look up their targets."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.voxels import reference
from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads

distinct = reference.distinct

# A large odd number, whose products scatter sites over the table.
_MIX = -7046029254386353131
# Targets that are worth a thread of their own.
_SHARE = 2048


def search(source: Tensor, target: Tensor, offsets: Tensor, stride: Tensor) -> Tensor:
    table = torch.empty(len(target), len(offsets), dtype=torch.int32)
    sites, wanted = source.long().numpy(), target.long().numpy()
    places = np.full(1 << max(2 * len(sites) - 1, 1).bit_length(), -1, np.int32)
    repeated = _insert(sites, places)
    if repeated >= 0:
        raise reference.repeated_site(source[repeated].tolist())
    parts = max(min(num_threads(), len(wanted) // _SHARE), 1)
    given = sites, places, wanted, offsets.numpy(), stride.numpy(), table.numpy()
    in_threads(_look_up, [(a, b, *given) for a, b in even_ranges(len(wanted), parts)])
    return table


@njit(nogil=True, cache=True, inner=True)
def _place(sites, places, site):
    """The slot of a site in the table, or the free slot for it."""
    mask, code = len(places) - 1, np.int64(0)
    for d in range(len(site)):
        code = (code ^ site[d]) * _MIX
        code ^= code >> 29
    at = code & mask
    while places[at] >= 0:
        row, same = places[at], True
        for d in range(len(site)):
            same = same and sites[row, d] == site[d]
        if same:
            break
        at = (at + 1) & mask
    return at


@njit(nogil=True, cache=True)
def _insert(sites, places):
    """Puts all sites into the table; returns the first that is there twice, or -1."""
    for row in range(len(sites)):
        at = _place(sites, places, sites[row])
        if places[at] >= 0:
            return row
        places[at] = row
    return -1


@njit(nogil=True, cache=True)
def _look_up(first, last, sites, places, target, offsets, stride, table):
    site = np.empty(target.shape[1], np.int64)
    for row in range(first, last):
        site[0] = target[row, 0]
        for k in range(len(offsets)):
            for d in range(len(stride)):
                site[1 + d] = target[row, 1 + d] * stride[d] + offsets[k, d]
            table[row, k] = places[_place(sites, places, site)]
