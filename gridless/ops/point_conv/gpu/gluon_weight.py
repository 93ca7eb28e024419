"""The Gluon kernel of the weight's gradient, for layers whose gradient no multiprocessor can hold: strip by strip.

A program has 16 of the P channels, all Q and all terms, and warps of two kinds. Twice four walk: they make B = N^T dF'
of 64 rows, and leave it in shared memory. Four multiply: their share of F^T B stays in registers, as the result of
`wgmma`. They wait for each other only where sums find no room, or products no sums. Half precision as it is, float32 as
TF32, whose operands must lie along the rows: both are transposed on their way into shared memory.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from gridless.ops.point_conv.gpu.gluon_kernels import _add, _arrive, _barrier, _bases, _load_edge, _own_rows, _room
from gridless.ops.point_conv.gpu.triton_kernels import _load_point

# Renamed after Triton 3.6.
_copy = getattr(async_copy, "async_load", None) or async_copy.async_copy_global_to_shared


@gluon.constexpr_function
def _strip(bits):
    """64 rows and 16 channels: a row and 8 channels to a lane of four warps, as the lanes of a row make the values of
    its edges each for itself. What a warp writes to shared memory at a time meets each bank once."""
    mine, lane = ([[0, 1], [0, 2], [0, 4]], [0, 8]) if bits == 16 else ([[0, 1], [0, 2], [0, 8]], [0, 4])
    lanes = [[1, 0], [2, 0], [4, 0], [8, 0], lane]
    return gl.DistributedLinearLayout(mine, lanes, [[16, 0], [32, 0]], [], [64, 16])


@gluon.constexpr_function
def _copied(channels, half):
    """How features of 64 rows are copied: 16 bytes of a row; or, transposed, 4 rows of 8 channels, a number each."""
    if half:
        return gl.BlockedLayout([1, 8], [256 // channels, channels // 8], [4, 1], [1, 0])
    rest = [[0, b] for b in _bases(4, 64)] + [[b, 0] for b in _bases(8, channels)]
    lanes = [[0, 1], [0, 2], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(rest[2:], lanes, rest[:2], [], [channels, 64])


@gluon.constexpr_function
def _result(n, bits):
    """All n columns of 16 rows in a warp."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 256 // bits])


@gluon.constexpr_function
def _powers(terms):
    """The powers of two that the terms are: those of each are multiplied together, and tensors have no other sizes."""
    return [1 << b for b in range(terms.bit_length() - 1, -1, -1) if terms >> b & 1]


@gluon.constexpr_function
def _batches(terms):
    return len(_powers(terms))


@gluon.constexpr_function
def _size(terms, i):
    return _powers(terms)[i]


@gluon.constexpr_function
def _first(terms, i):
    return sum(_powers(terms)[:i])


@gluon.constexpr_function
def _log(count):
    return count.bit_length() - 1


@gluon.jit
def _room_of_rows(N: gl.constexpr, TYPE: gl.constexpr, DEEP: gl.constexpr):
    """Shared memory for DEEP matrices (64, N), or for TF32 (N, 64)."""
    if TYPE.primitive_bitwidth == 32:
        return _room(DEEP, N, 64, TYPE)
    else:
        return _room(DEEP, 64, N, TYPE)


@gluon.jit
def _together(acc, FIRST: gl.constexpr, COUNT: gl.constexpr, TYPE: gl.constexpr):
    """The sums (64, 16) of COUNT terms side by side, (64, 16 COUNT), or across for TF32, (16 COUNT, 64); nothing
    moves."""
    parts = ()
    for i in gl.static_range(COUNT):
        parts = parts + (acc[FIRST + i].to(TYPE),)
    for b in gl.static_range(_log(COUNT)):
        new = ()
        for i in gl.static_range(0, COUNT >> b, 2):
            pair = gl.permute(gl.join(parts[i], parts[i + 1]), (0, 2, 1))
            new = new + (gl.reshape(pair, [64, 32 << b]),)
        parts = new
    return gl.permute(parts[0], (1, 0)) if TYPE.primitive_bitwidth == 32 else parts[0]


@gluon.jit
def _pair(turn, group, groups):
    """The pair of tiles of a group in a turn: there and back, as neighbours may have long rows alike."""
    return turn * groups + group + turn % 2 * (groups - 1 - 2 * group)


