"""Augmentation and preparation of event recordings: frozen settings, events in, events out.

Each takes one recording or a ragged batch, on any device, and draws anew for every recording; rows follow their events.
The numbers come from `generator`, on its device, or from torch's own on the device of the events, which a DataLoader
seeds in each worker; or from any `Draws`. Order matters: events are augmented at full resolution, then cut, pooled,
recentred and started at time zero.

    train = Chain((Flip(0), ReverseTime(), Rotate(math.pi / 8), StartAtZero()))
    events = train(events, generator=torch.Generator().manual_seed(0))
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from gridless.augment.draws import FINITE, Draws, Settings
from gridless.structures import Events
from gridless.structures.events import as_repairs


@dataclass(frozen=True)
class EventTransform(Settings):
    """Events to events. Subclasses write `apply`; `draw` makes the random numbers of each recording."""

    def __call__(self, events: Events, generator: Generator | Draws | None = None) -> Events:
        if not isinstance(events, Events):
            raise TypeError(f"{type(self).__name__} takes Events, not {type(events).__name__}. Use gl.Events.of(...).")
        if events.padding:
            raise ValueError(f"{type(self).__name__}: the events are padded. Augment first, then pad.")
        return self.apply(events, Draws.of(generator))

    def apply(self, events: Events, draws: Draws) -> Events:
        raise NotImplementedError


def draw(events: Events, draws: Draws, low: float = 0.0, high: float = 1.0) -> Tensor:
    """A number from `low` to `high` for each recording of the events (B) float64, uniform, out of `draws`."""
    return low + (high - low) * draws.uniform(events, dtype=torch.float64)


def replaced(events: Events, **changes: Any) -> Events:
    """The events with other pixels, times or sensor; what caused them no longer holds."""
    return dataclasses.replace(events, **{"cause": None, "num_parent": 0, **changes})


def moved(events: Events, pixel: Tensor) -> Events:
    """The events at real-valued pixels (S, 2), rounded; those that fall outside the sensor are dropped."""
    pixel = pixel.round()
    limit = torch.tensor(events.sensor, device=events.device)
    inside = ((pixel >= 0) & (pixel < limit)).all(1)
    safe = torch.where(inside[:, None], pixel, torch.zeros_like(pixel))
    return replaced(events, pixel=safe.int())[inside]


def centre(events: Events) -> Tensor:
    return torch.tensor(events.sensor, dtype=torch.float64, device=events.device) / 2


@dataclass(frozen=True)
class Chain(EventTransform):
    """One after the other. Steps that are not event transforms (a plan, say) come last and take one argument."""

    steps: tuple[Any, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "steps", tuple(self.steps))

    def describe(self) -> str:
        return ", ".join(step.describe() for step in self.steps if isinstance(step, EventTransform))

    def apply(self, events: Events, draws: Draws) -> Any:
        value: Any = events
        for step in self.steps:
            value = step(value, draws) if isinstance(step, EventTransform) else step(value)
        return value


@dataclass(frozen=True)
class Rotate(EventTransform):
    """Turn about the middle of the sensor, (width, height) / 2, by an angle from U(-limit, limit), in radians."""

    limit: float

    bounds: ClassVar = {"limit": (0, FINITE)}

    def describe(self) -> str:
        return f"turned by up to {math.degrees(self.limit):.0f} degrees"

    def apply(self, events: Events, draws: Draws) -> Events:
        angle = draw(events, draws, -self.limit, self.limit)[events.example]
        x, y = (events.pixel - centre(events)).unbind(1)
        cos, sin = angle.cos(), angle.sin()
        return moved(events, torch.stack([cos * x - sin * y, sin * x + cos * y], 1) + centre(events))


@dataclass(frozen=True)
class _Factor(EventTransform):
    """Base of transforms by a factor whose logarithm is uniform between log(low) and log(high)."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            name = type(self).__name__
            raise ValueError(f"{name}: low is {self.low}, high {self.high}. They must be 0 < low <= high.")

    def factor(self, events: Events, draws: Draws) -> Tensor:
        """The factor of each recording (B)."""
        return draw(events, draws, math.log(self.low), math.log(self.high)).exp()


@dataclass(frozen=True)
class Zoom(_Factor):
    """Magnify about the middle of the sensor by a factor whose logarithm is uniform between log(low) and log(high)."""

    def describe(self) -> str:
        return f"{self.low:g} to {self.high:g} times the size"

    def apply(self, events: Events, draws: Draws) -> Events:
        factor = self.factor(events, draws)[events.example]
        return moved(events, (events.pixel - centre(events)) * factor[:, None] + centre(events))


