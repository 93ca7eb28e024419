"""Class probabilities of a user's own file."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.structures import Cloud, Edges, Geometry
from gridless.training.evaluate import probabilities

UP = {"x": (1, 0, 2), "y": (0, 1, 2), "z": (0, 2, 1)}


def classify(
    model: Any,
    file: str | Path,
    points: int | None = None,
    up: str = "y",
    keep_scale: bool = False,
    votes: int | None = None,
) -> Tensor:
    """Probabilities (classes) of the cloud in a file, prepared as the training clouds were: y up, unit sphere.

    From a mesh `points` are drawn.
    """
    from gridless.data import read_cloud, sample_mesh
    from gridless.data.clouds import MESHES

    recipe = getattr(model, "about", {}).get("recipe", {})
    points = points or int(recipe.get("points", 1024))
    mesh = Path(file).suffix.lower() in MESHES
    cloud = sample_mesh(file, points, normalise=False) if mesh else read_cloud(file)
    coords = prepare(cloud.coords, str(file), points, up, keep_scale)
    coords = coords.to(next(model.parameters()).device)
    check_scale(model.plan(Cloud.of(coords)), str(file))
    return probabilities(model, coords[None], votes=votes or recipe.get("votes", 1))[0].cpu()


def prepare(coords: Tensor, what: str, points: int, up: str = "y", keep_scale: bool = False) -> Tensor:
    """Coordinates (S, 3) of a file to those the network expects: at most `points`, centred and scaled."""
    if up not in UP:
        raise ValueError(f"up must be x, y or z, not {up!r}")
    if coords.ndim != 2 or coords.shape[1] < 3 or not len(coords):
        raise ValueError(f"{what}: expected points with three coordinates, found an array of {tuple(coords.shape)}")
    Cloud.of(coords[:, :3]).check(what)
    coords = coords[:, list(UP[up])]
    if up != "y":
        # Two axes changed places; one is turned round, so that left stays left.
        coords = coords * torch.tensor([-1.0, 1.0, 1.0] if up == "x" else [1.0, 1.0, -1.0])
    if len(coords) > points:
        coords = coords[torch.randperm(len(coords), generator=torch.Generator().manual_seed(0))[:points]]
    if not keep_scale:
        coords = coords - coords.mean(0)
        size = coords.norm(dim=1).max()
        if size == 0:
            raise ValueError(f"{what}: all {len(coords)} points are the same")
        coords = coords / size
    return coords.float().contiguous()


def check_scale(geometry: Geometry, what: str) -> None:
    """Warn where the first search finds no neighbour for most points: the cloud is on another scale than the radius."""
    first = next(value for value in geometry.values() if isinstance(value, Edges))
    lonely = (first.counts <= 1).double().mean().item()
    if lonely > 0.5:
        warnings.warn(
            f"{what}: {lonely:.0%} of the points have no neighbour within the network's first radius: the cloud is too "
            "sparse or on another scale; scale it to the unit sphere, or use more points",
            stacklevel=2,
        )
