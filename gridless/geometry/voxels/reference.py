"""Searches among sites in torch: the specification.

    search(source, target, offsets, stride)   table (S', T) int32: the source at target * stride + offsets[k] in the
                                              same example, or -1. Refuses sources that are there twice
    distinct(sites)                           the sites in lexicographic order, each once

Sites are (S, 1 + D), example first, and in a range in which nothing overflows: int32 or int64 for a search, int64 for
`distinct`.
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
