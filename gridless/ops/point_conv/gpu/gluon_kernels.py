"""Gluon kernels of the point convolution: the fused kernels with every number's place in the registers chosen.

A warp owns 16 rows, and a quad of its lanes the rows g and g + 8 and channels 4 t to 4 t + 3 of every 16, or of half
precision 8 t to 8 t + 7 of every 32: what one load brings. This is an operand of `wgmma` if channels are taken in
another order (`_channel`): the sums go from the walk over the edges into the product without a barrier, shared memory
or a move, and W is one number of the row. Theta waits in shared memory in the matching order. Coordinates are float32,
of 3 dimensions; products of float32 are TF32.

The rest is as in `triton_kernels`, whose helpers for one edge serve here too: rows and columns, FLIP. A walk has an
edge of every row in its registers and the next on the way.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    warpgroup_mma,
    warpgroup_mma_init,
    warpgroup_mma_wait,
)

from gridless.ops.point_conv.gpu.triton_kernels import (
    basis_value,
    edge_falloff,
    edge_vector,
    inverse_or_zero,
    load_point,
)

# Renamed after Triton 3.6.
barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.constexpr_function
def powers(first, size):
    """first, 2 first, 4 first, ... below size."""
    return [first << i for i in range((size // first).bit_length() - 1)]


@gluon.constexpr_function
def channels_per_load(bits):
    """Channels of so many bits in 16 bytes."""
    return 128 // bits


@gluon.constexpr_function
def _packed(bits):
    """Channels of so many bits in a register."""
    return 32 // bits


@gluon.constexpr_function
def _tile(rows, channels, bits=32):
    """16 rows in a warp, and 16 bytes of each 64 of a row in a lane."""
    n = channels_per_load(bits)
    registers = [[0, b] for b in powers(1, n) + powers(4 * n, channels)]
    warps = [[b, 0] for b in powers(16, rows)]
    lanes = [[0, n], [0, 2 * n], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout([*registers, [8, 0]], lanes, warps, [], [rows, channels])


@gluon.constexpr_function
def _warp_lanes(warps):
    """32 numbers in each of so many warps."""
    return gl.DistributedLinearLayout([], [[b] for b in powers(1, 32)], [[0]] * len(powers(1, warps)), [], [32])


@gluon.constexpr_function
def _copies(rows, columns):
    """4 columns and 8 rows in a warp: what it writes to shared memory meets every bank once."""
    lanes, rest = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]], [[b, 0] for b in powers(8, rows)]
    rest += [[0, b] for b in powers(4, columns)]
    return gl.DistributedLinearLayout(rest[3:], lanes, rest[:3], [], [rows, columns])


@gluon.jit
def own_rows(T: gl.constexpr, WARPS: gl.constexpr):
    """The rows of each warp, of the tile's. The compiler takes them for the same in every warp: only loops without a
    barrier may go by them."""
    lane = gl.arange(0, 32, layout=_warp_lanes(WARPS))
    warp = gl.inline_asm_elementwise(
        "{ mov.u32 $0, %tid.x; shr.u32 $0, $0, 5; // $1\n}", "=r,r", [lane], dtype=gl.int32, is_pure=True, pack=1
    )
    return warp % WARPS * 16 + lane % 16


@gluon.constexpr_function
def _swizzle(columns, bits):
    """Bytes, of rows of so many columns."""
    return min(columns * bits // 8, 128)


@gluon.jit
def _fetch(X, lines):
    """Asks for this program's share of X, so many times 128 bytes, to be brought into the second-level cache."""
    line = gl.arange(0, 256, layout=gl.BlockedLayout([1], [32], [8], [0]))
    EACH: gl.constexpr = 1024 // X.dtype.element_ty.primitive_bitwidth
    for j in range(gl.program_id(0) * 256, lines, gl.num_programs(0) * 256):
        at = (X + gl.minimum(j + line, lines - 1) * EACH).to(gl.int64)
        gl.inline_asm_elementwise(
            "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=gl.int32, is_pure=False, pack=1
        )