@gluon.jit
def _spans(SPLITS, tile, last, TILE: gl.constexpr):
    """The rows of a tile, their first and last edges; and those of the rows of each warp, whose most edges count."""
    row = tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, TILE))
    first = gl.load(SPLITS + row, mask=row < last, other=0).to(gl.int32)
    end = gl.load(SPLITS + row + 1, mask=row < last, other=0).to(gl.int32)
    mine = tile * 64 + _own_rows(64, 4)
    low = gl.load(SPLITS + mine, mask=mine < last, other=0).to(gl.int32)
    high = gl.load(SPLITS + mine + 1, mask=mine < last, other=0).to(gl.int32)
    return row, first, end, low, high


@gluon.jit
def _columns(COLS, spans):
    """First and last edges of rows, their first two columns, and the most edges of a row of the warp."""
    row, first, end, low, high = spans
    col = gl.load(COLS + first, mask=first < end, other=0)
    then = gl.load(COLS + first + 1, mask=first + 1 < end, other=0)
    return row, first, end, col, then, gl.max(high - low, axis=0)


@gluon.jit
def _begin(
    GRAD, ROW_X, COL_X, INVERSE, found, P: gl.constexpr, NORMALISE: gl.constexpr, TILE: gl.constexpr
):  # fmt: skip
    """Coordinates of the rows, and their first edges."""
    row, first, end, col, _then, _most = found
    x = _load_point(ROW_X, row, first < end, 3)
    near, f = _load_edge(GRAD, COL_X, INVERSE, col, first < end, 16, P, NORMALISE, TILE)
    return x, near, f


@gluon.jit
def _walk(
    GRAD, COL_X, COLS, INVERSE, found, begun, scale, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr,
    TABLE: gl.constexpr, SHARP: gl.constexpr, FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, TILE: gl.constexpr,
):  # fmt: skip
    """As in `gluon_kernels`, with the first edge on its way; each warp goes as far as its own rows."""
    _row, first, end, _col, then, most = found
    x, near, f = begun
    acc = ()
    for _ in gl.static_range(M):
        acc = acc + (gl.zeros([64, 16], gl.float32, layout=TILE),)
    total = gl.zeros([64], gl.float32, layout=gl.SliceLayout(1, TILE))
    for k in range(0, most, 2):
        edge = first + k
        then_near, then_f = _load_edge(GRAD, COL_X, INVERSE, then, edge + 1 < end, 16, P, NORMALISE, TILE)
        col = gl.load(COLS + edge + 2, mask=edge + 2 < end, other=0)
        acc, total = _add(
            acc, total, near, f, x, edge < end, scale, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, True
        )  # fmt: skip
        if k + 1 < most:
            near, f = _load_edge(GRAD, COL_X, INVERSE, col, edge + 2 < end, 16, P, NORMALISE, TILE)
            then = gl.load(COLS + edge + 3, mask=edge + 3 < end, other=0)
            acc, total = _add(
                acc, total, then_near, then_f, x, edge + 1 < end, scale,
                M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, True,
            )  # fmt: skip
    return acc


