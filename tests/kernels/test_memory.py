"""Memory that the C library holds back."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridless.kernels import memory


def resident() -> int:
    """The memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) >> 10


@pytest.mark.skipif(not sys.platform.startswith("linux") or memory._malloc_trim() is None, reason="needs glibc")
def test_what_is_free_below_something_that_is_not_goes_back():
    blocks = [bytearray(100_000) for _ in range(1000)]
    # Every hundredth stays, the last one too: what lies between is free, but not at the end of the heap.
    blocks = blocks[99::100]
    before = resident()
    memory.trim()
    assert resident() < before - 50
    assert len(blocks) == 10


def test_other_libraries_have_nothing_to_give(monkeypatch):
    monkeypatch.setattr(memory, "_malloc_trim", lambda: None)
    memory.trim()
