"""Makes the samples of `gl.data.sample`: python tests/data/make_samples.py gridless/data/samples"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch

import gridless as gl

GROUND, BUILDING, CAR, POLE = range(4)
# x, y, z of one corner and of the other, in metres, and what it is.
BOXES = [
    ((-40, 9, 0), (-6, 20, 9), BUILDING), ((-3, 10, 0), (38, 22, 7), BUILDING),
    ((-40, -24, 0), (10, -11, 12), BUILDING), ((14, -20, 0), (40, -12, 6), BUILDING),
    ((6, 2.4, 0.3), (10.4, 4.2, 1.5), CAR), ((-13, -4.4, 0.3), (-8.6, -2.6, 1.5), CAR),
    ((-12, -4.2, 1.5), (-9.4, -2.8, 2.1), CAR), ((7, 2.6, 1.5), (9.4, 4.0, 2.0), CAR),
    ((20, -4.2, 0.3), (24.5, -2.4, 1.6), CAR), ((-4.1, 6, 0), (-3.9, 6.2, 6), POLE),
    ((11.9, 6, 0), (12.1, 6.2, 6), POLE), ((3.9, -7.2, 0), (4.1, -7, 6), POLE),
]  # fmt: skip
HEIGHT, REACH = 1.8, 45.0


def street() -> gl.Cloud:
    """One turn of a scanner with 32 beams over a street of boxes, with a centimetre of noise."""
    random = np.random.default_rng(0)
    azimuth, slope = np.meshgrid(np.linspace(-np.pi, np.pi, 200, False), np.radians(np.linspace(-24, 8, 32)))
    turn, up = azimuth.ravel(), slope.ravel()
    ray = np.stack([np.cos(up) * np.cos(turn), np.cos(up) * np.sin(turn), np.sin(up)], 1)
    eye = np.array([0, 0, HEIGHT])
    with np.errstate(divide="ignore", invalid="ignore"):
        far, label = np.where(ray[:, 2] < 0, -HEIGHT / ray[:, 2], np.inf), np.full(len(ray), GROUND)
        for low, high, kind in BOXES:
            sides = np.sort(np.stack([(np.array(low) - eye) / ray, (np.array(high) - eye) / ray]), 0)
            enter, leave = sides[0].max(1), sides[1].min(1)
            hit = (enter > 0) & (enter < leave) & (enter < far)
            far, label = np.where(hit, enter, far), np.where(hit, kind, label)
    seen = far < REACH
    far = far[seen] + 0.01 * random.standard_normal(seen.sum())
    coords = torch.from_numpy((eye + far[:, None] * ray[seen]).astype(np.float32))
    bright = np.array([0.25, 0.5, 0.8, 0.6])[label[seen]] + 0.05 * random.standard_normal(seen.sum())
    intensity = torch.from_numpy(np.clip(bright, 0, 1).astype(np.float32))
    return gl.Cloud.of(coords, intensity=intensity, label=torch.from_numpy(label[seen].astype(np.uint8)))


def brightness(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A car from behind, which fills -1 to 1 in both directions, v down."""
    out = np.where(v > 0.75, 0.35, 0.55)
    side = np.abs(u)
    for where, value in [
        ((side < 0.78) & (v > -0.1) & (v < 0.72), 0.25),
        ((v <= -0.1) & (v > -0.7) & (side < 0.62 + 0.16 * (v + 0.7) / 0.6), 0.25),
        ((v <= -0.15) & (v > -0.6) & (side < 0.5 + 0.14 * (v + 0.6) / 0.45), 0.08),
        ((v > 0.05) & (v < 0.25) & (np.abs(side - 0.63) < 0.12), 0.95),
        ((v > 0.3) & (v < 0.42) & (side < 0.22), 0.9),
        ((v > 0.5) & (v < 0.6) & (side < 0.76), 0.12),
        ((v >= 0.72) & (v < 0.85) & (side < 0.7), 0.12),
        ((v > 0.6) & (v < 0.92) & (np.abs(side - 0.6) < 0.14), 0.05),
    ]:
        out = np.where(where, value, out)
    return out


def car(duration: int = 100_000, looks: int = 200) -> gl.Events:
    """Pixels fire where the logarithm of the brightness moves by a threshold of their own; the car comes closer."""
    random, (width, height) = np.random.default_rng(0), (120, 100)
    y, x = np.mgrid[0:height, 0:width].astype(float)
    gap = 0.2 * np.clip(1 + 0.15 * random.standard_normal((height, width)), 0.3, None)
    level, rows = np.zeros((height, width)), []
    for look in range(looks + 1):
        part = look / looks
        size, across, down = 0.8 + 0.04 * part, 5 * (part - 0.5), part - 0.5
        light = sum(
            brightness(
                2 * (x + i - across) / (size * width) - 1 / size, 2 * (y + j - down) / (size * height) - 1 / size
            )
            for i in (-0.33, 0.33)
            for j in (-0.33, 0.33)
        )
        now = np.log(light / 4 + 0.05)
        if look == 0:
            level = now + gap * random.uniform(-0.5, 0.5, now.shape)
        while (far := np.abs(now - level) >= gap).any():
            j, i = np.nonzero(far)
            on = (now > level)[far]
            at = ((look - 1 + random.random(len(i))) * duration / looks).astype(int)
            rows.append(np.stack([i, j, np.maximum(at, 0), on], 1))
            level[far] += np.where(on, gap[far], -gap[far])
    noise = random.poisson(0.03 * width * height)
    rows.append(np.stack([random.integers(0, most, noise) for most in (width, height, duration, 2)], 1))
    table = np.concatenate(rows)
    table = table[np.argsort(table[:, 2], kind="stable")]
    return gl.Events.of(dict(zip("xyt", table.T)) | {"p": table[:, 3] > 0}, (width, height))


def main(folder: Path) -> None:
    chair = gl.data.Shapes(1, points=1200, class_names=["chair"])[0][0]
    gl.write_cloud(folder / "chair.ply", gl.Cloud.of(chair))
    gl.write_cloud(folder / "street.ply", street())
    gl.write_events(folder / "car.es", car())
    gl.write_events(folder / "digit.es", gl.data.MovingGlyphs(4)[3][0])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
