"""The Triton kernel of the depthwise point convolution, forwards and backwards."""

from __future__ import annotations

import triton
import triton.language as tl

from gridless.ops.point_conv.gpu.triton_kernels import edge_scale, gather_sums, stored_inverse


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
    OTHER; otherwise OTHER is the bias. PARTS (programs, TERMS, C): each program's share of the weight's gradient. OUT
    already holds the sum over earlier terms. TOTAL is that of `gather_kernel`.
    """
    MINE: tl.constexpr = NORMALISE and not FLIP
    scale = edge_scale(high, low, ROW_X)
    start = tl.program_id(1) * J * L
    share = ()
    if NEED_W:
        for _ in tl.static_range(M * J):
            share = share + (tl.zeros([T, L], DTYPE),)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * T + tl.arange(0, T)
        live = row < last
        acc, total = gather_sums(
            F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
            C, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, DTYPE, INDEX, T, J, L, U, AHEAD, MINE and TOTAL,
        )  # fmt: skip
        inverse = stored_inverse(
            ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale, total, D, FALLOFF, DTYPE, INDEX, T, MINE, TOTAL
        )
        if NEED_W:
            # Features of a source that nobody sees are not read: zero times NaN is NaN.
            seen = tl.load(SPLITS + row, mask=live, other=0) < tl.load(SPLITS + row + 1, mask=live, other=0)
        new = ()
        for j in tl.static_range(J):
            channel = start + j * L + tl.arange(0, L)
            inside = channel < C
            at = row.to(tl.int64)[:, None] * C + channel[None, :]
            valid = live[:, None] & inside[None, :]
            if NEED_OUT:
                out = tl.zeros([T, L], DTYPE)
                # Loaded once for each row: lanes then have what they need, without an exchange between them.
                here = THETA + BASE * C + channel[None, :] + tl.zeros([T, 1], tl.int32)
                for m in tl.static_range(M):
                    out += acc[m * J + j] * tl.load(here + m * C, mask=valid).to(DTYPE)
                out = out * inverse[:, None]
                if BASE > 0:
                    out += tl.load(OUT + at, mask=valid, other=0.0)
                elif HAS_BIAS:
                    out += tl.load(OTHER + channel, mask=inside, other=0.0).to(DTYPE)[None, :]
                tl.store(OUT + at, out, mask=valid)
            if NEED_W:
                f = tl.load(OTHER + at, mask=seen[:, None] & inside[None, :], other=0.0).to(DTYPE)
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
