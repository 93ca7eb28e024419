"""Sites as single numbers: int64 keys in lexicographic order, for sites however far apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_ROOM = 1 << 62


class _Column(NamedTuple):
    """Encoding of one column of sites in a key."""

    low: int
    extent: int
    values: Tensor | None  # the column's values, ascending, where their ranks are used
    prefixes: Tensor | None  # the keys of the columns before, ascending, where their ranks are used


class Keys:
    """Numbers sites (S, 1 + D) int64 so that a < b in lexicographic order means key(a) < key(b).

    Keys count within the box of the given sites. If the box has more cells than int64, columns or prefixes are replaced
    by their ranks among the given sites.
    """

    def __init__(self, sites: Tensor, low: list[int], high: list[int]) -> None:
        self._columns: list[_Column] = []
        key, extent = sites.new_zeros(len(sites)), 1
        for column, first, last in zip(sites.unbind(1), low, high, strict=True):
            along, values, prefixes = last - first + 1, None, None
            if extent * along >= _ROOM:
                prefixes = torch.unique(key)
                key, extent = torch.searchsorted(prefixes, key), len(prefixes)
            if extent * along >= _ROOM:
                values = torch.unique(column)
                at, along = torch.searchsorted(values, column.contiguous()), len(values)
            else:
                at = column - first
            key, extent = key * along + at, extent * along
            self._columns.append(_Column(first, along, values, prefixes))
        self.of_sites = key

    def of(self, sites: Tensor) -> Tensor:
        """The keys of other sites (M); -1 for those that cannot be among the given ones."""
        key, known = sites.new_zeros(len(sites)), torch.ones(len(sites), dtype=torch.bool, device=sites.device)
        for column, (low, extent, values, prefixes) in zip(sites.unbind(1), self._columns, strict=True):
            if prefixes is not None:
                key, is_prefix = _ranks(prefixes, key)
                known &= is_prefix
            if values is not None:
                at, inside = _ranks(values, column.contiguous())
            else:
                at = column - low
                inside = (at >= 0) & (at < extent)
            known &= inside
            key = key * extent + torch.where(known, at, 0)
        return torch.where(known, key, -1)


def _ranks(values: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each wanted number among ascending values, and whether it is there."""
    if not len(values):
        return torch.zeros_like(wanted), torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(values, wanted).clamp_(max=len(values) - 1)
    return at, values[at] == wanted
