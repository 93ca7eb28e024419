"""Modules of sparse tensors, and layers of features that also take sparse tensors."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from gridless.compat.spconv.pytorch.core import SparseConvTensor


def is_spconv_module(module: nn.Module) -> bool:
    """True if a module takes a sparse tensor. Others in a `SparseSequential` get its features."""
    return isinstance(module, (SparseModule, SparseBatchNorm, SparseSyncBatchNorm, SparseReLU, SparseIdentity))


def is_sparse_conv(module: nn.Module) -> bool:
    """True if a module is a sparse convolution."""
    return isinstance(module, SparseConvolutionBase)


class SparseModule(nn.Module):
    """The base of modules that take sparse tensors."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__()
        self.name = name
        self._sparse_unique_name = ""


class SparseConvolutionBase(SparseModule):
    """The base of sparse convolutions."""


class SparseSequential(SparseModule):
    """Modules one after the other: from arguments, from an OrderedDict, or by keyword.

    Modules that are not of spconv get the features. They are skipped where the tensor has no sites.
    """

    def __init__(self, *args: Any, **kwargs: nn.Module) -> None:
        super().__init__()
        if len(args) == 1 and isinstance(args[0], OrderedDict):
            named = dict(args[0])
        else:
            named = {str(place): module for place, module in enumerate(args)}
        for name in named.keys() & kwargs.keys():
            raise ValueError(f"SparseSequential: the name {name!r} exists. Choose another.")
        for name, module in (named | kwargs).items():
            self.add_module(name, module)

    def __getitem__(self, idx: int) -> nn.Module:
        if not -len(self) <= idx < len(self):
            raise IndexError(f"SparseSequential: index {idx} is out of range. It has {len(self)} modules.")
        return list(self._modules.values())[idx]  # type: ignore[return-value]

    def __len__(self) -> int:
        return len(self._modules)

    def add(self, module: nn.Module, name: str | None = None) -> None:
        """Appends a module, by default under its number."""
        name = str(len(self)) if name is None else name
        if name in self._modules:
            raise KeyError(f"SparseSequential: the name {name!r} exists. Choose another.")
        self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        for module in self._modules.values():
            if module is None:
                continue
            if is_spconv_module(module) or not isinstance(x, SparseConvTensor):
                x = module(x)
            elif len(x.indices):
                x = x.replace_feature(module(x.features))
        return x


class ToDense(SparseModule):
    """A sparse tensor as (B, C, axes...)."""

    def forward(self, x: SparseConvTensor) -> Tensor:
        return x.dense()


class RemoveGrid(SparseModule):
    """Forgets the buffer `grid`."""

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        x.grid = None
        return x


class _OfFeatures:
    """Applies a layer of torch to the features of a sparse tensor, or to a plain tensor."""

    def forward(self, x: Any) -> Any:
        layer: Any = super()
        return x.replace_feature(layer.forward(x.features)) if isinstance(x, SparseConvTensor) else layer.forward(x)


class SparseBatchNorm(_OfFeatures, nn.BatchNorm1d):
    """Batch normalisation of features."""


class SparseSyncBatchNorm(_OfFeatures, nn.SyncBatchNorm):
    """Batch normalisation of features over several processes."""


class SparseReLU(_OfFeatures, nn.ReLU):
    """ReLU of features."""


class SparseIdentity(_OfFeatures, nn.Identity):
    """Returns its input."""


def assign_name_for_sparse_modules(module: nn.Module) -> None:
    """Tells each sparse module its name in `module`."""
    for name, child in module.named_modules():
        if isinstance(child, SparseModule):
            child._sparse_unique_name = name
