"""The data sets that recipes name, as tensors: every cloud of a split at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor


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


def load_clouds(name: str, root: str | Path, split: str, points: int = 1024) -> Clouds:
    """The clouds of a split, each its first `points` points.

    `split` is `train` (all of the official training clouds), `test`, or `fit` and `validation`, the parts into which a
    shipped list divides `train`.
    """
    if name != "modelnet40":
        raise ValueError(f"unknown data set {name!r}: there is modelnet40")
    from gridless.data import ModelNet40

    data = ModelNet40(root, split, points=points)
    return Clouds(data.coords, data.labels, list(data.class_names))
