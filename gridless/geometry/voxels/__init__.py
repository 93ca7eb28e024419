"""Searches on integer coordinates: which voxel each voxel sees at each tap of a kernel.

Sites are (S, 1 + D) int32 or int64 with D from 1 to 4: the number of the example, then the coordinates, which may be
negative. A site is there once. Taps are counted as the entries of a kernel in torch, the last axis fastest:

    target i sees at tap k the source at  stride * site_i - padding + dilation * k      (k a D-tuple)

`kernel`, `stride`, `padding` and `dilation` are a number, or one for each axis. New sites are in lexicographic order
(example, first axis, second axis, ...), whatever the order of the sites they come from.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.checks import check_whole
from gridless.geometry.grid import grid_sample
from gridless.geometry.voxels import reference
from gridless.structures import Cloud, TapEdges, Voxels

# One number for all axes, or one for each.
Axes = int | Sequence[int]

# Products of coordinates and strides stay below this.
_FAR = 1 << 61
_INT32 = torch.iinfo(torch.int32)


@backends.uncompiled
def submanifold_taps(sites: Tensor, kernel: Axes = 3, dilation: Axes = 1) -> TapEdges:
    """Each site's neighbours among the sites, seen through a kernel whose middle tap is the site itself.

    The middle of an even kernel is entry kernel // 2. Where all sides are odd, the edges are `symmetric`.
    """
    dim = _check_sites("submanifold_taps", sites)
    sides, steps = _axes("kernel", kernel, dim), _axes("dilation", dilation, dim)
    padding = [step * (side // 2) for side, step in zip(sides, steps, strict=True)]
    edges = taps_between(sites, sites, sides, 1, padding, steps)
    return edges._changed(symmetric=all(side % 2 for side in sides))


@backends.uncompiled
def strided_taps(
    sites: Tensor,
    kernel: Axes,
    stride: Axes = 1,
    padding: Axes = 0,
    dilation: Axes = 1,
    shape: Sequence[int] | None = None,
) -> tuple[Tensor, TapEdges]:
    """The sites that see at least one of `sites` through the kernel, and what they see.

    Args:
        sites: (S, 1 + D).
        kernel: entries along each axis.
        stride: how much coarser the new grid is.
        padding: entries of the kernel before the first cell.
        dilation: cells between entries of the kernel.
        shape: the extent (D) of the grid that the sites are in, from 0. New sites then are those of a dense
            convolution: from 0 to below (shape + 2 padding - dilation (kernel - 1) - 1) // stride + 1. Without it there
            is no border.
    Returns:
        New sites (S', 1 + D) of the dtype of `sites`, and the edges from `sites` to them.
    """
    dim = _check_sites("strided_taps", sites)
    window = _Window.of(kernel, stride, padding, dilation, dim)
    extent = None if shape is None else window.extent("strided_taps", shape)
    target = None if extent is None else _inside(sites, window, extent)
    if target is None:
        target = _new_sites("strided_taps", sites, _seen_from(sites.long(), window), extent)
    return target, taps_between(sites, target, *window.settings)


@backends.uncompiled
def transposed_taps(
    sites: Tensor,
    kernel: Axes,
    stride: Axes = 1,
    padding: Axes = 0,
    dilation: Axes = 1,
    output_padding: Axes = 0,
    shape: Sequence[int] | None = None,
) -> tuple[Tensor, TapEdges]:
    """The sites stride * site - padding + dilation * k of all `sites` and taps, and what they see, as in a transposed
    convolution: new site j sees site i at tap k where j = stride * i - padding + dilation * k.

    Args:
        sites: (S, 1 + D).
        kernel: entries along each axis.
        stride: how much finer the new grid is.
        padding: cells that are cut off before the first.
        dilation: cells between entries of the kernel.
        output_padding: cells more behind the last, where there is a shape.
        shape: the extent (D) of the grid that the sites are in, from 0. New sites then are from 0 to below
            (shape - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1. Without it there is no border.
    Returns:
        New sites (S', 1 + D) of the dtype of `sites`, and the edges from `sites` to them.
    """
    dim = _check_sites("transposed_taps", sites)
    window = _Window.of(kernel, stride, padding, dilation, dim)
    extent = None
    if shape is not None:
        extra = _axes("output_padding", output_padding, dim, least=0)
        extent = window.transposed_extent("transposed_taps", shape, extra)
    offsets = window.offsets(sites.device)
    reached = sites[:, None, 1:].long() * window.steps(sites.device) + offsets
    example = sites[:, :1].long()[:, None].expand(-1, len(offsets), 1)
    target = _new_sites("transposed_taps", sites, torch.cat([example, reached], 2).flatten(0, 1), extent)
    return target, taps_between(target, sites, *window.settings).transpose()


@backends.uncompiled
def taps_between(
    source: Tensor, target: Tensor, kernel: Axes, stride: Axes = 1, padding: Axes = 0, dilation: Axes = 1
) -> TapEdges:
    """The sites `source` that each of the sites `target` sees through a kernel; see above.

    Args:
        source: the sites (S, 1 + D) that are seen.
        target: the sites (S', 1 + D) that see them.
        kernel: entries along each axis.
        stride: how much coarser the grid of the targets is.
        padding: entries of the kernel before the first cell.
        dilation: cells between entries of the kernel.
    """
    dim = _check_sites("taps_between: source", source)
    if _check_sites("taps_between: target", target) != dim or source.device != target.device:
        raise ValueError("taps_between: source and target must have the same dimensions and device")
    window = _Window.of(kernel, stride, padding, dilation, dim)
    if source.dtype == torch.int64 or target.dtype == torch.int64:
        _check_range("taps_between", source, target, window)
    module = backends.implementation(reference, source.device)
    settings = window.offsets(source.device), window.steps(source.device)
    table = module.search(source.contiguous(), target.contiguous(), *settings)
    return TapEdges.made(table=table, num_source=len(source)).trusted()


def voxelise(cloud: Cloud, side: float, keep: str = "first", rows: Mapping[str, str] | None = None) -> Voxels:
    """One voxel for each occupied cell of a grid: `grid_sample`, of which each point knows the number of its cell.

    A point x is in cell floor(x / side), computed in float64.

    Args:
        cloud: S points.
        side: the side of a cell, in the units of the coordinates.
        keep: which point stands for a cell; `rows`: how rows are reduced; both as in `gl.grid_sample`.
    """
    if cloud.dim > 4:
        raise ValueError(f"voxelise: a cloud must have 1 to 4 dimensions, not {cloud.dim}")
    first = grid_sample(cloud, side, "first") if keep == "mean" else None
    sample = grid_sample(cloud, side, keep, rows)
    inside = (sample if first is None else first).coords.detach().double()
    cell = inside.div(inside.new_full((), float(side))).floor().long()
    values = {name: getattr(sample, name) for name in Cloud.__dataclass_fields__}
    voxels = Voxels.made(**values, cell=cell, side=float(side))
    return voxels.trusted() if sample.is_checked else voxels


def coarsen(voxels: Voxels, kernel: Axes = 2, stride: Axes = 2, padding: Axes = 0, dilation: Axes = 1) -> Voxels:
    """The voxels of a grid `stride` times coarser that see at least one of these; their points are their middles.

    `tap_search(voxels, coarse, kernel, stride, padding, dilation)` are the edges between them.

    Args:
        voxels: S voxels.
        kernel: entries along each axis.
        stride: how much coarser the new grid is, the same for all axes.
        padding: entries of the kernel before the first cell.
        dilation: cells between entries of the kernel.
    """
    window = _Window.of(kernel, stride, padding, dilation, voxels.dim)
    if len(set(window.stride)) != 1:
        raise ValueError(f"coarsen: stride must be the same for all axes, not {stride!r}, because a voxel has one side")
    end = len(voxels) - voxels.padding
    sites = _new_sites("coarsen", voxels.sites, _seen_from(voxels.sites[:end], window), None)
    side = voxels.side * window.stride[0]
    coords = ((sites[:, 1:].double() + 0.5) * side).to(voxels.coords.dtype)
    bounds = torch.arange(voxels.num_examples + 1, device=sites.device)
    splits = torch.searchsorted(sites[:, 0].contiguous(), bounds)
    return Voxels.made(coords=coords, splits=splits, cell=sites[:, 1:].contiguous(), side=side).trusted()


def tap_search(
    source: Voxels,
    target: Voxels,
    kernel: Axes = 3,
    stride: Axes = 1,
    padding: Axes | None = None,
    dilation: Axes = 1,
) -> TapEdges:
    """The voxels of `source` that each voxel of `target` sees through a kernel.

    Args:
        source: the voxels that are seen.
        target: the voxels that see them.
        kernel: entries along each axis.
        stride: how much coarser the grid of the targets is.
        padding: entries of the kernel before the first cell. Left out, the middle tap is the voxel itself.
        dilation: cells between entries of the kernel.
    """
    for role, voxels in (("source", source), ("target", target)):
        if not isinstance(voxels, Voxels):
            raise TypeError(
                f"tap_search: {role} must be Voxels, not {type(voxels).__name__}. Use voxelise(cloud, side)."
            )
    sides, steps = _axes("kernel", kernel, source.dim), _axes("dilation", dilation, source.dim)
    half = [step * (side // 2) for side, step in zip(sides, steps, strict=True)]
    if source is target and padding is None and set(_axes("stride", stride, source.dim)) == {1}:
        return submanifold_taps(source.sites, sides, steps)
    return taps_between(source.sites, target.sites, sides, stride, half if padding is None else padding, steps)


class _Window:
    """A kernel with its stride, padding and dilation, one number for each axis."""

    def __init__(self, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.settings = kernel, stride, padding, dilation

    @classmethod
    def of(cls, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, dim: int) -> _Window:
        sides, pads = _axes("kernel", kernel, dim), _axes("padding", padding, dim, least=0)
        return cls(sides, _axes("stride", stride, dim), pads, _axes("dilation", dilation, dim))

    def offsets(self, device: torch.device) -> Tensor:
        """dilation * k - padding of every tap k (T, D) int64, in order."""
        return _offsets(tuple(zip(*self.settings, strict=True)), device)

    def steps(self, device: torch.device) -> Tensor:
        """The stride (D) int64."""
        return _tensor(tuple(self.stride), device)

    def extent(self, what: str, shape: Sequence[int]) -> list[int]:
        """The shape of the grid that a dense convolution leaves."""
        sizes = _axes("shape", shape, len(self.kernel))
        axes = zip(sizes, *self.settings, strict=True)
        left = [(size + 2 * pad - d * (k - 1) - 1) // s + 1 for size, k, s, pad, d in axes]
        if min(left) < 1:
            raise ValueError(
                f"{what}: a kernel of {self.kernel} leaves nothing of the shape {list(shape)}. Use more padding."
            )
        return left

    def transposed_extent(self, what: str, shape: Sequence[int], extra: list[int]) -> list[int]:
        sizes = _axes("shape", shape, len(self.kernel))
        axes = zip(sizes, extra, *self.settings, strict=True)
        left = [(size - 1) * s - 2 * pad + d * (k - 1) + e + 1 for size, e, k, s, pad, d in axes]
        if min(left) < 1:
            raise ValueError(
                f"{what}: a padding of {self.padding} leaves nothing of the shape {list(shape)}. Use less padding."
            )
        return left


# Kept on the device: each copy to a GPU would wait for it.


@lru_cache(256)
def _offsets(axes: tuple[tuple[int, int, int, int], ...], device: torch.device) -> Tensor:
    along = [[dilation * k - padding for k in range(kernel)] for kernel, _, padding, dilation in axes]
    return torch.tensor(list(itertools.product(*along)), dtype=torch.int64).to(device)


@lru_cache(256)
def _tensor(values: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64).to(device)


def _seen_from(sites: Tensor, window: _Window) -> Tensor:
    """The sites of the new grid that see `sites` (N, 1 + D), some of them several times."""
    columns, none = sites[:, :1], torch.ones(len(sites), dtype=torch.bool, device=sites.device)
    rows = none.nonzero()[:, 0]
    for axis, (kernel, stride, padding, dilation) in enumerate(zip(*window.settings, strict=True), 1):
        x = sites[rows, axis] + padding
        if dilation == 1:
            last = torch.div(x, stride, rounding_mode="floor")
            reach = -(-kernel // stride)
            at = last[:, None] - torch.arange(reach, device=sites.device)
            sees = x[:, None] - at * stride < kernel
        else:
            shifted = x[:, None] - torch.arange(kernel, device=sites.device) * dilation
            at = torch.div(shifted, stride, rounding_mode="floor")
            sees = at * stride == shifted
        seen, which = sees.nonzero(as_tuple=True)
        rows, columns = rows[seen], torch.cat([columns[seen], at[seen, which][:, None]], 1)
    return columns


def _inside(sites: Tensor, window: _Window, extent: list[int]) -> Tensor | None:
    """The distinct sites of the new grid, of this extent from 0, that see `sites`, in order; None where an example and
    a cell may not fit into one number. A GPU waits once, for how many there are."""
    if sites.dtype != torch.int32 or math.prod(extent) >= 1 << 30:
        return None
    key, sees = sites[:, :1].long(), torch.ones_like(sites[:, :1], dtype=torch.bool)
    for axis, (side, kernel, stride, padding, dilation) in enumerate(zip(extent, *window.settings, strict=True), 1):
        x = sites[:, axis, None].long() + padding
        if dilation == 1:
            at = torch.div(x, stride, rounding_mode="floor") - torch.arange(-(-kernel // stride), device=x.device)
            exists = x - at * stride < kernel
        else:
            shifted = x - torch.arange(kernel, device=x.device) * dilation
            at = torch.div(shifted, stride, rounding_mode="floor")
            exists = at * stride == shifted
        exists &= (at >= 0) & (at < side)
        key = (key[:, :, None] * side + at[:, None, :]).flatten(1)
        sees = (sees[:, :, None] & exists[:, None, :]).flatten(1)
    # One number behind all others is cut off again: whether there are some that see nothing is not read.
    behind = torch.iinfo(torch.int64).max
    key = torch.where(sees, key, behind).flatten()
    key, columns = torch.unique(torch.cat([key, key.new_full((1,), behind)]))[:-1], []
    for side in reversed(extent):
        columns.append(key % side)
        key = torch.div(key, side, rounding_mode="floor")
    return torch.stack([key, *reversed(columns)], 1).int()


def _new_sites(what: str, sites: Tensor, candidates: Tensor, extent: list[int] | None) -> Tensor:
    """The distinct candidates inside the extent, in order, in the dtype of the sites."""
    if extent is not None:
        limit = _tensor(tuple(extent), candidates.device)
        inside = ((candidates[:, 1:] >= 0) & (candidates[:, 1:] < limit)).all(1)
        candidates = candidates[inside]
    distinct = backends.implementation(reference, sites.device).distinct(candidates.contiguous())
    if sites.dtype == torch.int32 and extent is None and len(distinct):
        low, high = (int(v) for v in distinct.aminmax())
        if low < _INT32.min or high > _INT32.max:
            raise ValueError(f"{what}: new sites run from {low} to {high}, beyond int32. Give the sites as int64.")
    return distinct.to(sites.dtype)


def _check_sites(what: str, sites: Tensor) -> int:
    """The dimensions of the sites; refuses what is none."""
    if not isinstance(sites, Tensor) or sites.dtype not in (torch.int32, torch.int64):
        kind = sites.dtype if isinstance(sites, Tensor) else type(sites).__name__
        raise TypeError(f"{what}: sites must be an int32 or int64 tensor (S, 1 + D), example first, not {kind}")
    if sites.ndim != 2 or not 2 <= sites.shape[1] <= 5:
        raise ValueError(
            f"{what}: sites must be (S, 1 + D), example first, with D from 1 to 4, not {tuple(sites.shape)}"
        )
    return sites.shape[1] - 1


def _check_range(what: str, source: Tensor, target: Tensor, window: _Window) -> None:
    """Refuse 64-bit coordinates whose products with the stride, or differences, overflow."""
    reach = max(k * d + p for k, _, p, d in zip(*window.settings, strict=True))
    for sites, stride in ((source, 1), (target, max(window.stride))):
        if not len(sites):
            continue
        low, high = (int(v) for v in sites.aminmax())
        if max(-low, high) * stride + reach >= _FAR:
            raise ValueError(f"{what}: coordinates run from {low} to {high}, beyond 2^61 / stride. Shift them.")


def _axes(name: str, value: Axes, dim: int, least: int = 1) -> list[int]:
    """One whole number for each axis."""
    values = list(value) if isinstance(value, Sequence | torch.Size) else [value] * dim
    if len(values) != dim:
        raise ValueError(f"voxels: {name} must be a number or {dim} of them, not {value!r}")
    numbers = [check_whole("voxels", name, v, least) for v in values]
    if name == "kernel" and math.prod(numbers) > 1 << 16:
        raise ValueError(f"voxels: a kernel of {numbers} has more than {1 << 16} taps")
    return numbers
