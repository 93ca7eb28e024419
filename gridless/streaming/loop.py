"""The compiled loop of the live engine: LIF, traces, taps and small products, level by level, with no allocation.

A level consumes the events of the stream above it in order. Each first enters the traces of its pixel, then charges the
LIF potentials; what fires reads its taps into a row. Rows are multiplied in blocks, because they depend on traces only:
up to 32 share one pass over the weights. Then the in-place block does the same on the new stream, which becomes
the input of the next level. Buffers are bounded: a level that has filled its own lets the levels below it catch up.

The arguments are the flat arrays of `table.py`.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np

from gridless.kernels.compile import njit
from gridless.streaming.panels import product, spread

from gridless.streaming.table import (  # isort: skip
    BITS, CAPACITY, CAUSE, CHARGED, COARSE, COARSE_SIZE, COLUMNS, COUNT, DOWN_BIAS, DOWN_SCALE, DOWN_SHIFT,
    DOWN_WEIGHT, EARLY, ENTRIES, FINE, FIRED, FIRST, FIRST_BIAS, FRAMES, HIDDEN, HIDDEN_WIDE, HIGH_X, HIGH_Y,
    H_ANSWER, H_AT, H_BIAS, H_CLASSES, H_FACTOR, H_HIDDEN, H_LAST, H_LOGITS, H_MATRIX, H_MEAN, H_PLACE, H_RATE,
    H_ROOM, H_SCALE, H_SHIFT, H_SIZE, H_TIME, H_TOTAL, H_WIDE, KEEP, KEEP_EVENT, KEEP_OUT, LIMITS, LOW_X, LOW_Y,
    MIDDLE, OUT, P, POTENTIAL, P_WIDE, Q, RAW, ROW, ROWS, ROWS_OUT, SAME_BIAS, SAME_SCALE, SAME_SHIFT, SAME_WEIGHT,
    SECOND, SHARE, SUM, TOTAL, V,
)  # fmt: skip
from gridless.streaming.simd import decays
from gridless.streaming.traces import enter_down, enter_early, enter_first, pass_same, read_down, read_early


@njit(nogil=True, cache=True, error_model="numpy")
def _multiply_down(table, weight, work, count, first, lane):
    """Features of the `count` events whose rows are gathered, to `raw` from event `first` on."""
    p, wide = table[P], table[P_WIDE]
    steps, total = 9 * table[V] * table[Q], table[SUM]
    spread(weight, table[DOWN_BIAS], work, total, count, wide)
    product(work, total, wide, work, table[ROW], steps, weight, table[DOWN_WEIGHT], count, steps, lane)
    scale, shift = table[DOWN_SCALE], table[DOWN_SHIFT]
    for i in range(count):
        to = table[RAW] + (first + i) * p
        for k in range(p):
            z = max(work[total + i * wide + k], np.float32(0.0))
            work[to + k] = z * weight[scale + k] + weight[shift + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _multiply_same(table, weight, work, count, first, lane):
    """The in-place block on the events from `first` on, whose rows are gathered: from `raw` to `out`.

    out = raw + norm(relu(rows weight + relu(raw first + first_bias) second + bias))
    """
    p, wide, hidden, broad = table[P], table[P_WIDE], table[HIDDEN], table[HIDDEN_WIDE]
    steps, total, middle = table[ENTRIES] * p, table[SUM], table[MIDDLE]
    raw = table[RAW] + first * p
    spread(weight, table[SAME_BIAS], work, total, count, wide)
    product(work, total, wide, work, table[ROW], steps, weight, table[SAME_WEIGHT], count, steps, lane)
    spread(weight, table[FIRST_BIAS], work, middle, count, broad)
    product(work, middle, broad, work, raw, p, weight, table[FIRST], count, p, lane)
    for k in range(middle, middle + count * broad):
        work[k] = max(work[k], np.float32(0.0))
    product(work, total, wide, work, middle, broad, weight, table[SECOND], count, hidden, lane)
    scale, shift, out = table[SAME_SCALE], table[SAME_SHIFT], table[OUT] + first * p
    for i in range(count):
        for k in range(p):
            z = max(work[total + i * wide + k], np.float32(0.0))
            work[out + i * p + k] = work[raw + i * p + k] + (z * weight[scale + k] + weight[shift + k])


@njit(nogil=True, cache=True, error_model="numpy")
def _descend(
    table, whole, weight, trace, clock, work, event, source, at, features, feature_at, begin, end, top, lane
):  # fmt: skip
    """Source events begin to end: how far it came (it stops where its buffer is full), and how many have fired.

    `top` marks the first level, whose features are the two polarities, four times each.
    """
    columns, q, bits = table[COLUMNS], table[Q], table[BITS]
    oldest, mask = table[COARSE_SIZE] - 1, (1 << bits) - 1
    threshold, reset = weight[table[LIMITS]], weight[table[LIMITS] + 1]
    fired, gathered = 0, 0
    i = begin
    while i < end and fired + 4 <= table[CAPACITY]:
        x, y, t = source[at + 3 * i], source[at + 3 * i + 1], source[at + 3 * i + 2]
        if table[EARLY]:
            place = 8 * source[at + 3 * end + i] if top else feature_at + i * q
            enter_early(table, weight, trace, clock, work, x, y, t, features, place, lane)
        elif top:
            enter_first(table, weight, trace, clock, x, y, t, features, 8 * source[at + 3 * end + i])
        else:
            enter_down(table, weight, trace, clock, work, x, y, t, features, feature_at + i * q)
        x0, x1 = whole[table[LOW_X] + x], whole[table[HIGH_X] + x]
        y0, y1 = whole[table[LOW_Y] + y], whole[table[HIGH_Y] + y]
        share = weight[table[SHARE] + (x1 - x0 + 1) * (y1 - y0 + 1)]
        for oy in range(y0, y1 + 1):
            for ox in range(x0, x1 + 1):
                pixel = oy * columns + ox
                age = max(t - clock[table[CHARGED] + pixel], 0)
                clock[table[CHARGED] + pixel] = t
                left = weight[table[COARSE] + min(age >> bits, oldest)] * weight[table[FINE] + (age & mask)]
                value = trace[table[POTENTIAL] + pixel] * left + share
                if value > threshold:
                    value = reset
                    to = table[FIRED] + 3 * fired
                    event[to], event[to + 1], event[to + 2] = ox, oy, t
                    event[table[CAUSE] + fired] = i
                    if table[EARLY]:
                        read_early(table, weight, trace, clock, work, ox, oy, t, fired)
                    else:
                        read_down(table, weight, trace, clock, work, ox, oy, t, gathered, top)
                        gathered += 1
                    fired += 1
                    if gathered == ROWS:
                        _multiply_down(table, weight, work, gathered, fired - gathered, lane)
                        gathered = 0
                trace[table[POTENTIAL] + pixel] = value
        i += 1
    if gathered:
        _multiply_down(table, weight, work, gathered, fired - gathered, lane)
    return i, fired


@njit(nogil=True, cache=True, error_model="numpy")
def _settle(table, whole, weight, trace, clock, voxel, work, event, fired, start, duration, lane):
    """The in-place block on the events just fired, and their share of the voxel means."""
    p, frames, columns = table[P], table[FRAMES], table[COLUMNS]
    gathered = 0
    for i in range(fired):
        at = table[FIRED] + 3 * i
        x, y, t = event[at], event[at + 1], event[at + 2]
        pass_same(table, whole, weight, trace, clock, work, x, y, t, i, gathered)
        gathered += 1
        if gathered == ROWS or i + 1 == fired:
            _multiply_same(table, weight, work, gathered, i + 1 - gathered, lane)
            gathered = 0
    if frames > 0:
        for i in range(fired):
            at = table[FIRED] + 3 * i
            # Windows are cut before their events come here, so that every event is inside.
            frame = frames * (event[at + 2] - start) // duration
            cell = (frame * table[ROWS_OUT] + event[at + 1]) * columns + event[at]
            clock[table[COUNT] + cell] += 1
            for c in range(p):
                voxel[table[TOTAL] + cell * p + c] += work[table[OUT] + i * p + c]


@njit(nogil=True, cache=True, error_model="numpy")
def _predict(table, head, before, weight, trace, clock, voxel, work, event, fired, answered, lane):
    """What this level's mean adds to the logits after each of the events just fired; of the last level, the answers.

    `before`: where the logits of the level above are, or -1 where there are none. The first ones here go to `answered`.
    """
    p, size, wide, classes = table[P], head[H_SIZE], head[H_WIDE], head[H_CLASSES]
    total, hidden, mean = head[H_TOTAL], head[H_HIDDEN], head[H_MEAN]
    for i in range(fired):
        at = table[FIRED] + 3 * i
        pixel, t = event[at + 1] * table[COLUMNS] + event[at], event[at + 2]
        spread(weight, head[H_PLACE] + pixel * wide, work, hidden, 1, wide)
        product(work, hidden, wide, work, table[OUT] + i * p, p, weight, head[H_MATRIX], 1, p, lane)
        keep = 0.0
        if clock[head[H_TIME]] >= 0:
            decays(work, head[H_FACTOR], weight, head[H_RATE], np.float32(t - clock[head[H_TIME]]))
            keep = float(work[head[H_FACTOR]])
        clock[head[H_TIME]] = t
        voxel[total + size] = voxel[total + size] * keep + 1.0
        for k in range(size):
            voxel[total + k] = voxel[total + k] * keep + max(work[hidden + k], np.float32(0.0))
            value = np.float32(voxel[total + k] / voxel[total + size])
            work[mean + k] = value * weight[head[H_SCALE] + k] + weight[head[H_SHIFT] + k]
        answer = head[H_ANSWER] + (answered + i) * classes
        if before >= 0:
            cause = before + event[table[CAUSE] + i] * classes
            for k in range(classes):
                work[answer + k] = work[cause + k]
        else:
            spread(weight, head[H_BIAS], work, answer, 1, classes)
        product(work, answer, classes, work, mean, size, weight, head[H_LOGITS], 1, size, lane)
        if head[H_ROOM] > 0:
            event[head[H_AT] + answered + i] = t
    if head[H_ROOM] > 0:
        answer = head[H_ANSWER] + (answered + fired - 1) * classes
        for k in range(classes):
            trace[head[H_LAST] + k] = work[answer + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _copy(table, work, event, fired, kept):
    """Keep the events just fired and their features."""
    p = table[P]
    for k in range(3 * fired):
        event[table[KEEP_EVENT] + 3 * kept + k] = event[table[FIRED] + k]
    for k in range(p * fired):
        work[table[KEEP_OUT] + p * kept + k] = work[table[OUT] + k]


@njit(nogil=True, cache=True, error_model="numpy")
def run(table, head, whole, weight, trace, clock, voxel, work, event, source, features, window, cursor, lane):
    """Push input events through all levels. True when all are through; False where a buffer must be emptied first.

    source: x, y, t of each, then their polarities, 0 or 1; features: (1, 0) four times, then (0, 1) four times; window:
    start and duration of the voxels. cursor: the level at work, how many predictions there are, then for each level how
    far it has come, how many events wait for it, how many it has fired, and how many of them are kept.
    """
    depth = len(table)
    position, waiting = cursor[2 : 2 + depth], cursor[2 + depth : 2 + 2 * depth]
    fired, kept = cursor[2 + 2 * depth : 2 + 3 * depth], cursor[2 + 3 * depth :]
    k = cursor[0]
    while k >= 0:
        level = table[k]
        answers = head[k, H_ROOM] > 0
        if (level[KEEP] and kept[k] + level[CAPACITY] > level[KEEP]) or (
            answers and cursor[1] + level[CAPACITY] > head[k, H_ROOM]
        ):
            cursor[0] = k
            return False
        if k == 0:
            position[0], new = _descend(
                level, whole, weight, trace, clock, work, event, source, 0, features, 0,
                position[0], waiting[0], True, lane,
            )  # fmt: skip
        else:
            above = table[k - 1]
            position[k], new = _descend(
                level, whole, weight, trace, clock, work, event, event, above[FIRED], work, above[OUT],
                position[k], waiting[k], False, lane,
            )  # fmt: skip
        fired[k] += new
        if new:
            _settle(level, whole, weight, trace, clock, voxel, work, event, new, window[0], window[1], lane)
            if level[KEEP]:
                _copy(level, work, event, new, kept[k])
                kept[k] += new
            if head[k, H_SIZE] > 0:
                first = cursor[1] if answers else 0
                before = head[k - 1, H_ANSWER] if k > 0 and head[k - 1, H_SIZE] > 0 else -1
                _predict(level, head[k], before, weight, trace, clock, voxel, work, event, new, first, lane)
            if answers:
                cursor[1] += new
            if k + 1 < depth:
                k += 1
                position[k], waiting[k] = 0, new
                continue
        while k >= 0 and position[k] == waiting[k]:
            k -= 1
    cursor[0] = k
    return True


@njit(nogil=True, cache=True)
def fill(pixel, time, polarity, first, last, source):
    """Input events first to last as x, y, t, then their polarities."""
    count = last - first
    for i in range(count):
        source[3 * i], source[3 * i + 1], source[3 * i + 2] = pixel[first + i, 0], pixel[first + i, 1], time[first + i]
        source[3 * count + i] = polarity[first + i]
