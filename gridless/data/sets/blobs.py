"""MovingBlobs: a simulated event camera that watches a bright disc wander; for tests and tutorials."""

from __future__ import annotations

import math

import numpy as np
import torch

from gridless.data.base import Steps
from gridless.data.sets.spots import Tracks
from gridless.structures import Events

# Microseconds between two looks at the scene.
STEP = 1000
# Change of log brightness that fires an event, and how much brighter the middle of the disc is, in the same units.
THRESHOLD, CONTRAST = 0.3, 2.0


class MovingBlobs(Tracks):
    """Recordings of a bright disc that wanders: `data[i]` is (`Events`, positions (K, 3)), as of `Spots`.

    The disc moves along slow sums of sines, other ones in each recording. The same seed gives the same recordings.

    Args:
        size: how many recordings.
        sensor: (width, height) in pixels.
        duration: microseconds per recording.
        seed: another seed is another set.
        radius: of the disc, in pixels.
        background: events per pixel and second that come from nothing.
        every: microseconds between two known positions.
        transform: that of `Examples`.
    """

    def __init__(
        self,
        size: int,
        sensor: tuple[int, int] = (32, 32),
        duration: int = 1_000_000,
        seed: int = 0,
        radius: float = 4.0,
        background: float = 0.5,
        every: int = 10_000,
        transform: Steps = (),
    ) -> None:
        super().__init__(transform, seed if transform else None)
        if size < 1 or duration < every or every < STEP:
            raise ValueError(f"MovingBlobs: size {size}, duration {duration} and every {every} leave no position")
        self.sensor = sensor
        for i in range(size):
            random = np.random.default_rng([seed, i])
            path = _path(random, sensor, duration)
            events = _events(random, path, sensor, radius, background, duration)
            time = np.arange(every, duration, every)
            self.recordings.append(events)
            self.positions.append(torch.from_numpy(np.column_stack([time, path[time // STEP]]).astype(np.float64)))
            self.names.append(f"{seed}-{i}")


def _path(random: np.random.Generator, sensor: tuple[int, int], duration: int) -> np.ndarray:
    """(steps, 2): where the disc is at each step, within the middle half of the sensor."""
    time = np.arange(0, duration + STEP, STEP)[:, None, None] * 1e-6
    frequency, phase = random.uniform(0.5, 4.0, (1, 2, 3)), random.uniform(0, 2 * math.pi, (1, 2, 3))
    wave = np.sin(2 * math.pi * frequency * time + phase).sum(2) / 3
    size = np.array(sensor)
    return (size - 1) / 2 + wave * size / 4 + random.uniform(-0.1, 0.1, 2) * size


def _events(
    random: np.random.Generator,
    path: np.ndarray,
    sensor: tuple[int, int],
    radius: float,
    background: float,
    duration: int,
) -> Events:
    """Each pixel fires when its log brightness has changed by `THRESHOLD` since its last event."""
    width, height = sensor
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    pixels, times, polarities = [], [], []
    before = None
    for step, (cx, cy) in enumerate(path):
        level = CONTRAST / (1 + np.exp(2 * (np.hypot(x - cx, y - cy) - radius)))
        before = level if before is None else before
        change = np.trunc((level - before) / THRESHOLD).astype(np.int64)
        before = before + change * THRESHOLD
        count = np.abs(change).reshape(-1)
        at = np.repeat(np.arange(width * height), count)
        pixels.append(at)
        times.append(random.integers(max(step - 1, 0) * STEP, step * STEP + 1, len(at)))
        polarities.append(change.reshape(-1)[at] > 0)
    noise = random.poisson(background * width * height * duration * 1e-6)
    pixels.append(random.integers(0, width * height, noise))
    times.append(random.integers(0, duration, noise))
    polarities.append(random.random(noise) < 0.5)
    time, pixel, polarity = (np.concatenate(parts) for parts in (times, pixels, polarities))
    order = np.argsort(time, kind="stable")
    columns = {"x": pixel[order] % width, "y": pixel[order] // width, "t": time[order], "p": polarity[order]}
    return Events.of(columns, sensor=sensor)
