"""MovingGlyphs: a simulated event camera watching drawn digits move, for tests, demos and first experiments.

Every pixel follows the logarithm of its brightness and fires when that has changed by its own threshold, as the
sensors do; thresholds differ from pixel to pixel, a pixel rests after firing, and some events come from nothing.
"""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gridless.data.base import Examples, Steps
from gridless.kernels.threads import even_ranges, in_threads, num_threads
from gridless.structures import Events

_GLYPH_SIDE = 48
_STEP = 2000  # microseconds between two looks at the scene; events fall between looks by interpolation


def _arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> list[tuple[float, float]]:
    """Points along an ellipse, angles in turns clockwise from the right (y points down)."""
    turns = np.linspace(start, end, 24) * 2 * math.pi
    return [(x + rx * math.cos(a), y + ry * math.sin(a)) for a in turns]


# Strokes in the unit square, x to the right, y down.
STROKES: dict[str, list[list[tuple[float, float]]]] = {
    "0": [_arc(0.5, 0.5, 0.27, 0.4, 0, 1)],
    "1": [[(0.33, 0.27), (0.53, 0.1), (0.53, 0.9)]],
    "2": [[*_arc(0.5, 0.33, 0.26, 0.23, 0.5, 1.08), (0.24, 0.9), (0.78, 0.9)]],
    "3": [_arc(0.46, 0.3, 0.26, 0.2, 0.6, 1.25), _arc(0.46, 0.7, 0.28, 0.2, 0.75, 1.4)],
    "4": [[(0.62, 0.9), (0.62, 0.1), (0.2, 0.64), (0.82, 0.64)]],
    "5": [[(0.74, 0.1), (0.3, 0.1), (0.27, 0.46), *_arc(0.48, 0.65, 0.27, 0.25, 0.7, 1.42)]],
    "6": [[(0.66, 0.1), (0.36, 0.38), *_arc(0.5, 0.66, 0.26, 0.24, 0.55, 1.55)]],
    "7": [[(0.22, 0.1), (0.78, 0.1), (0.42, 0.9)]],
    "8": [_arc(0.5, 0.3, 0.21, 0.2, 0, 1), _arc(0.5, 0.7, 0.26, 0.2, 0, 1)],
    "9": [[*_arc(0.5, 0.34, 0.26, 0.24, 0.05, 1.05), (0.7, 0.62), (0.5, 0.9)]],
}


@cache
def glyph_images() -> np.ndarray:
    """Each glyph as a picture of ink between 0 and 1, (glyphs, side, side) float32, with soft edges."""
    centre = (np.arange(_GLYPH_SIDE) + 0.5) / _GLYPH_SIDE
    x, y = np.meshgrid(centre, centre)
    images = []
    for strokes in STROKES.values():
        nearest = np.full_like(x, np.inf)
        for line in strokes:
            for (ax, ay), (bx, by) in itertools.pairwise(line):
                dx, dy = bx - ax, by - ay
                along = np.clip(((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy), 0, 1)
                nearest = np.minimum(nearest, np.hypot(x - ax - along * dx, y - ay - along * dy))
        images.append(np.clip((0.075 - nearest) / 0.05, 0, 1))
    return np.stack(images).astype(np.float32)


class MovingGlyphs(Examples):
    """Recordings of moving digits: `dataset[i]` is (`Events` of one recording, class number).

    Classes take turns, so that any prefix is balanced; the same seed gives the same recordings on any machine,
    whatever `size` is.

    Args:
        size: how many recordings.
        sensor: (width, height) in pixels.
        duration: microseconds per recording.
        seed: another seed is another set.
        threshold: change of log brightness that fires an event.
        threshold_noise: its relative spread from pixel to pixel.
        refractory: microseconds for which a pixel rests after an event.
        background: events per pixel and second that come from nothing.
        transform: that of `Examples`.
    """

    class_names: tuple[str, ...] = tuple(STROKES)

    def __init__(
        self,
        size: int = 1000,
        sensor: tuple[int, int] = (34, 34),
        duration: int = 100_000,
        seed: int = 0,
        threshold: float = 0.25,
        threshold_noise: float = 0.1,
        refractory: int = 1000,
        background: float = 1.0,
        transform: Steps = (),
    ) -> None:
        if size < 0 or min(sensor) < 8 or duration < _STEP:
            raise ValueError(
                f"MovingGlyphs: size is {size}, sensor {sensor}, duration {duration}. "
                f"Give a size from 0, a sensor from 8 x 8, and a duration from {_STEP} us."
            )
        if threshold <= 0 or threshold_noise < 0 or refractory < 0 or background < 0:
            raise ValueError(
                f"MovingGlyphs: threshold is {threshold}, threshold_noise {threshold_noise}, refractory {refractory}, "
                f"background {background}. Give a positive threshold, and others from 0."
            )
        from gridless.data.sets.glyph_camera import simulate

        super().__init__(transform)
        self.sensor = sensor
        self.labels: Tensor = torch.arange(size, device="cpu") % len(self.class_names)
        images = glyph_images()
        settings = (*sensor, duration, _STEP, (threshold, threshold_noise), refractory, background)
        shares = even_ranges(size, min(max(size, 1), 4 * num_threads()))
        jobs = [(images, seed, a, b, *settings) for a, b in shares]
        parts = in_threads(simulate, jobs)
        self.pixel = torch.from_numpy(np.concatenate([p[0] for p in parts]))
        self.time = torch.from_numpy(np.concatenate([p[1] for p in parts]))
        self.polarity = torch.from_numpy(np.concatenate([p[2] for p in parts]))
        counts = np.concatenate([p[3] for p in parts])
        self.splits = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))

    def example(self, i: int) -> Events:
        a, b = self.splits[i : i + 2].tolist()
        return Events(
            self.pixel[a:b], self.time[a:b], self.polarity[a:b], torch.tensor([0, b - a], device="cpu"), self.sensor
        )
