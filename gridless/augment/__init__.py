"""Augmentation: frozen settings, example in, example out. `points` for clouds, `events` for recordings.

`Jitter` here is that of points.
"""

from gridless.augment import events, points
from gridless.augment.events import (
    Chain,
    Crop,
    Erase,
    FirstEvents,
    FirstMicroseconds,
    Flip,
    PoolPixels,
    Recentre,
    Repair,
    ReverseTime,
    Rotate,
    StartAtZero,
    Stretch,
    StretchTime,
    SwapPolarity,
    Thin,
    ThinTo,
    ToOrigin,
    Translate,
    Zoom,
)  # fmt: skip
from gridless.augment.points import (
    Drop,
    First,
    Jitter,
    Mirror,
    Normalise,
    RotateAboutUp,
    Scale,
    Shift,
    Shuffle,
    Tilt,
)  # fmt: skip

__all__ = [
    "Chain", "Crop", "Drop", "Erase", "First", "FirstEvents", "FirstMicroseconds", "Flip", "Jitter", "Mirror",
    "Normalise", "PoolPixels", "Recentre", "Repair", "ReverseTime", "Rotate", "RotateAboutUp", "Scale", "Shift",
    "Shuffle", "StartAtZero", "Stretch", "StretchTime", "SwapPolarity", "Thin", "ThinTo", "Tilt", "ToOrigin",
    "Translate", "Zoom", "events", "points",
]  # fmt: skip
