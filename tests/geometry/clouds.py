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


def repeated(points: int, dim: int, seed: int = 0) -> torch.Tensor:
    """Scattered points, four in ten of which are the origin, as LiDAR drivers send rays that met nothing."""
    x = scattered(points, dim, seed=seed)
    x[torch.randperm(points, generator=torch.Generator().manual_seed(seed))[: 4 * points // 10]] = 0
    return x


def crowded(points: int = 1000) -> dict[str, torch.Tensor]:
    """Large clouds in which very many distances are equal, or a few points are very far away."""
    x = scattered(points, 3)
    line = torch.zeros(points, 3)
    line[:, 0] = x[:, 0]
    return {
        "repeated": repeated(points, 3),
        "equal": torch.full((points, 3), 0.25),
        "line": line,
        "rounded": x + 2e6,
        "underflow": x * 1e-30,
        "outlier": torch.cat([x[1:], torch.tensor([[1e9, 0.5, 0.5]])]),
        "extreme outlier": torch.cat([x[1:], torch.tensor([[0.5, -1e30, 0.5]])]),
    }
