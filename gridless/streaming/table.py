"""The table of the live engine: what the compiled loop knows of each level, and where its parts lie in flat arrays.

Everything lies in a few flat arrays, so that one compiled loop serves every network: `table` (levels, fields) holds the
sizes of each level and where its parts begin (see the fields below); `whole` whole-number constants, `weight` float32
constants; `trace` and `clock` the float32 and int64 memory; `voxel` the sums of the heads; `work` float32 buffers and
`event` the buffers of events. Channels are rounded up to eights, and those of sums to whole vectors.
"""

from __future__ import annotations

# Rows that are multiplied together, at most. Products write whole blocks: a multiple of the blocks (8 or 4) of any CPU.
ROWS = 32

# How many channels of the traces are handled at a time.
EIGHTS, SIXTEENS = range(2)

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
    # How many channels at a time: the traces of the strided and of the in-place convolutions.
    "down_kind", "same_kind",
    # In `whole`: LIF reach along x and y; dx and dy of each run, and where it begins and ends among the entries.
    "low_x", "high_x", "low_y", "high_y", "run_x", "run_y", "run_at",
    # In `weight`: LIF shares, decay tables, threshold and reset; rates per microsecond; weights; folded normalisation.
    "share", "coarse", "coarse_size", "fine", "limits", "down_rate", "down_weight", "down_bias", "down_scale",
    "down_shift", "same_rate", "same_weight", "same_bias", "first", "first_bias", "second", "same_scale", "same_shift",
    # In `trace`: potentials, and the traces of the source's and of the target's pixels. In `clock`: their times, and
    # voxel counts.
    "potential", "down_trace", "same_trace", "charged", "down_time", "same_time", "count",
    # In `voxel`: sums; in `work`: features before and after the in-place block, and what all levels share: rows, sums,
    # hidden, decays; in `event`: x, y, t of each event fired, and which event fired it; copies for those who ask for
    # features, and how many there is room for.
    "total", "raw", "out", "row", "sum", "middle", "factor", "fired", "cause", "keep", "keep_out",
    "keep_event",
)
(
    WIDTH, HEIGHT, COLUMNS, ROWS_OUT, Q, P, P_WIDE, V, ENTRIES, RUNS, HIDDEN, HIDDEN_WIDE, FRAMES, BITS, CAPACITY,
    EARLY, MADE, MADE_WIDE, DOWN_KIND, SAME_KIND,
    LOW_X, HIGH_X, LOW_Y, HIGH_Y, RUN_X, RUN_Y, RUN_AT,
    SHARE, COARSE, COARSE_SIZE, FINE, LIMITS, DOWN_RATE, DOWN_WEIGHT, DOWN_BIAS, DOWN_SCALE, DOWN_SHIFT,
    SAME_RATE, SAME_WEIGHT, SAME_BIAS, FIRST, FIRST_BIAS, SECOND, SAME_SCALE, SAME_SHIFT,
    POTENTIAL, DOWN_TRACE, SAME_TRACE, CHARGED, DOWN_TIME, SAME_TIME, COUNT,
    TOTAL, RAW, OUT, ROW, SUM, MIDDLE, FACTOR, FIRED, CAUSE, KEEP, KEEP_OUT, KEEP_EVENT,
) = range(len(FIELDS))

# The stream head: of each level that it reads, the leaky mean of relu(x weight + bias + place), and what that adds to
# the logits of the event. They begin with the bias, or with those of the event above that fired this one. A level that
# is not read has size 0; `room` is for answers, of the last level. Rate, weights and folded normalisation are in
# `weight`; sums (and the weight of them) in `voxel`; the time of the last event, or -1, in `clock`; the last answer in
# `trace`; buffers in `work`, and the times of the answers in `event`.
HEAD_FIELDS = (
    "size", "wide", "classes", "room", "rate", "matrix", "place", "scale", "shift", "logits", "bias", "total", "time",
    "last", "hidden", "mean", "factor", "answer", "at",
)
(
    H_SIZE, H_WIDE, H_CLASSES, H_ROOM, H_RATE, H_MATRIX, H_PLACE, H_SCALE, H_SHIFT, H_LOGITS, H_BIAS, H_TOTAL, H_TIME,
    H_LAST, H_HIDDEN, H_MEAN, H_FACTOR, H_ANSWER, H_AT,
) = range(len(HEAD_FIELDS))
# fmt: on
