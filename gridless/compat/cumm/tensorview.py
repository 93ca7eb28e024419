"""Tensors of cumm are torch tensors here."""

from torch import Tensor, from_numpy

__all__ = ["Tensor", "from_numpy"]
