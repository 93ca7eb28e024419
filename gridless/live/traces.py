"""The convolution of the live engine: events enter the traces of their pixel, and events that see them read their taps.

A pixel of the source has a slot for every tap that it is of some target: `size` floats, channels of each decay. An
event fades all slots of its pixel and adds itself. A target reads, at each tap, the slot of that pixel, faded to its
own time. What the events of a block read there is multiplied by the weights of the tap at once. Most pixels of a sparse
stream are empty: no event has been there, or all of it has decayed to nothing. They are left out, unless slots are so
small that taps are better multiplied together: then a row holds all taps, with zeros where there is nothing.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit
from gridless.live.panels import product, spread
from gridless.live.simd import decays, enter, enter_each, read, read_each

from gridless.live.table import (  # isort: skip
    A, A_KEPT, A_PITCH, CLOCK, COLUMN_AT, DECAYS, EACH, ENTERED, FACTOR, GATHERED, IN_PLACE, KEPT, KIND, LIST, LISTS,
    PATTERN, PHASE, PITCH, RATE, ROWS, ROW_AT, SHIFT, SIXTEENS, SIZE, STRIDE, S_COUNT, S_EVENT, S_HEIGHT, S_WIDTH,
    STEPS, TAP, TAPS, TRACE, VALUE, WEIGHT,
)  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def convolve(i, f, r, s, source, first, n, lane):
    """Row r of the events first to first + n of stream s. With n = 0, what is left of the source enters."""
    taps, v, size, kind, in_place, stride = (
        i[r + TAPS], i[r + DECAYS], i[r + SIZE], i[r + KIND], i[r + IN_PLACE], i[r + STRIDE],
    )  # fmt: skip
    width, height = i[source + S_WIDTH], i[source + S_HEIGHT]
    targets, sources, trace, clock = i[s + S_EVENT], i[source + S_EVENT], i[r + TRACE], i[r + CLOCK]
    rates, factor, pattern, tap, gathered = i[r + RATE], i[r + FACTOR], i[r + PATTERN], i[r + TAP], i[r + GATHERED]
    lists, listed = i[r + LISTS], i[r + LIST]
    rows, steps = listed + lists, taps * size // lists
    for u in range(lists):
        i[listed + u] = 0
    if lists == 1:
        i[listed] = n
        for k in range(n):
            i[rows + k] = k
    row_at, column_at, phases = i[r + ROW_AT], i[r + COLUMN_AT], i[r + PHASE]
    features, pitch, entered, q = i[r + A], i[r + A_PITCH], i[r + ENTERED], i[r + STEPS]
    if not i[r + A_KEPT]:
        features -= first * pitch
    for j in range(first, first + max(n, 1)):
        until = i[source + S_COUNT] - 1
        if n:
            until = j if in_place else i[targets + 4 * j + 3]
        while entered <= until:
            x, y, t = i[sources + 4 * entered], i[sources + 4 * entered + 1], i[sources + 4 * entered + 2]
            pixel = clock + y * width + x
            age = np.float32(t - i[pixel]) if i[pixel] >= 0 else np.float32(0.0)
            i[pixel] = t
            column = column_at + 2 * (i[row_at + 2 * y + 1] + x)
            place = trace + (i[row_at + 2 * y] + i[column]) * size
            phase = phases + 2 * i[column + 1]
            rate, slots = i[phase], i[phase + 1]
            at = features + entered * pitch
            if kind == EACH:
                if pattern >= 0:
                    at = pattern + size * i[sources + 4 * entered + 3]
                else:
                    for k in range(v):
                        for c in range(q):
                            f[factor + k * q + c] = f[at + c]
                    for k in range(v * q, size):
                        f[factor + k] = 0.0
                    at = factor
                for _ in range(slots):
                    for k in range(0, size, 8):
                        enter_each(f, place + k, f, at + k, f, rate + k, age)
                    place += size
                    rate += size
            else:
                count, wide = slots * v, size // v
                for k in range(0, count, 8):
                    decays(8, f, factor + k, f, rate + k, age)
                if kind == SIXTEENS:
                    for k in range(count):
                        left = f[factor + k]
                        for c in range(0, wide, 16):
                            enter(16, f, place + c, f, at + c, left)
                        place += wide
                else:
                    for k in range(count):
                        left = f[factor + k]
                        for c in range(0, wide, 8):
                            enter(8, f, place + c, f, at + c, left)
                        place += wide
            entered += 1
        if n == 0:
            break
        x, y, t = stride * i[targets + 4 * j], stride * i[targets + 4 * j + 1], i[targets + 4 * j + 2]
        for u in range(taps):
            sx, sy = x + i[tap + 4 * u], y + i[tap + 4 * u + 1]
            then = np.int64(-1)
            if 0 <= sx < width and 0 <= sy < height:
                then = i[clock + sy * width + sx]
            empty = then < 0 or t - then > i[tap + 4 * u + 3]
            if lists == 1:
                to = gathered + (j - first) * steps + u * size
                if empty:
                    for k in range(size):
                        f[to + k] = 0.0
            elif not empty:
                k = i[listed + u]
                i[rows + u * ROWS + k], i[listed + u] = j - first, k + 1
                to = gathered + (u * ROWS + k) * size
            if empty:
                continue
            age = np.float32(t - then)
            slot = i[row_at + 2 * sy] + i[column_at + 2 * (i[row_at + 2 * sy + 1] + sx)] + i[tap + 4 * u + 2]
            place = trace + slot * size
            if kind == EACH:
                for k in range(0, size, 8):
                    read_each(f, to + k, f, place + k, f, rates + u * size + k, age)
                continue
            wide = size // v
            if v <= 4:
                decays(4, f, factor, f, rates + u * v, age)
            else:
                for k in range(0, v, 8):
                    decays(8, f, factor + k, f, rates + u * v + k, age)
            if kind == SIXTEENS:
                for k in range(v):
                    left = f[factor + k]
                    for c in range(0, wide, 16):
                        read(16, f, to + c, f, place + c, left)
                    to += wide
                    place += wide
            else:
                for k in range(v):
                    left = f[factor + k]
                    for c in range(0, wide, 8):
                        read(8, f, to + c, f, place + c, left)
                    to += wide
                    place += wide
    i[r + ENTERED] = entered
    if n:
        wide = i[r + PITCH]
        value = i[r + VALUE] + (first * wide if i[r + KEPT] else 0)
        spread(f, i[r + SHIFT], value, n, wide)
        for u in range(lists):
            of, weight = gathered + u * ROWS * steps, i[r + WEIGHT] + u * steps * wide
            product(f, value, wide, i, rows + u * ROWS, of, weight, i[listed + u], steps, lane)
