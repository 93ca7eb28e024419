"""A compiled loop on the CPU, in a module of its own: most who import `gridless.augment` need nothing compiled."""

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit


@njit(nogil=True, cache=True)
def keyed_bits(key, splits, count, stream, out):
    """out (S * count) int32: `mix32(mix32(place + stream) + key)`, with `count` places for each row of an example."""
    for b in range(len(key)):
        first, last = splits[b] * count, splits[b + 1] * count
        for i in range(first, last):
            out[i] = _mix32(_mix32(np.uint32(i - first + stream)) + np.uint32(key[b]))


@njit(inline="always")
def _mix32(x):
    x = np.uint32(x)
    x = np.uint32((x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32((x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return x ^ (x >> np.uint32(16))
