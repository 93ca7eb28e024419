"""Augmentation: frozen settings, example in, example out. `points` for clouds, `events` for recordings.

`Jitter` here is that of points.
"""

from importlib import import_module
from typing import Any

_MODULES = ("events", "points")

_EVENTS = "Chain Crop Erase FirstEvents FirstMicroseconds Flip PoolPixels Recentre Repair ReverseTime Rotate"
_EVENTS += " StartAtZero Stretch StretchTime SwapPolarity Thin ThinTo ToOrigin Translate Zoom"

_POINTS = "Drop First Jitter Mirror Normalise RotateAboutUp Scale Shift Shuffle Tilt"

# name -> module
_LAZY: dict[str, str] = dict.fromkeys(_EVENTS.split(), "gridless.augment.events")
_LAZY |= dict.fromkeys(_POINTS.split(), "gridless.augment.points")

__all__ = sorted(_LAZY)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    if name in _MODULES:
        return import_module(f"gridless.augment.{name}")
    raise AttributeError(f"module 'gridless.augment' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
