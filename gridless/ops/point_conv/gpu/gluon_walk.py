"""Helpers of Gluon kernels with warps of two kinds: walkers sum over edges, multipliers use the sums.

Two groups of four warps walk, each over 64 rows and 16 channels at a time, and leave their sums in shared memory.
Walkers wait if there is no room for sums, multipliers if there are no sums.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from gridless.ops.point_conv.gpu.gluon_kernels import add_edge, load_edge, own_rows
from gridless.ops.point_conv.gpu.triton_kernels import load_point

# Renamed after Triton 3.6.
copy_async = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.constexpr_function
def strip_layout(bits):
    """64 rows and 16 channels: each lane of four warps has a row and 8 channels, because each lane of a row computes
    the values of its edges itself. One write of a warp to shared memory meets each bank once."""
    registers, lane = ([[0, 1], [0, 2], [0, 4]], [0, 8]) if bits == 16 else ([[0, 1], [0, 2], [0, 8]], [0, 4])
    lanes = [[1, 0], [2, 0], [4, 0], [8, 0], lane]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, 16])


@gluon.constexpr_function
def result_of(n, bits):
    """All n columns of 16 rows in a warp."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 256 // bits])


@gluon.constexpr_function
def _powers(terms):
    """The powers of two that the terms are: those of each are multiplied together, and tensors have no other sizes."""
    return [1 << b for b in range(terms.bit_length() - 1, -1, -1) if terms >> b & 1]


@gluon.constexpr_function
def batches(terms):
    return len(_powers(terms))


@gluon.constexpr_function
def batch_size(terms, i):
    return _powers(terms)[i]


@gluon.constexpr_function
def batch_first(terms, i):
    return sum(_powers(terms)[:i])


@gluon.constexpr_function
def _log(count):
    return count.bit_length() - 1


@gluon.jit
def make_signals(DEEP: gl.constexpr):
    """Barriers by which two walkers say that sums are there, `full`, and are told that they are used, `empty`."""
    full = ()
    empty = ()
    for which in gl.static_range(2):
        full = full + (gl.allocate_shared_memory(gl.int64, [DEEP, 1], mbarrier.MBarrierLayout()),)
        empty = empty + (gl.allocate_shared_memory(gl.int64, [DEEP, 1], mbarrier.MBarrierLayout()),)
        for d in gl.static_range(DEEP):
            mbarrier.init(full[which].index(d), count=1)
            mbarrier.init(empty[which].index(d), count=1)
    return full, empty


@gluon.jit
def side_by_side(acc, FIRST: gl.constexpr, COUNT: gl.constexpr, TYPE: gl.constexpr):
    """The sums (64, 16) of COUNT terms side by side, (64, 16 COUNT); nothing moves."""
    parts = ()
    for i in gl.static_range(COUNT):
        parts = parts + (acc[FIRST + i].to(TYPE),)
    for b in gl.static_range(_log(COUNT)):
        new = ()
        for i in gl.static_range(0, COUNT >> b, 2):
            pair = gl.permute(gl.join(parts[i], parts[i + 1]), (0, 2, 1))
            new = new + (gl.reshape(pair, [64, 32 << b]),)
        parts = new
    return parts[0]


@gluon.jit
def tile_pair(turn, group, groups):
    """The pair of tiles of a group in a turn: there and back, as neighbours may have long rows alike."""
    return turn * groups + group + turn % 2 * (groups - 1 - 2 * group)


@gluon.jit
def load_spans(SPLITS, tile, last, TILE: gl.constexpr):
    """The rows of a tile, their first and last edges; and those of the rows of each warp, whose most edges count."""
    row = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, TILE))
    first = gl.load(SPLITS + row, mask=row < last, other=0).to(gl.int32)
    end = gl.load(SPLITS + row + 1, mask=row < last, other=0).to(gl.int32)
    own_row = tile * 64 + own_rows(64, 4)
    low = gl.load(SPLITS + own_row, mask=own_row < last, other=0).to(gl.int32)
    high = gl.load(SPLITS + own_row + 1, mask=own_row < last, other=0).to(gl.int32)
    return row, first, end, low, high


@gluon.jit
def load_columns(COLS, spans):
    """First and last edges of rows, their first four columns, and the most edges of a row of the warp."""
    row, first, end, low, high = spans
    columns = ()
    for k in gl.static_range(4):
        columns = columns + (gl.load(COLS + first + k, mask=first + k < end, other=0),)
    return (row, first, end) + columns + (gl.max(high - low, axis=0),)


@gluon.jit
def begin_walk(
    F, ROW_X, COL_X, INVERSE, columns, STRIDE: gl.constexpr, SHARED: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """Coordinates of the rows, and their first two edges."""
    row, first, end, col, then, _third, _fourth, _most = columns
    x = load_point(ROW_X, row, first < end, 3)
    near, f = load_edge(F, COL_X, INVERSE, col, first < end, 16, STRIDE, SHARED, TILE)
    then_near, then_f = load_edge(F, COL_X, INVERSE, then, first + 1 < end, 16, STRIDE, SHARED, TILE)
    return x, near, f, then_near, then_f


@gluon.jit
def walk_edges(
    F, COL_X, COLS, INVERSE, columns, first_loads, scale, STRIDE: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr,
    TABLE: gl.constexpr, SHARP: gl.constexpr, FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, FLIP: gl.constexpr,
    TILE: gl.constexpr,
):  # fmt: skip
    """Sums over the edges of each row of w p_m F, (64, 16) per term, and W of the rows, with two edges on their way.
    Each warp stops at the last edge of its own rows."""
    SHARED: gl.constexpr = NORMALISE and FLIP
    _row, first, end, _col, _then, third, fourth, most = columns
    x, near, f, then_near, then_f = first_loads
    acc = ()
    for _ in gl.static_range(M):
        acc = acc + (gl.zeros([64, 16], gl.float32, layout=TILE),)
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, TILE))
    for k in range(0, most, 2):
        edge = first + k
        new_near, new_f = load_edge(F, COL_X, INVERSE, third, edge + 2 < end, 16, STRIDE, SHARED, TILE)
        third = gl.load(COLS + edge + 4, mask=edge + 4 < end, other=0)
        acc, total = add_edge(
            acc, total, near, f, x, edge < end, scale, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP
        )  # fmt: skip
        near = new_near
        f = new_f
        if k + 1 < most:
            new_near, new_f = load_edge(F, COL_X, INVERSE, fourth, edge + 3 < end, 16, STRIDE, SHARED, TILE)
            fourth = gl.load(COLS + edge + 5, mask=edge + 5 < end, other=0)
            acc, total = add_edge(
                acc, total, then_near, then_f, x, edge + 1 < end, scale,
                M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, FLIP,
            )  # fmt: skip
            then_near = new_near
            then_f = new_f
    return acc, total


@gluon.jit
def finished(share, BATCHES: gl.constexpr):
    """The results of all products, as a tuple, once they are done."""
    if BATCHES == 1:
        return (warpgroup_mma_wait(0, deps=share),)
    else:
        return warpgroup_mma_wait(0, deps=share)
