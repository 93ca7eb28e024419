"""The convolution over taps in Triton: implicit matrix products over tiles of rows that have the same taps.

Rows are sorted by the set of taps at which they have a source, and cut into tiles; a tile multiplies by the weights of
the taps that any of its rows has. Taps are taken in groups, each with an order of its rows: fewer taps have fewer sets,
so that tiles are filled better (groups of 27 taps on a LiDAR scan of 5 cm multiply 1.9, 1.3, 1.1 times the edges). The
sums of one group are added to those of the group before it: no atomics, the same bits in every run.
"""

# pyright: reportArgumentType=false, reportAssignmentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels import tf32
from gridless.kernels.launch import INT32, Launcher, cdiv, is_compiling_ahead, power_of_two
from gridless.kernels.tf32 import high_part, parts, three_products
from gridless.structures.tap_edges import Pairs, TapEdges

# Taps of a group at most: their set is a key of 64 bits.
_BITS = 62
# Programs of the gradient of the weight: a few for each multiprocessor.
_PROGRAMS = 264
# Rows that are put into tap order together.
_PART = 1024
# Sums of rows that are added up to the gradient of the bias.
_SUMS = 512


class TileShape(NamedTuple):
    """Tiling of a kernel: rows, columns and steps of a product, warps, steps in flight, and groups of taps."""

    rows: int
    columns: int
    steps: int
    warps: int
    stages: int
    groups: int


class TapGroup(NamedTuple):
    """The rows of some taps in tiles: those of tile t are rows[t], and its entries begin[t] to begin[t + 1]. Entry e is
    tap taps[e], at which row r of the tile has source gather[e, r]."""

    rows: Tensor  # (tiles, B) int32, -1 beyond the last row
    begin: Tensor  # (tiles + 1) int64, perhaps more
    taps: Tensor  # (entries) int32
    gather: Tensor  # (entries, B) int32, -1 where a row has no source


def conv(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges) -> Tensor:
    return _product(features, weight, bias, edges, flip=False, transposed=False)


