"""The ball search of large examples on the GPU: a sorted grid.

Up to three dimensions are used to cut the search down. Two of them cut each example into columns at least a radius
wide; inside a column the sources are sorted along the third. A target meets at most 3 x 3 columns, and in each the run
of sources within a radius along the third, found by bisection: 18 r^3 of candidates for a ball of 4.2 r^3. Columns are
few enough for a table, whatever the shape of the cloud.

Targets are taken in the same order, so that the threads of a warp meet the same candidates. One kernel, run twice,
counts and fills; rows are then sorted on chip. Cells are computed in float64 by monotone functions, clamped to the
grid, with margins far above rounding: a pair inside the radius is never missed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry import gpu_common as common
from gridless.geometry.checks import check_edge_count
from gridless.geometry.gpu_common import example_of, from_bits, load_point, squared_to
from gridless.kernels.launch import INT32, Launcher, cdiv
from gridless.structures import Cloud

_BLOCK = 128

# The most columns per source.
_COLUMNS = 4

# Targets searched together, by one warp.
_TARGETS = 32


class Grid(NamedTuple):
    """The sources in order of column and height, and where each column begins and ends."""

    cells: tuple[int, int, int]  # columns along two axes, levels of the third
    frame: tuple[float, ...]  # low and cells per unit of the three, reach
    key: Tensor  # (S) int32, ascending: column * levels + level
    coords: Tensor  # (D, S)
    index: Tensor  # (S) int64
    start: Tensor  # (columns)
    end: Tensor  # (columns)


def ball(source: Cloud, target: Cloud, radius: float, limit: int | None) -> tuple[Tensor, Tensor, Tensor, int]:
    """splits, splits within the limit, all sources found in ascending order, and how many the limit leaves."""
    totals = torch.zeros(3, dtype=torch.int64, device=target.device)
    grid, key, order, counts = begin(source, target, radius, limit, totals)
    splits = common.splits_from(counts)
    wanted = splits if limit is None else common.splits_from(counts.clamp(max=limit))
    total, kept, longest = totals.tolist()
    check_edge_count("ball", total)
    return splits, wanted, fill(source, target, radius, grid, key, order, splits, total, longest), kept


def begin(
    source: Cloud, target: Cloud, radius: float, limit: int | None, totals: Tensor
) -> tuple[Grid, Tensor, Tensor, Tensor]:
    """The grid, the targets in its order, and 0 and the neighbours of each target (1 + S') int64.

    totals (3), zeros, get their number, that within the limit, and the longest row.
    """
    grid = make_grid(source, radius)
    key, order = (grid.key, grid.index) if source is target else _sort(target, grid.cells, grid.frame)
    counts = torch.empty(len(target) + 1, dtype=torch.int64, device=target.device)
    _run(source, target, grid, key, order, radius, limit, totals, counts, 0, False)
    return grid, key, order, counts


def fill(
    source: Cloud,
    target: Cloud,
    radius: float,
    grid: Grid,
    key: Tensor,
    order: Tensor,
    splits: Tensor,
    room: int,
    longest: int,
) -> Tensor:
    """The first `room` edges of rows of which the longest has so many."""
    found = torch.empty(room, dtype=torch.int32, device=target.device)
    if room:
        _run(source, target, grid, key, order, radius, None, splits, found, room, True)
        found = common.sort_rows(splits, found, longest)
    return found


def count(source: Cloud, target: Cloud, radius: float) -> Tensor:
    """Sources within the radius of each target (S') int64."""
    return begin(source, target, radius, None, torch.zeros(3, dtype=torch.int64, device=target.device))[3][1:]


def make_grid(source: Cloud, radius: float) -> Grid:
    box = common.facts(source, "ball: source")
    device, points = source.device, len(source)
    cells, frame = _frame(source, box, radius)
    across, up, levels = cells
    key, order = _sort(source, cells, frame)
    coords = torch.empty((source.dim, points), dtype=source.coords.dtype, device=device)
    # Whole multiples of 16 bytes, so that the second row begins as the first does: kernels are compiled for where.
    table = torch.zeros((2, -(-across * up * source.num_examples // 4) * 4), dtype=torch.int32, device=device)
    tensors = (source.coords, key, order, coords, table[0], table[1])
    _ARRANGE(
        (cdiv(points, _BLOCK), 1, 1), tensors, (points, across * up * source.num_examples, levels), (source.dim, _BLOCK)
    )
    return Grid(cells, frame, key, coords, order, table[0], table[1])


def _frame(source: Cloud, box: common.Facts, radius: float) -> tuple[tuple[int, int, int], tuple[float, ...]]:
    """The cells and the frame of a grid."""
    dim = source.dim
    # A column is a little wider than the reach, and the reach a little longer than the radius.
    reach, side = radius * (1 + 2**-12), radius * (1 + 2**-9)
    extent = [
        high / 2 - low / 2 for low, high in zip(box.low, box.high, strict=True)
    ]  # halved: a difference may overflow
    axes = [0, 1, 2][: min(dim, 3)]
    budget = min(max(_COLUMNS * len(source), 1024), 1 << 24)
    across, up = (int(min(max(2 * (extent[axis] / side), 1.0), budget)) if axis in axes[:-1] else 1 for axis in (0, 1))
    while across * up * source.num_examples > budget and max(across, up) > 1:
        if across >= up:
            across = (across + 1) // 2
        else:
            up = (up + 1) // 2
    levels = min((2**31 - 1) // (across * up * source.num_examples + 1), 1 << 16)
    frame: list[float] = []
    for axis, count in ((0, across), (1, up), (axes[-1], levels)):
        cut = count > 1 and extent[axis] > 0
        frame += [box.low[axis] / 2, count / extent[axis]] if cut else [0.0, 0.0]
    return (across, up, levels), (*frame, reach)


def _sort(cloud: Cloud, cells: tuple[int, int, int], frame: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Keys of a cloud in a grid, ascending, and the rows they belong to; padding comes last."""
    key = torch.empty(len(cloud), dtype=torch.int32, device=cloud.device)
    sizes = (len(cloud), cloud.num_examples, *cells, *frame[:6])
    _KEYS((cdiv(len(cloud), _BLOCK), 1, 1), (cloud.coords, cloud.splits, key), sizes, (cloud.dim, _BLOCK))
    return torch.sort(key)


def _run(
    source: Cloud,
    target: Cloud,
    grid: Grid,
    key: Tensor,
    order: Tensor,
    radius: float,
    limit: int | None,
    places: Tensor,
    out: Tensor,
    room: int,
    fill: bool,
) -> None:
    """Fill the rows `out` that begin at `places`, up to `room`; or count them into `out`, and all into `places`."""
    gridded = (grid.coords, grid.key, grid.index, grid.start, grid.end)
    bits = common.squared_bits(radius, source.coords.dtype)
    most = INT32 - 1 if limit is None else min(limit, INT32 - 1)
    sizes = (len(target), target.num_examples, len(source), *grid.cells, *grid.frame, *bits, most, room)
    constants = (source.dim, _TARGETS, source.coords.dtype == torch.float64, fill)
    _SEARCH(
        (cdiv(len(target), _TARGETS), 1, 1), (target.coords, key, order, *gridded, places, out), sizes, constants, 1
    )


@triton.jit
def _cell(x, shift, low, scale, count):
    """The cell of x + shift along one axis, clamped to the grid; never descends as x ascends."""
    u = ((x.to(tl.float64) + shift) * 0.5 - low) * scale
    # Counts of cells are exact in float32, and a count of 1 is a constant to the compiler.
    return tl.minimum(tl.maximum(u, 0.0), count - 1.0).to(tl.int32)


@triton.jit(do_not_specialize=["rows", "examples", "across", "up", "levels"])
def _keys(
    coords,
    splits,
    key,
    rows,
    examples,
    across,
    up,
    levels,
    x_low: tl.float64,
    x_scale: tl.float64,
    y_low: tl.float64,
    y_scale: tl.float64,
    z_low: tl.float64,
    z_scale: tl.float64,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = row < rows
    example = example_of(splits, row, examples)
    x, y, z = _axes(load_point(coords, row, ok, D), D)
    cx = _cell(x, 0.0, x_low, x_scale, across)
    cy = _cell(y, 0.0, y_low, y_scale, up)
    cz = _cell(z, 0.0, z_low, z_scale, levels)
    # Padding rows have example B, and so a key past every column.
    column = tl.where(example < examples, (example * across + cx) * up + cy, examples * across * up)
    tl.store(key + row, column * levels + tl.where(example < examples, cz, 0), mask=ok)


@triton.jit
def _axes(point, D: tl.constexpr):
    """The three coordinates that are gridded; the last of them is the one sources are sorted along."""
    return point[0], point[1 if D > 2 else 0], point[2 if D > 2 else D - 1]


@triton.jit(do_not_specialize=["rows", "columns", "levels"])
def _arrange(coords, key, order, arranged, start, end, rows, columns, levels, D: tl.constexpr, BLOCK: tl.constexpr):
    """Coordinates in key order, one dimension after the other; the first and last of a column write its ends."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    ok = at < rows
    row = tl.load(order + at, mask=ok, other=0).to(tl.int64)
    for k in tl.static_range(D):
        x = tl.load(coords + row * D + k, mask=ok, other=0.0)
        tl.store(arranged + (at * 0 + rows) * k + at, x, mask=ok)
    column = tl.load(key + at, mask=ok, other=0) // levels
    before = tl.load(key + at - 1, mask=ok & (at > 0), other=0) // levels
    after = tl.load(key + at + 1, mask=at + 1 < rows, other=0) // levels
    # Padding is past every column.
    real = ok & (column < columns)
    tl.store(start + column, at.to(tl.int32), mask=real & ((at == 0) | (before != column)))
    tl.store(end + column, (at + 1).to(tl.int32), mask=real & ((at + 1 == rows) | (after != column)))


@triton.jit(do_not_specialize=["rows", "examples", "sources", "across", "up", "levels", "high", "low", "most", "room"])
def _search(
    target,
    key,
    order,
    arranged,
    source_key,
    index,
    start,
    end,
    places,
    out,
    rows,
    examples,
    sources,
    across,
    up,
    levels,
    x_low: tl.float64,
    x_scale: tl.float64,
    y_low: tl.float64,
    y_scale: tl.float64,
    z_low: tl.float64,
    z_scale: tl.float64,
    reach: tl.float64,
    high,
    low,
    most,
    room,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    DOUBLE: tl.constexpr,
    FILL: tl.constexpr,
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    example = tl.load(key + at, mask=at < rows, other=0) // levels // (across * up)
    ok = (at < rows) & (example < examples)
    row = tl.load(order + at, mask=at < rows, other=0).to(tl.int64)
    point = load_point(target, row, ok, D)
    x, y, z = _axes(point, D)
    within = from_bits(high, low, DOUBLE)
    x_first = _cell(x, -reach, x_low, x_scale, across)
    x_last = _cell(x, reach, x_low, x_scale, across)
    y_first = _cell(y, -reach, y_low, y_scale, up)
    y_last = _cell(y, reach, y_low, y_scale, up)
    z_first = _cell(z, -reach, z_low, z_scale, levels)
    z_last = _cell(z, reach, z_low, z_scale, levels)
    total = tl.zeros([BLOCK], tl.int32)
    place = tl.zeros([BLOCK], tl.int64)
    if FILL:
        place = tl.load(places + row, mask=ok, other=0)
    for ox in range(0, tl.max(x_last - x_first, 0) + 1):
        for oy in range(0, tl.max(y_last - y_first, 0) + 1):
            cx = x_first + ox
            cy = y_first + oy
            met = ok & (cx <= x_last) & (cy <= y_last)
            column = (example * across + cx) * up + cy
            first = tl.load(start + column, mask=met, other=0)
            last = tl.load(end + column, mask=met, other=0)
            # Bisect for the first key >= (column, z_first) and the first key > (column, z_last).
            begin = first
            begin_top = last
            stop = first
            stop_top = last
            steps = tl.max(last - first, 0)
            while steps > 0:
                m = (begin + begin_top) // 2
                up_one = (begin < begin_top) & (
                    tl.load(source_key + m, mask=begin < begin_top, other=0) < column * levels + z_first
                )
                begin_top = tl.where(up_one, begin_top, m)
                begin = tl.where(up_one, m + 1, begin)
                n = (stop + stop_top) // 2
                up_two = (stop < stop_top) & (
                    tl.load(source_key + n, mask=stop < stop_top, other=0) <= column * levels + z_last
                )
                stop_top = tl.where(up_two, stop_top, n)
                stop = tl.where(up_two, n + 1, stop)
                steps = steps // 2
            for k in range(0, tl.max(stop - begin, 0)):
                p = begin + k
                here = p < stop
                hit = here & (squared_to(arranged, p, here, sources, point, D) <= within)
                if FILL:
                    found = tl.load(index + p, mask=hit, other=0).to(tl.int32)
                    tl.store(out + place, found, mask=hit & (place < room))
                    place += hit.to(tl.int32)
                else:
                    total += hit.to(tl.int32)
    if not FILL:
        tl.store(out + at, 0, mask=at == 0)
        tl.store(out + 1 + row, total, mask=at < rows)
        tl.atomic_add(places, tl.sum(total.to(tl.int64), 0), sem="relaxed")
        tl.atomic_add(places + 1, tl.sum(tl.minimum(total, most).to(tl.int64), 0), sem="relaxed")
        tl.atomic_max(places + 2, tl.max(total, 0).to(tl.int64), sem="relaxed")


_KEYS, _ARRANGE, _SEARCH = (Launcher(kernel, exact=True) for kernel in (_keys, _arrange, _search))
