"""Shared fixtures. Backends go by name; `gpu` runs on a CUDA device, or on the CPU under Triton's interpreter."""

from __future__ import annotations

import os
from pathlib import Path

# Before torch: it has idle threads of OpenMP sleep, where they would spin on cores that other tests need.
import gridless as gl

# isort: split
import compiler
import pytest
import torch

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"

compiler.quicken()

if INTERPRET:
    from interpreter import quicken

    quicken()


@pytest.fixture(params=["reference", "cpu", "gpu"])
def backend(request: pytest.FixtureRequest):
    """Each backend in turn, made current; skipped where its device is missing."""
    name = request.param
    if name == "gpu" and not (torch.cuda.is_available() or INTERPRET):
        pytest.skip("no CUDA device, and TRITON_INTERPRET is not set")
    with gl.use_backend(name):
        yield name


@pytest.fixture
def device(backend: str) -> torch.device:
    """The device on which the current backend's tensors live."""
    return torch.device("cuda" if backend == "gpu" and not INTERPRET else "cpu")


@pytest.fixture(scope="module")
def one_thread():
    """A single thread, for networks so small that several wait for each other, and beside processes with one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    # If the CPU has no bfloat16, torch's first product of it turns oneDNN off for the rest of the process, and other
    # products round differently.
    with torch.backends.mkldnn.flags(enabled=True):
        yield
    torch.set_num_threads(before)


@pytest.fixture
def shared_data() -> Path:
    """The folder of real recordings and clouds; tests that need it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("no real data beside the project")
    return SHARED
