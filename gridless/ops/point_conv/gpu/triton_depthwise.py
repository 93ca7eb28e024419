"""The Triton kernel of the depthwise point convolution, forwards and backwards."""

from __future__ import annotations

import triton
import triton.language as tl

from gridless.ops.point_conv.gpu.triton_kernels import (
    _falloff,
    _gather,
    _invert,
    _load_point,
    _row_inverse,
    _scale,
    _value,
    _vector,
)


@triton.jit(do_not_specialize=["last", "tiles"])
def depthwise_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, OTHER, OUT, PARTS, last, tiles, high, low,
    C: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    BASE: tl.constexpr, TERMS: tl.constexpr, HAS_BIAS: tl.constexpr, NEED_OUT: tl.constexpr, NEED_W: tl.constexpr,
    T: tl.constexpr, J: tl.constexpr, L: tl.constexpr, U: tl.constexpr, AHEAD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """OUT (rows, C) = the sum over terms BASE to BASE + M of (N(m) F) theta(m), and the bias; J strips of L channels.

    With FLIP the rows are sources, F (S', C) is the gradient of the result, and OUT that of the features, which are
    OTHER; otherwise OTHER is the bias. PARTS (programs, TERMS, C): each program's share of the weight's gradient. What
    earlier terms gave is in OUT. TOTAL is that of `gather_kernel`.
    """
    MINE: tl.constexpr = NORMALISE and not FLIP
    scale = _scale(high, low, ROW_X)
    start = tl.program_id(1) * J * L
    share = ()
    if NEED_W:
        for _ in tl.static_range(M * J):
            share = share + (tl.zeros([T, L], DTYPE),)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * T + tl.arange(0, T)
        live = row < last
        acc, total = _gather(
            F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
            C, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, DTYPE, INDEX, T, J, L, U, AHEAD, MINE and TOTAL,
        )  # fmt: skip
        inverse = tl.zeros([T], DTYPE) + 1.0
        if MINE:
            if TOTAL:
                inverse = _invert(tl.max(total, axis=1))
            else:
                inverse = _row_inverse(ROW_X, COL_X, SPLITS, COLS, row, live, scale, D, FALLOFF, DTYPE, INDEX, T, K=16)
            if tl.program_id(1) == 0:
                tl.store(INVERSE + row, inverse, mask=live)
        new = ()
        for j in tl.static_range(J):
            channel = start + j * L + tl.arange(0, L)
            inside = channel < C
            at = row.to(tl.int64)[:, None] * C + channel[None, :]
            there = live[:, None] & inside[None, :]
            if NEED_OUT:
                out = tl.zeros([T, L], DTYPE)
                # Loaded once for each row: lanes then have what they need, without an exchange between them.
                here = THETA + BASE * C + channel[None, :] + tl.zeros([T, 1], tl.int32)
                for m in tl.static_range(M):
                    out += acc[m * J + j] * tl.load(here + m * C, mask=there).to(DTYPE)
                out = out * inverse[:, None]
                if BASE > 0:
                    out += tl.load(OUT + at, mask=there, other=0.0)
                elif HAS_BIAS:
                    out += tl.load(OTHER + channel, mask=inside, other=0.0).to(DTYPE)[None, :]
                tl.store(OUT + at, out, mask=there)
            if NEED_W:
                f = tl.load(OTHER + at, mask=there, other=0.0).to(DTYPE)
                for m in tl.static_range(M):
                    new = new + (share[j * M + m] + acc[m * J + j] * f,)
        if NEED_W:
            share = new
    if NEED_W:
        for j in tl.static_range(J):
            channel = start + j * L + tl.arange(0, L)
            for m in tl.static_range(M):
                at = (tl.program_id(0) * TERMS + BASE + m) * C + channel
                tl.store(PARTS + at, tl.sum(share[j * M + m], axis=0), mask=channel < C)


