"""The data sets that recipes name, as tensors: every example of a split at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gridless.plan import Plan
    from gridless.training.recipe import Recipe
    from gridless.training.recordings import Recordings
    from gridless.training.resident import ResidentClouds


@dataclass(frozen=True)
class Clouds:
    """points (N, P, 3) float32, labels (N) int64, and the names of the classes."""

    points: Tensor
    labels: Tensor
    classes: list[str]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Clouds:
        return Clouds(self.points[index], self.labels[index], self.classes)

    def to(self, device: torch.device | str) -> Clouds:
        return Clouds(self.points.to(device), self.labels.to(device), self.classes)

    def loader(self, recipe: Recipe, plan: Plan, train: bool = True, **more: Any) -> ResidentClouds:
        """The batches of training, or those of an evaluation: in order and not augmented."""
        from gridless.training.resident import ResidentClouds

        points = self.points[:, : recipe.points]
        if not train:
            return ResidentClouds(points, self.labels, plan, max(256, recipe.batch_size), shuffle=False, **more)
        return ResidentClouds(points, self.labels, plan, recipe.batch_size, recipe.augment, recipe.seed, **more)

    def probabilities(
        self,
        model: torch.nn.Module,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Class probabilities (N, classes), the mean over `votes` views of each cloud."""
        from gridless.training.evaluate import probabilities

        points = self.points[:, : recipe.points]
        return probabilities(
            model, points, batch_size or 256, votes or recipe.votes, recipe.precision, progress=progress
        )


# Data sets that are made, not read.
GENERATED = ("glyphs", "shapes")


def load_data(recipe: Recipe, root: str | Path | None, split: str) -> Clouds | Recordings:
    """A split of the data set that a recipe names: clouds or recordings."""
    from gridless.training.recordings import SETS, load_recordings

    if root is None and recipe.data not in GENERATED:
        raise ValueError(f"the folder of {recipe.data} is needed: give it with --data")
    if recipe.data in SETS:
        return load_recordings(recipe.data, root, split, recipe.data_options)
    return load_clouds(recipe.data, root, split, recipe.points, recipe.data_options)


def load_clouds(
    name: str, root: str | Path | None, split: str, points: int = 1024, options: dict[str, Any] | None = None
) -> Clouds:
    """The clouds of a split, each its first `points` points.

    `split` is `train` (all of the official training clouds), `test`, or `fit` and `validation`, the parts into which a
    shipped list divides `train`.
    """
    if name == "shapes":
        from gridless.data import Shapes
        from gridless.training.recordings import generated

        options = dict(options or {})
        size, seed = generated(split, options)
        shapes = Shapes(size, points, seed, **options)
        return Clouds(shapes.coords, shapes.labels, list(shapes.class_names))
    if name != "modelnet40":
        raise ValueError(f"unknown data set {name!r}: there are modelnet40 and shapes")
    from gridless.data import ModelNet40

    data = ModelNet40(root, split, points=points)  # type: ignore[arg-type]
    return Clouds(data.coords, data.labels, list(data.class_names))
