"""Searches on integer coordinates: which voxel each voxel sees at each tap of a kernel.

Sites are (S, 1 + D) int32 or int64 with D from 1 to 4: the number of the example, then the coordinates, which may be
negative. A site is there once. Taps are counted as the entries of a kernel in torch, the last axis fastest:

    target i sees at tap k the source at  stride * site_i - padding + dilation * k      (k a D-tuple)

`kernel`, `stride`, `padding` and `dilation` are a number, or one for each axis. New sites are in lexicographic order
(example, first axis, second axis, ...), whatever the order of the sites they come from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.grid import grid_sample
from gridless.geometry.voxels import reference
from gridless.geometry.voxels.reference import RepeatedSite as RepeatedSite
from gridless.geometry.voxels.window import (
    Axes,
    Window,
    axis_numbers,
    check_range,
    check_sites,
    distinct_sites,
    sites_seeing,
)
from gridless.structures import Cloud, TapEdges, Voxels


@backends.uncompiled
def submanifold_taps(sites: Tensor, kernel: Axes = 3, dilation: Axes = 1) -> TapEdges:
    """Each site's neighbours among the sites, seen through a kernel whose middle tap is the site itself.

    The middle of an even kernel is entry kernel // 2. If all sides are odd, the edges are `symmetric`.
    """
    dim = check_sites("submanifold_taps", sites)
    return _seen("submanifold_taps", sites, sites, Window.centred(kernel, 1, dilation, dim))


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
    dim = check_sites("strided_taps", sites)
    window = Window.of(kernel, stride, padding, dilation, dim)
    extent = None if shape is None else window.extent("strided_taps", shape)
    target = sites_seeing("strided_taps", sites, window, extent)
    return target, _seen("strided_taps", sites, target, window)


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
    dim = check_sites("transposed_taps", sites)
    window = Window.of(kernel, stride, padding, dilation, dim)
    extent = None
    if shape is not None:
        extra = axis_numbers("output_padding", output_padding, dim, least=0)
        extent = window.transposed_extent("transposed_taps", shape, extra)
    reference.refuse_repeats(sites)  # the search below is for the new sites, which are distinct
    offsets = window.offsets(sites.device)
    reached = sites[:, None, 1:].long() * window.steps(sites.device) + offsets
    example = sites[:, :1].long()[:, None].expand(-1, len(offsets), 1)
    target = distinct_sites("transposed_taps", sites, torch.cat([example, reached], 2).flatten(0, 1), extent)
    return target, _seen("transposed_taps", target, sites, window).transpose()


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
    dim = check_sites("taps_between: source", source)
    check_sites("taps_between: target", target)
    return _seen("taps_between", source, target, Window.of(kernel, stride, padding, dilation, dim))


def _seen(what: str, source: Tensor, target: Tensor, window: Window) -> TapEdges:
    """The sources that each target sees."""
    if source.shape[1] != target.shape[1] or source.device != target.device:
        raise ValueError(f"{what}: source and target must have the same dimensions and device")
    if source.dtype == torch.int64 or target.dtype == torch.int64:
        check_range(what, source, target, window)
    module = backends.implementation(reference, source.device)
    settings = window.offsets(source.device), window.steps(source.device)
    table = module.search(source.contiguous(), target.contiguous(), *settings)
    symmetric = source is target and window.is_centred
    return TapEdges.made(table=table, num_source=len(source), symmetric=symmetric).trusted()


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
    window = Window.of(kernel, stride, padding, dilation, voxels.dim)
    if len(set(window.stride)) != 1:
        raise ValueError(f"coarsen: stride must be the same for all axes, not {stride!r}, because a voxel has one side")
    end = len(voxels) - voxels.padding
    sites = sites_seeing("coarsen", voxels.sites[:end], window, None)
    side = voxels.side * window.stride[0]
    coords = ((sites[:, 1:].double() + 0.5) * side).to(voxels.coords.dtype)
    bounds = torch.arange(voxels.num_examples + 1, device=sites.device)
    splits = torch.searchsorted(sites[:, 0].contiguous(), bounds)
    return Voxels.made(coords=coords, splits=splits, cell=sites[:, 1:].contiguous(), side=side).trusted()


@backends.uncompiled
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
    if padding is None:
        window = Window.centred(kernel, stride, dilation, source.dim)
    else:
        window = Window.of(kernel, stride, padding, dilation, source.dim)
    return _seen("tap_search", source.sites, target.sites, window)
