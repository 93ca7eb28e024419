"""The augmentation that a recipe asks for: a policy for clouds, event transforms by name for recordings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gridless.augment import events
from gridless.augment.draws import Draws
from gridless.augment.points import (
    Drop,
    Jitter,
    Mirror,
    PointTransform,
    RotateAboutUp,
    Scale,
    Shift,
    Shuffle,
    Tilt,
)
from gridless.structures import Cloud


@dataclass(frozen=True)
class Policy(PointTransform):
    """Settings of the transforms of each training cloud, in the order in which they run.

    The defaults change nothing. Coordinates are (x, y, z) with y up.
    """

    shuffle: bool = False
    """Put the points in a random order, on which rejection sampling depends."""
    drop: float = 0.0
    """Keep the first floor(P (1 - p)) points, p uniform in [0, drop): points are really removed."""
    jitter: float = 0.0
    """Standard deviation of noise added to each coordinate."""
    jitter_clip: float = math.inf
    """Longest noise vector; longer ones are shortened to it."""
    tilt: float = 0.0
    """Standard deviation of a rotation about a random axis, in radians."""
    tilt_clip: float = math.inf
    """Largest such rotation."""
    azimuth: bool = False
    """Rotate about the y axis by any angle."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Multiply by a factor from this range."""
    stretch: bool = False
    """Draw the factor for each axis by itself."""
    mirror: bool = False
    """Reflect x, and z, each in half of the cases."""
    shift: float = 0.0
    """Add a vector with coordinates in [-shift, shift]."""

    def __post_init__(self) -> None:
        # Each step checks its own settings.
        _ = self.steps

    @property
    def steps(self) -> list[PointTransform]:
        choices = [
            (self.shuffle, Shuffle()),
            (self.drop, Drop(self.drop)),
            (self.jitter, Jitter(self.jitter, self.jitter_clip, ball=self.jitter_clip < math.inf)),
            (self.tilt, Tilt(self.tilt, self.tilt_clip)),
            (self.azimuth, RotateAboutUp("y")),
            (self.scale != (1.0, 1.0), Scale(*self.scale, each_axis=self.stretch)),
            (self.mirror, Mirror(0)),
            (self.mirror, Mirror(2)),
            (self.shift, Shift(self.shift)),
        ]
        return [step for wanted, step in choices if wanted]

    def describe(self) -> str:
        return ", ".join(step.describe() for step in self.steps)

    def apply(self, cloud: Cloud, draws: Draws) -> Cloud:
        for step in self.steps:
            cloud = step.apply(cloud, draws)
        return cloud


# name -> event transform that a recipe can name.
_EVENT_TRANSFORMS = {
    name: kind
    for name, kind in vars(events).items()
    if isinstance(kind, type) and issubclass(kind, events.EventTransform) and not name.startswith("_")
    if kind not in (events.EventTransform, events.Chain)
}


def event_transform(entry: Any) -> events.EventTransform:
    """An event transform from a recipe: `ReverseTime`, or `{Zoom: [0.85, 1.2]}` with its arguments in order."""
    name, arguments = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, [])
    if not isinstance(name, str) or name not in _EVENT_TRANSFORMS:
        choices = ", ".join(sorted(_EVENT_TRANSFORMS))
        raise ValueError(f"recipe: transforms: unknown transform {name!r}. Choose from {choices}.")
    try:
        return _EVENT_TRANSFORMS[name](*(arguments if isinstance(arguments, list) else [arguments]))
    except TypeError as error:
        raise ValueError(f"recipe: transforms: {name}: {error}") from None
