"""Bases: the fixed functions of an edge's vector whose learned combinations make a convolution.

A class that is made from one of these and has values of its own, `__call__`, needs a `description` of its own too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product

import torch
from torch import Tensor

from gridless.ops.point_conv.edge_function import GAUSSIANS, MONOMIALS, Basis, Description

__all__ = ["Basis", "Description", "GaussianBumps", "KernelPoints", "Monomials"]


@dataclass(frozen=True)
class Monomials:
    """All monomials of `dim` variables of total order up to `order`, without constants.

    The first variable varies slowest and the last fastest. In three dimensions at order 2 the terms are
    1, z, z^2, y, yz, y^2, x, xz, xy, x^2; in one at order 3, 1, x, x^2, x^3.
    """

    dim: int
    order: int

    def __post_init__(self) -> None:
        if self.dim < 1 or self.order < 0:
            raise ValueError(f"Monomials: dim is {self.dim} and order {self.order}. Give at least 1 and at least 0.")
        # The cached value is made here: torch.compile reads it, but cannot trace how it is made.
        _ = self._description

    @cached_property
    def exponents(self) -> tuple[tuple[int, ...], ...]:
        """M rows of D exponents."""
        return tuple(e for e in product(range(self.order + 1), repeat=self.dim) if sum(e) <= self.order)

    @property
    def size(self) -> int:
        return len(self.exponents)

    def __call__(self, vector: Tensor) -> Tensor:
        """(..., D) to (..., M)."""
        powers = [[torch.ones_like(x)] for x in vector.unbind(-1)]
        for x, of_x in zip(vector.unbind(-1), powers):
            for _ in range(self.order):
                of_x.append(of_x[-1] * x)
        terms = []
        for exponents in self.exponents:
            term = powers[0][exponents[0]]
            for d in range(1, self.dim):
                term = term * powers[d][exponents[d]]
            terms.append(term)
        return torch.stack(terms, -1)

    @cached_property
    def _description(self) -> Description:
        return Description(MONOMIALS, tuple(float(e) for row in self.exponents for e in row))

    def description(self) -> Description | None:
        return self._description if type(self).__call__ is Monomials.__call__ else None


@dataclass(frozen=True)
class GaussianBumps:
    """Gaussian bumps around fixed points: p_m(v) = exp(-|v - centres[m]|^2 / (2 width^2)).

    `centres` are M rows of D numbers and `width` a number, both in units of the radius.
    """

    centres: tuple[tuple[float, ...], ...]
    width: float

    def __post_init__(self) -> None:
        centres = tuple(tuple(float(x) for x in row) for row in self.centres)
        if not centres or not centres[0] or any(len(row) != len(centres[0]) for row in centres):
            raise ValueError(f"GaussianBumps: centres are {self.centres}. Give one or more rows of the same dimension.")
        if not self.width > 0:
            raise ValueError(f"GaussianBumps: width must be positive, not {self.width}")
        object.__setattr__(self, "centres", centres)

    @property
    def dim(self) -> int:
        return len(self.centres[0])

    @property
    def size(self) -> int:
        return len(self.centres)

    def __call__(self, vector: Tensor) -> Tensor:
        """(..., D) to (..., M)."""
        centres = torch.tensor(self.centres, dtype=vector.dtype, device=vector.device)
        apart = vector[..., None, :] - centres
        return torch.exp(apart.square().sum(-1) * (-0.5 / self.width**2))

    def description(self) -> Description | None:
        if type(self).__call__ is not GaussianBumps.__call__:
            return None
        return Description(GAUSSIANS, tuple(x for row in self.centres for x in row), float(self.width))


def KernelPoints(dim: int = 3, width: float = 1 / 3) -> GaussianBumps:
    """Gaussian bumps at the centre, along the axes and towards the corners: 15 points in 3D, as in KPConv.

    All but the central point are two thirds of the radius away from it; `width` is in units of the radius.
    """
    reach = 2 / 3
    origin = (0.0,) * dim
    axes = [tuple(sign * reach if d == axis else 0.0 for d in range(dim)) for axis in range(dim) for sign in (-1, 1)]
    corner = reach / dim**0.5
    corners = [tuple(sign * corner for sign in signs) for signs in product((-1, 1), repeat=dim)] if dim > 1 else []
    return GaussianBumps((origin, *axes, *corners), width)
