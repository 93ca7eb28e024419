"""The traces of the live engine: events enter those of their pixel, and an event that fires reads its taps.

These functions call no others that LLVM might not inline: Numba would count references to every array, per event.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit
from gridless.streaming.panels import product, spread

from gridless.streaming.table import (  # isort: skip
    COLUMNS, DOWN_BIAS, DOWN_KIND, DOWN_RATE, DOWN_SCALE, DOWN_SHIFT, DOWN_TIME, DOWN_TRACE, DOWN_WEIGHT, ENTRIES,
    FACTOR, HEIGHT, MADE, MADE_WIDE, P, Q, RAW, ROW, ROWS_OUT, RUNS, RUN_AT, RUN_X, RUN_Y, SAME_KIND, SAME_RATE,
    SAME_TIME, SAME_TRACE, SIXTEENS, SUM, V, WIDTH,
)  # fmt: skip
from gridless.streaming.simd import add, decays, enter, enter_each, read, read_each


@njit(nogil=True, cache=True, error_model="numpy")
def _slots(x, y, width):
    """Where the traces of source pixel (x, y) begin, in slots: a pixel feeds 1 or 2 targets along each axis."""
    return (width + width // 2) * (y + y // 2) + (1 + (y & 1)) * (x + x // 2)


@njit(nogil=True, cache=True, error_model="numpy")
def enter_down(table, weight, trace, clock, work, x, y, t, features, at):
    """An event of the source stream enters the traces of its pixel, one slot for each tap that it is of some target.

    Along an axis an even pixel is the middle tap of one target; an odd one is the first tap of the next target and the
    last of the one before.
    """
    width, q, v, factor, kind = table[WIDTH], table[Q], table[V], table[FACTOR], table[DOWN_KIND]
    time = table[DOWN_TIME] + y * width + x
    age = np.float32(t - clock[time])
    clock[time] = t
    place = table[DOWN_TRACE] + _slots(x, y, width) * v * q
    for j in range(1 + (y & 1)):
        for i in range(1 + (x & 1)):
            tap = 3 * (2 * j if y & 1 else 1) + (2 * i if x & 1 else 1)
            rate = table[DOWN_RATE] + tap * v
            for k in range(0, v, 8):
                decays(work, factor + k, weight, rate + k, age)
            if kind == SIXTEENS:
                for k in range(v):
                    f = work[factor + k]
                    for c in range(0, q, 16):
                        enter(16, trace, place + c, features, at + c, f)
                    place += q
            else:
                for k in range(v):
                    f = work[factor + k]
                    for c in range(0, q, 8):
                        enter(8, trace, place + c, features, at + c, f)
                    place += q
    # All arrays are used to the end, or Numba would count references to those that are not.
    return table.size + weight.size + trace.size + clock.size + work.size + features.size


@njit(nogil=True, cache=True, error_model="numpy")
def enter_first(table, weight, trace, clock, x, y, t, features, at):
    """The same for the first convolution, which sees polarity: its 2 channels and the decays make one run of V' eights,
    every element with a rate of its own; `features` repeats the two.
    """
    width, size = table[WIDTH], table[Q] * table[V]
    time = table[DOWN_TIME] + y * width + x
    age = np.float32(t - clock[time])
    clock[time] = t
    base = table[DOWN_TRACE] + _slots(x, y, width) * size
    for j in range(1 + (y & 1)):
        for i in range(1 + (x & 1)):
            tap = 3 * (2 * j if y & 1 else 1) + (2 * i if x & 1 else 1)
            for k in range(0, size, 8):
                enter_each(trace, base + k, features, at, weight, table[DOWN_RATE] + tap * size + k, age)
            base += size


@njit(nogil=True, cache=True, error_model="numpy")
def enter_early(table, weight, trace, clock, work, x, y, t, features, at, lane):
    """The paper's other order: the event is transformed for each of its taps, and the traces take the products in."""
    width, q, p, v = table[WIDTH], table[Q], table[P], table[V]
    factor, made, wide = table[FACTOR], table[MADE], table[MADE_WIDE]
    time = table[DOWN_TIME] + y * width + x
    age = np.float32(t - clock[time])
    clock[time] = t
    base = table[DOWN_TRACE] + _slots(x, y, width) * v * p
    for j in range(1 + (y & 1)):
        for i in range(1 + (x & 1)):
            tap = 3 * (2 * j if y & 1 else 1) + (2 * i if x & 1 else 1)
            for k in range(wide):
                work[made + k] = 0.0
            product(work, made, wide, features, at, q, weight, table[DOWN_WEIGHT] + tap * q * wide, 1, q, lane)
            for k in range(0, v, 8):
                decays(work, factor + k, weight, table[DOWN_RATE] + tap * v + k, age)
            for k in range(v):
                f = work[factor + k]
                for c in range(k * p, k * p + p, 8):
                    enter(8, trace, base + c, work, made + c, f)
            base += v * p


