"""Modules that change which sites a tensor has."""

from __future__ import annotations

from gridless.compat.spconv.pytorch.core import SparseConvTensor
from gridless.compat.spconv.pytorch.modules import SparseModule
from gridless.compat.spconv.pytorch.ops import first_rows


class RemoveDuplicate(SparseModule):
    """Keeps the first row of each site, in lexicographic order of the sites."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        return x.select_by_index(first_rows(x.indices)[1].first)
