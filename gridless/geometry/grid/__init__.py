"""Grid sampling: one point for each cell of a regular grid."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.checks import check_cloud
from gridless.geometry.grid import reference
from gridless.structures import Cloud, Rows

KEEPS = ("first", "nearest", "mean")
REDUCTIONS = ("kept", "mean", "most")
# float64 numbers cells up to here without a gap.
_FAR = float(1 << 53)


@backends.uncompiled
def grid_sample(
    cloud: Cloud,
    cell: float,
    keep: str = "first",
    rows: Mapping[str, str] | None = None,
    origin: Sequence[float] | None = None,
) -> Cloud:
    """One point for each occupied cell of a grid, example by example.

    A point x is in the cell floor((x + origin) / cell), computed in float64, so that the cells of a scene stay the same
    when it is cut into tiles with coordinates of their own.

    A backend's `group(numbers, splits)` gets the cells (S, D) int64 of all points, without padding, and returns the
    first point of each occupied cell, ascending (C) int64, the place in that list of every point's cell (S) int64, and
    the splits of the list (B + 1) int64.

    Args:
        cloud: S points.
        cell: the side of a cell, in the units of the coordinates.
        keep: `first`, the point of the smallest index; `nearest`, the one nearest to the centre of the cell, the first
            of several; or `mean`, a new point in the middle of all of them.
        rows: how rows are reduced, by name: `kept`, that of the kept point (with `mean`, of the first one); `mean`,
            rounded for whole numbers; `most`, the commonest whole number, the smallest of several. By default `kept`,
            but with keep="mean" the mean of floating-point rows.
        origin: what is added to the coordinates (D) before they are numbered.
    Returns:
        Cloud in index order of the kept points (of the first ones for `mean`), with `parent_index` except for `mean`.
    """
    check_cloud("grid_sample", cloud)
    cell = check_cell(cell, keep)
    _check_rows(cloud, rows or {})
    begin = None if origin is None else torch.as_tensor(origin, dtype=torch.float64)
    if begin is not None and (begin.shape != (cloud.dim,) or not begin.isfinite().all()):
        raise ValueError(f"grid_sample: origin must be {cloud.dim} finite numbers, not {origin!r}")
    x, end = cloud.coords.detach(), len(cloud) - cloud.padding
    # The divisor is a tensor: on a GPU torch multiplies by the reciprocal of a number, and borders move.
    number = _placed(x[:end], begin).div_(x.new_full((), cell, dtype=torch.float64)).floor_()
    if end and float(number.abs().max()) >= _FAR:
        raise ValueError(f"grid_sample: cell {cell:g} is too small for these coordinates. Use a larger one.")
    number = number.long()
    chosen, inverse, splits = backends.implementation(reference, x.device).group(number, cloud.splits)
    if keep == "nearest" and end:
        squares = (_placed(x[:end], begin) - (number.double() + 0.5) * cell).square_()
        # Axis by axis: sums of torch are rounded differently on a GPU, and points may be equally near.
        closest = functools.reduce(torch.add, squares.unbind(1)).argsort(stable=True)
        order = closest[inverse[closest].argsort(stable=True)]
        chosen = order[_begins(inverse[order])]
        # In index order again: cells change places within their example.
        chosen, places = chosen.sort()
        inverse = places.argsort()[inverse]
    sample = cloud.sampled(chosen, splits)
    ways = {name: "mean" if keep == "mean" and v.is_floating_point() else "kept" for name, v in cloud.rows.items()}
    ways |= dict(rows or {})
    if not end or (keep != "mean" and set(ways.values()) <= {"kept"}):
        return sample if keep != "mean" else sample._changed(parent_index=None, num_parent=0)
    order, sizes = inverse.argsort(stable=True), torch.bincount(inverse, minlength=len(chosen))
    reduced = {
        name: sample.rows[name] if way == "kept" else _REDUCE[way](cloud.rows[name][:end], order, inverse, sizes)
        for name, way in ways.items()
    }
    if keep != "mean":
        return sample._changed(rows=Rows(reduced))
    middle = _mean(cloud.coords[:end], order, inverse, sizes)
    return sample._changed(coords=middle, rows=Rows(reduced), parent_index=None, num_parent=0)


def check_cell(cell: float, keep: str) -> float:
    """The side of a cell as a float; refuse what is none, and what cannot be kept of it."""
    if isinstance(cell, bool | str) or not hasattr(cell, "__float__") or not 0 < float(cell) < float("inf"):
        raise ValueError(f"grid_sample: cell must be a positive number, in the units of the points, not {cell!r}")
    if keep not in KEEPS:
        raise ValueError(f"grid_sample: keep must be one of {', '.join(KEEPS)}, not {keep!r}")
    return float(cell)


def _placed(x: Tensor, origin: Tensor | None) -> Tensor:
    """Coordinates in float64, from an origin: a copy."""
    where = x.to(torch.float64, copy=True)
    return where if origin is None else where.add_(origin.to(x.device))


def _check_rows(cloud: Cloud, rows: Mapping[str, str]) -> None:
    for name, way in rows.items():
        values = cloud.rows[name]
        if way not in REDUCTIONS:
            raise ValueError(
                f"grid_sample: the reduction of rows {name!r} is {way!r}. Choose from {', '.join(REDUCTIONS)}."
            )
        if way != "kept" and values.is_complex():
            raise ValueError(f"grid_sample: rows {name!r} are complex. Use kept.")
        if way == "most" and (values.ndim != 1 or values.is_floating_point()):
            raise ValueError(
                f"grid_sample: rows {name!r} must be one whole number per point for `most`. Use mean or kept."
            )


def _begins(values: Tensor) -> Tensor:
    """Mask of the first value of each run of equal values (S) bool."""
    return torch.cat([values.new_ones(min(len(values), 1), dtype=torch.bool), values[1:] != values[:-1]])


def _mean(values: Tensor, order: Tensor, inverse: Tensor, sizes: Tensor) -> Tensor:
    """The mean of each cell, its points added in index order."""
    if not values.is_floating_point():
        # Averages are relative to a number near them, as float64 skips whole numbers beyond 2^53. It is even, so that
        # halves are rounded to even.
        base = values[order[sizes.cumsum(0) - sizes]].long() & -2
        apart = _mean((values.long() - base[inverse]).double(), order, inverse, sizes)
        return (base + apart.round().long()).to(values.dtype)
    flat = values[order].double().flatten(1) if values.ndim > 1 else values[order].double()[:, None]
    sums = torch.segment_reduce(flat, "sum", lengths=sizes, axis=0)
    return (sums / sizes[:, None]).reshape(len(sizes), *values.shape[1:]).to(values.dtype)


def _most(values: Tensor, order: Tensor, inverse: Tensor, sizes: Tensor) -> Tensor:
    by_value = values.long().argsort(stable=True)
    order = by_value[inverse[by_value].argsort(stable=True)]
    cells, sorted_values = inverse[order], values[order]
    starts = (_begins(cells) | _begins(sorted_values)).nonzero()[:, 0]
    lengths = torch.cat([starts[1:], starts.new_tensor([len(order)])]) - starts
    longest = lengths.argsort(descending=True, stable=True)
    longest = longest[cells[starts[longest]].argsort(stable=True)]
    return sorted_values[starts[longest[_begins(cells[starts[longest]])]]]


_REDUCE = {"mean": _mean, "most": _most}