@gluon.jit
def _begin(ROW_X, SPLITS, COLS, tile, last, T: gl.constexpr, TILE: gl.constexpr):
    """First loads of the walk of a tile: first and last edge, coordinates and first two columns of each row, and the
    most edges of a row of each warp."""
    row = tile * T + gl.arange(0, T, layout=gl.SliceLayout(1, TILE))
    live = row < last
    first = gl.load(SPLITS + row, mask=live, other=0).to(gl.int32)
    end = gl.load(SPLITS + row + 1, mask=live, other=0).to(gl.int32)
    x = load_point(ROW_X, row, live, 3)
    col = gl.load(COLS + first, mask=first < end, other=0)
    then = gl.load(COLS + first + 1, mask=first + 1 < end, other=0)
    own_row = tile * T + own_rows(T, T // 16)
    before = gl.load(SPLITS + own_row, mask=own_row < last, other=0)
    most = gl.max((gl.load(SPLITS + own_row + 1, mask=own_row < last, other=0) - before).to(gl.int32), axis=0)
    return first, end, x, col, then, most


@gluon.jit
def load_edge(
    F, COL_X, INVERSE, col, on, C: gl.constexpr, STRIDE: gl.constexpr, SHARED: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """Coordinates, C features and, if SHARED, 1 / W of a column of each row."""
    near = load_point(COL_X, col, on, 3)
    if SHARED:
        near = near + (gl.load(INVERSE + col, mask=on, other=0.0),)
    channel = gl.arange(0, C, layout=gl.SliceLayout(0, TILE))
    return near, gl.load(F + col[:, None] * STRIDE + channel[None, :], mask=on[:, None], other=0.0)


@gluon.jit
def add_edge(
    acc, total, near, f, x, on, scale, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr,
):  # fmt: skip
    """Adds an edge of every row to its sums and its W."""
    v = edge_vector(x, near, on, scale, FLIP, gl.float32, 3)
    w = edge_falloff(v, on, FALLOFF, 3)
    if NORMALISE and FLIP:
        w = w * near[3]
    new = ()
    f = f.to(gl.float32)
    for m in gl.static_range(M):
        new = new + (acc[m] + basis_value(v, w, m, KIND, TABLE, SHARP, 3)[:, None] * f,)
    return new, total + w


@gluon.jit
def _walk(
    F, COL_X, COLS, INVERSE, first_loads, scale, C: gl.constexpr, STRIDE: gl.constexpr, M: gl.constexpr,
    KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr, FALLOFF: gl.constexpr, NORMALISE: gl.constexpr,
    FLIP: gl.constexpr, T: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """Sums over the edges of each row of w p_m F, a tile (T, C) per term, and W of the rows. Rows of F are STRIDE
    numbers apart. With FLIP the sums are divided by the W of the columns."""
    first, end, x, col, then, most = first_loads
    S: gl.constexpr = NORMALISE and FLIP
    acc = ()
    for _ in gl.static_range(M):
        acc = acc + (gl.zeros([T, C], gl.float32, layout=TILE),)
    total = gl.zeros([T], gl.float32, layout=gl.SliceLayout(1, TILE))
    near, f = load_edge(F, COL_X, INVERSE, col, first < end, C, STRIDE, S, TILE)
    for k in range(0, most, 2):
        edge = first + k
        then_near, then_f = load_edge(F, COL_X, INVERSE, then, edge + 1 < end, C, STRIDE, S, TILE)
        col = gl.load(COLS + edge + 2, mask=edge + 2 < end, other=0)
        acc, total = add_edge(
            acc, total, near, f, x, edge < end, scale, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP
        )  # fmt: skip
        if k + 1 < most:
            near, f = load_edge(F, COL_X, INVERSE, col, edge + 2 < end, C, STRIDE, S, TILE)
            then = gl.load(COLS + edge + 3, mask=edge + 3 < end, other=0)
            acc, total = add_edge(
                acc, total, then_near, then_f, x, edge + 1 < end, scale,
                M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP,
            )  # fmt: skip
    return acc, total


@gluon.jit
def allocate(N: gl.constexpr, P: gl.constexpr, C: gl.constexpr, TYPE: gl.constexpr):
    """Shared memory for N matrices (P, C)."""
    BITS: gl.constexpr = TYPE.primitive_bitwidth
    return gl.allocate_shared_memory(TYPE, [N, P, C], gl.NVMMASharedLayout(_swizzle(C, BITS), BITS))


@gluon.jit
def _keep(
    THETA, copies, FIRST: gl.constexpr, M: gl.constexpr, NEXT: gl.constexpr, P: gl.constexpr, C: gl.constexpr,
    DOWN: gl.constexpr, ALONG: gl.constexpr,
):  # fmt: skip
    """Copies of M matrices (P, C), NEXT apart, in shared memory, from FIRST on; channels in the order of the product.
    Neighbours in a column are DOWN numbers apart, in a row ALONG."""
    COPIES: gl.constexpr = _copies(P, C)
    channel = _channel(gl.arange(0, C, layout=gl.SliceLayout(0, COPIES)), THETA.dtype.element_ty.primitive_bitwidth)
    at = THETA + gl.arange(0, P, layout=gl.SliceLayout(1, COPIES))[:, None] * DOWN + channel[None, :] * ALONG
    for m in gl.static_range(M):
        copies.index(FIRST + m).store(gl.load(at + m * NEXT))


@gluon.jit
def _channel(k, BITS: gl.constexpr):
    """The channel at place k of a product: a lane has those at t, t + 4, t + 8, t + 12 of 16 registers."""
    EACH: gl.constexpr = channels_per_load(BITS)
    PAIR: gl.constexpr = _packed(BITS)
    return (k & (-4 * EACH)) + (k // PAIR % 4) * EACH + (k // (4 * PAIR) % 4) * PAIR + k % PAIR


@gluon.jit
def await_copies():
    """Waits until all copies are there, for `wgmma` too."""
    fence_async_shared()
    barrier()


@gluon.jit
def _product(
    acc, theta, first, out, M: gl.constexpr, T: gl.constexpr, C: gl.constexpr, TYPE: gl.constexpr, LEFT: gl.constexpr
):  # fmt: skip
    """`out` and the sum over terms of (T, C) times (C, P), of this type; of Theta from the matrix `first` on. The left
    operand has its channels in the order of the product: nothing moves."""
    EACH: gl.constexpr = channels_per_load(TYPE.primitive_bitwidth)
    PAIR: gl.constexpr = _packed(TYPE.primitive_bitwidth)
    product = warpgroup_mma_init(out)
    sums = ()
    for m in gl.static_range(M):
        left = gl.reshape(acc[m].to(TYPE), [T, C // (4 * EACH), 4, 4, PAIR])
        left = gl.reshape(gl.permute(left, (0, 1, 3, 2, 4)), [T, C])
        sums = sums + (gl.convert_layout(left, LEFT),)
        product = warpgroup_mma(sums[m], theta.index(first + m).permute((1, 0)), product, is_async=True)
    return warpgroup_mma_wait(0, deps=(product,) + sums)[0]


@gluon.jit(do_not_specialize=["last", "tiles", "lines_f", "lines_cols"])
def forward_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, BIAS, OUT, last, tiles, lines_f, lines_cols, scale,
    C: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr, HAS_BIAS: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """OUT (rows, P) = (N F) Theta + bias: eight warps, tile after tile of 128 targets, and no barrier between them; L
    channels at a time. While one tile is multiplied, what the walk of the next begins with is on its way.

    With FLIP the rows are sources, F (S', C) is the gradient of the result, and OUT is the gradient of the features:
    Theta (M, P, C) then lies across.
    """
    T: gl.constexpr = 128
    TYPE: gl.constexpr = F.dtype.element_ty
    BITS: gl.constexpr = TYPE.primitive_bitwidth
    MINE: gl.constexpr = NORMALISE and not FLIP
    # Sums in float16 are divided before the product, to stay in its range.
    BEFORE: gl.constexpr = MINE and F.dtype.element_ty == gl.float16
    TILE: gl.constexpr = _tile(T, L, BITS)
    MMA: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [8, 1], [16, P, 256 // BITS])
    LEFT: gl.constexpr = gl.DotOperandLayout(0, MMA, _packed(BITS))
    pid = gl.program_id(0)
    first_loads = _begin(ROW_X, SPLITS, COLS, pid, last, T, TILE)
    theta = allocate(C // L * M, P, L, TYPE)
    for j in gl.static_range(C // L):
        if FLIP:
            _keep(THETA + j * L, theta, j * M, M, C * P, P, L, C, 1)
        else:
            _keep(THETA + j * L * P, theta, j * M, M, C * P, P, L, 1, P)
    _fetch(COLS, lines_cols)
    _fetch(F, lines_f)
    await_copies()
    for tile in range(pid, tiles, gl.num_programs(0)):
        out = gl.zeros([T, P], gl.float32, layout=MMA)
        total = gl.zeros([T], gl.float32, layout=gl.SliceLayout(1, TILE))
        for strip in range(0, C // L):
            acc, total = _walk(
                F + strip * L, COL_X, COLS, INVERSE, first_loads, scale,
                L, C, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, T, TILE,
            )  # fmt: skip
            following = tile + gl.num_programs(0) if strip + 1 == C // L else tile
            first_loads = _begin(ROW_X, SPLITS, COLS, following, last, T, TILE)
            if BEFORE:
                acc = divided(acc, inverse_or_zero(total), M)
            out = _product(acc, theta, strip * M, out, M, T, L, TYPE, LEFT)
        row = tile * T + gl.arange(0, T, layout=gl.SliceLayout(1, MMA))
        if MINE:
            inverse = gl.convert_layout(inverse_or_zero(total), gl.SliceLayout(1, MMA))
            gl.store(INVERSE + row, inverse, mask=row < last)
            if not BEFORE:
                out = out * inverse[:, None]
        column = gl.arange(0, P, layout=gl.SliceLayout(0, MMA))
        if HAS_BIAS:
            out += gl.load(BIAS + column).to(gl.float32)[None, :]
        gl.store(OUT + row[:, None] * P + column[None, :], out.to(TYPE), mask=(row < last)[:, None])


@gluon.jit
def divided(acc, inverse, M: gl.constexpr):
    """The sums of each term times 1 / W of their rows."""
    new = ()
    for m in gl.static_range(M):
        new = new + (acc[m] * inverse[:, None],)
    return new
