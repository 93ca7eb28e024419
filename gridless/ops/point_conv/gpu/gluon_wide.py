"""The Gluon kernel of layers of 128 channels, whose Theta no multiprocessor can hold: strip by strip.

A program takes pairs of tiles of 64 rows, one after the other, and has warps of two kinds (`gluon_walk`). Those that
walk make N F of 16 channels after 16. Those that multiply have the result of both tiles in registers, and copy what the
next strip needs of Theta. Half precision as it is, float32 as TF32.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma

from gridless.ops.point_conv.gpu.gluon_kernels import allocate, await_copies, barrier, channels_per_load, divided
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
from gridless.ops.point_conv.gpu.triton_kernels import inverse_or_zero


@gluon.constexpr_function
def _copied(columns, bits):
    """Rows of Theta, 16 bytes to a lane."""
    along = min(columns // channels_per_load(bits), 32)
    return gl.BlockedLayout([1, channels_per_load(bits)], [32 // along, along], [4, 1], [1, 0])


@gluon.jit
def _chosen(first, a, b):
    """a if `first`, else b, element by element of two equally long tuples."""
    new = ()
    for i in gl.static_range(len(a)):
        new = new + (gl.where(first, a[i], b[i]),)
    return new


@gluon.jit
def _walker(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers, full, empty, last, pairs, scale, WHICH: gl.constexpr,
    C: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: sums of one tile of every pair, strip after strip, into shared memory as soon as there is room. The
    first loads of the next strip or tile are in flight meanwhile."""
    TYPE: gl.constexpr = F.dtype.element_ty
    TILE: gl.constexpr = strip_layout(16)
    STRIPS: gl.constexpr = C // 16
    SHARED: gl.constexpr = NORMALISE and FLIP
    group = gl.program_id(0)
    groups = gl.num_programs(0)
    columns = load_columns(COLS, load_spans(SPLITS, group * 2 + WHICH, last, TILE))
    following = load_columns(COLS, load_spans(SPLITS, tile_pair(1, group, groups) * 2 + WHICH, last, TILE))
    spans = load_spans(SPLITS, tile_pair(2, group, groups) * 2 + WHICH, last, TILE)
    first_loads = begin_walk(F, ROW_X, COL_X, INVERSE, columns, C, SHARED, TILE)
    for step in range(0, (pairs + groups - 1) // groups * STRIPS):
        strip = step % STRIPS
        row = columns[0]
        acc, total = walk_edges(
            F + strip * 16, COL_X, COLS, INVERSE, columns, first_loads, scale,
            C, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, TILE,
        )  # fmt: skip
        done = strip == STRIPS - 1
        columns = _chosen(done, following, columns)
        first_loads = begin_walk(F + (step + 1) % STRIPS * 16, ROW_X, COL_X, INVERSE, columns, C, SHARED, TILE)
        if done:
            following = load_columns(COLS, spans)
            spans = load_spans(SPLITS, tile_pair(step // STRIPS + 3, group, groups) * 2 + WHICH, last, TILE)
        if NORMALISE and not FLIP:
            inverse = inverse_or_zero(total)
            if strip == 0:
                gl.store(INVERSE + row, inverse, mask=row < last)
            acc = divided(acc, inverse, M)
        slot = step % DEEP
        mbarrier.wait(empty.index(slot), (step // DEEP + 1) % 2)
        for i in gl.static_range(batches(M)):
            buffers[i].index(slot).store(side_by_side(acc, batch_first(M, i), batch_size(M, i), TYPE))
        await_copies()
        mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def _ask(
    THETA, theta, step, P: gl.constexpr, C: gl.constexpr, M: gl.constexpr, ALONG: gl.constexpr, DEEP: gl.constexpr
):  # fmt: skip
    """Begins to copy what the strip of a step is multiplied by."""
    strip = step % (C // 16)
    for i in gl.static_range(batches(M)):
        to = theta[i].index(step % DEEP)
        if ALONG:
            _copy_strip(THETA + batch_first(M, i) * (C * P) + strip * 16, to, P, 16 * batch_size(M, i), C, P, True)
        else:
            _copy_strip(THETA + batch_first(M, i) * (C * P) + strip * 16 * P, to, 16 * batch_size(M, i), P, C, P, False)
    async_copy.commit_group()


@gluon.jit
def _copy_strip(
    THETA, to, ROWS: gl.constexpr, COLUMNS: gl.constexpr, C: gl.constexpr, P: gl.constexpr, ALONG: gl.constexpr
):  # fmt: skip
    """16 channels of some terms: of Theta (M, P, C) a row for each of P, or of (M, C, P) one for each channel."""
    COPIED: gl.constexpr = _copied(COLUMNS, THETA.dtype.element_ty.primitive_bitwidth)
    row = gl.arange(0, ROWS, layout=gl.SliceLayout(1, COPIED))
    column = gl.arange(0, COLUMNS, layout=gl.SliceLayout(0, COPIED))
    if ALONG:
        copy_async(to, THETA + row[:, None] * C + (column // 16 * (C * P) + column % 16)[None, :])
    else:
        copy_async(to, THETA + (row // 16 * (C * P) + row % 16 * P)[:, None] + column[None, :])


@gluon.jit
def _multiplier(
    THETA, BIAS, OUT, buffers, theta, full, empty, last, pairs, C: gl.constexpr, P: gl.constexpr, M: gl.constexpr,
    HAS_BIAS: gl.constexpr, ALONG: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: what the walkers leave, times Theta."""
    TYPE: gl.constexpr = OUT.dtype.element_ty
    MMA: gl.constexpr = result_of(P, TYPE.primitive_bitwidth)
    STRIPS: gl.constexpr = C // 16
    group = gl.program_id(0)
    groups = gl.num_programs(0)
    _ask(THETA, theta, 0, P, C, M, ALONG, DEEP)
    for turn in range(0, (pairs + groups - 1) // groups):
        out = (gl.zeros([64, P], gl.float32, layout=MMA), gl.zeros([64, P], gl.float32, layout=MMA))
        for strip in range(0, STRIPS):
            step = turn * STRIPS + strip
            # A zero that the compiler does not know: it would work out all operands before the loop, and keep them.
            zero = step >> 30
            slot = step % DEEP + zero
            if DEEP > 1:
                _ask(THETA, theta, step + 1, P, C, M, ALONG, DEEP)
                async_copy.wait_group(1)
            else:
                async_copy.wait_group(0)
            new = ()
            for which in gl.static_range(2):
                mbarrier.wait(full[which].index(slot), step // DEEP % 2)
                if which == 0:
                    await_copies()
                product = out[which]
                for i in gl.static_range(batches(M)):
                    right = theta[i].index(slot).permute((1, 0)) if ALONG else theta[i].index(slot)
                    product = warpgroup_mma(buffers[which][i].index(slot), right, product, is_async=True)
                new = new + (product,)
            out = finished(new, 2)
            barrier()
            for which in gl.static_range(2):
                mbarrier.arrive(empty[which].index(slot), count=1)
            if DEEP == 1:
                _ask(THETA, theta, step + 1, P, C, M, ALONG, DEEP)
        column = gl.arange(0, P, layout=gl.SliceLayout(0, MMA))
        for which in gl.static_range(2):
            row = (tile_pair(turn, group, groups) * 2 + which) * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, MMA))
            result = out[which]
            if HAS_BIAS:
                result += gl.load(BIAS + column).to(gl.float32)[None, :]
            gl.store(OUT + row[:, None] * P + column[None, :], result.to(TYPE), mask=(row < last)[:, None])
    async_copy.wait_group(0)


@gluon.jit(do_not_specialize=["last", "pairs"])
def wide_kernel(
    F, ROW_X, COL_X, SPLITS, COLS, INVERSE, THETA, BIAS, OUT, last, pairs, scale,
    C: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr, SHARP: gl.constexpr,
    FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr, HAS_BIAS: gl.constexpr, ALONG: gl.constexpr,
    DEEP: gl.constexpr,
):  # fmt: skip
    """OUT (rows, P) = (N F) Theta + bias, or with FLIP the gradient of the features from that of the result, F.

    THETA is (M, P, C) with ALONG, as products of float32 need it, and (M, C, P) without. DEEP sums of a walker may wait
    for their product, and there is room for as many strips of Theta.
    """
    TYPE: gl.constexpr = F.dtype.element_ty
    theta = ()
    for i in gl.static_range(batches(M)):
        if ALONG:
            theta = theta + (allocate(DEEP, P, 16 * batch_size(M, i), TYPE),)
        else:
            theta = theta + (allocate(DEEP, 16 * batch_size(M, i), P, TYPE),)
    buffers = ()
    for _ in gl.static_range(2):
        parts = ()
        for i in gl.static_range(batches(M)):
            parts = parts + (allocate(DEEP, 64, 16 * batch_size(M, i), TYPE),)
        buffers = buffers + (parts,)
    full, empty = make_signals(DEEP)
    await_copies()
    gl.warp_specialize(
        [
            (_multiplier, (THETA, BIAS, OUT, buffers, theta, full, empty, last, pairs, C, P, M, HAS_BIAS, ALONG,
                           DEEP)),
            (_walker, (F, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers[0], full[0], empty[0], last, pairs, scale, 0,
                       C, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, DEEP)),
            (_walker, (F, ROW_X, COL_X, SPLITS, COLS, INVERSE, buffers[1], full[1], empty[1], last, pairs, scale, 1,
                       C, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP, DEEP)),
        ],
        [4, 4],
        [160, 160],
    )  # fmt: skip
