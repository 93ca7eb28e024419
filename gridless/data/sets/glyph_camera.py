"""The compiled camera behind `MovingGlyphs`: one glyph moves, turns and is seen by a grid of pixels that fire."""

from __future__ import annotations

import math

import numpy as np

from gridless.kernels.compile import njit


@njit(nogil=True, cache=True, inner=True)
def _random(state):
    """Splitmix64: the next uniform number in [0, 1), and the state after it."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * (1.0 / 9007199254740992.0), state


@njit(nogil=True, cache=True, inner=True)
def _normal(state):
    u, state = _random(state)
    v, state = _random(state)
    return math.sqrt(-2.0 * math.log(1.0 - u)) * math.cos(2 * math.pi * v), state


@njit(nogil=True, cache=True, inner=True)
def _between(picture, x, y):
    """The picture at (x, y) in cells, between its cells; zero outside."""
    side = picture.shape[0]
    # Truncation is floor once the numbers are positive; the borders of the picture are blank.
    if not (0.0 <= x < side - 1 and 0.0 <= y < side - 1):
        return np.float32(0.0)
    i, j = np.int32(x), np.int32(y)
    a, b = x - i, y - j
    top = picture[j, i] + a * (picture[j, i + 1] - picture[j, i])
    low = picture[j + 1, i] + a * (picture[j + 1, i + 1] - picture[j + 1, i])
    return top + b * (low - top)


@njit(nogil=True, cache=True)
def _record(image, seed, recording, duration, step, noise, refractory, background, planes, rest, out, used):
    """One recording, written to `out` from row `used` on; the row after its last, or -1 where `out` is full.

    noise: (threshold, its relative spread). planes (3, height, width): the level at which each pixel last fired, the
    brightness it last saw, and its threshold. out: columns x, y, time, polarity.
    """
    level, seen, spread = planes[0], planes[1], planes[2]
    height, width = level.shape
    side, cells = float(min(width, height)), image.shape[0]
    state = np.uint64(seed) * np.uint64(0x5851F42D4C957F2D) + np.uint64(recording) * np.uint64(0x14057B7EF767814F)
    # A straight path through about the middle, a small turn, a size and a contrast of its own.
    heading, state = _random(state)
    distance, state = _random(state)
    offset, state = _random(state)
    tilt, state = _normal(state)
    turn, state = _normal(state)
    scale, state = _random(state)
    contrast, state = _random(state)
    dark, state = _random(state)
    angle = 2 * math.pi * heading
    travel = (0.25 + 0.15 * distance) * side
    size = (0.62 + 0.2 * scale) * side
    tilt, turn = 0.12 * tilt, 0.15 * turn
    aside = (offset - 0.5) * 0.15 * side
    gain = (1.0 + 1.5 * contrast) * (-0.6 if dark < 0.3 else 1.0)
    bright = np.empty((cells, cells), np.float32)
    for j in range(cells):
        for i in range(cells):
            bright[j, i] = math.log(1.0 + gain * image[j, i] / 1.6)
    for y in range(height):
        for x in range(width):
            draw, state = _normal(state)
            spread[y, x] = noise[0] * max(0.2, 1.0 + noise[1] * draw)
            rest[y, x] = -refractory - 1
    looks = duration // step
    middle = np.float32(cells / 2 - 0.5)
    for look in range(looks + 1):
        phase = look / looks
        along = (phase - 0.5) * travel
        cx = width / 2 + along * math.cos(angle) - aside * math.sin(angle) - 0.5
        cy = height / 2 + along * math.sin(angle) + aside * math.cos(angle) - 0.5
        c = np.float32(math.cos(tilt + turn * phase) * cells / size)
        s = np.float32(math.sin(tilt + turn * phase) * cells / size)
        for y in range(height):
            for x in range(width):
                dx, dy = np.float32(x - cx), np.float32(y - cy)
                now = _between(bright, c * dx + s * dy + middle, c * dy - s * dx + middle)
                before = seen[y, x]
                if look == 0:
                    level[y, x] = now
                elif now == before:
                    continue
                seen[y, x] = now
                gap = spread[y, x]
                while abs(now - level[y, x]) >= gap:
                    up = now > level[y, x]
                    level[y, x] += gap if up else -gap
                    part = (level[y, x] - before) / (now - before)
                    at = min(int((look - 1 + max(part, 0.0)) * step), look * step - 1)
                    if at - rest[y, x] <= refractory:
                        continue
                    if used == len(out):
                        return -1
                    rest[y, x] = at
                    out[used, 0], out[used, 1], out[used, 2], out[used, 3] = x, y, at, up
                    used += 1
    chance, state = _random(state)
    for _ in range(int(background * 1e-6 * duration * width * height + chance)):
        if used == len(out):
            return -1
        a, state = _random(state)
        b, state = _random(state)
        t, state = _random(state)
        up, state = _random(state)
        out[used, 0], out[used, 1] = int(a * width), int(b * height)
        out[used, 2], out[used, 3] = int(t * duration), up < 0.5
        used += 1
    return used


def simulate(images, seed, first, last, width, height, duration, step, noise, refractory, background):
    """Recordings first to last: pixel (S, 2) int32, time (S) int64, polarity (S) bool, count of each.

    Only `_record` is compiled: Numba takes several seconds for the sort and for the conversions.
    """
    out = np.empty((4096 * max(1, last - first) // 2, 4), np.int32)
    counts = np.zeros(last - first, np.int64)
    planes = np.empty((3, height, width), np.float32)
    rest = np.empty((height, width), np.int64)
    used = 0
    for recording in range(first, last):
        image = images[recording % len(images)]
        end = -1
        while end < 0:
            end = _record(
                image, seed, recording, duration, step, noise, refractory, background, planes, rest, out, used
            )
            if end < 0:
                out = np.concatenate([out[:used], np.empty((2 * len(out) + 4096 - used, 4), np.int32)])
        mine = out[used:end]
        mine[:] = mine[np.argsort(mine[:, 2], kind="stable")]
        counts[recording - first] = end - used
        used = end
    return out[:used, :2].copy(), out[:used, 2].astype(np.int64), out[:used, 3] != 0, counts
