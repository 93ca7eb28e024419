"""Memory that the C library holds back."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any


def trim() -> None:
    """Give memory that nobody uses back to the system, where the C library can (glibc).

    It keeps, for each thread, as much as that thread ever had: what readers and compilers leave behind is hundreds of
    megabytes in a process with many threads.
    """
    if (give := _malloc_trim()) is not None:
        give(0)


@cache
def _malloc_trim() -> Any:
    with suppress(OSError, TypeError, AttributeError):  # TypeError: Windows has no library of the process itself
        return ctypes.CDLL(None).malloc_trim
    return None
