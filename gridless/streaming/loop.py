"""The compiled loop of the live engine: LIF, traces, taps and small products, level by level, with no allocation.

A level consumes the events of the stream above it in order. Each first enters the traces of its pixel, then charges the
LIF potentials; what fires reads its taps into a row. Rows are multiplied in blocks, because they depend on traces only:
a block of 16 shares one pass over the weights. Then the in-place block does the same on the new stream, which becomes
the input of the next level. Buffers are bounded: a level that has filled its own lets the levels below it catch up.

Everything lies in a few flat arrays, so that one compiled loop serves every network: `table` (levels, fields) holds the
sizes of each level and where its parts begin (see the fields below); `whole` whole-number constants, `weight` float32
constants; `trace` and `clock` the float32 and int64 memory; `voxel` the sums of the heads; `work` float32 buffers and
`event` the buffers of events. Channels are rounded up to eights, and those of sums to whole vectors.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
from numba import njit

from gridless.ops.point_conv.products import BLOCK, add_product
from gridless.streaming.vectors import add, decays, enter, enter_each, read, read_each

# Rows that are multiplied together.
ROWS = 16
HALF = BLOCK // 2

# fmt: off
FIELDS = (
    # Sizes: the grids of source and target, channels in and out (out also rounded up to whole vectors), decays per tap
    # of the strided convolution, entries (tap, decay) of the in-place convolutions and runs of one tap among them,
    # hidden channels (and rounded up), frames of the voxel head (0: none), bits of the decay table, room for events.
    "width", "height", "columns", "rows", "q", "p", "p_wide", "v", "entries", "runs", "hidden", "hidden_wide", "frames",
    "bits", "capacity",
    # 1 where the strided convolution transforms at the input event, not at the output event; then the traces hold P
    # channels, and there is a buffer for one transformed event.
    "early", "made", "made_wide",
    # In `whole`: LIF reach along x and y; dx and dy of each run, and where it begins and ends.
    "low_x", "high_x", "low_y", "high_y", "run_x", "run_y", "run_at",
    # In `weight`: LIF shares, decay tables, threshold and reset; rates per microsecond; weights; folded normalisation.
    "share", "coarse", "coarse_size", "fine", "limits", "down_rate", "down_weight", "down_bias", "down_scale",
    "down_shift", "same_rate", "same_weight", "same_bias", "first", "first_bias", "second", "same_scale", "same_shift",
    # In `trace`: potentials, traces of the source's and of the target's pixels; in `clock`: their times, voxel counts.
    "potential", "down_trace", "same_trace", "charged", "down_time", "same_time", "count",
    # In `voxel`: sums; in `work`: features before and after the in-place block, rows, sums, hidden, decays; in `event`:
    # x, y, t of each event fired; copies for those who ask for features, and how many there is room for.
    "total", "raw", "out", "row", "sum", "middle", "factor", "fired", "keep", "keep_out", "keep_event",
)
(
    WIDTH, HEIGHT, COLUMNS, ROWS_OUT, Q, P, P_WIDE, V, ENTRIES, RUNS, HIDDEN, HIDDEN_WIDE, FRAMES, BITS, CAPACITY,
    EARLY, MADE, MADE_WIDE, LOW_X, HIGH_X, LOW_Y, HIGH_Y, RUN_X, RUN_Y, RUN_AT,
    SHARE, COARSE, COARSE_SIZE, FINE, LIMITS, DOWN_RATE, DOWN_WEIGHT, DOWN_BIAS, DOWN_SCALE, DOWN_SHIFT,
    SAME_RATE, SAME_WEIGHT, SAME_BIAS, FIRST, FIRST_BIAS, SECOND, SAME_SCALE, SAME_SHIFT,
    POTENTIAL, DOWN_TRACE, SAME_TRACE, CHARGED, DOWN_TIME, SAME_TIME, COUNT,
    TOTAL, RAW, OUT, ROW, SUM, MIDDLE, FACTOR, FIRED, KEEP, KEEP_OUT, KEEP_EVENT,
) = range(len(FIELDS))

# The stream head, logits of the leaky mean of relu(x weight + bias + place): sizes, and where its parts begin. Rate,
# weights and folded normalisation are in `weight`; sums (and the weight of them) in `voxel`; the time of the last
# event, or -1, in `clock`; buffers in `work`, and the times of the answers in `event`.
HEAD_FIELDS = (
    "size", "wide", "classes", "room", "rate", "matrix", "place", "scale", "shift", "logits", "bias", "total", "time",
    "hidden", "mean", "factor", "answer", "at",
)
(
    H_SIZE, H_WIDE, H_CLASSES, H_ROOM, H_RATE, H_MATRIX, H_PLACE, H_SCALE, H_SHIFT, H_LOGITS, H_BIAS, H_TOTAL, H_TIME,
    H_HIDDEN, H_MEAN, H_FACTOR, H_ANSWER, H_AT,
) = range(len(HEAD_FIELDS))
# fmt: on


@njit(nogil=True, cache=True, error_model="numpy")
def _product(c, c_at, columns, a, a_at, a_row, b, b_at, rows, steps, lane):
    """c (rows, columns) += a (rows, steps) b (steps, columns), columns a whole number of vectors.

    b lies in panels of two vectors (the last may be of one): all steps of the first panel, then those of the next. So
    that weights are read once, in order, from whichever cache they are in.
    """
    at = 0
    while at < columns:
        panel = b_at + at * steps
        i = 0
        if at + 2 * lane <= columns:
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                # A block is cheaper than more than half as many rows: its spare rows are computed and never read.
                if rows - i > BLOCK // 2:
                    add_product(BLOCK, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += BLOCK
                elif rows - i > 1:
                    add_product(HALF, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += HALF
                else:
                    add_product(1, 2, c, to, columns, a, of, a_row, 1, b, panel, 2 * lane, steps)
                    i += 1
            at += 2 * lane
        else:
            while i < rows:
                to, of = c_at + i * columns + at, a_at + i * a_row
                if rows - i > 1:
                    add_product(BLOCK, 1, c, to, columns, a, of, a_row, 1, b, panel, lane, steps)
                    i += BLOCK
                else:
                    add_product(1, 1, c, to, columns, a, of, a_row, 1, b, panel, lane, steps)
                    i += 1
            at += lane


@njit(nogil=True, cache=True, error_model="numpy")
def _spread(weight, bias, work, to, rows, columns):
    """Every row a copy of the bias."""
    for i in range(rows):
        for k in range(columns):
            work[to + i * columns + k] = weight[bias + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _multiply_down(table, weight, work, count, first, lane):
    """Features of the `count` events whose rows are gathered, to `raw` from event `first` on."""
    p, wide = table[P], table[P_WIDE]
    steps, total = 9 * table[V] * table[Q], table[SUM]
    _spread(weight, table[DOWN_BIAS], work, total, count, wide)
    _product(work, total, wide, work, table[ROW], steps, weight, table[DOWN_WEIGHT], count, steps, lane)
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
    _spread(weight, table[SAME_BIAS], work, total, count, wide)
    _product(work, total, wide, work, table[ROW], steps, weight, table[SAME_WEIGHT], count, steps, lane)
    _spread(weight, table[FIRST_BIAS], work, middle, count, broad)
    _product(work, middle, broad, work, raw, p, weight, table[FIRST], count, p, lane)
    for k in range(middle, middle + count * broad):
        work[k] = max(work[k], np.float32(0.0))
    _product(work, total, wide, work, middle, broad, weight, table[SECOND], count, hidden, lane)
    scale, shift, out = table[SAME_SCALE], table[SAME_SHIFT], table[OUT] + first * p
    for i in range(count):
        for k in range(p):
            z = max(work[total + i * wide + k], np.float32(0.0))
            work[out + i * p + k] = work[raw + i * p + k] + (z * weight[scale + k] + weight[shift + k])


@njit(nogil=True, cache=True, error_model="numpy")
def _slots(x, y, width):
    """Where the traces of source pixel (x, y) begin, in slots: a pixel feeds 1 or 2 targets along each axis."""
    return (width + width // 2) * (y + y // 2) + (1 + (y & 1)) * (x + x // 2)


@njit(nogil=True, cache=True, error_model="numpy")
def _enter_down(table, weight, trace, clock, work, x, y, t, features, at):
    """An event of the source stream enters the traces of its pixel, one slot for each tap that it is of some target.

    Along an axis an even pixel is the middle tap of one target; an odd one is the first tap of the next target and the
    last of the one before.
    """
    width, q, v, factor = table[WIDTH], table[Q], table[V], table[FACTOR]
    time = table[DOWN_TIME] + y * width + x
    age = np.float32(t - clock[time])
    clock[time] = t
    base = table[DOWN_TRACE] + _slots(x, y, width) * v * q
    for j in range(1 + (y & 1)):
        for i in range(1 + (x & 1)):
            tap = 3 * (2 * j if y & 1 else 1) + (2 * i if x & 1 else 1)
            rate = table[DOWN_RATE] + tap * v
            for k in range(0, v, 8):
                decays(work, factor + k, weight, rate + k, age)
            for k in range(v):
                f = work[factor + k]
                for c in range(0, q, 8):
                    enter(trace, base + c, features, at + c, f)
                base += q


@njit(nogil=True, cache=True, error_model="numpy")
def _enter_first(table, weight, trace, clock, x, y, t, features, at):
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
def _enter_early(table, weight, trace, clock, work, x, y, t, features, at, lane):
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
            _product(work, made, wide, features, at, q, weight, table[DOWN_WEIGHT] + tap * q * wide, 1, q, lane)
            for k in range(0, v, 8):
                decays(work, factor + k, weight, table[DOWN_RATE] + tap * v + k, age)
            for k in range(v):
                f = work[factor + k]
                for c in range(k * p, k * p + p, 8):
                    enter(trace, base + c, work, made + c, f)
            base += v * p


@njit(nogil=True, cache=True, error_model="numpy")
def _read_early(table, weight, trace, clock, work, x, y, t, event):
    """The sum of the nine taps of target pixel (x, y), decayed to time t: the features of the event, to `raw`."""
    width, height, p, v = table[WIDTH], table[HEIGHT], table[P], table[V]
    factor, total = table[FACTOR], table[SUM]
    _spread(weight, table[DOWN_BIAS], work, total, 1, p)
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
def _read_down(table, weight, trace, clock, work, x, y, t, row, first):
    """The nine taps of target pixel (x, y), decayed to time t, to row `row`."""
    width, height, q, v, factor = table[WIDTH], table[HEIGHT], table[Q], table[V], table[FACTOR]
    size = v * q
    at = table[ROW] + row * 9 * size
    for dy in range(3):
        sy = 2 * y + dy - 1
        for dx in range(3):
            sx = 2 * x + dx - 1
            if 0 <= sx < width and 0 <= sy < height:
                slot = (dy >> 1) * (1 + (sx & 1)) + (dx >> 1)
                base = table[DOWN_TRACE] + (_slots(sx, sy, width) + slot) * size
                age = np.float32(t - clock[table[DOWN_TIME] + sy * width + sx])
                if first:
                    rate = table[DOWN_RATE] + (dy * 3 + dx) * size
                    for k in range(0, size, 8):
                        read_each(work, at + k, trace, base + k, weight, rate + k, age)
                else:
                    rate = table[DOWN_RATE] + (dy * 3 + dx) * v
                    for k in range(0, v, 8):
                        decays(work, factor + k, weight, rate + k, age)
                    for k in range(v):
                        f = work[factor + k]
                        for c in range(k * q, k * q + q, 8):
                            read(work, at + c, trace, base + c, f)
            else:
                for k in range(size):
                    work[at + k] = 0.0
            at += size


@njit(nogil=True, cache=True, error_model="numpy")
def _pass_same(table, whole, weight, trace, clock, work, x, y, t, event, row):
    """An event of the target stream enters the traces of its pixel, then reads its in-place taps to row `row`."""
    width, height, p, entries = table[COLUMNS], table[ROWS_OUT], table[P], table[ENTRIES]
    factor, rate, times = table[FACTOR], table[SAME_RATE], table[SAME_TIME]
    pixel = y * width + x
    age = np.float32(t - clock[times + pixel])
    clock[times + pixel] = t
    for k in range(0, entries, 8):
        decays(work, factor + k, weight, rate + k, age)
    base, mine = table[SAME_TRACE] + pixel * entries * p, table[RAW] + event * p
    for k in range(entries):
        f = work[factor + k]
        for c in range(0, p, 8):
            enter(trace, base + k * p + c, work, mine + c, f)
    at = table[ROW] + row * entries * p
    for run in range(table[RUNS]):
        start = whole[table[RUN_AT] + run]
        count = whole[table[RUN_AT] + run + 1] - start
        sx, sy = x + whole[table[RUN_X] + run], y + whole[table[RUN_Y] + run]
        if sx == x and sy == y:
            for c in range(0, count * p, 8):
                read(work, at + c, trace, base + start * p + c, np.float32(1.0))
        elif 0 <= sx < width and 0 <= sy < height:
            other = sy * width + sx
            age = np.float32(t - clock[times + other])
            for k in range(0, count, 8):
                decays(work, factor + k, weight, rate + start + k, age)
            there = table[SAME_TRACE] + (other * entries + start) * p
            for k in range(count):
                f = work[factor + k]
                for c in range(k * p, k * p + p, 8):
                    read(work, at + c, trace, there + c, f)
        else:
            for k in range(count * p):
                work[at + k] = 0.0
        at += count * p


@njit(nogil=True, cache=True, error_model="numpy")
def _descend(table, whole, weight, trace, clock, work, event, source, at, features, feature_at, begin, end, top, lane):
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
            _enter_early(table, weight, trace, clock, work, x, y, t, features, place, lane)
        elif top:
            _enter_first(table, weight, trace, clock, x, y, t, features, 8 * source[at + 3 * end + i])
        else:
            _enter_down(table, weight, trace, clock, work, x, y, t, features, feature_at + i * q)
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
                    if table[EARLY]:
                        _read_early(table, weight, trace, clock, work, ox, oy, t, fired)
                    else:
                        _read_down(table, weight, trace, clock, work, ox, oy, t, gathered, top)
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
        _pass_same(table, whole, weight, trace, clock, work, event[at], event[at + 1], event[at + 2], i, gathered)
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
def _predict(table, head, weight, clock, voxel, work, event, fired, answered, lane):
    """A prediction after each of the events just fired."""
    p, size, wide, classes = table[P], head[H_SIZE], head[H_WIDE], head[H_CLASSES]
    total, hidden, mean = head[H_TOTAL], head[H_HIDDEN], head[H_MEAN]
    for i in range(fired):
        at = table[FIRED] + 3 * i
        pixel, t = event[at + 1] * table[COLUMNS] + event[at], event[at + 2]
        _spread(weight, head[H_PLACE] + pixel * wide, work, hidden, 1, wide)
        _product(work, hidden, wide, work, table[OUT] + i * p, p, weight, head[H_MATRIX], 1, p, lane)
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
        _spread(weight, head[H_BIAS], work, answer, 1, classes)
        _product(work, answer, classes, work, mean, size, weight, head[H_LOGITS], 1, size, lane)
        event[head[H_AT] + answered + i] = t


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
        answers = head[H_ROOM] > 0 and k + 1 == depth
        if (level[KEEP] and kept[k] + level[CAPACITY] > level[KEEP]) or (
            answers and cursor[1] + level[CAPACITY] > head[H_ROOM]
        ):
            cursor[0] = k
            return False
        if k == 0:
            position[0], new = _descend(
                level,
                whole,
                weight,
                trace,
                clock,
                work,
                event,
                source,
                0,
                features,
                0,
                position[0],
                waiting[0],
                True,
                lane,
            )
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
            if answers:
                _predict(level, head, weight, clock, voxel, work, event, new, cursor[1], lane)
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
def first_bad(pixel, time, width, height, before):
    """The first event that cannot follow: its row, and 1 outside the sensor, 2 back in time; or (-1, 0)."""
    for i in range(len(time)):
        x, y = pixel[i, 0], pixel[i, 1]
        if x < 0 or y < 0 or x >= width or y >= height:
            return i, 1
        if time[i] < before:
            return i, 2
        before = time[i]
    return -1, 0


@njit(nogil=True, cache=True)
def fill(pixel, time, polarity, first, last, source):
    """Input events first to last as x, y, t, then their polarities."""
    count = last - first
    for i in range(count):
        source[3 * i], source[3 * i + 1], source[3 * i + 2] = pixel[first + i, 0], pixel[first + i, 1], time[first + i]
        source[3 * count + i] = polarity[first + i]
