"""The table of the live engine: what the compiled loop knows of streams and rows, and where their parts lie.

Everything lies in three arrays, so that one compiled loop serves every network: `i` (int64) holds the table itself,
whole-number constants, times and buffers of events; `f` (float32) weights, traces and buffers of values; `d` (float64)
sums. A field of the table is a number, or the place in one of them where something begins. Channels are rounded up to
whole vectors (`pitch`, at least eight), and what is beyond the channels of a row is always 0.
"""

from __future__ import annotations

# Events whose rows are multiplied together, at most.
ROWS = 64

# Times from here on are refused, here and in C, so that sums of them are times, too.
LONGEST = 2**60

# Numbers of the stream as a whole, at the beginning of `i`.
HEAD = (
    # What the future depends on: events so far, time of the last one, start of the window.
    "seen", "time", "start",
    # How far the packet has come, when the window that just ended did, streams, duration (0: no windows), what Python
    # wants to see after each chunk of events: 0 nothing, 1 the events of the stream that answers, 2 everything.
    "at", "finished", "streams", "duration", "watch", "answers", "whole", "wholes",
    # Addresses and lengths of `f` and `d`: a call from Python costs less with fewer arrays. Floats of a vector.
    "floats", "float_count", "doubles", "double_count", "lane",
)  # fmt: skip
(
    SEEN, TIME, START, AT, FINISHED, STREAMS, DURATION, WATCH, ANSWERS, WHOLE, WHOLES, FLOATS, FLOAT_COUNT, DOUBLES,
    DOUBLE_COUNT, LANE,
) = range(len(HEAD))  # fmt: skip

STREAM = (
    # Sizes; events in the buffer and where they are (x, y, t, then cause or polarity); rows of the table that an event
    # causes. The stream that fires it (-1: the input), how many of its events have charged this one, how many events
    # there is room for, and how many one event of the input can fire.
    "width", "height", "count", "event", "rows", "row_count", "source", "mark", "capacity", "bound",
    # LIF: in `i` its reach along x and y and the times of the potentials; in `f` shares, decay tables, threshold and
    # reset, potentials.
    "low_x", "high_x", "low_y", "high_y", "charged", "share", "coarse", "coarse_size", "fine", "bits", "limits",
    "potential",
)  # fmt: skip
(
    S_WIDTH, S_HEIGHT, S_COUNT, S_EVENT, S_ROWS, S_ROW_COUNT, S_SOURCE, S_MARK, S_CAPACITY, S_BOUND, S_LOW_X, S_HIGH_X,
    S_LOW_Y, S_HIGH_Y, S_CHARGED, S_SHARE, S_COARSE, S_COARSE_SIZE, S_FINE, S_BITS, S_LIMITS, S_POTENTIAL,
) = range(len(STREAM))  # fmt: skip

# What all operations know of a row; behind these come the fields of its own operation (`Operation.fields`).
ROW = (
    # The operation; channels and pitch of the value, where it is in `f`, and whether for all events (1) or for a block
    # of them (0); the same of the inputs a and b. Cells of a grid.
    "op", "c", "pitch", "value", "kept", "a", "a_pitch", "a_kept", "b", "b_kept", "cells",
    # Constants in `f`: a matrix in panels, a bias or shift, a scale; memory in `f`, `i` and `d`.
    "weight", "shift", "scale", "trace", "clock", "sum",
    # Settings of the operation; buffers of products: rows in `f`, and in `i` which rows these are. Source events that
    # have entered, and whether the rest of them enters after the events of the stream (n = 0).
    "steps", "first", "last", "number", "row", "list", "entered", "rest",
    # Masks of cells that differ from an empty window, in `i`, of the value and of its inputs.
    "mask", "a_mask", "b_mask",
)  # fmt: skip
(
    OP, C, PITCH, VALUE, KEPT, A, A_PITCH, A_KEPT, B, B_KEPT, CELLS, WEIGHT, SHIFT, SCALE, TRACE, CLOCK, SUM, STEPS,
    FIRST, LAST, NUMBER, GATHERED, LIST, ENTERED, REST, MASK, A_MASK, B_MASK,
) = range(len(ROW))  # fmt: skip

# Fields of a row: room for 16 of its own operation.
ROW_FIELDS = len(ROW) + 16

# What the loop returns: the packet is through; a chunk of events is; a window has ended; the packet is refused.
DONE, CHUNK, WINDOW, REFUSED = range(4)
