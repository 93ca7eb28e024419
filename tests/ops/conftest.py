"""Which tile or launch serves which sizes is remembered; a test that changes the rules must not meet older ones."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _forget_sizes():
    def forget() -> None:
        for name in ("tiles", "gluon", "dense"):
            module = sys.modules.get(f"gridless.ops.point_conv.gpu.{name}")
            for value in vars(module).values() if module is not None else ():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()

    forget()
    yield
    forget()