@dataclass(frozen=True)
class Translate(EventTransform):
    """Move by a whole number of pixels, up to `x` and `y` either way."""

    x: int
    y: int

    bounds: ClassVar = {"x": (0, FINITE), "y": (0, FINITE)}

    def describe(self) -> str:
        return f"moved by up to {self.x} and {self.y} pixels"

    def apply(self, events: Events, draws: Draws) -> Events:
        reach = torch.tensor([self.x, self.y], device=events.device) + 0.5
        by = torch.stack([draw(events, draws, -1, 1) for _ in range(2)], 1) * reach
        by = by.round().clamp(1 - reach.ceil(), reach.ceil() - 1)
        return moved(events, events.pixel + by[events.example])


@dataclass(frozen=True)
class Flip(EventTransform):
    """Mirror along an axis (0: left and right, 1: top and bottom), with a probability."""

    axis: int
    probability: float = 0.5

    bounds: ClassVar = {"probability": (0, 1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.axis not in (0, 1):
            raise ValueError(f"Flip: axis must be 0 (left and right) or 1 (top and bottom), not {self.axis}")

    def describe(self) -> str:
        return "mirrored left to right" if self.axis == 0 else "mirrored top to bottom"

    def apply(self, events: Events, draws: Draws) -> Events:
        flip = (draw(events, draws) < self.probability)[events.example]
        pixel = events.pixel.clone()
        pixel[:, self.axis] = torch.where(flip, events.sensor[self.axis] - 1 - pixel[:, self.axis], pixel[:, self.axis])
        return replaced(events, pixel=pixel)


@dataclass(frozen=True)
class ReverseTime(EventTransform):
    """Play backwards, with a probability: t becomes t_last - t, the order turns round, ON becomes OFF."""

    probability: float = 0.5

    bounds: ClassVar = {"probability": (0, 1)}

    def describe(self) -> str:
        return "played backwards"

    def apply(self, events: Events, draws: Draws) -> Events:
        flip = (draw(events, draws) < self.probability)[events.example]
        at = torch.arange(len(events), device=events.device)
        mirrored = (events.splits[:-1] + events.splits[1:] - 1)[events.example] - at
        last = events.time[(events.splits[1:] - 1).clamp(min=0)][events.example] if len(events) else events.time
        events = events._part(torch.where(flip, mirrored, at), events.splits)
        polarity = None if events.polarity is None else events.polarity ^ flip
        return replaced(events, time=torch.where(flip, last - events.time, events.time), polarity=polarity)


@dataclass(frozen=True)
class StretchTime(_Factor):
    """Play slower or faster: times since the first event times a factor, log-uniform between low and high."""

    def describe(self) -> str:
        return f"{1 / self.high:.3g} to {1 / self.low:.3g} times the speed"

    def apply(self, events: Events, draws: Draws) -> Events:
        factor = self.factor(events, draws)[events.example]
        first = first_times(events)
        return replaced(events, time=first + ((events.time - first) * factor).round().long())


@dataclass(frozen=True)
class Thin(EventTransform):
    """Leave events out at random; the share that goes is uniform up to `most` for each recording."""

    most: float

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise ValueError(f"Thin: most must be at least 0 and below 1, not {self.most}")

    def describe(self) -> str:
        return f"up to {self.most:.0%} of the events left out"

    def apply(self, events: Events, draws: Draws) -> Events:
        share = draw(events, draws, 0, self.most)[events.example]
        return events[draws.uniform(events, each="row") >= share]


@dataclass(frozen=True)
class ThinTo(EventTransform):
    """Leave events out at random. The logarithm of their number is uniform between `least` and all of them.

    The number of events then says less about the class. A recording with fewer than `least` events is unchanged.
    """

    least: int

    bounds: ClassVar = {"least": (1, FINITE)}

    def describe(self) -> str:
        return f"events left out, down to {self.least:,}"

    def apply(self, events: Events, draws: Draws) -> Events:
        share = (self.least / events.sizes).double() ** draw(events, draws)
        return events[draws.uniform(events, each="row") < share[events.example]]


@dataclass(frozen=True)
class SwapPolarity(EventTransform):
    """ON becomes OFF and OFF becomes ON, with a probability: dark edges on bright ground for bright on dark."""

    probability: float = 0.5

    bounds: ClassVar = {"probability": (0, 1)}

    def describe(self) -> str:
        return "brighter and darker swapped"

    def apply(self, events: Events, draws: Draws) -> Events:
        swap = (draw(events, draws) < self.probability)[events.example]
        return events if events.polarity is None else replaced(events, polarity=events.polarity ^ swap)


@dataclass(frozen=True)
class Stretch(_Factor):
    """Magnify x and y each by a factor of its own, log-uniform between low and high, from the pixel at the origin."""

    def describe(self) -> str:
        return f"{self.low:g} to {self.high:g} times the width and the height"

    def apply(self, events: Events, draws: Draws) -> Events:
        factor = torch.stack([self.factor(events, draws) for _ in range(2)], 1)[events.example]
        return moved(events, ((events.pixel + 0.5) * factor).floor())


@dataclass(frozen=True)
class Jitter(EventTransform):
    """Move every event by itself, by a normal number of pixels along each axis, rounded."""

    pixels: float

    bounds: ClassVar = {"pixels": (0, FINITE)}

    def describe(self) -> str:
        return f"events moved by about {self.pixels:g} pixels"

    def apply(self, events: Events, draws: Draws) -> Events:
        by = draws.normal(events, 2, each="row") * self.pixels
        return moved(events, events.pixel + by)


@dataclass(frozen=True)
class Erase(EventTransform):
    """Leave out the events of one rectangle of each recording, with a probability: something stands before the camera.

    Each side is a share of that of the recording, uniform between `least` and `most`; its middle is anywhere.
    """

    least: float
    most: float
    probability: float = 0.7

    bounds: ClassVar = {"probability": (0, 1)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.least <= self.most:
            raise ValueError(f"Erase: least is {self.least}, most {self.most}. They must be 0 <= least <= most.")

    def describe(self) -> str:
        return f"a rectangle of {self.least:g} to {self.most:g} times the sides left out"

    def apply(self, events: Events, draws: Draws) -> Events:
        at, ends = events.example[:, None].expand(-1, 2), []
        for beyond, way in ((2**30, "amin"), (-1, "amax")):
            end = torch.full((events.num_examples, 2), beyond, dtype=torch.int32, device=events.device)
            ends.append(end.scatter_reduce_(0, at, events.pixel, way))
        low, high = ends
        side = torch.stack([draw(events, draws, self.least, self.most) for _ in range(2)], 1) * (high - low + 1)
        middle = low + torch.stack([draw(events, draws) for _ in range(2)], 1) * (high - low)
        side = side * (draw(events, draws) < self.probability)[:, None]
        inside = ((events.pixel - middle[events.example]).abs() < side[events.example] / 2).all(1)
        return events[~inside]


@dataclass(frozen=True)
class ToOrigin(EventTransform):
    """Move each recording so that its smallest x and its smallest y are 0."""

    def describe(self) -> str:
        return "moved to the corner of the sensor"

    def apply(self, events: Events, draws: Draws) -> Events:
        least = torch.full((events.num_examples, 2), 2**30, dtype=torch.int32, device=events.device)
        least.scatter_reduce_(0, events.example[:, None].expand(-1, 2), events.pixel, "amin")
        return replaced(events, pixel=events.pixel - least[events.example])


@dataclass(frozen=True)
class FirstEvents(EventTransform):
    """At most the first `count` events of each recording."""

    count: int

    bounds: ClassVar = {"count": (0, FINITE)}

    def describe(self) -> str:
        return f"the first {self.count:,} events"

    def apply(self, events: Events, draws: Draws) -> Events:
        if len(events) <= self.count:
            return events
        at = torch.arange(len(events), device=events.device) - events.splits[:-1][events.example]
        return events[at < self.count]


@dataclass(frozen=True)
class FirstMicroseconds(EventTransform):
    """The events of the first `duration` microseconds of each recording, counted from its first event."""

    duration: int

    bounds: ClassVar = {"duration": (0, FINITE)}

    def describe(self) -> str:
        return f"the first {self.duration / 1000:g} ms"

    def apply(self, events: Events, draws: Draws) -> Events:
        return events[events.time - first_times(events) < self.duration]


@dataclass(frozen=True)
class Crop(EventTransform):
    """The part of the sensor of `width` x `height` pixels whose first one is (x, y); events outside it are left out."""

    x: int
    y: int
    width: int
    height: int

    def describe(self) -> str:
        return f"cut to {self.width} x {self.height} pixels"

    def apply(self, events: Events, draws: Draws) -> Events:
        pixel = events.pixel - torch.tensor([self.x, self.y], dtype=torch.int32, device=events.device)
        limit = torch.tensor([self.width, self.height], device=events.device)
        inside = ((pixel >= 0) & (pixel < limit)).all(1)
        return replaced(events, pixel=pixel, sensor=(self.width, self.height))[inside]


@dataclass(frozen=True)
class Repair(EventTransform):
    """Repairs by name, as of `Events.of`: "unwrap", "drop", "hold", "sort", "shift"; what is still wrong is refused."""

    names: str | tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", as_repairs(self.names))

    def describe(self) -> str:
        return f"repaired: {', '.join(self.names)}"

    def apply(self, events: Events, draws: Draws) -> Events:
        return Events.of(events, repair=self.names)


@dataclass(frozen=True)
class PoolPixels(EventTransform):
    """A coarser sensor: pixels of `size` x `size` become one."""

    size: int

    bounds: ClassVar = {"size": (1, FINITE)}

    def describe(self) -> str:
        return f"{self.size} x {self.size} pixels as one"

    def apply(self, events: Events, draws: Draws) -> Events:
        width, height = (-(-side // self.size) for side in events.sensor)
        return replaced(events, pixel=events.pixel // self.size, sensor=(width, height))


@dataclass(frozen=True)
class Recentre(EventTransform):
    """Move each recording by (sensor - largest pixel) // 2 along each axis, as the paper's authors do.

    The smallest pixel plays no part: recordings that fill only the corner at the origin come to the middle.
    """

    def describe(self) -> str:
        return "moved to the middle of the sensor"

    def apply(self, events: Events, draws: Draws) -> Events:
        largest = torch.zeros(events.num_examples, 2, dtype=torch.int32, device=events.device)
        largest.scatter_reduce_(0, events.example[:, None].expand(-1, 2), events.pixel, "amax")
        by = (torch.tensor(events.sensor, dtype=torch.int32, device=events.device) - largest) // 2
        return replaced(events, pixel=events.pixel + by[events.example])


@dataclass(frozen=True)
class StartAtZero(EventTransform):
    """The first event of each recording happens at time zero."""

    def describe(self) -> str:
        return "from time zero"

    def apply(self, events: Events, draws: Draws) -> Events:
        return replaced(events, time=events.time - first_times(events))


def first_times(events: Events) -> Tensor:
    """For each event, the time of the first event of its recording (S)."""
    if not len(events):
        return events.time
    begin = events.splits[:-1].clamp(max=len(events) - 1)
    return events.time[begin][events.example]


# The augmentation of each row of the paper's table of event data sets.

PAPER_ANGLE = math.pi / 8


def _recipe(train: bool, augment: tuple[EventTransform, ...], prepare: tuple[EventTransform, ...] = ()) -> Chain:
    return Chain((*(augment if train else ()), *prepare, Recentre(), StartAtZero()))


def n_mnist(train: bool = True) -> Chain:
    """Time reversal, rotation to 22.5 degrees either way."""
    return _recipe(train, (ReverseTime(), Rotate(PAPER_ANGLE)))


def mnist_dvs(train: bool = True) -> Chain:
    """As N-MNIST."""
    return _recipe(train, (ReverseTime(), Rotate(PAPER_ANGLE)))


def cifar10_dvs(train: bool = True) -> Chain:
    """A mirror, time reversal, rotation. The recordings are stored lying on their side: axis 1 is left and right."""
    return _recipe(train, (Flip(1), ReverseTime(), Rotate(PAPER_ANGLE)))


def n_caltech101(train: bool = True) -> Chain:
    """A mirror, time reversal, rotation; then the first 300,000 events at half resolution."""
    return _recipe(train, (Flip(0), ReverseTime(), Rotate(PAPER_ANGLE)), (FirstEvents(300_000), PoolPixels(2)))


def from_zero(train: bool = True) -> Chain:
    """Not augmented; from time zero. For data sets that are not in the paper's table."""
    return Chain((StartAtZero(),))


def asl_dvs(train: bool = True) -> Chain:
    """Not augmented; the first 300,000 events at half resolution."""
    return _recipe(train, (), (FirstEvents(300_000), PoolPixels(2)))
