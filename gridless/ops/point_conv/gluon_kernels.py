"""Gluon kernels of the point convolution: the fused kernels with every number's place in the registers chosen.

A warp owns 16 rows, and a quad of its lanes the rows g and g + 8 and channels 4 t to 4 t + 3 of every strip of 16. This
is an operand of `mma.m16n8k8` if the channels of a strip are taken in the order k = 4 v + t for channel 4 t + v: the
sums go from the walk over the edges into the product without a barrier, shared memory or a move, and W is one number of
the row. Theta is read in the matching order. Products are TF32; coordinates and features are float32, of 3 dimensions.

The rest is as in `triton_kernels`: rows and columns, FLIP, one edge of every row at a time.
"""

# Kernels are Gluon, not Python: a type checker cannot follow them.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false, reportIndexIssue=false, reportCallIssue=false, reportOptionalMemberAccess=false
# pyright: reportPossiblyUnboundVariable=false, reportReturnType=false, reportAssignmentType=false

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2


@gluon.jit
def _times(p, x, E: gl.constexpr):
    for _ in gl.static_range(E):
        p = p * x
    return p


@gluon.jit
def _value(v, w, m: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr):
    """w p_m(v)"""
    if KIND == 0:
        p = w
        for d in gl.static_range(3):
            p = _times(p, v[d], TABLE[m * 3 + d])
    else:
        apart = (v[0] - TABLE[m * 3]) * (v[0] - TABLE[m * 3])
        for d in gl.static_range(1, 3):
            apart += (v[d] - TABLE[m * 3 + d]) * (v[d] - TABLE[m * 3 + d])
        p = w * gl.exp(apart * SHARP)
    return p


@gluon.jit
def _load_edge(F, COL_X, INVERSE, col, on, C: gl.constexpr, SHARED: gl.constexpr, TILE: gl.constexpr):
    """Coordinates, strips of features and, if SHARED, 1 / W of a column of each row."""
    near = ()
    for d in gl.static_range(3):
        near = near + (gl.load(COL_X + col * 3 + d, mask=on, other=0.0),)
    if SHARED:
        near = near + (gl.load(INVERSE + col, mask=on, other=0.0),)
    channel = gl.arange(0, 16, layout=gl.SliceLayout(0, TILE))
    at = F + col[:, None] * C + channel[None, :]
    f = ()
    for j in gl.static_range(C // 16):
        f = f + (gl.load(at + j * 16, mask=on[:, None], other=0.0, cache_modifier=".cg"),)
    return near, f


@gluon.jit
def _gather(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale,
    C: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr, T: gl.constexpr,
    TILE: gl.constexpr,
):  # fmt: skip
    """Sums over the edges of each row of w p_m F, strip j of term m at m C / 16 + j; and W of the rows.

    With FLIP the sums are divided by the W of the columns. The next edge is loaded before this one is used.
    """
    J: gl.constexpr = C // 16
    begin = gl.load(SPLITS + row, mask=live, other=0).to(gl.int32)
    end = gl.load(SPLITS + row + 1, mask=live, other=0).to(gl.int32)
    x = ()
    for d in gl.static_range(3):
        x = x + (gl.load(ROW_X + row * 3 + d, mask=live, other=0.0),)
    acc = ()
    for _ in gl.static_range(M * J):
        acc = acc + (gl.zeros([T, 16], gl.float32, layout=TILE),)
    total = gl.zeros([T], gl.float32, layout=gl.SliceLayout(1, TILE))
    one = total + 1.0
    col = gl.load(COLS + begin, mask=begin < end, other=0)
    near, f = _load_edge(F, COL_X, INVERSE, col, begin < end, C, NORMALISE and FLIP, TILE)
    col = gl.load(COLS + begin + 1, mask=begin + 1 < end, other=0)
    for k in range(0, gl.max(end - begin, axis=0)):
        edge = begin + k
        on = edge < end
        next_near, next_f = _load_edge(F, COL_X, INVERSE, col, edge + 1 < end, C, NORMALISE and FLIP, TILE)
        col = gl.load(COLS + edge + 2, mask=edge + 2 < end, other=0)
        v = ()
        for d in gl.static_range(3):
            apart = (near[d] - x[d]) if FLIP else (x[d] - near[d])
            v = v + (gl.where(on, apart * scale, 0.0),)
        w = one
        if FALLOFF:
            w = gl.maximum(1.0 - gl.sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]), 0.0)
        w = gl.where(on, w, 0.0)
        if NORMALISE and FLIP:
            w = w * near[3]
        total += w
        new = ()
        for m in gl.static_range(M):
            value = _value(v, w, m, KIND, TABLE, SHARP)[:, None]
            for j in gl.static_range(J):
                new = new + (acc[m * J + j] + value * f[j],)
        acc = new
        near, f = next_near, next_f
    return acc, total


