"""Searches among sites in torch: the specification.

    search(source, target, offsets, stride)   table (S', T) int32: the source at target * stride + offsets[k] in the
                                              same example, or -1. Refuses sources that are there twice
    distinct(sites)                           the sites in lexicographic order, each once
    seeing(sites, low, sides, *window)        the distinct sites i of a new grid, from `low` to below `low + sides`,
                                              example first, at which stride * i - padding + dilation * k is one of
                                              `sites` for some tap k, in lexicographic order

Sites are (S, 1 + D), example first, and in a range in which nothing overflows: int32 or int64 for a search, int64 for
`distinct`. The window is kernel, stride, padding and dilation, one number for each axis. Backends need S > 0 for
`seeing`, a box of less than 2^62 cells that holds the examples of all sites, and products with the stride below 2^31.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.voxels.keys import Keys


class RepeatedSite(ValueError):
    """Raised by searches for sites of which one is there twice."""


def search(source: Tensor, target: Tensor, offsets: Tensor, stride: Tensor) -> Tensor:
    table = torch.full((len(target), len(offsets)), -1, dtype=torch.int32, device=target.device)
    if not len(source):
        return table
    refuse_repeats(source)
    source, target = source.long(), target.long()
    keys = _keys(source)
    ordered, order = keys.of_sites.sort()
    for k, offset in enumerate(offsets):
        wanted = keys.of(torch.cat([target[:, :1], target[:, 1:] * stride + offset], 1))
        at = torch.searchsorted(ordered, wanted).clamp_(max=len(ordered) - 1)
        table[:, k] = torch.where(ordered[at] == wanted, order[at], -1)
    return table


def distinct(sites: Tensor) -> Tensor:
    if not len(sites):
        return sites
    ordered, order = _keys(sites).of_sites.sort()
    first = torch.cat([ordered.new_ones(1, dtype=torch.bool), ordered[1:] != ordered[:-1]])
    return sites[order[first]]


def seeing(sites: Tensor, low: list[int], sides: list[int], *window: list[int]) -> Tensor:
    sites = sites.long()
    columns, rows = sites[:, :1], torch.arange(len(sites), device=sites.device)
    for axis, (begin, side, kernel, stride, padding, dilation) in enumerate(zip(low[1:], sides[1:], *window), 1):
        shifted = sites[rows, axis, None] + padding - torch.arange(kernel, device=sites.device) * dilation
        at = torch.div(shifted, stride, rounding_mode="floor")
        sees = (at * stride == shifted) & (at >= begin) & (at < begin + side)
        seen, which = sees.nonzero(as_tuple=True)
        rows, columns = rows[seen], torch.cat([columns[seen], at[seen, which][:, None]], 1)
    return distinct(columns)


def refuse_repeats(source: Tensor) -> None:
    if not len(source):
        return
    ordered, order = _keys(source.long()).of_sites.sort()
    repeats = ordered[1:] == ordered[:-1]
    if bool(repeats.any()):
        at = order[1:][repeats][0]
        raise repeated_site(source[at].tolist())


def repeated_site(site: list[int]) -> RepeatedSite:
    return RepeatedSite(f"voxels: site {site} occurs twice. Give each site once, e.g. with gl.grid_sample.")


def _keys(sites: Tensor) -> Keys:
    low, high = (v.tolist() for v in sites.aminmax(dim=0))
    return Keys(sites, low, high)
