"""Ugly clouds that searches and samplers must survive."""

from __future__ import annotations

import torch

from gridless import Cloud


def lattice(points: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Points on a coarse lattice: many duplicates and equal distances."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 5, (points, dim), generator=generator).to(dtype) / 4


def scattered(points: int, dim: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.rand(points, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def ugly(dim: int, dtype: torch.dtype = torch.float32, points: int = 90) -> Cloud:
    """Scattered, empty, single, lattice, all equal, far from the origin, and two far apart."""
    return Cloud.of(
        [
            scattered(points, dim, dtype),
            torch.zeros(0, dim, dtype=dtype),
            torch.ones(1, dim, dtype=dtype),
            lattice(points, dim, dtype),
            torch.full((12, dim), 0.25, dtype=dtype),
            scattered(30, dim, dtype, seed=1) + 1000,
            torch.tensor([[-1e6], [1e6]], dtype=dtype).expand(2, dim),
        ]
    )
