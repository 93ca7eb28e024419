"""How the CPU kernels share a batch among threads."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gridless.kernels.threads import num_threads, row_ranges

# What a kernel returns when it meets an edge that leaves its example.
CROSSING = 1

# Rows that are worth a thread of their own.
_SHARE = 512


def cut_examples(splits: np.ndarray, share: int = _SHARE) -> list[tuple[int, int]]:
    """Ranges of examples, a few for each thread, with about equally many rows."""
    examples, rows = len(splits) - 1, int(splits[-1])
    threads = num_threads()
    parts = 1 if threads == 1 else max(min(4 * threads, rows // share, examples), 1)
    return [(0, examples)] if parts == 1 else row_ranges(splits, parts)


def refuse_crossing(results: Iterable[int]) -> None:
    """Turn what kernels returned into an error."""
    if any(result == CROSSING for result in results):
        raise ValueError(
            "near joins points of different examples: it must be a search of this cloud in itself, "
            "e.g. ball(cloud, cloud, radius)"
        )
