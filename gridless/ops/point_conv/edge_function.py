"""The function of an edge whose learned combinations make a convolution, as plain numbers that every backend reads."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

MONOMIALS = 0
GAUSSIANS = 1


class Description(NamedTuple):
    """A basis in numbers: what a compiled kernel is told.

    `table` holds M rows of D numbers, row after row. With v the vector of an edge (target - source, over the radius),
    kind MONOMIALS is p_m(v) = product over d of v_d ** table[m, d], and
    kind GAUSSIANS is p_m(v) = exp(-|v - table[m]|^2 / (2 width^2)).
    """

    kind: int
    table: tuple[float, ...]
    width: float = 1.0


@runtime_checkable
class Basis(Protocol):
    """M functions of a vector of D dimensions.

    A class with these members is a basis. `description` may return None; such a basis has no compiled kernels, and
    runs under `gl.use_backend("reference")`.
    """

    @property
    def dim(self) -> int: ...

    @property
    def size(self) -> int: ...

    def __call__(self, vector: Tensor) -> Tensor:
        """Values (..., M) at vectors (..., D), differentiable."""
        ...

    def description(self) -> Description | None: ...


class EdgeFunction(NamedTuple):
    """All that turns a pair of coordinates into the M values of an edge.

        v = (target - source) / radius             in the dtype of the coordinates, then in the compute dtype
        w = max(0, 1 - |v|) if falloff else 1
        W = sum of w over the edges of the target if normalise else 1
        n_m = p_m(v) w / W                         and 0 where W is 0

    Derivatives: dw/dv = -v / |v| where 0 < |v| < 1, and 0 elsewhere, so that a self edge has a finite gradient.
    """

    kind: int
    table: tuple[float, ...]
    width: float
    dim: int
    radius: float
    falloff: bool
    normalise: bool

    @property
    def size(self) -> int:
        return len(self.table) // self.dim


def compute_dtype(features: torch.dtype) -> torch.dtype:
    """The dtype in which edge values are made and sums are kept."""
    return torch.float64 if features == torch.float64 else torch.float32
