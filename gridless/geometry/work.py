"""How the CPU kernels share a batch among threads."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from gridless.kernels.threads import num_threads

# What a kernel returns when it meets an edge that leaves its example.
CROSSING = 1

# Rows that are worth a thread of their own.
_SHARE = 512


def cut_examples(splits: np.ndarray, share: int = _SHARE) -> list[tuple[int, int]]:
    """Ranges of examples, a few for each thread, with about equally many rows."""
    examples, rows = len(splits) - 1, int(splits[-1])
    threads = num_threads()
    parts = 1 if threads == 1 else max(min(4 * threads, rows // share, examples), 1)
    if parts == 1:
        return [(0, examples)]
    cuts = np.searchsorted(splits, np.linspace(0, rows, parts + 1)[1:-1]).tolist()
    ends = sorted({0, *cuts, examples})
    return list(pairwise(ends))


def refuse_crossing(results: Iterable[int]) -> None:
    """Turn what kernels returned into an error."""
    if any(result == CROSSING for result in results):
        raise ValueError(
            "near joins points of different examples: it must be a search of this cloud in itself, "
            "e.g. ball(cloud, cloud, radius)"
        )
