"""Enumerations of spconv. The algorithm has no effect here: there is one."""

from enum import Enum

from gridless.compat.spconv.constants import NDIM_DONT_CARE

__all__ = ["NDIM_DONT_CARE", "AlgoHint", "ConvAlgo"]


class ConvAlgo(Enum):
    Native = 0
    MaskImplicitGemm = 1
    MaskSplitImplicitGemm = 2


class AlgoHint(Enum):
    NoHint = 0
    Fowrard = 1  # spconv's spelling
    BackwardInput = 2
    BackwardWeight = 4