@triton.jit
def _columns(x, T: tl.constexpr):
    """Sixteen vectors (T) as the columns of (T, 16); the lane that has a row has all of it."""
    x = (tl.join(x[0], x[8]), tl.join(x[1], x[9]), tl.join(x[2], x[10]), tl.join(x[3], x[11]),
         tl.join(x[4], x[12]), tl.join(x[5], x[13]), tl.join(x[6], x[14]), tl.join(x[7], x[15]))  # fmt: skip
    x = (tl.join(x[0], x[4]), tl.join(x[1], x[5]), tl.join(x[2], x[6]), tl.join(x[3], x[7]))
    x = (tl.join(x[0], x[2]), tl.join(x[1], x[3]))
    return tl.reshape(tl.join(x[0], x[1]), [T, 16])


@triton.jit(do_not_specialize=["last", "runs", "each"])
def depthwise_dot_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, OTHER, OUT, PARTS, last, runs, each, high, low,
    C: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, INDEX: tl.constexpr, HAS_BIAS: tl.constexpr,
    NEED_OUT: tl.constexpr, NEED_W: tl.constexpr, T: tl.constexpr, L: tl.constexpr,
):  # fmt: skip
    """As `depthwise_kernel`, for up to 16 terms: one edge of every row at a time, the kernels of whose channels are a
    matrix product of edge values (T, 16) and theta (16, L). The weight's gradient is one of the same values.

    Tiles lie in `runs` runs of `each`, one for each multiprocessor; they take programs in turn. What those of one
    gather is near then, and in its first-level cache.
    """
    MINE: tl.constexpr = NORMALISE and not FLIP
    scale = _scale(high, low, ROW_X)
    channel = tl.program_id(1) * L + tl.arange(0, L)
    inside = (channel < C)[None, :]
    term = tl.arange(0, 16)
    weights = (term < M)[:, None] & inside
    theta = tl.load(THETA + term[:, None] * C + channel[None, :], mask=weights, other=0.0).to(tl.float32)
    share = tl.zeros([16, L], tl.float32)
    for i in range(tl.program_id(0), runs * each, tl.num_programs(0)):
        row = (i % runs * each + i // runs) * T + tl.arange(0, T)
        live = row < last
        begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
        end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
        x = _load_point(ROW_X, row, live, D)
        at = row.to(tl.int64)[:, None] * C + channel[None, :]
        there = live[:, None] & inside
        out = tl.zeros([T, L], tl.float32)
        total = tl.zeros([T], tl.float32)
        if NEED_W:
            mine = tl.load(OTHER + at, mask=there, other=0.0).to(tl.float32)
        col = tl.load(COLS + begin, mask=begin < end, other=0).to(INDEX)
        for k in range(0, tl.max(end - begin)):
            on = begin + k < end
            f = tl.load(F + col[:, None] * C + channel[None, :], mask=on[:, None] & inside, other=0.0).to(tl.float32)
            v = _vector(x, _load_point(COL_X, col, on, D), on, scale, FLIP, tl.float32, D)
            w = _falloff(v, on, FALLOFF, D)
            if NORMALISE and FLIP:
                w = w * tl.load(INVERSE + col, mask=on, other=0.0)
            col = tl.load(COLS + begin + k + 1, mask=begin + k + 1 < end, other=0).to(INDEX)
            total += w
            values = ()
            for m in tl.static_range(16):
                if m < M:
                    values = values + (_value(v, w, m, KIND, TABLE, SHARP, D),)
                else:
                    values = values + (tl.zeros([T], tl.float32),)
            n = _columns(values, T)
            if NEED_OUT:
                out += tl.dot(n, theta, input_precision="tf32") * f
            if NEED_W:
                share = tl.dot(tl.trans(n), mine * f, share, input_precision="tf32")
        if MINE:
            inverse = _invert(total)
            if tl.program_id(1) == 0:
                tl.store(INVERSE + row, inverse, mask=live)
            out = out * inverse[:, None]
        if NEED_OUT:
            if HAS_BIAS:
                out += tl.load(OTHER + channel, mask=channel < C, other=0.0).to(tl.float32)[None, :]
            tl.store(OUT + at, out, mask=there)
    if NEED_W:
        tl.store(PARTS + (tl.program_id(0) * M + term[:, None]) * C + channel[None, :], share, mask=weights)