@gluon.jit
def _walker(
    GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, kept, full, empty, strip, group, last, pairs, groups, scale,
    WHICH: gl.constexpr, P: gl.constexpr, M: gl.constexpr, KIND: gl.constexpr, TABLE: gl.constexpr,
    SHARP: gl.constexpr, FALLOFF: gl.constexpr, NORMALISE: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: B of one tile of every pair, into shared memory as soon as there is room. What following tiles begin
    with is on its way while one is walked."""
    TYPE: gl.constexpr = GRAD.dtype.element_ty
    TILE: gl.constexpr = _strip(TYPE.primitive_bitwidth)
    grad = GRAD + strip * 16
    found = _columns(COLS, _spans(SPLITS, group * 2 + WHICH, last, TILE))
    spans = _spans(SPLITS, _pair(1, group, groups) * 2 + WHICH, last, TILE)
    begun = _begin(grad, ROW_X, COL_X, INVERSE, found, P, NORMALISE, TILE)
    for turn in range(0, (pairs + groups - 1) // groups):
        following = _columns(COLS, spans)
        spans = _spans(SPLITS, _pair(turn + 2, group, groups) * 2 + WHICH, last, TILE)
        acc = _walk(
            grad, COL_X, COLS, INVERSE, found, begun, scale, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, TILE
        )  # fmt: skip
        found = following
        begun = _begin(grad, ROW_X, COL_X, INVERSE, found, P, NORMALISE, TILE)
        slot = turn % DEEP
        mbarrier.wait(empty.index(slot), (turn // DEEP + 1) % 2)
        for i in gl.static_range(_batches(M)):
            kept[i].index(slot).store(_together(acc, _first(M, i), _size(M, i), TYPE))
        _arrive()
        mbarrier.arrive(full.index(slot), count=1)


@gluon.jit
def _ask(F, buffer, tile, last, Q: gl.constexpr):
    """Begins to copy features of a tile. Those past the last row are copies of it: their sums are zero."""
    HALF: gl.constexpr = F.dtype.element_ty != gl.float32
    COPIED: gl.constexpr = _copied(Q, HALF)
    row = gl.minimum(tile * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1 if HALF else 0, COPIED)), last - 1)
    q = gl.arange(0, Q, layout=gl.SliceLayout(0 if HALF else 1, COPIED))
    if HALF:
        _copy(buffer, F + row[:, None] * Q + q[None, :])
    else:
        _copy(buffer, F + row[None, :] * Q + q[:, None])
    async_copy.commit_group()


@gluon.jit
def _multiplier(
    F, PARTS, kept, kept_f, full, empty, strip, group, last, pairs, groups, Q: gl.constexpr, P: gl.constexpr,
    M: gl.constexpr, DEEP: gl.constexpr,
):  # fmt: skip
    """Four warps: F^T B of what the walkers leave, and the copies of F for it."""
    HALF: gl.constexpr = F.dtype.element_ty != gl.float32
    BITS: gl.constexpr = 16 if HALF else 32
    share = ()
    for i in gl.static_range(_batches(M)):
        share = share + (gl.zeros([Q, 16 * _size(M, i)], gl.float32, layout=_result(16 * _size(M, i), BITS)),)
    _ask(F, kept_f.index(0), group * 2, last, Q)
    for turn in range(0, (pairs + groups - 1) // groups):
        # A zero that the compiler does not know: it would work out all operands before the loop, and keep them.
        zero = turn >> 30
        slot = turn % DEEP + zero
        for which in gl.static_range(2):
            following = _pair(turn, group, groups) * 2 + 1 if which == 0 else _pair(turn + 1, group, groups) * 2
            _ask(F, kept_f.index(1 - which), following, last, Q)
            mbarrier.wait(full[which].index(slot), turn // DEEP % 2)
            async_copy.wait_group(1)
            _arrive()
            new = ()
            for i in gl.static_range(_batches(M)):
                b = kept[which][i].index(slot)
                f = kept_f.index(which + zero)
                if HALF:
                    new = new + (warpgroup_mma(f.permute((1, 0)), b, share[i], is_async=True),)
                else:
                    new = new + (warpgroup_mma(f, b.permute((1, 0)), share[i], is_async=True),)
            share = _finished(new, _batches(M))
            _barrier()
            mbarrier.arrive(empty[which].index(slot), count=1)
    async_copy.wait_group(0)
    for i in gl.static_range(_batches(M)):
        _write(PARTS + (group * M + _first(M, i)) * (Q * P) + strip * 16, share[i], Q, P, 16 * _size(M, i), BITS)


@gluon.jit
def _finished(share, BATCHES: gl.constexpr):
    if BATCHES == 1:
        return (warpgroup_mma_wait(0, deps=share),)
    else:
        return warpgroup_mma_wait(0, deps=share)


@gluon.jit
def _write(part, share, Q: gl.constexpr, P: gl.constexpr, N: gl.constexpr, BITS: gl.constexpr):
    MMA: gl.constexpr = _result(N, BITS)
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
    kept_f = _room_of_rows(Q, TYPE, 2)
    kept = ()
    full = ()
    empty = ()
    for which in gl.static_range(2):
        mine = ()
        for i in gl.static_range(_batches(M)):
            mine = mine + (_room_of_rows(16 * _size(M, i), TYPE, DEEP),)
        kept = kept + (mine,)
        full = full + (gl.allocate_shared_memory(gl.int64, [DEEP, 1], mbarrier.MBarrierLayout()),)
        empty = empty + (gl.allocate_shared_memory(gl.int64, [DEEP, 1], mbarrier.MBarrierLayout()),)
        for d in gl.static_range(DEEP):
            mbarrier.init(full[which].index(d), count=1)
            mbarrier.init(empty[which].index(d), count=1)
    _arrive()
    gl.warp_specialize(
        [
            (_multiplier, (F, PARTS, kept, kept_f, full, empty, strip, group, last, pairs, groups, Q, P, M, DEEP)),
            (_walker, (GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, kept[0], full[0], empty[0], strip, group, last,
                       pairs, groups, scale, 0, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, DEEP)),
            (_walker, (GRAD, ROW_X, COL_X, SPLITS, COLS, INVERSE, kept[1], full[1], empty[1], strip, group, last,
                       pairs, groups, scale, 1, P, M, KIND, TABLE, SHARP, FALLOFF, NORMALISE, DEEP)),
        ],
        [4, 4],
        [152, 152],
    )  # fmt: skip