@gluon.jit
def forward_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, BIAS, OUT, last, scale,
    C: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, HAS_BIAS: gl.constexpr,
):  # fmt: skip
    """OUT (rows, P) = (N F) Theta + bias: one warp, 16 targets.

    The product is made as Theta^T (N F)^T, with row 16 h + 8 u + g of the left operand column 16 h + 2 g + u of Theta:
    what a lane loads of Theta, two columns at once, is where `mma` wants it.
    """
    TILE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], [], [], [16, 16]
    )
    WIDE: gl.constexpr = [[0, 16], [0, 32]] if P == 64 else ([[0, 16]] if P == 32 else [])
    LEFT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [1, 0], [2, 0]] + WIDE, [[4, 0], [8, 0], [0, 2], [0, 4], [0, 8]], [], [], [16, P]
    )
    WRITE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [1, 0], [8, 0]] + WIDE, [[2, 0], [4, 0], [0, 2], [0, 4], [0, 8]], [], [], [16, P]
    )
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[1, 1], instr_shape=[16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 1)
    J: gl.constexpr = C // 16
    first = gl.program_id(0) * 16
    row = first + gl.arange(0, 16, layout=gl.SliceLayout(1, TILE))
    live = row < last
    acc, total = _gather(
        F, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, live, scale,
        C, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, False, 16, TILE,
    )  # fmt: skip
    k = gl.arange(0, 16, layout=gl.SliceLayout(1, LEFT))
    p = gl.arange(0, P, layout=gl.SliceLayout(0, LEFT))
    at = THETA + k[:, None] * P + p[None, :]
    out = gl.zeros([P, 16], gl.float32, layout=MMA)
    for m in gl.static_range(M):
        for j in gl.static_range(J):
            theta = gl.permute(gl.reshape(gl.load(at + (m * C + j * 16) * P), [4, 4, P // 16, 8, 2]), (2, 4, 3, 1, 0))
            theta = gl.convert_layout(gl.reshape(theta, [P, 16]), A)
            sums = gl.permute(gl.reshape(acc[m * J + j], [16, 4, 4]), (2, 1, 0))
            out = mma_v2(theta, gl.convert_layout(gl.reshape(sums, [16, 16]), B), out, input_precision="tf32")
    out = gl.reshape(gl.permute(gl.reshape(out, [P // 16, 2, 8, 16]), (3, 0, 2, 1)), [16, P])
    out = gl.convert_layout(out, WRITE)
    if NORMALISE:
        inverse = gl.where(total > 0, 1.0 / gl.where(total > 0, total, 1.0), 0.0)
        gl.store(INVERSE + row, inverse, mask=live)
        out = out * gl.convert_layout(inverse, gl.SliceLayout(1, WRITE))[:, None]
    p = gl.arange(0, P, layout=gl.SliceLayout(0, WRITE))
    if HAS_BIAS:
        out += gl.load(BIAS + p)[None, :]
    row = first + gl.arange(0, 16, layout=gl.SliceLayout(1, WRITE))
    gl.store(OUT + row[:, None] * P + p[None, :], out, mask=(row < last)[:, None])


@gluon.jit
def _strips(acc, m: gl.constexpr, T: gl.constexpr):
    """The two strips of a term side by side, (T, 32): nothing moves."""
    return gl.reshape(gl.permute(gl.join(acc[m * 2], acc[m * 2 + 1]), (0, 2, 1)), [T, 32])


@gluon.jit
def backward_kernel(
    GRAD, F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, D_F, PARTS, last, tiles, each, scale,
    Q: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, NEED_F: gl.constexpr, NEED_W: gl.constexpr,
):  # fmt: skip
    """B = N^T dF' of tiles of 128 sources, `each` of them one after the other; from each dF = B Theta^T, and F^T B is
    added up. Eight warps: each gathers B of its 16 sources, multiplies it by Theta^T, and leaves it in shared memory,
    from where all add F^T B, each a piece of every term's, to what they keep in registers.

    PARTS (programs, M, Q, P) float32: each program's share of the weight's gradient.
    """
    T: gl.constexpr = 128
    J: gl.constexpr = P // 16
    WARPS: gl.constexpr = [[16, 0], [32, 0], [64, 0]]
    TILE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [8, 0]], [[0, 4], [0, 8], [1, 0], [2, 0], [4, 0]], WARPS, [], [T, 16]
    )
    WIDE_Q: gl.constexpr = [[0, 32]] if Q == 64 else []
    HIGH: gl.constexpr = [[32, 0]] if Q == 64 else []
    RIGHT: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [1, 0], [2, 0]] + HIGH, [[0, 4], [0, 8], [4, 0], [8, 0], [16, 0]],
        [[0, 0], [0, 0], [0, 0]], [], [Q, 16],
    )  # fmt: skip
    WRITE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [8, 0]] + WIDE_Q, [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], WARPS, [], [T, Q]
    )
    # 16-byte pieces of a row change places with the row's last two bits: neither rows nor columns meet a bank twice.
    ROWS: gl.constexpr = [[1, 16], [2, 8], [4, 0], [8, 0], [16, 0], [32, 0], [64, 0]]
    KEPT_Q: gl.constexpr = gl.SharedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] + WIDE_Q + ROWS)
    KEPT_P: gl.constexpr = gl.SharedLinearLayout([[0, 1], [0, 2], [0, 4], [0, 8], [0, 16]] + ROWS)
    MMA: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[8, 1], instr_shape=[16, 8])
    A: gl.constexpr = gl.DotOperandLayout(0, MMA, 1)
    B: gl.constexpr = gl.DotOperandLayout(1, MMA, 1)
    SHARE: gl.constexpr = gl.NVMMADistributedLayout(version=[2, 0], warps_per_cta=[2, 4], instr_shape=[16, 8])
    A2: gl.constexpr = gl.DotOperandLayout(0, SHARE, 1)
    B2: gl.constexpr = gl.DotOperandLayout(1, SHARE, 1)
    pid = gl.program_id(0)
    share = ()
    kept = ()
    if NEED_W:
        kept_f = gl.allocate_shared_memory(gl.float32, [T, Q], KEPT_Q)
        for _ in gl.static_range(M):
            share = share + (gl.zeros([Q, P], gl.float32, layout=SHARE),)
            kept = kept + (gl.allocate_shared_memory(gl.float32, [T, P], KEPT_P),)
    for tile in range(pid * each, gl.minimum(pid * each + each, tiles)):
        row = tile * T + gl.arange(0, T, layout=gl.SliceLayout(1, TILE))
        acc, _total = _gather(
            GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, row, row < last, scale,
            P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, True, T, TILE,
        )  # fmt: skip
        if NEED_W:
            for m in gl.static_range(M):
                kept[m].store(_strips(acc, m, T))
        row = tile * T + gl.arange(0, T, layout=gl.SliceLayout(1, WRITE))
        there = (row < last)[:, None]
        at = row[:, None] * Q + gl.arange(0, Q, layout=gl.SliceLayout(0, WRITE))[None, :]
        if NEED_F:
            q = gl.arange(0, Q, layout=gl.SliceLayout(1, RIGHT))
            p = gl.arange(0, 16, layout=gl.SliceLayout(0, RIGHT))
            of = THETA + q[:, None] * P + p[None, :]
            out = gl.zeros([T, Q], gl.float32, layout=MMA)
            for m in gl.static_range(M):
                for j in gl.static_range(J):
                    theta = gl.reshape(gl.load(of + m * Q * P + j * 16), [Q // 32, 8, 4, 4, 4])
                    theta = gl.convert_layout(gl.reshape(gl.permute(theta, (4, 3, 0, 2, 1)), [16, Q]), B)
                    sums = gl.permute(gl.reshape(acc[m * J + j], [T, 4, 4]), (0, 2, 1))
                    sums = gl.convert_layout(gl.reshape(sums, [T, 16]), A)
                    out = mma_v2(sums, theta, out, input_precision="tf32")
            out = gl.reshape(gl.permute(gl.reshape(out, [T, Q // 32, 4, 8]), (0, 1, 3, 2)), [T, Q])
            gl.store(D_F + at, gl.convert_layout(out, WRITE), mask=there)
        if NEED_W:
            kept_f.store(gl.load(F + at, mask=there, other=0.0))
            f = kept_f.permute([1, 0]).load(A2)
            new = ()
            for m in gl.static_range(M):
                new = new + (mma_v2(f, kept[m].load(B2), share[m], input_precision="tf32"),)
            share = new
    if NEED_W:
        q = gl.arange(0, Q, layout=gl.SliceLayout(1, SHARE))
        p = gl.arange(0, P, layout=gl.SliceLayout(0, SHARE))
        for m in gl.static_range(M):
            gl.store(PARTS + (pid * M + m) * Q * P + q[:, None] * P + p[None, :], share[m])
