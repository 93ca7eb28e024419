"""Examples: data sets, readers of users' own files, and geometry computed ahead of time.

Names are imported when first used, so that a reader's dependencies are needed only by those who use it.
"""

from importlib import import_module
from typing import Any

# name -> module
_LAZY: dict[str, str] = {
    "FormatError": "gridless.data.formats",
    "MovingGlyphs": "gridless.data.glyphs",
    "Shapes": "gridless.data.shapes",
    "read_events": "gridless.data.formats",
    "write_events": "gridless.data.formats",
}

__all__ = sorted(_LAZY)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.data' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
