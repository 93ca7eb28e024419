"""Threads of the CPU kernels, and how they share a batch."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch

# Rows that are worth a thread of their own.
_SHARE = 512


def num_threads() -> int:
    """Threads a CPU kernel may use: torch's own setting, so DataLoader workers get one."""
    return torch.get_num_threads()


def in_threads(function: Callable[..., Any], jobs: Sequence[tuple]) -> list:
    """Call `function(*job)` for every job, on as many threads as torch uses; results in order.

    The functions are Numba kernels that release the GIL. Plain threads rather than Numba's parallel loops:
    those abort when two Python threads enter them at once, and do not survive a fork.
    """
    if len(jobs) <= 1 or num_threads() == 1:
        return [function(*job) for job in jobs]
    return list(_pool(num_threads()).map(lambda job: function(*job), jobs))


def even_ranges(size: int, parts: int) -> list[tuple[int, int]]:
    """The numbers below `size` in `parts` ranges (first, end) of about equal length."""
    return list(pairwise(size * k // parts for k in range(parts + 1)))


def row_ranges(splits: np.ndarray, parts: int) -> list[tuple[int, int]]:
    """The rows of `splits` in at most `parts` ranges (first, end) with about equally many entries."""
    cuts = np.searchsorted(splits, np.linspace(0, splits[-1], parts + 1)[1:-1]).tolist()
    return list(pairwise(sorted({0, *cuts, len(splits) - 1}))) or [(0, 0)]


def cut_examples(splits: np.ndarray) -> list[tuple[int, int]]:
    """Ranges of examples, a few for each thread, with about equally many rows."""
    examples, rows = len(splits) - 1, int(splits[-1])
    threads = num_threads()
    parts = 1 if threads == 1 else max(min(4 * threads, rows // _SHARE, examples), 1)
    return [(0, examples)] if parts == 1 else row_ranges(splits, parts)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="gridless")


class ForkSafeLock:
    """A lock for `with` that a forked child finds free, though another thread held it when the process forked.

    The thread that forks may hold it, and then does so in both processes.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_parent=self._in_parent, after_in_child=self._in_child)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def _before(self) -> None:
        self._is_ours = self._lock.acquire(blocking=False)

    def _in_parent(self) -> None:
        if self._is_ours:
            self._lock.release()

    def _in_child(self) -> None:
        if self._is_ours:
            self._lock.release()
        else:
            self._lock = threading.RLock()


# A forked child inherits the pool's object but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