@njit(nogil=True, cache=True, error_model="numpy")
def read_early(table, weight, trace, clock, work, x, y, t, event):
    """The sum of the nine taps of target pixel (x, y), decayed to time t: the features of the event, to `raw`."""
    width, height, p, v = table[WIDTH], table[HEIGHT], table[P], table[V]
    factor, total = table[FACTOR], table[SUM]
    spread(weight, table[DOWN_BIAS], work, total, 1, p)
    for dy in range(3):
        sy = 2 * y + dy - 1
        for dx in range(3):
            sx = 2 * x + dx - 1
            if 0 <= sx < width and 0 <= sy < height:
                slot = (dy >> 1) * (1 + (sx & 1)) + (dx >> 1)
                base = table[DOWN_TRACE] + (_slots(sx, sy, width) + slot) * v * p
                age = np.float32(t - clock[table[DOWN_TIME] + sy * width + sx])
                for k in range(0, v, 8):
                    decays(work, factor + k, weight, table[DOWN_RATE] + (dy * 3 + dx) * v + k, age)
                for k in range(v):
                    f = work[factor + k]
                    for c in range(0, p, 8):
                        add(work, total + c, trace, base + k * p + c, f)
    scale, shift, to = table[DOWN_SCALE], table[DOWN_SHIFT], table[RAW] + event * p
    for k in range(p):
        z = max(work[total + k], np.float32(0.0))
        work[to + k] = z * weight[scale + k] + weight[shift + k]


@njit(nogil=True, cache=True, error_model="numpy")
def read_down(table, weight, trace, clock, work, x, y, t, row, first):
    """The nine taps of target pixel (x, y), decayed to time t, to row `row`."""
    width, height, q, v, factor = table[WIDTH], table[HEIGHT], table[Q], table[V], table[FACTOR]
    size, kind = v * q, table[DOWN_KIND]
    at = table[ROW] + row * 9 * size
    for dy in range(3):
        sy = 2 * y + dy - 1
        for dx in range(3):
            sx = 2 * x + dx - 1
            if 0 <= sx < width and 0 <= sy < height:
                slot = (dy >> 1) * (1 + (sx & 1)) + (dx >> 1)
                place = table[DOWN_TRACE] + (_slots(sx, sy, width) + slot) * size
                age = np.float32(t - clock[table[DOWN_TIME] + sy * width + sx])
                if first:
                    rate = table[DOWN_RATE] + (dy * 3 + dx) * size
                    for k in range(0, size, 8):
                        read_each(work, at + k, trace, place + k, weight, rate + k, age)
                else:
                    rate = table[DOWN_RATE] + (dy * 3 + dx) * v
                    for k in range(0, v, 8):
                        decays(work, factor + k, weight, rate + k, age)
                    if kind == SIXTEENS:
                        for k in range(v):
                            f, of, to = work[factor + k], place + k * q, at + k * q
                            for c in range(0, q, 16):
                                read(16, work, to + c, trace, of + c, f)
                    else:
                        for k in range(v):
                            f, of, to = work[factor + k], place + k * q, at + k * q
                            for c in range(0, q, 8):
                                read(8, work, to + c, trace, of + c, f)
            else:
                for k in range(size):
                    work[at + k] = 0.0
            at += size


@njit(nogil=True, cache=True, error_model="numpy")
def pass_same(table, whole, weight, trace, clock, work, x, y, t, event, row):
    """An event of the target stream enters the traces of its pixel, then reads its in-place taps to row `row`."""
    width, height, p, entries, kind = table[COLUMNS], table[ROWS_OUT], table[P], table[ENTRIES], table[SAME_KIND]
    factor, rate, times = table[FACTOR], table[SAME_RATE], table[SAME_TIME]
    age = np.float32(t - clock[times + y * width + x])
    clock[times + y * width + x] = t
    for k in range(0, entries, 8):
        decays(work, factor + k, weight, rate + k, age)
    mine = table[RAW] + event * p
    # All traces of a pixel lie together: they are entered in one go.
    place = table[SAME_TRACE] + (y * width + x) * entries * p
    if kind == SIXTEENS:
        for k in range(entries):
            f = work[factor + k]
            for c in range(0, p, 16):
                enter(16, trace, place + c, work, mine + c, f)
            place += p
    else:
        for k in range(entries):
            f = work[factor + k]
            for c in range(0, p, 8):
                enter(8, trace, place + c, work, mine + c, f)
            place += p
    at = table[ROW] + row * entries * p
    for run in range(table[RUNS]):
        start = whole[table[RUN_AT] + run]
        count = whole[table[RUN_AT] + run + 1] - start
        sx, sy = x + whole[table[RUN_X] + run], y + whole[table[RUN_Y] + run]
        if 0 <= sx < width and 0 <= sy < height:
            if sx == x and sy == y:
                for k in range(count):
                    work[factor + k] = 1.0
            else:
                age = np.float32(t - clock[times + sy * width + sx])
                for k in range(0, count, 8):
                    decays(work, factor + k, weight, rate + start + k, age)
            place = table[SAME_TRACE] + ((sy * width + sx) * entries + start) * p
            if kind == SIXTEENS:
                for k in range(count):
                    f, of, to = work[factor + k], place + k * p, at + k * p
                    for c in range(0, p, 16):
                        read(16, work, to + c, trace, of + c, f)
            else:
                for k in range(count):
                    f, of, to = work[factor + k], place + k * p, at + k * p
                    for c in range(0, p, 8):
                        read(8, work, to + c, trace, of + c, f)
        else:
            for k in range(count * p):
                work[at + k] = 0.0
        at += count * p
