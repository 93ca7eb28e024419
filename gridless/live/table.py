"""The table of the live engine: the fields that the compiled loop reads of streams and rows.

A program lies in three arrays, so that one compiled loop serves every network:

- `i` (int64): the table itself, whole-number constants, times, buffers of events;
- `f` (float32): weights, traces, buffers of values;
- `d` (float64): sums.

A field is a number, or the index in one of the arrays at which a part begins. Channels are padded with zeros to whole
vectors (`pitch`, at least eight).
"""

from __future__ import annotations

# Events whose rows are multiplied together, at most.
ROWS = 64

# Times from here on are refused, here and in C, so that their sums do not overflow.
LONGEST = 2**60

# Numbers of the stream as a whole, at the beginning of `i`.
HEAD = (
    # State: events so far, time of the last one, start of the window.
    "seen", "time", "start",
    # Events of the packet that are done, end of the last window, streams, duration (0: no windows). `watch`: chunks of
    # events that return to Python: 0 none, 1 those with events of the stream that answers, 2 all.
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

# Fields of every row. The fields of its own operation follow (`Operation.fields`).
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

# Results of the loop: the packet is done, a chunk of events is done, a window has ended, the packet is refused.
DONE, CHUNK, WINDOW, REFUSED = range(4)

# Packets that the loop is given: more of the same packet, a new one, a new one whose events are checked.
MORE, NEW, TRUSTED = range(3)