def conv_backward(
    grad: Tensor, features: Tensor, weight: Tensor, edges: TapEdges,
    need_features: bool, need_weight: bool, need_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    d_features = d_weight = d_bias = None
    # First what needs room for partial sums, which is free again before the gradient of the features is made.
    if need_weight:
        d_weight = _weight_gradient(grad, features, weight, edges)
    if need_bias:
        d_bias = _sum_of_rows(grad)
    if need_features:
        # Seen from the sources, opposite taps of symmetric edges change places: the same tiles serve.
        back = edges if edges.symmetric else edges.transpose()
        d_features = _product(grad, weight, None, back, flip=edges.symmetric, transposed=True)
    return d_features, d_weight, d_bias


def _sum_of_rows(x: Tensor) -> Tensor:
    """The sum of the rows (S, P), in two steps: torch's sum over many rows takes room for up to twice as many."""
    wide, whole = _wide(x.dtype), len(x) - len(x) % _SUMS
    parts = x[:whole].view(_SUMS, whole // _SUMS, x.shape[1]).sum(1, dtype=wide)
    return torch.cat([parts, x[whole:].to(wide)]).sum(0).to(x.dtype)


def _product(
    rows: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges, flip: bool, transposed: bool
) -> Tensor:
    """Sums over the taps k of rows[j] Theta(k), or of rows[j] Theta(k)^T; with `flip`, Theta(T - 1 - k)."""
    taps, *sides = weight.shape
    channels, width = sides[::-1] if transposed else sides
    out = rows.new_empty(edges.num_target, width)
    if not out.numel():
        return out
    if not taps or not channels or not edges.num_source:
        return out.zero_() if bias is None else out.copy_(bias.expand_as(out))
    precision = _precision(rows.dtype)
    tile = product_tile(rows.dtype, precision, taps, channels, width)
    # Tensor cores take float32 only with steps side by side, 16 bits in both orders.
    k_major = transposed or rows.dtype == torch.float32
    theta = weight.transpose(1, 2) if k_major and not transposed else weight
    if precision == "tf32x3":
        theta, low = parts(theta)
    else:
        theta = low = theta.contiguous()
    groups = tiles_of(edges, tile.rows, tile.groups)
    wide = _wide(rows.dtype)
    sums = out if out.dtype == wide or len(groups) == 1 else out.new_empty(out.shape, dtype=wide)
    index = tl.int64 if max(rows.numel(), out.numel(), theta.numel()) >= INT32 else tl.int32
    blocks = cdiv(width, tile.columns)
    for n, group in enumerate(groups):
        last = n == len(groups) - 1
        into = out if last else sums
        constants = (
            channels, width, taps, tile.rows, tile.columns, tile.steps, blocks, n > 0,
            last and bias is not None, flip, k_major, precision, index,
        )  # fmt: skip
        tensors = (rows, theta, low, theta if bias is None else bias, *group, sums, into)
        _CONV((len(group.rows) * blocks, 1, 1), tensors, (), constants, tile.warps, None, tile.stages)
    return out


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def _precision(dtype: torch.dtype) -> str:
    """Precision of products."""
    return tf32.float32_precision() if dtype == torch.float32 else "ieee"


@lru_cache(1 << 12)
def product_tile(dtype: torch.dtype, precision: str, taps: int, channels: int, width: int) -> TileShape:
    """By trial on an H200: benchmarks/NOTES.md."""
    columns, deep = min(max(power_of_two(width), 16), 128), max(power_of_two(channels), 16)
    least = cdiv(taps, _BITS)
    if dtype == torch.float64:
        return TileShape(32, min(columns, 32), 16, 4, 1, least)
    if dtype != torch.float32:
        return TileShape(64, columns, min(deep, 64), 4, 3, least)
    # Long products: those of rows without the tap cost more than a second pass over the sums.
    exact = precision == "tf32x3"
    long = min(channels, width) >= (64 if exact else 256)
    columns = min(columns, 64 if exact else 128)
    return TileShape(64, columns, min(deep, 32), 4, 3, max(2 if long and taps > 8 else 1, least))


@lru_cache(1 << 12)
def weight_tile(dtype: torch.dtype, precision: str, channels: int, width: int) -> TileShape:
    """Rows are input channels, columns output channels, steps edges."""
    rows, columns = (min(max(power_of_two(n), 16), 128) for n in (channels, width))
    if dtype == torch.float64:
        return TileShape(min(rows, 32), min(columns, 32), 16, 4, 1, 1)
    warps = 8 if rows * columns > 64 * 128 else 4
    if precision == "tf32x3" and warps == 4:
        return TileShape(min(rows, 64), min(columns, 64), 64, 4, 3, 1)
    stages = 2 if precision == "tf32" else 3
    return TileShape(rows, columns, 32 if dtype == torch.float32 else 64, warps, stages, 1)


# Tiles of rows.


def tiles_of(edges: TapEdges, block: int, groups: int) -> tuple[TapGroup, ...]:
    """The rows of the edges in tiles of `block`, for each group of taps; cached."""
    return edges.cached(f"tiles of {block} in {groups}", lambda: _make_tiles(edges, block, groups))


def _make_tiles(edges: TapEdges, block: int, groups: int) -> tuple[TapGroup, ...]:
    """One sort and one pass for all groups. The host reads how many entries there are, and so how many edges: a graph
    that is captured has room for all."""
    table, (rows, taps) = edges.table, edges.table.shape
    share = cdiv(taps, groups)
    groups = cdiv(taps, share)
    # The group is above the bits of its taps.
    bits = share + (groups - 1).bit_length()
    dtype = torch.int16 if bits <= 15 else torch.int32 if bits <= 31 else torch.int64
    keys = torch.empty(groups * rows, dtype=dtype, device=table.device)
    room = power_of_two(share)
    strip = max(1024 // room, 1)
    _KEYS((cdiv(rows, strip), groups, 1), (table, keys), (rows,), (taps, groups, share, strip, room))
    # Rows with many taps first: tiles that take long begin early. Rows of equal keys stay in their order.
    ordered, order = torch.sort(keys, descending=True, stable=True)
    # Each group begins at a multiple of 16 bytes of each tensor.
    tiles = cdiv(cdiv(rows, block), 4) * 4
    counts = torch.empty(2, groups * tiles + 1, dtype=torch.int64, device=table.device)
    grid = (tiles, groups, 1)
    _COUNT(grid, (ordered, counts), (rows,), (groups, share, block), 2)
    ends = counts.cumsum(1)
    if is_compiling_ahead() or (table.is_cuda and torch.cuda.is_current_stream_capturing()):
        entries = tiles * taps
    else:
        entries, pairs = ends[:, -1].tolist()
        edges.cached("number of pairs", lambda: pairs)
    at = table.new_empty(groups, tiles, block), table.new_empty(entries), table.new_empty(entries, block)
    _TILES(grid, (table, order, ends, *at), (rows,), (taps, groups, share, block), 2)
    of_rows, of_taps, gather = at
    return tuple(TapGroup(of_rows[g], ends[0, g * tiles :], of_taps, gather) for g in range(groups))


@triton.jit(do_not_specialize=["rows"])
def _keys(
    TABLE, KEYS, rows, T: tl.constexpr, GROUPS: tl.constexpr, G: tl.constexpr, R: tl.constexpr, ROOM: tl.constexpr
):
    """KEYS (GROUPS, rows): bit k is set where a row has a source at tap k of the group, the bits above say which of the
    last groups it is. R rows of a group each."""
    row = tl.program_id(0) * R + tl.arange(0, R)
    k = tl.arange(0, ROOM)
    group = tl.program_id(1)
    tap = group * G + k
    inside = (row < rows)[:, None] & ((k < G) & (tap < T))[None, :]
    source = tl.load(TABLE + row.to(tl.int64)[:, None] * T + tap[None, :], inside, other=-1)
    bits = tl.where(source >= 0, tl.full([1, 1], 1, tl.int64) << k.to(tl.int64)[None, :], 0)
    key = tl.sum(bits, 1) + ((GROUPS - 1 - group).to(tl.int64) << G)
    tl.store(KEYS + group.to(tl.int64) * rows + row, key.to(KEYS.dtype.element_ty), row < rows)


@triton.jit(do_not_specialize=["rows"])
def _count(ORDERED, COUNTS, rows, GROUPS: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr):
    """COUNTS (2, 1 + tiles): of one tile how many taps any of its rows has, and how many edges there are."""
    group = tl.program_id(1)
    tiles = tl.num_programs(0)
    at = tl.program_id(0) * B + tl.arange(0, B)
    key = tl.load(ORDERED + group.to(tl.int64) * rows + at, at < rows, other=0).to(tl.int64)
    entries = 0
    edges = 0
    for k in range(0, SHARE):
        has = ((key >> k) & 1).to(tl.int32)
        entries += tl.max(has, 0)
        edges += tl.sum(has, 0)
    tile = group * tiles + tl.program_id(0)
    second = GROUPS * tiles + 1
    if tile == 0:
        tl.store(COUNTS, 0)
        tl.store(COUNTS + second, 0)
    tl.store(COUNTS + 1 + tile, entries)
    tl.store(COUNTS + second + 1 + tile, edges)


@triton.jit(do_not_specialize=["rows"])
def _tiles(
    TABLE, ORDER, BEGIN, ROWS, TAPS, GATHER, rows,
    T: tl.constexpr, GROUPS: tl.constexpr, SHARE: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """One tile: its rows, the taps that any of them has, and their sources."""
    group = tl.program_id(1)
    r = tl.arange(0, B)
    at = tl.program_id(0) * B + r
    before = group.to(tl.int64) * rows
    row = (tl.load(ORDER + before + at, at < rows, other=-1) - before).to(tl.int32)
    row = tl.where(at < rows, row, -1)
    tile = group * tl.num_programs(0) + tl.program_id(0)
    tl.store(ROWS + tile * B + r, row)
    entry = tl.load(BEGIN + tile)
    for tap in range(group * SHARE, tl.minimum(group * SHARE + SHARE, T)):
        source = tl.load(TABLE + row.to(tl.int64) * T + tap, row >= 0, other=-1)
        if tl.max(source, 0) >= 0:
            tl.store(TAPS + entry, tap)
            tl.store(GATHER + entry * B + r, source)
            entry += 1


# Products.


@triton.jit
def _conv(
    F, THETA, LOW, BIAS, ROWS, BEGIN, TAPS, GATHER, SUMS, OUT,
    Q: tl.constexpr, P: tl.constexpr, T: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BLOCKS: tl.constexpr, ADD: tl.constexpr,
    HAS_BIAS: tl.constexpr, FLIP: tl.constexpr, K_MAJOR: tl.constexpr, PRECISION: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """OUT of a tile of M rows and N columns: products with the weights of its taps, K input channels at a time.

    With ADD the sums of the groups before are read from SUMS. "tf32x3" multiplies high and low parts in three products,
    THETA and LOW those of the weight.
    """
    DTYPE: tl.constexpr = tl.float64 if F.dtype.element_ty == tl.float64 else tl.float32
    SPLIT: tl.constexpr = PRECISION == "tf32x3"
    CHUNKS: tl.constexpr = (Q + K - 1) // K
    tile = tl.program_id(0) // BLOCKS
    p = (tl.program_id(0) % BLOCKS) * N + tl.arange(0, N)
    r = tl.arange(0, M)
    k = tl.arange(0, K)
    acc = tl.zeros([M, N], DTYPE)
    first = tl.load(BEGIN + tile)
    count = (tl.load(BEGIN + tile + 1) - first).to(tl.int32)
    for step in range(0, count * CHUNKS):
        entry = first + step // CHUNKS
        q = (step % CHUNKS) * K + k
        source = tl.load(GATHER + entry * M + r)
        tap = tl.load(TAPS + entry)
        if FLIP:
            tap = T - 1 - tap
        a_mask = (source >= 0)[:, None]
        if Q % K != 0:
            a_mask = a_mask & (q < Q)[None, :]
        a = tl.load(F + source.to(INDEX)[:, None] * Q + q[None, :], a_mask, other=0.0)
        begin = tap.to(INDEX) * (Q * P)
        if K_MAJOR:
            b_mask = (p < P)[:, None] & (q < Q)[None, :]
            b_at = begin + p.to(INDEX)[:, None] * Q + q[None, :]
        else:
            b_mask = (q < Q)[:, None] & (p < P)[None, :]
            b_at = begin + q.to(INDEX)[:, None] * P + p[None, :]
        if Q % K == 0 and P % N == 0:
            b = tl.load(THETA + b_at)
        else:
            b = tl.load(THETA + b_at, b_mask, other=0.0)
        if SPLIT:
            if Q % K == 0 and P % N == 0:
                b_low = tl.load(LOW + b_at)
            else:
                b_low = tl.load(LOW + b_at, b_mask, other=0.0)
            if K_MAJOR:
                b, b_low = tl.trans(b), tl.trans(b_low)
            a_high = high_part(a)
            acc += three_products(a_high, a - a_high, b, b_low)
        else:
            if K_MAJOR:
                b = tl.trans(b)
            acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=DTYPE)
    row = tl.load(ROWS + tile * M + r)
    inside = (row >= 0)[:, None] & (p < P)[None, :]
    at = row.to(INDEX)[:, None] * P + p[None, :]
    if ADD:
        acc += tl.load(SUMS + at, inside, other=0.0)
    if HAS_BIAS:
        acc += tl.load(BIAS + p, p < P, other=0.0).to(DTYPE)[None, :]
    tl.store(OUT + at, acc.to(OUT.dtype.element_ty), inside)


# The gradient of the weight.


def _weight_gradient(grad: Tensor, features: Tensor, weight: Tensor, edges: TapEdges) -> Tensor:
    """Sums over the edges of each tap of F_j^T dF'_i.

    The edges in tap order are cut into equal parts, one for each program. A program writes what it sums up for each
    tap that it meets; part c and tap k meet in slot c + k, and no two pairs that meet share one.
    """
    taps, channels, width = weight.shape
    d_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    if not d_weight.numel() or not edges.num_target or not edges.num_source:
        return d_weight.zero_()
    pairs, precision = pairs_of(edges), _precision(grad.dtype)
    tile = weight_tile(grad.dtype, precision, channels, width)
    blocks = cdiv(channels, tile.rows), cdiv(width, tile.columns)
    # Few edges are few parts, which is known without reading how many there are.
    most = cdiv(min(edges.num_target, edges.num_source) * taps, 4 * tile.steps)
    parts = max(min(_PROGRAMS // (blocks[0] * blocks[1]), most), 1)
    partial = grad.new_empty(parts + taps, channels, width, dtype=_wide(grad.dtype))
    index = tl.int64 if max(features.numel(), grad.numel(), partial.numel()) >= INT32 else tl.int32
    constants = (channels, width, taps, tile.rows, tile.columns, tile.steps, precision, index)
    grid = (parts, *blocks)
    _WEIGHT(grid, (features, grad, *pairs, partial), (parts,), constants, tile.warps, None, tile.stages)
    size = channels * width
    _TOTAL((cdiv(size, 512), taps, 1), (partial, pairs.splits, d_weight), (parts,), (size, taps, tile.steps, 512))
    return d_weight


@triton.jit
def _part_length(SPLITS, parts, T: tl.constexpr, K: tl.constexpr):
    """Edges of a part: whole steps."""
    return tl.cdiv(tl.cdiv(tl.load(SPLITS + T), parts), K) * K


@triton.jit(do_not_specialize=["parts"])
def _weight(
    F, GRAD, SPLITS, TARGET, SOURCE, PARTIAL, parts,
    Q: tl.constexpr, P: tl.constexpr, T: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    PRECISION: tl.constexpr, INDEX: tl.constexpr,
):  # fmt: skip
    """PARTIAL (slots, Q, P): of M x N channels, the sums over the edges of one part, tap by tap, K edges at a time."""
    DTYPE: tl.constexpr = tl.float64 if F.dtype.element_ty == tl.float64 else tl.float32
    part = tl.program_id(0)
    q = tl.program_id(1) * M + tl.arange(0, M)
    p = tl.program_id(2) * N + tl.arange(0, N)
    k = tl.arange(0, K)
    length = _part_length(SPLITS, parts, T, K)
    low = part.to(tl.int64) * length
    high = low + length
    for tap in range(0, T):
        begin = tl.maximum(tl.load(SPLITS + tap), low)
        end = tl.minimum(tl.load(SPLITS + tap + 1), high)
        if begin < end:
            acc = tl.zeros([M, N], DTYPE)
            for e in range(begin, end, K):
                on = e + k < end
                j = tl.load(SOURCE + e + k, on, other=0)
                i = tl.load(TARGET + e + k, on, other=0)
                f = tl.load(F + j.to(INDEX)[:, None] * Q + q[None, :], on[:, None] & (q < Q)[None, :], other=0.0)
                g = tl.load(GRAD + i.to(INDEX)[:, None] * P + p[None, :], on[:, None] & (p < P)[None, :], other=0.0)
                if PRECISION == "tf32x3":
                    f_high, g_high = high_part(f), high_part(g)
                    f_low, g_low = f - f_high, g - g_high
                    acc += three_products(tl.trans(f_high), tl.trans(f_low), g_high, g_low)
                else:
                    acc = tl.dot(tl.trans(f), g, acc, input_precision=PRECISION, out_dtype=DTYPE)
            at = (part + tap).to(INDEX) * (Q * P) + q.to(INDEX)[:, None] * P + p[None, :]
            tl.store(PARTIAL + at, acc, (q < Q)[:, None] & (p < P)[None, :])


@triton.jit(do_not_specialize=["parts"])
def _total(PARTIAL, SPLITS, OUT, parts, SIZE: tl.constexpr, T: tl.constexpr, K: tl.constexpr, B: tl.constexpr):
    """OUT (T, SIZE): of one tap, the sum of what the parts that meet it wrote."""
    tap = tl.program_id(1)
    at = tl.program_id(0) * B + tl.arange(0, B)
    length = _part_length(SPLITS, parts, T, K)
    begin = tl.load(SPLITS + tap)
    end = tl.load(SPLITS + tap + 1)
    total = tl.zeros([B], PARTIAL.dtype.element_ty)
    if begin < end:
        for part in range(begin // length, (end - 1) // length + 1):
            total += tl.load(PARTIAL + (part + tap).to(tl.int64) * SIZE + at, at < SIZE, other=0.0)
    tl.store(OUT + tap.to(tl.int64) * SIZE + at, total.to(OUT.dtype.element_ty), at < SIZE)


def pairs_of(edges: TapEdges) -> Pairs:
    """`edges.pairs`; in a captured graph, which cannot know how many there are, with room for all."""
    return edges.cached("pairs", lambda: _pairs(edges))


def _pairs(edges: TapEdges) -> Pairs:
    table, (rows, taps) = edges.table, edges.table.shape
    parts = cdiv(rows, _PART)
    counts = torch.empty(1 + taps * parts, dtype=torch.int64, device=table.device)
    grid = (parts, taps, 1)
    _COUNT_PAIRS(grid, (table, counts), (rows,), (taps, _PART))
    ends = counts.cumsum(0)
    splits = ends[::parts].contiguous()
    if table.is_cuda and torch.cuda.is_current_stream_capturing():
        count = table.numel()
    else:
        # Tiles, where there are some, have counted them.
        count = edges.cached("number of pairs", lambda: int(ends[-1]))
    target, source = table.new_empty(count), table.new_empty(count)
    _PAIRS(grid, (table, ends, target, source), (rows,), (taps, _PART))
    return Pairs(splits, target, source)


@triton.jit(do_not_specialize=["rows"])
def _count_pairs(TABLE, COUNTS, rows, T: tl.constexpr, B: tl.constexpr):
    """COUNTS (1 + T * parts): how many edges B rows have at one tap."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    tap = tl.program_id(1)
    source = tl.load(TABLE + row.to(tl.int64) * T + tap, row < rows, other=-1)
    part = tap * tl.num_programs(0) + tl.program_id(0)
    if part == 0:
        tl.store(COUNTS, 0)
    tl.store(COUNTS + 1 + part, tl.sum((source >= 0).to(tl.int32), 0))


@triton.jit(do_not_specialize=["rows"])
def _place_pairs(TABLE, ENDS, TARGET, SOURCE, rows, T: tl.constexpr, B: tl.constexpr):
    """Writes the edges of B rows at one tap, behind those of the parts before."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    tap = tl.program_id(1)
    source = tl.load(TABLE + row.to(tl.int64) * T + tap, row < rows, other=-1)
    before = tl.load(ENDS + tap * tl.num_programs(0) + tl.program_id(0))
    at = before + tl.cumsum((source >= 0).to(tl.int32), 0) - 1
    tl.store(TARGET + at, row, source >= 0)
    tl.store(SOURCE + at, source, source >= 0)


_KEYS, _COUNT, _TILES = (Launcher(kernel, exact=True) for kernel in (_keys, _count, _tiles))
_COUNT_PAIRS, _PAIRS = Launcher(_count_pairs, exact=True), Launcher(_place_pairs, exact=True)
_CONV, _WEIGHT, _TOTAL = map(Launcher, (_conv, _weight, _total))
