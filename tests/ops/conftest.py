"""Fixtures of the operations: caches of tiles and launches are cleared, and interpreted programs are few."""

from __future__ import annotations

import sys

import pytest

import gridless as gl


@pytest.fixture(autouse=True)
def _few_programs(request, monkeypatch):
    """The interpreter's time goes by operations, not elements: event convolutions get few, large programs there."""
    if gl.backends.interpreting() and "formula" not in request.node.name:
        from gridless.ops.event_conv import gpu

        monkeypatch.setattr(gpu, "_ELEMENTS", 4096)


@pytest.fixture(autouse=True)
def _forget_sizes():
    """Tiles and launches are cached by sizes: a test that changes the rules must not meet older ones."""

    def forget() -> None:
        for name in ("tiles", "gluon", "dense"):
            module = sys.modules.get(f"gridless.ops.point_conv.gpu.{name}")
            for value in vars(module).values() if module is not None else ():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()

    forget()
    yield
    forget()
