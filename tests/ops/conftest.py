"""Which tile serves which sizes is remembered; a test that changes the rules must not meet what others found."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _forget_tiles():
    def forget() -> None:
        tiles = sys.modules.get("gridless.ops.point_conv.gpu.tiles")
        for value in vars(tiles).values() if tiles is not None else ():
            if hasattr(value, "cache_clear"):
                value.cache_clear()

    forget()
    yield
    forget()
