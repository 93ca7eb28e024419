"""The ball search on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from numba import njit
from torch import Tensor

from gridless.geometry.checks import check_edge_count, squared_radius
from gridless.structures import Cloud


@njit(nogil=True, cache=True)
def _brute(x, xs, y, ys, reach, limit, counts, splits, out, keep):
    zero = reach - reach
    for e in range(len(xs) - 1):
        n = xs[e + 1] - xs[e]
        d2 = np.empty(n, x.dtype)
        for i in range(ys[e], ys[e + 1]):
            count = 0
            for j in range(n):
                total = zero
                for d in range(x.shape[1]):
                    dx = x[xs[e] + j, d] - y[i, d]
                    total += dx * dx
                d2[j] = total
                if total <= reach:
                    if len(out):
                        keep[count] = j
                    count += 1
            if limit > 0 and count > limit:
                if len(out):
                    order = np.argsort(d2[keep[:count]], kind="mergesort")[:limit]
                    keep[:limit] = np.sort(keep[order])
                count = limit
            counts[i] = count
            if len(out):
                for k in range(count):
                    out[splits[i] + k] = xs[e] + keep[k]


def ball(source: Cloud, target: Cloud, radius: float, limit: int | None) -> tuple[Tensor, Tensor]:
    x, y = source.coords.detach().contiguous().numpy(), target.coords.detach().contiguous().numpy()
    reach = x.dtype.type(squared_radius(radius, source.coords.dtype))
    counts = np.zeros(len(target), np.int64)
    splits = np.zeros(len(target) + 1, np.int64)
    keep = np.empty(len(source), np.int64)
    args = (x, source.splits.numpy(), y, target.splits.numpy(), reach, limit or 0, counts, splits)
    _brute(*args, np.empty(0, np.int32), keep)
    splits[1:] = np.cumsum(counts)
    check_edge_count("ball", int(splits[-1]))
    out = np.empty(splits[-1], np.int32)
    if len(out):
        _brute(*args, out, keep)
    return torch.from_numpy(splits), torch.from_numpy(out)
