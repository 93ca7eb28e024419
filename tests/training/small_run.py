"""A small data set and recipe that train in seconds."""

from __future__ import annotations

import torch

from gridless.training import Clouds, Recipe


def shapes(count: int, points: int = 48, seed: int = 0) -> Clouds:
    """Spheres, discs, rods: three classes that differ in their second moments."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, points, 3, generator=generator)
    labels = torch.arange(count) % 3
    x = x / x.norm(dim=2, keepdim=True)
    squeeze = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.1, 1.0], [0.1, 1.0, 0.1]])
    return Clouds(x * squeeze[labels][:, None], labels, ["sphere", "disc", "rod"])


def small() -> Recipe:
    return Recipe.from_dict(
        {
            "model": {"model": "PointResNet", "classes": 3, "width": 8, "levels": 2, "radius": 0.4, "dropout": 0.2},
            "points": 48,
            "augment": {"shuffle": True, "drop": 0.3, "jitter": 0.01, "jitter_clip": 0.02, "scale": [0.9, 1.1]},
            "epochs": 3,
            "batch_size": 10,
            "l2": 4e-5,
            "average": 0.9,
            "validate_every": 1,
        }
    )


def tiny(**changes: object) -> Recipe:
    """A recipe whose steps take a few milliseconds: three epochs of three steps on nine clouds."""
    network = {"model": "PointResNet", "classes": 3, "width": 4, "levels": 1, "radius": 0.6, "dropout": 0.2}
    return small().changed(model=network, points=16, batch_size=3, **changes)
