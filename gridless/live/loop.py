"""The compiled loop of the live engine: it runs the program that the table holds, without allocation.

A chunk of input events first charges the LIF potentials of all streams, event by event, and events that fire go into
the buffers. Then the loop computes every row, stream by stream, in blocks of events: it reads the weights of a row once
for a block. A chunk ends before a buffer might overflow.

A row depends on rows of the same stream and of the streams that fire it, so one pass over the streams is enough.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

import numpy as np
from numba import carray

from gridless.kernels.compile import njit
from gridless.live.operations import added
from gridless.live.simd import load8, load32, load64, pointer
from gridless.live.work import answer_row, restart_row, work
from gridless.structures.kernels import first_back, first_outside

from gridless.live.table import (  # isort: skip
    ANSWERS, AT, CHUNK, DONE, DOUBLES, DOUBLE_COUNT, DURATION, ENTERED, FINISHED, FLOATS, FLOAT_COUNT, HEAD, LANE,
    LONGEST, MORE, NEW, REFUSED, REST, ROWS, ROW_FIELDS, SEEN, START, STREAM, STREAMS, S_BITS, S_BOUND, S_CAPACITY,
    S_CHARGED, S_COARSE, S_COARSE_SIZE, S_COUNT, S_EVENT, S_FINE, S_HEIGHT, S_HIGH_X, S_HIGH_Y, S_LIMITS, S_LOW_X,
    S_LOW_Y, S_MARK, S_POTENTIAL, S_ROWS, S_ROW_COUNT, S_SHARE, S_SOURCE, S_WIDTH, TIME, WATCH, WHOLE, WHOLES, WINDOW,
)  # fmt: skip

TOP, FIELDS = len(HEAD), len(STREAM)

# The disk cache is for all processes; operations that this one registered are not part of it.
CACHED = not added


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _charge(i, f, s):
    """Append to stream s the events that the new events of its source fire."""
    source = i[s + S_SOURCE]
    of, to, width, bits = i[source + S_EVENT], i[s + S_EVENT], i[s + S_WIDTH], i[s + S_BITS]
    oldest, mask = i[s + S_COARSE_SIZE] - 1, (1 << bits) - 1
    coarse, fine, charged, potential = i[s + S_COARSE], i[s + S_FINE], i[s + S_CHARGED], i[s + S_POTENTIAL]
    threshold, reset = f[i[s + S_LIMITS]], f[i[s + S_LIMITS] + 1]
    fired = i[s + S_COUNT]
    for k in range(i[s + S_MARK], i[source + S_COUNT]):
        x, y, t = i[of + 4 * k], i[of + 4 * k + 1], i[of + 4 * k + 2]
        x0, x1, y0, y1 = i[i[s + S_LOW_X] + x], i[i[s + S_HIGH_X] + x], i[i[s + S_LOW_Y] + y], i[i[s + S_HIGH_Y] + y]
        share = f[i[s + S_SHARE] + (x1 - x0 + 1) * (y1 - y0 + 1)]
        for oy in range(y0, y1 + 1):
            for ox in range(x0, x1 + 1):
                pixel = oy * width + ox
                age = max(t - i[charged + pixel], 0)
                i[charged + pixel] = t
                left = f[coarse + min(age >> bits, oldest)] * f[fine + (age & mask)]
                value = f[potential + pixel] * left + share
                if value > threshold:
                    value = reset
                    at = to + 4 * fired
                    i[at], i[at + 1], i[at + 2], i[at + 3] = ox, oy, t, k
                    fired += 1
                f[potential + pixel] = value
    i[s + S_MARK], i[s + S_COUNT] = i[source + S_COUNT], fired


@njit(nogil=True, cache=True, error_model="numpy")
def _take(i, f, pixel, time, polarity, count):
    """Move input events into the buffers until one is full, or the packet or the window ends. True: the window did."""
    streams, end = i[STREAMS], i[START] + i[DURATION]
    room, event = True, i[TOP + S_EVENT]
    while room and i[AT] < count:
        at, n = i[AT], i[TOP + S_COUNT]
        t = load64(time, at)
        if i[DURATION] and t >= end:
            return True
        to = event + 4 * n
        i[to], i[to + 1], i[to + 2] = load32(pixel, 2 * at), load32(pixel, 2 * at + 1), t
        # The polarity becomes an index, and True may be any byte but 0.
        i[to + 3] = load8(polarity, at) != 0
        i[TOP + S_COUNT], i[AT], i[TIME] = n + 1, at + 1, t
        room = n + 1 < i[TOP + S_CAPACITY]
        for k in range(1, streams):
            s = TOP + k * FIELDS
            if i[i[s + S_SOURCE] + S_COUNT] > i[s + S_MARK]:
                _charge(i, f, s)
                room &= i[s + S_COUNT] + i[s + S_BOUND] <= i[s + S_CAPACITY]
    return False


@njit(nogil=True, cache=CACHED, error_model="numpy", inner=True)
def _pass(i, f, d, s, lane):
    """Compute all rows for the events in the buffer of stream s."""
    rows, size, source = i[s + S_ROWS], i[s + S_ROW_COUNT], i[s + S_SOURCE]
    count = i[s + S_COUNT]
    for first in range(0, count, ROWS):
        n = min(ROWS, count - first)
        for k in range(size):
            work(i, f, d, rows + k * ROW_FIELDS, s, first, n, lane)
    if source >= 0 and i[source + S_COUNT] > 0:
        for k in range(size):
            r = rows + k * ROW_FIELDS
            if i[r + REST]:
                work(i, f, d, r, s, count, 0, lane)


@njit(nogil=True, cache=CACHED, error_model="numpy")
def answer(i, f, d):
    """Compute all rows without a stream."""
    for n in range(i[WHOLES]):
        answer_row(i, f, d, i[WHOLE] + n * ROW_FIELDS, -1, 0, 0, i[LANE])


@njit(nogil=True, cache=True, error_model="numpy")
def _clear(i):
    """Empty the buffers."""
    for k in range(i[STREAMS]):
        s = TOP + k * FIELDS
        i[s + S_COUNT] = i[s + S_MARK] = 0
        for n in range(i[s + S_ROW_COUNT]):
            i[i[s + S_ROWS] + n * ROW_FIELDS + ENTERED] = 0


@njit(nogil=True, cache=CACHED, error_model="numpy", inner=True)
def _restart(i, f, d, t):
    """Begin the window of an event at time t, and clear the memory of the one before."""
    i[START] += (t - i[START]) // i[DURATION] * i[DURATION]
    for n in range(i[WHOLES]):
        restart_row(i, f, d, i[WHOLE] + n * ROW_FIELDS, -1, 0, 0, i[LANE])


@njit(nogil=True, cache=CACHED, error_model="numpy")
def run(i, pixel, time, polarity, count, packet):
    """Push the events of a packet: addresses of pixel (S, 2) int32, time (S) int64 and polarity (S) bool.

    `packet` is NEW, TRUSTED (new, and its events are checked) or MORE: go on where the loop stopped.

    Returns CHUNK if the buffers hold watched events, WINDOW if a window has ended (`answer` gives its answer until the
    loop goes on), REFUSED for a bad packet, and DONE at the end.
    """
    f = carray(pointer(i[FLOATS]), (i[FLOAT_COUNT],), np.float32)
    d = carray(pointer(i[DOUBLES]), (i[DOUBLE_COUNT],), np.float64)
    if packet != MORE:
        if count > 0 and (load64(time, 0) < max(i[TIME], 0) or load64(time, count - 1) >= LONGEST):
            return REFUSED
        if packet == NEW:
            pixels = carray(pointer(pixel), (count, 2), np.int32)
            times = carray(pointer(time), (count,), np.int64)
            if first_outside(pixels, i[TOP + S_WIDTH], i[TOP + S_HEIGHT]) >= 0 or first_back(times, 0, count) >= 0:
                return REFUSED
        i[AT] = 0
    elif i[FINISHED] > i[START]:
        _restart(i, f, d, load64(time, i[AT]))
    while True:
        _clear(i)
        if i[AT] >= count:
            return DONE
        if i[SEEN] == 0:
            i[START] = load64(time, 0)
        ended = _take(i, f, pixel, time, polarity, count)
        new = i[TOP + S_COUNT]
        i[SEEN] += new
        if new:
            for k in range(i[STREAMS]):
                _pass(i, f, d, TOP + k * FIELDS, i[LANE])
            if i[WATCH] == 2 or (i[WATCH] == 1 and i[i[ANSWERS] + S_COUNT] > 0):
                return CHUNK
        elif ended:
            # A window begins with an event: it is never empty.
            i[FINISHED] = i[START] + i[DURATION]
            return WINDOW


@njit(nogil=True, cache=True, error_model="numpy")
def unpack(records, layout, count, pixel, time, polarity):
    """Copy records of bytes into columns. `layout` has the offset and the size (negative: signed) of t, x, y and p.

    False where a number is too large, or a polarity is not 0 or 1.
    """
    fits = True
    for k in range(count):
        for field in range(4):
            at, size = k * layout[8] + layout[2 * field], layout[2 * field + 1]
            value = np.uint64(0)
            for byte in range(abs(size)):
                value |= np.uint64(records[at + byte]) << np.uint64(8 * byte)
            number = np.int64(value)
            if size < 0 and -size < 8 and number >> (8 * -size - 1):
                number -= np.int64(1) << (8 * -size)
            if field == 0:
                time[k] = number
                fits &= size != 8 or number >= 0
            elif field == 3:
                polarity[k] = number > 0
                fits &= 0 <= number <= 1
            else:
                pixel[k, field - 1] = number
                fits &= -(2**31) <= number < 2**31
    return fits
