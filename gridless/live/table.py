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

ROW = (
    # The operation; channels and pitch of the value, where it is in `f`, and whether for all events (1) or for a block
    # of them (0); the same of the inputs a and b. Cells of a grid.
    "op", "c", "pitch", "value", "kept", "a", "a_pitch", "a_kept", "b", "b_kept", "cells",
    # Constants in `f`: a matrix in panels, a bias or shift, a scale; memory in `f`, `i` and `d`.
    "weight", "shift", "scale", "trace", "clock", "sum",
    # Settings of the operation; buffers of products: rows in `f`, and in `i` which rows these are.
    "steps", "first", "last", "number", "row", "list",
    # Convolutions: taps, decays, floats of a slot (one tap of one source pixel), how they are handled, and whether the
    # stream is its own source; how many source events have entered; lists of events, of each tap those that see
    # something there, or one for all taps. In `i`: dx, dy, slot of each tap, and the age beyond which all of it is 0;
    # where a pixel's slots begin, as a sum of what its y and its x (at the phase of y) add; of each phase, where its
    # rates begin and how many slots it has. In `f`: rates of each tap, and of each phase; decays; patterns of polarity.
    "taps", "decays", "size", "kind", "in_place", "stride", "entered", "lists", "tap", "row_at", "column_at", "phase",
    "rate", "factor", "pattern",
    # Grids: masks of cells that differ from an empty window, in `i`, of the value and of its inputs; sizes of the
    # input, kernel, stride, padding of a convolution in `i`; its value of an empty window in `f`.
    "mask", "a_mask", "b_mask", "grid", "empty",
)  # fmt: skip
(
    OP, C, PITCH, VALUE, KEPT, A, A_PITCH, A_KEPT, B, B_KEPT, CELLS, WEIGHT, SHIFT, SCALE, TRACE, CLOCK, SUM, STEPS,
    FIRST, LAST, NUMBER, GATHERED, LIST, TAPS, DECAYS, SIZE, KIND, IN_PLACE, STRIDE, ENTERED, LISTS, TAP, ROW_AT,
    COLUMN_AT, PHASE, RATE, FACTOR, PATTERN, MASK, A_MASK, B_MASK, GRID, EMPTY,
) = range(len(ROW))  # fmt: skip

# Operations by number. Those up to `affine` and all activations go element by element over whole vectors.
OPERATIONS = (
    "polarity", "convolve", "dense", "affine", "add", "multiply", "relu", "abs", "leaky_relu", "elu", "sigmoid", "tanh",
    "silu", "gelu", "softplus", "log1p", "exp", "layer_norm", "softmax", "log_softmax", "copy", "cause", "place",
    "mean", "voxel", "leaky_count", "last", "pool_mean", "pool_max", "convolve_cells", "reduce_mean",
    "reduce_max", "flatten", "magnify",
)  # fmt: skip
(
    POLARITY, CONVOLVE, DENSE, AFFINE, ADD, MULTIPLY, RELU, ABS, LEAKY_RELU, ELU, SIGMOID, TANH, SILU, GELU, SOFTPLUS,
    LOG1P, EXP, LAYER_NORM, SOFTMAX, LOG_SOFTMAX, COPY, CAUSE, PLACE, MEAN, VOXEL, LEAKY_COUNT, LATEST,
    POOL_MEAN, POOL_MAX, CONVOLVE_CELLS, REDUCE_MEAN, REDUCE_MAX, FLATTEN, MAGNIFY,
) = range(len(OPERATIONS))  # fmt: skip

# How the floats of a slot are handled: eight or sixteen channels at a time with one decay for each run of channels, or
# every float with a rate of its own, where there are fewer channels than eight.
EIGHTS, SIXTEENS, EACH = range(3)

# What the loop returns: the packet is through; a chunk of events is; a window has ended; the packet is refused.
DONE, CHUNK, WINDOW, REFUSED = range(4)
