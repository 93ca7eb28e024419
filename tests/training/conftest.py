"""Fixtures of a small run, and the way to the direct loop."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridless.training import Clouds, Recipe

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[2] / "benchmarks")]

from small_run import shapes, small


@pytest.fixture
def clouds() -> Clouds:
    return shapes(42)


@pytest.fixture
def recipe() -> Recipe:
    return small()


@pytest.fixture
def without_pictures(monkeypatch: pytest.MonkeyPatch):
    """As where matplotlib is missing: runs of a few steps end without pictures, which take longer than the steps."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
