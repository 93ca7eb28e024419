"""Memory that the C library holds back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gridless.kernels import memory

glibc = pytest.mark.skipif(memory._function("malloc_info") is None, reason="needs glibc")


def resident() -> int:
    """The memory of this process in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) >> 10


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or memory._function("malloc_trim") is None, reason="needs glibc"
)
def test_what_is_free_below_something_that_is_not_goes_back():
    blocks = [bytearray(100_000) for _ in range(1000)]
    # Every hundredth stays, the last one too: what lies between is free, but not at the end of the heap.
    blocks = blocks[99::100]
    before = resident()
    memory.trim()
    assert resident() < before - 50
    assert len(blocks) == 10


@pytest.mark.slow
@glibc
@pytest.mark.parametrize(("asked", "heaps"), [(True, 1), (False, 5)])
def test_threads_share_one_heap(asked, heaps):
    script = f"""
import ctypes, runpy, threading
if {asked}:
    runpy.run_path({memory.__file__!r})["one_heap"]()
together = threading.Barrier(5)
blocks = []
def work():
    together.wait()
    blocks.append(bytearray(50_000))
    together.wait()
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
together.wait()
together.wait()
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
file = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, file)
library.fflush(file)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert output.count("<heap ") == heaps


def test_other_libraries_have_nothing_to_give(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "_function", lambda name: asked.append(name))
    assert memory.trim() is None
    assert memory.one_heap() is None
    assert asked == ["malloc_trim", "mallopt"]
