"""Memory that the C library holds back."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any

# M_ARENA_MAX of <malloc.h>.
_ARENA_MAX = -8


def trim() -> None:
    """Give memory that nobody uses back to the system, where the C library can (glibc).

    It keeps, for each thread, as much as that thread ever had: what readers and compilers leave behind is hundreds of
    megabytes in a process with many threads.
    """
    if (give := _function("malloc_trim")) is not None:
        give(0)


def one_heap() -> None:
    """Let all threads that begin later take memory from one heap, where the C library can (glibc).

    For a process that is ours: threads then share what is free, and wait for each other in every `malloc`, which
    matters to none that ask for large arrays.
    """
    if (set_option := _function("mallopt")) is not None:
        set_option(_ARENA_MAX, 1)


@cache
def _function(name: str) -> Any:
    """The function of the C library, or None."""
    with suppress(OSError, TypeError, AttributeError):  # TypeError: Windows has no library of the process itself
        return getattr(ctypes.CDLL(None), name)
    return None
