"""The Gluon kernel of the weight's gradient, for layers whose gradient no multiprocessor can hold: strip by strip.

A program has 16 of the P channels, all Q and all terms, and warps of two kinds (`gluon_walk`). Those that walk make
B = N^T dF'. Those that multiply have their share of F^T B in registers, as the result of `wgmma`. Half precision as it
is, float32 as TF32, whose operands must lie along the rows: both are transposed on their way into shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from gridless.ops.point_conv.gpu.gluon_kernels import allocate, await_copies, barrier, powers
from gridless.ops.point_conv.gpu.gluon_walk import (
    batch_first,
    batch_size,
    batches,
    begin_walk,
    copy_async,
    finished,
    load_columns,
    load_spans,
    make_signals,
    result_of,
    side_by_side,
    strip_layout,
    tile_pair,
    walk_edges,
)


@gluon.constexpr_function
def _copied(channels, half):
    """Layout of a copy of features of 64 rows: 16 bytes of a row; transposed, 4 rows of 8 channels, a number each."""
    if half:
        return gl.BlockedLayout([1, 8], [256 // channels, channels // 8], [4, 1], [1, 0])
    rest = [[0, b] for b in powers(4, 64)] + [[b, 0] for b in powers(8, channels)]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(rest[2:], lanes, rest[:2], [], [channels, 64])


@gluon.jit
def _room_of_rows(N: gl.constexpr, TYPE: gl.constexpr, DEEP: gl.constexpr):
    """Shared memory for DEEP matrices (64, N), or for TF32 (N, 64)."""
    if TYPE.primitive_bitwidth == 32:
        return allocate(DEEP, N, 64, TYPE)
    else:
        return allocate(DEEP, 64, N, TYPE)


@gluon.jit
def _walker(
    GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers, full, empty, strip, group, last, pairs, groups, scale,
    WHICH: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr,
    SHARP: gl.constexpr, FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: B of one tile of every pair, into shared memory as soon as there is room. The first loads of the next
    tiles are in flight meanwhile."""
    TYPE: gl.constexpr = GRAD.dtype.element_ty
    TILE: gl.constexpr = strip_layout(TYPE.primitive_bitwidth)
    grad = GRAD + strip * 16
    columns = load_columns(COLS, load_spans(SPLITS, group * 2 + WHICH, last, TILE))
    spans = load_spans(SPLITS, tile_pair(1, group, groups) * 2 + WHICH, last, TILE)
    first_loads = begin_walk(grad, ROW_X, COL_X, INVERSE, columns, P, NORMALISE, TILE)
    for turn in range(0, (pairs + groups - 1) // groups):
        following = load_columns(COLS, spans)
        spans = load_spans(SPLITS, tile_pair(turn + 2, group, groups) * 2 + WHICH, last, TILE)
        acc, _total = walk_edges(
            grad, COL_X, COLS, INVERSE, columns, first_loads, scale, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE,
            True, TILE,
        )  # fmt: skip
        columns = following
        first_loads = begin_walk(grad, ROW_X, COL_X, INVERSE, columns, P, NORMALISE, TILE)
        slot = turn % DEEP
        mbarrier.wait(empty.index(slot), (turn // DEEP + 1) % 2)
        for i in gl.static_range(batches(M)):
            sums = side_by_side(acc, batch_first(M, i), batch_size(M, i), TYPE)
            if TYPE.primitive_bitwidth == 32:
                sums = gl.permute(sums, (1, 0))
            buffers[i].index(slot).store(sums)
        await_copies()
        mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def _ask(F, buffer, tile, last, Q: gl.constexpr):
    """Begins to copy features of a tile. Those past the last row are copies of it: their sums are zero."""
    HALF: gl.constexpr = F.dtype.element_ty != gl.float32
    COPIED: gl.constexpr = _copied(Q, HALF)
    row = gl.minimum(tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1 if HALF else 0, COPIED)), last - 1)
    q = gl.arange(0, Q, layout=gl.SliceLayout(0 if HALF else 1, COPIED))
    if HALF:
        copy_async(buffer, F + row[:, None] * Q + q[None, :])
    else:
        copy_async(buffer, F + row[None, :] * Q + q[:, None])
    async_copy.commit_group()


@gluon.jit
def _multiplier(
    F, PARTS, buffers, features, full, empty, strip, group, last, pairs, groups, Q: gl.constexpr, P: gl.constexpr,
    M: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: F^T B of what the walkers leave, and the copies of F for it."""
    HALF: gl.constexpr = F.dtype.element_ty != gl.float32
    BITS: gl.constexpr = 16 if HALF else 32
    share = ()
    for i in gl.static_range(batches(M)):
        share = share + (
            gl.zeros([Q, 16 * batch_size(M, i)], gl.float32, layout=result_of(16 * batch_size(M, i), BITS)),
        )
    _ask(F, features.index(0), group * 2, last, Q)
    for turn in range(0, (pairs + groups - 1) // groups):
        # A zero that the compiler does not know: it would work out all operands before the loop, and keep them.
        zero = turn >> 30
        slot = turn % DEEP + zero
        for which in gl.static_range(2):
            following = tile_pair(turn, group, groups) * 2 + 1 if which == 0 else tile_pair(turn + 1, group, groups) * 2
            _ask(F, features.index(1 - which), following, last, Q)
            mbarrier.wait(full[which].index(slot), turn // DEEP % 2)
            async_copy.wait_group(1)
            await_copies()
            new = ()
            for i in gl.static_range(batches(M)):
                b = buffers[which][i].index(slot)
                f = features.index(which + zero)
                if HALF:
                    new = new + (warpgroup_mma(f.permute((1, 0)), b, share[i], is_async=True),)
                else:
                    new = new + (warpgroup_mma(f, b.permute((1, 0)), share[i], is_async=True),)
            share = finished(new, batches(M))
            barrier()
            mbarrier.arrive(empty[which].index(slot), count=1)
    async_copy.wait_group(0)
    for i in gl.static_range(batches(M)):
        part = PARTS + (group * M + batch_first(M, i)) * (Q * P) + strip * 16
        _write(part, share[i], Q, P, 16 * batch_size(M, i), BITS)


@gluon.jit
def _write(part, share, Q: gl.constexpr, P: gl.constexpr, N: gl.constexpr, BITS: gl.constexpr):
    """Store a share (Q, N) whose columns are terms, 16 channels each."""
    MMA: gl.constexpr = result_of(N, BITS)
    q = gl.arange(0, Q, layout=gl.SliceLayout(1, MMA))
    n = gl.arange(0, N, layout=gl.SliceLayout(0, MMA))
    gl.store(part + ((n // 16) * (Q * P) + n % 16)[None, :] + q[:, None] * P, share)


@gluon.jit(do_not_specialize=["last", "pairs", "groups"])
def weight_kernel(
    GRAD, F, ROW_X, COL_X, SPLITS, COLS, INVERSE, PARTS, last, pairs, groups, scale,
    Q: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """PARTS (groups, M, Q, P) float32: each group's share of the weight's gradient F^T B, with B = N^T dF'. A group has
    a program for each strip of P. DEEP sums of a walker may wait for their product.
    """
    TYPE: gl.constexpr = F.dtype.element_ty
    strip = gl.program_id(0) % (P // 16)
    group = gl.program_id(0) // (P // 16)
    features = _room_of_rows(Q, TYPE, 2)
    buffers = ()
    for _ in gl.static_range(2):
        parts = ()
        for i in gl.static_range(batches(M)):
            parts = parts + (_room_of_rows(16 * batch_size(M, i), TYPE, DEEP),)
        buffers = buffers + (parts,)
    full, empty = make_signals(DEEP)
    await_copies()
    gl.warp_specialize(
        [
            (_multiplier, (F, PARTS, buffers, features, full, empty, strip, group, last, pairs, groups, Q, P, M, DEEP)),
            (_walker, (GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers[0], full[0], empty[0], strip, group, last,
                       pairs, groups, scale, 0, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, DEEP)),
            (_walker, (GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers[1], full[1], empty[1], strip, group, last,
                       pairs, groups, scale, 1, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, DEEP)),
        ],
        [4, 4],
        [152, 152],
    )  # fmt: skip
