"""Modules of lists of sparse tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from gridless.compat.spconv.pytorch.core import SparseConvTensor
from gridless.compat.spconv.pytorch.functional import sparse_add
from gridless.compat.spconv.pytorch.modules import SparseModule


class _Table(SparseModule):
    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size


class JoinTable(_Table):
    """Concatenates the channels of tensors with the same sites."""

    def forward(self, inputs: list[SparseConvTensor]) -> SparseConvTensor:
        _check_sites("JoinTable", inputs)
        return inputs[0].replace_feature(torch.cat([x.features for x in inputs], 1))


class AddTable(_Table):
    """Adds tensors with the same sites."""

    def forward(self, inputs: list[SparseConvTensor]) -> SparseConvTensor:
        _check_sites("AddTable", inputs)
        total = inputs[0].features
        for x in inputs[1:]:
            total = total + x.features
        return inputs[0].replace_feature(total)


class AddTableMisaligned(_Table):
    """Adds tensors of one shape with different sites; the result has all of their sites."""

    def forward(self, inputs: list[SparseConvTensor]) -> SparseConvTensor:
        return sparse_add(*inputs)


class ConcatTable(_Table):
    """Applies each of its modules to the same input: a list of results."""

    def forward(self, x: Any) -> list[Any]:
        return [module(x) for module in self._modules.values() if module is not None]

    def add(self, module: nn.Module) -> ConcatTable:
        self.add_module(str(len(self._modules)), module)
        return self


def _check_sites(what: str, inputs: list[SparseConvTensor]) -> None:
    kinds = {(tuple(x.spatial_shape), x.batch_size, len(x.indices)) for x in inputs}
    if len(kinds) != 1:
        raise AssertionError(f"{what}: inputs have different sites: {sorted(kinds)}. Use AddTableMisaligned to add.")
