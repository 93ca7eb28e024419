"""The transpose on the CPU: a counting sort, one pass to count and one to place."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import in_threads, num_threads

# Edges that are worth a thread of their own.
_SHARE = 1 << 17


@njit(nogil=True, cache=True)
def _count(source, begin, end, count):
    for e in range(begin, end):
        count[source[e]] += 1


@njit(nogil=True, cache=True)
def _starts(count, splits):
    """Turns counts (parts, S) into the first place of each part in the row of each source."""
    total = 0
    for j in range(count.shape[1]):
        splits[j] = total
        for p in range(count.shape[0]):
            mine = count[p, j]
            count[p, j] = total
            total += mine
    splits[count.shape[1]] = total


@njit(nogil=True, cache=True)
def _place(splits, source, first, last, place, out):
    for i in range(first, last):
        for e in range(splits[i], splits[i + 1]):
            j = source[e]
            out[place[j]] = i
            place[j] += 1


def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    return _transposed(splits.numpy(), source.numpy(), num_source, len(source) - padding)


def _transposed(splits: np.ndarray, source: np.ndarray, num_source: int, end: int) -> tuple[Tensor, Tensor]:
    parts = max(min(num_threads(), end // _SHARE), 1)
    # Parts of about equally many edges: cuts between targets.
    cuts = np.searchsorted(splits, np.linspace(0, end, parts + 1).astype(np.int64)[1:-1])
    cuts = np.concatenate([[0], cuts, [len(splits) - 1]])
    place = np.zeros((parts, num_source), np.int32)
    ranges = list(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
    in_threads(_count, [(source, splits[a], splits[b], place[p]) for p, (a, b) in enumerate(ranges)])
    back = np.empty(num_source + 1, np.int64)
    _starts(place, back)
    out = np.empty_like(source)
    out[end:] = 0
    in_threads(_place, [(splits, source, a, b, place[p], out) for p, (a, b) in enumerate(ranges)])
    return torch.from_numpy(back), torch.from_numpy(out)
