"""Segment pooling in Numba: one pass over the rows, channels innermost, examples (or channels) shared by threads."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads, row_ranges


def segment_max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    wide = _wide(features)
    shape = (len(splits) - 1, features.shape[1])
    value, row = wide.new_zeros(shape), splits.new_full(shape, len(features))
    in_threads(_max, _jobs(splits, shape[1], wide, splits, value, row))
    return value.to(features.dtype), row


def segment_mean(features: Tensor, splits: Tensor) -> Tensor:
    wide = _wide(features)
    value = wide.new_zeros(len(splits) - 1, features.shape[1])
    in_threads(_mean, _jobs(splits, features.shape[1], wide, splits, value))
    return value.to(features.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))


def _jobs(splits: Tensor, channels: int, *tensors: Tensor) -> list[tuple]:
    """Ranges (examples, channels) of about equal work, one per thread."""
    arrays = tuple(t.numpy() for t in tensors)
    examples, threads = len(splits) - 1, num_threads()
    if examples >= threads:
        return [(a, b, 0, channels, *arrays) for a, b in row_ranges(splits.numpy(), threads)]
    return [(0, examples, a, b, *arrays) for a, b in even_ranges(channels, threads)]


@njit(nogil=True, cache=True)
def _max(first, last, low, high, features, splits, value, row):
    for i in range(first, last):
        if splits[i] == splits[i + 1]:
            continue
        best, at = value[i], row[i]
        for c in range(low, high):
            best[c] = features[splits[i], c]
            at[c] = splits[i]
        for s in range(splits[i] + 1, splits[i + 1]):
            x = features[s]
            for c in range(low, high):
                # A NaN beats every number, and only the first NaN counts.
                more = (x[c] > best[c]) | ((x[c] != x[c]) & (best[c] == best[c]))
                best[c] = x[c] if more else best[c]
                at[c] = s if more else at[c]


@njit(nogil=True, cache=True)
def _mean(first, last, low, high, features, splits, value):
    for i in range(first, last):
        total = value[i]
        for s in range(splits[i], splits[i + 1]):
            x = features[s]
            for c in range(low, high):
                total[c] += x[c]
        if splits[i] < splits[i + 1]:
            for c in range(low, high):
                total[c] /= splits[i + 1] - splits[i]
