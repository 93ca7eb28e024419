"""Triton kernels of the point convolution.

A program owns a tile of rows and walks their edges side by side, one edge of every row at a time; the values of an edge
are made in registers, and the sums of all M terms stay there. Channels are cut into J strips of L: the lanes that share
a row make its values each for itself, and L / 4 lanes are enough for a strip. A row is a target and its columns are
sources, or, with FLIP, the transposed edges: a row is a source and its columns are targets. The vector is
target - source either way.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def times_power(p, x, E: tl.constexpr):
    """p x^E."""
    for _ in tl.static_range(E):
        p = p * x
    return p


@triton.jit
def basis_value(v, w, m: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr, D: tl.constexpr):
    """w p_m(v)"""
    if KIND == 0:
        p = w
        for d in tl.static_range(D):
            p = times_power(p, v[d], TABLE[m * D + d])
    else:
        apart = (v[0] - TABLE[m * D]) * (v[0] - TABLE[m * D])
        for d in tl.static_range(1, D):
            apart += (v[d] - TABLE[m * D + d]) * (v[d] - TABLE[m * D + d])
        p = w * tl.exp(apart * SHARP)
    return p


@triton.jit
def edge_scale(high, low, X):
    """1 / radius in the dtype of the coordinates; numbers reach a kernel as float32, and a double as two of them."""
    if X.dtype.element_ty == tl.float64:
        return tl.full([], high, tl.float64) + tl.full([], low, tl.float64)
    else:
        return high


@triton.jit
def load_point(X, row, live, D: tl.constexpr):
    """The coordinates of a row, one tensor for each dimension."""
    x = ()
    for d in tl.static_range(D):
        x = x + (tl.load(X + row * D + d, mask=live, other=0.0),)
    return x


@triton.jit
def edge_vector(x, y, on, scale, FLIP: tl.constexpr, DTYPE: tl.constexpr, D: tl.constexpr):
    """(target - source) / radius; zero where there is no edge."""
    v = ()
    for d in tl.static_range(D):
        apart = (y[d] - x[d]) if FLIP else (x[d] - y[d])
        v = v + (tl.where(on, (apart * scale).to(DTYPE), 0.0),)
    return v


@triton.jit
def edge_falloff(v, on, FALLOFF: tl.constexpr, D: tl.constexpr):
    """The weight w of an edge; 0 where there is none."""
    if FALLOFF:
        square = v[0] * v[0]
        for d in tl.static_range(1, D):
            square += v[d] * v[d]
        return tl.where(on, tl.maximum(1.0 - tl.sqrt(square), 0.0, propagate_nan=tl.PropagateNan.ALL), 0.0)
    else:
        return tl.where(on, 1.0, 0.0).to(v[0].dtype)


@triton.jit
def inverse_or_zero(total):
    """1 / W, and 0 where W is 0."""
    return tl.where(total == 0, 0.0, 1.0 / tl.where(total == 0, 1.0, total))


@triton.jit
def _row_inverse(
    ROW_X, COL_X, SPLITS, COLS, row, live, scale,
    D: tl.constexpr, FALLOFF: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """1 / W of each row, 0 where W is 0: K edges of every row at a time."""
    begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
    end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
    x = ()
    for d in tl.static_range(D):
        x = x + (tl.load(ROW_X + row.to(INDEX) * D + d, mask=live, other=0.0)[:, None],)
    total = tl.zeros([T, K], DTYPE)
    for k in range(0, tl.max(end - begin), K):
        edge = begin[:, None] + k + tl.arange(0, K)[None, :]
        on = edge < end[:, None]
        col = tl.load(COLS + edge, mask=on, other=0).to(INDEX)
        v = edge_vector(x, load_point(COL_X, col, on, D), on, scale, False, DTYPE, D)
        total += edge_falloff(v, on, FALLOFF, D)
    return inverse_or_zero(tl.sum(total, axis=1))


@triton.jit
def stored_inverse(
    ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale, total, D: tl.constexpr, FALLOFF: tl.constexpr,
    DTYPE: tl.constexpr, INDEX: tl.constexpr, T: tl.constexpr, MINE: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """1 / W of each row, written to INVERSE, or 1 if not MINE. With TOTAL, W is in every column of `total` (T, L)."""
    inverse = tl.zeros([T], DTYPE) + 1.0
    if MINE:
        if TOTAL:
            inverse = inverse_or_zero(tl.max(total, axis=1))
        else:
            inverse = _row_inverse(ROW_X, COL_X, SPLITS, COLS, row, live, scale, D, FALLOFF, DTYPE, INDEX, T, K=16)
        if tl.program_id(1) == 0:
            tl.store(INVERSE + row, inverse, mask=live)
    return inverse


@triton.jit
def _load_cols(COLS, edge, end, U: tl.constexpr):
    """The next U columns of each row."""
    cols = ()
    for u in tl.static_range(U):
        cols = cols + (tl.load(COLS + edge + u, mask=edge + u < end, other=0),)
    return cols


@triton.jit
def _load_edges(
    F, COL_X, INVERSE, cols, edge, end, start, C: tl.constexpr, D: tl.constexpr, SHARED: tl.constexpr,
    INDEX: tl.constexpr, J: tl.constexpr, L: tl.constexpr, U: tl.constexpr,
):  # fmt: skip
    """Coordinates, features and, if SHARED, 1 / W of U columns of each row."""
    near = ()
    f = ()
    share = ()
    for u in tl.static_range(U):
        on = edge + u < end
        col = cols[u].to(INDEX)
        near = near + (load_point(COL_X, col, on, D),)
        for j in tl.static_range(J):
            channel = start + j * L + tl.arange(0, L)
            at = F + col[:, None] * C + channel[None, :]
            # Past the first-level cache, which is left to what every program reads.
            f = f + (tl.load(at, mask=on[:, None] & (channel < C)[None, :], other=0.0, cache_modifier=".cg"),)
        if SHARED:
            share = share + (tl.load(INVERSE + col, mask=on, other=0.0),)
    return near, f, share


@triton.jit
def gather_sums(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
    C: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    T: tl.constexpr, J: tl.constexpr, L: tl.constexpr, U: tl.constexpr, AHEAD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """Sums over the edges of each row of w p_m F, for J strips of channels from `start` on: tiles (T, L), strip j of
    term m at m J + j; and, with TOTAL, W of the rows in every column of a tile (T, L). With FLIP the sums are divided
    by the W of the columns; otherwise the caller divides by the W of the rows.

    U edges of each row are in flight, and the columns of the next U.
    """
    begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
    end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
    x = load_point(ROW_X, row.to(INDEX), live, D)
    total = tl.zeros([T, L], DTYPE)
    acc = ()
    for _ in tl.static_range(M * J):
        acc = acc + (tl.zeros([T, L], DTYPE),)
    cols = _load_cols(COLS, begin, end, U)
    if AHEAD:
        data = _load_edges(F, COL_X, INVERSE, cols, begin, end, start, C, D, NORMALISE and FLIP, INDEX, J, L, U)
        cols = _load_cols(COLS, begin + U, end, U)
    for k in range(0, tl.max(end - begin), U):
        edge = begin + k
        if AHEAD:
            following = _load_edges(
                F, COL_X, INVERSE, cols, edge + U, end, start, C, D, NORMALISE and FLIP, INDEX, J, L, U
            )
            cols = _load_cols(COLS, edge + 2 * U, end, U)
        else:
            data = _load_edges(F, COL_X, INVERSE, cols, edge, end, start, C, D, NORMALISE and FLIP, INDEX, J, L, U)
            cols = _load_cols(COLS, edge + U, end, U)
        near, f, share = data
        for u in tl.static_range(U):
            on = edge + u < end
            v = edge_vector(x, near[u], on, scale, FLIP, DTYPE, D)
            w = edge_falloff(v, on, FALLOFF, D)
            if NORMALISE and FLIP:
                w = w * share[u]
            if TOTAL:
                # Ones that the compiler must take for a function of the features, and so keeps where those are: W as a
                # vector would have it load and compute all coordinates once more.
                one = tl.inline_asm_elementwise(
                    "mov.b32 $0, 0x3f800000; // $1", "=r,r", [f[u * J].to(tl.float32)], tl.float32, is_pure=True, pack=1
                )
                total += w[:, None] * one
            new = ()
            for m in tl.static_range(M):
                value = basis_value(v, w, m, KIND, TABLE, SHARP, D)[:, None]
                for j in tl.static_range(J):
                    new = new + (acc[m * J + j] + value * f[u * J + j].to(DTYPE),)
            acc = new
        if AHEAD:
            data = following
    return acc, total


@triton.jit(do_not_specialize=["first", "last"])
def gather_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, OUT, first, last, high, low,
    C: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    BASE: tl.constexpr, TERMS: tl.constexpr, T: tl.constexpr, J: tl.constexpr, L: tl.constexpr, U: tl.constexpr,
    AHEAD: tl.constexpr, TOTAL: tl.constexpr,
):  # fmt: skip
    """OUT (last - first, TERMS, C): terms BASE to BASE + M of N F for rows first to last.

    With TOTAL, W comes out of the walk over the edges; otherwise from another.
    """
    MINE: tl.constexpr = NORMALISE and not FLIP
    scale = edge_scale(high, low, ROW_X)
    row = first + tl.program_id(0) * T + tl.arange(0, T)
    live = row < last
    start = tl.program_id(1) * J * L
    acc, total = gather_sums(
        F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
        C, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, DTYPE, INDEX, T, J, L, U, AHEAD, MINE and TOTAL,
    )  # fmt: skip
    inverse = stored_inverse(
        ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale, total, D, FALLOFF, DTYPE, INDEX, T, MINE, TOTAL
    )
    for j in tl.static_range(J):
        channel = start + j * L + tl.arange(0, L)
        at = (row - first).to(tl.int64)[:, None] * (TERMS * C) + channel[None, :]
        valid = live[:, None] & (channel < C)[None, :]
        for m in tl.static_range(M):
            tl.store(OUT + at + (BASE + m) * C, acc[m * J + j] * inverse[:, None], mask=valid)


@triton.jit(do_not_specialize=["last"])
def fused_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, BIAS, OUT, last, high, low,
    C: tl.constexpr, P: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr,
    SHARP: tl.constexpr, FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, HAS_BIAS: tl.constexpr,
    INDEX: tl.constexpr, PRECISION: tl.constexpr, TOTAL: tl.constexpr, T: tl.constexpr, J: tl.constexpr,
    L: tl.constexpr, PB: tl.constexpr, U: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """OUT (rows, P) = (N F) Theta + bias, one launch: N F is in registers, J strips of L channels at a time.

    With FLIP the rows are sources, F (S', C) is the gradient of the result, and OUT is the gradient of the features:
    Theta (M, P, C) then lies across. TOTAL is that of `gather_kernel`.
    """
    scale = edge_scale(high, low, ROW_X)
    row = tl.program_id(0) * T + tl.arange(0, T)
    live = row < last
    # Sums in float16 are divided before the product, to stay in its range; others after it, which is cheaper.
    MINE: tl.constexpr = NORMALISE and not FLIP
    BEFORE: tl.constexpr = MINE and THETA.dtype.element_ty == tl.float16
    # Parts of Theta that are on their way together: the load of each would wait for the product with the one before it.
    # In float32 they would take the room of other programs.
    TOGETHER: tl.constexpr = M if THETA.dtype.element_ty.primitive_bitwidth == 16 else 1
    p = tl.program_id(1) * PB + tl.arange(0, PB)
    inverse = tl.zeros([T], tl.float32) + 1.0
    if MINE and not TOTAL:
        inverse = _row_inverse(ROW_X, COL_X, SPLITS, COLS, row, live, scale, D, FALLOFF, tl.float32, INDEX, T, K=16)
    out = tl.zeros([T, PB], tl.float32)
    for start in range(0, C, J * L):
        acc, total = gather_sums(
            F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
            C, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, tl.float32, INDEX, T, J, L, U, AHEAD,
            MINE and TOTAL,
        )  # fmt: skip
        if MINE and TOTAL:
            inverse = inverse_or_zero(tl.max(total, axis=1))
        for j in tl.static_range(J):
            channel = start + j * L + tl.arange(0, L)
            inside = (channel[:, None] < C) & (p[None, :] < P)
            for first in tl.static_range(0, M, TOGETHER):
                theta = ()
                for m in tl.static_range(first, first + TOGETHER):
                    if FLIP:
                        at = p[None, :] * C + channel[:, None]
                    else:
                        at = channel[:, None] * P + p[None, :]
                    theta = theta + (tl.load(THETA + m * C * P + at, mask=inside, other=0.0),)
                for m in tl.static_range(first, first + TOGETHER):
                    sums = acc[m * J + j] * inverse[:, None] if BEFORE else acc[m * J + j]
                    out = tl.dot(sums.to(THETA.dtype.element_ty), theta[m - first], out, input_precision=PRECISION)
    if MINE:
        if tl.program_id(1) == 0:
            tl.store(INVERSE + row, inverse, mask=live)
        if not BEFORE:
            out = out * inverse[:, None]
    if HAS_BIAS:
        out += tl.load(BIAS + p, mask=p < P, other=0.0).to(tl.float32)[None, :]
    at_out = OUT + row.to(tl.int64)[:, None] * P + p[None, :]
    tl.store(at_out, out, mask=live[:, None] & (p[None, :] < P))


@triton.jit(do_not_specialize=["last", "tiles"])
def weight_kernel(
    GRAD, F, ROW_X, COL_X, SPLITS, COLS, INVERSE, PARTS, last, tiles, high, low,
    Q: tl.constexpr, P: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr,
    SHARP: tl.constexpr, FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, INDEX: tl.constexpr,
    PRECISION: tl.constexpr, T: tl.constexpr, QB: tl.constexpr, L: tl.constexpr, U: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """PARTS (programs, M, Q, P) float32: each program's share of the weight's gradient F^T B, with B = N^T dF'.

    A program adds up tile after tile of sources, for L of the P channels and QB of the Q.
    """
    scale = edge_scale(high, low, ROW_X)
    q = tl.program_id(2) * QB + tl.arange(0, QB)
    start = tl.program_id(1) * L
    share = ()
    for _ in tl.static_range(M):
        share = share + (tl.zeros([QB, L], tl.float32),)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * T + tl.arange(0, T)
        live = row < last
        # On its way while the edges are walked.
        at = row.to(tl.int64)[:, None] * Q + q[None, :]
        f = tl.trans(tl.load(F + at, mask=live[:, None] & (q[None, :] < Q), other=0.0))
        acc, _none = gather_sums(
            GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, start, scale,
            P, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, True, tl.float32, INDEX, T, 1, L, U, AHEAD,
            False,
        )  # fmt: skip
        new = ()
        for m in tl.static_range(M):
            new = new + (tl.dot(f, acc[m].to(f.dtype), share[m], input_precision=PRECISION),)
        share = new
    channel = start + tl.arange(0, L)
    inside = (q[:, None] < Q) & (channel[None, :] < P)
    for m in tl.static_range(M):
        part = PARTS + ((tl.program_id(0) * M + m) * Q + q[:, None]) * P + channel[None, :]
        tl.store(part, share[m], mask=inside)


@triton.jit(do_not_specialize=["last", "tiles"])
def fused_backward_kernel(
    GRAD, F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, D_F, PARTS, last, tiles, high, low,
    Q: tl.constexpr, P: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr,
    SHARP: tl.constexpr, FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, INDEX: tl.constexpr,
    NEED_F: tl.constexpr, PRECISION: tl.constexpr,
    T: tl.constexpr, QB: tl.constexpr, J: tl.constexpr, L: tl.constexpr, U: tl.constexpr,
    AHEAD: tl.constexpr,
):  # fmt: skip
    """B = N^T dF' of one tile of sources after another, in registers; from each dF = B Theta^T, and F^T B is added up.

    PARTS (programs, M, Q, P) float32: each program's share of the weight's gradient.
    """
    scale = edge_scale(high, low, ROW_X)
    q = tl.arange(0, QB)
    share = ()
    for _ in tl.static_range(M * J):
        share = share + (tl.zeros([QB, L], tl.float32),)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row = tile * T + tl.arange(0, T)
        live = row < last
        acc, _none = gather_sums(
            GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, 0, scale,
            P, M, D, KIND, TABLE, SHARP, FALLOFF, NORMALISE, True, tl.float32, INDEX, T, J, L, U, AHEAD,
            False,
        )  # fmt: skip
        at = row.to(tl.int64)[:, None] * Q + q[None, :]
        valid = live[:, None] & (q[None, :] < Q)
        f = tl.trans(tl.load(F + at, mask=valid, other=0.0))
        new = ()
        for i in tl.static_range(M * J):
            new = new + (tl.dot(f, acc[i].to(f.dtype), share[i], input_precision=PRECISION),)
        share = new
        if NEED_F:
            d_f = tl.zeros([T, QB], tl.float32)
            for j in tl.static_range(J):
                p = j * L + tl.arange(0, L)
                inside = (q[:, None] < Q) & (p[None, :] < P)
                for m in tl.static_range(M):
                    theta = tl.load(THETA + m * Q * P + q[:, None] * P + p[None, :], mask=inside, other=0.0)
                    sums = acc[m * J + j].to(theta.dtype)
                    d_f = tl.dot(sums, tl.trans(theta), d_f, input_precision=PRECISION)
            tl.store(D_F + at, d_f, mask=valid)
    for j in tl.static_range(J):
        p = j * L + tl.arange(0, L)
        inside = (q[:, None] < Q) & (p[None, :] < P)
        for m in tl.static_range(M):
            part = PARTS + (tl.program_id(0) * M + m) * Q * P + q[:, None] * P + p[None, :]
            tl.store(part, share[m * J + j], mask=inside)


@triton.jit(do_not_specialize=["last", "column"])
def contract_kernel(
    G, ROW_X, COL_X, SPLITS, COLS, INVERSE, BIAS, OUT, last, column, high, low,
    WIDTH: tl.constexpr, STRIDE: tl.constexpr,
    M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, HAS_BIAS: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    T: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """OUT[:, column:column + WIDTH] = N G + bias, with G (S, M, WIDTH) = F Theta: sums over the edges of n_m G_m."""
    scale = edge_scale(high, low, ROW_X)
    row = tl.program_id(0) * T + tl.arange(0, T)
    live = row < last
    c = tl.program_id(1) * CB + tl.arange(0, CB)
    begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
    end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
    x = load_point(ROW_X, row.to(INDEX), live, D)
    acc = tl.zeros([T, CB], DTYPE)
    for k in range(0, tl.max(end - begin)):
        on = begin + k < end
        col = tl.load(COLS + begin + k, mask=on, other=0).to(INDEX)
        v = edge_vector(x, load_point(COL_X, col, on, D), on, scale, False, DTYPE, D)
        w = edge_falloff(v, on, FALLOFF, D)
        for m in tl.static_range(M):
            at = (col * M + m)[:, None] * WIDTH + c[None, :]
            g = tl.load(G + at, mask=on[:, None] & (c[None, :] < WIDTH), other=0.0).to(DTYPE)
            acc += basis_value(v, w, m, KIND, TABLE, SHARP, D)[:, None] * g
    if NORMALISE:
        inverse = stored_inverse(
            ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale, acc, D, FALLOFF, DTYPE, INDEX, T, True, False
        )
        acc = acc * inverse[:, None]
    if HAS_BIAS:
        acc += tl.load(BIAS + column + c, mask=c < WIDTH, other=0.0).to(DTYPE)[None, :]
    at = row.to(tl.int64)[:, None] * STRIDE + column + c[None, :]
    tl.store(OUT + at, acc, mask=live[:, None] & (c[None, :] < WIDTH))


@triton.jit(do_not_specialize=["rows"])
def column_kernel(X, PARTS, rows, P: tl.constexpr, DTYPE: tl.constexpr, T: tl.constexpr, PB: tl.constexpr):
    """PARTS (programs, P): each program's share of the sums over the rows of X (rows, P)."""
    p = tl.program_id(1) * PB + tl.arange(0, PB)
    total = tl.zeros([T, PB], DTYPE)
    for first in range(tl.program_id(0) * T, rows, tl.num_programs(0) * T):
        row = first + tl.arange(0, T)
        at = row.to(tl.int64)[:, None] * P + p[None, :]
        total += tl.load(X + at, mask=(row < rows)[:, None] & (p < P)[None, :], other=0.0).to(DTYPE)
    tl.store(PARTS + tl.program_id(0) * P + p, tl.sum(total, axis=0), mask=p < P)


@triton.jit
def _add_parts(PARTS, OUT, parts, size, block, K: tl.constexpr, N: tl.constexpr):
    """N numbers of OUT: the sums over all parts, K at a time."""
    at = block * N + tl.arange(0, N)
    total = tl.zeros([K, N], PARTS.dtype.element_ty)
    for first in range(0, parts, K):
        part = first + tl.arange(0, K)
        total += tl.load(
            PARTS + part.to(tl.int64)[:, None] * size + at[None, :],
            mask=(part < parts)[:, None] & (at < size)[None, :], other=0.0,
        )  # fmt: skip
    tl.store(OUT + at, tl.sum(total, axis=0).to(OUT.dtype.element_ty), mask=at < size)


@triton.jit(do_not_specialize=["weight_parts", "weight_size", "bias_parts", "bias_size"])
def total_kernel(
    WEIGHT_PARTS, D_WEIGHT, BIAS_PARTS, D_BIAS, weight_parts, weight_size, bias_parts, bias_size,
    K: tl.constexpr, N: tl.constexpr, BIAS_K: tl.constexpr, BIAS_N: tl.constexpr,
):  # fmt: skip
    """The sums of parts (parts, size): of the weight's gradient K of N numbers at a time, of the bias's BIAS_K of
    BIAS_N."""
    blocks = tl.cdiv(weight_size, N)
    if tl.program_id(0) < blocks:
        _add_parts(WEIGHT_PARTS, D_WEIGHT, weight_parts, weight_size, tl.program_id(0), K, N)
    else:
        _add_parts(BIAS_PARTS, D_BIAS, bias_parts, bias_size, tl.program_id(0) - blocks, BIAS_K, BIAS_N)
