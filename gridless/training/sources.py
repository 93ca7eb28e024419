"""The data sets that recipes name, as tensors: every cloud of a split at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

VALIDATION = Path(__file__).with_name("modelnet40_validation.txt")


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

    `split` is `train` (all of the official training clouds), `test`, or a part of `train`: `learn` and `validate`,
    which a fixed list of examples divides.
    """
    if name != "modelnet40":
        raise ValueError(f"unknown data set {name!r}: there is modelnet40")
    if split not in ("train", "test", "learn", "validate"):
        raise ValueError(f"split must be train, test, learn or validate, not {split!r}")
    clouds = _modelnet40(Path(root), "test" if split == "test" else "train", points)
    if split in ("learn", "validate"):
        held = validation_index(len(clouds))
        chosen = torch.zeros(len(clouds), dtype=torch.bool)
        chosen[held] = True
        return clouds.take((chosen if split == "validate" else ~chosen).nonzero()[:, 0])
    return clouds


def validation_index(size: int) -> Tensor:
    """The training clouds of ModelNet40 that recipes are chosen on: a tenth of each class, fixed once."""
    index = torch.from_numpy(np.loadtxt(VALIDATION, dtype=np.int64))
    if size != 9843:
        raise ValueError(f"the validation list is for the 9843 training clouds of ModelNet40, but there are {size}")
    return index


def stratified(labels: Tensor, fraction: float, seed: int) -> Tensor:
    """A fraction of each class, at least one of it, ascending (CPU, int64)."""
    generator = torch.Generator().manual_seed(seed)
    chosen = []
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        count = max(1, round(len(members) * fraction))
        chosen.append(members[torch.randperm(len(members), generator=generator)[:count]])
    return torch.cat(chosen).sort().values


def _modelnet40(root: Path, split: str, points: int) -> Clouds:
    pack = root if root.suffix == ".npz" else root / f"modelnet40_{split}.npz"
    if not pack.is_file():
        raise FileNotFoundError(f"no ModelNet40 at {root}: expected {pack.name}")
    z = np.load(pack)
    w = z["packed"].reshape(-1, 3).astype(np.uint16)
    q = np.empty(2 * len(w), np.uint16)
    q[0::2], q[1::2] = w[:, 0] | ((w[:, 1] & 15) << 8), (w[:, 1] >> 4) | (w[:, 2] << 4)
    coords = (q.reshape(len(z["label"]), -1, 3).astype(np.float32) / 4095 * 2 - 1) * np.float32(z["scale"])
    return Clouds(
        torch.from_numpy(coords[:, :points].copy()),
        torch.from_numpy(z["label"].astype(np.int64)),
        [c.decode() for c in z["class_names"]],
    )
