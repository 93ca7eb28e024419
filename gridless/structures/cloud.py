"""Clouds: the points of a batch of examples."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Ragged, as_splits, index, per_row, same, size, splits_of


@dataclass(frozen=True, eq=False, repr=False)
class Cloud(Ragged):
    """Points of a batch of examples: coords (S, D) float32 or float64, splits (B + 1).

    A cloud that was sampled from another knows where its points came from: `parent_index` (S), rows of a cloud of
    `num_parent` points. `distance` (num_parent), on request, is how far each of those is from its closest sample.
    """

    coords: Tensor = per_row()
    splits: Tensor = splits_of("coords")
    parent_index: Tensor | None = index("num_parent", holes=False, default=None)
    num_parent: int = size(default=0)
    distance: Tensor | None = per_row(default=None)
    padding: int = same(default=0)

    _length: ClassVar[str] = "coords"

    def __post_init__(self) -> None:
        coords = self.coords
        if not isinstance(coords, Tensor):
            raise TypeError(f"Cloud: coords must be a tensor, not {type(coords).__name__}: use Cloud.of(...)")
        if coords.ndim != 2 or not 1 <= coords.shape[1] <= 8:
            raise ValueError(f"Cloud: coords must be (points, 1 to 8 dimensions), not {tuple(coords.shape)}")
        if coords.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"Cloud: coords must be float32 or float64, not {coords.dtype}: convert with .float()")
        object.__setattr__(self, "coords", coords.detach().contiguous() if not coords.requires_grad else coords)
        object.__setattr__(self, "splits", as_splits(self.splits, coords.device, "Cloud"))
        for name, length in (("parent_index", len(coords)), ("distance", self.num_parent)):
            value = getattr(self, name)
            if value is not None and (value.shape != (length,) or value.device != coords.device):
                raise ValueError(f"Cloud: {name} must be ({length},) on {coords.device}, not {tuple(value.shape)}")
        if coords.device.type == "cpu":
            self.check_splits("Cloud")

    @classmethod
    def of(cls, x: Any) -> Cloud:
        """One example from an (S, D) tensor or array, or a batch from a sequence of them."""
        if isinstance(x, Cloud):
            return x
        if isinstance(x, (list, tuple)):
            clouds = [_as_coords(c) for c in x]
            if not clouds:
                raise ValueError("Cloud.of: an empty list has no dimension: pass at least one (S, D) array")
            sizes = torch.tensor([0] + [len(c) for c in clouds], device=clouds[0].device)
            return cls(torch.cat(clouds), sizes.cumsum(0))
        coords = _as_coords(x)
        return cls(coords, torch.tensor([0, len(coords)], device=coords.device))

    @property
    def dim(self) -> int:
        return self.coords.shape[1]

    def __getitem__(self, i: int) -> Cloud:
        """Example i, alone."""
        if not -self.num_examples <= i < self.num_examples:
            raise IndexError(f"example {i} of a cloud with {self.num_examples} examples")
        a, b = self.splits[i % self.num_examples :][:2].tolist()
        return Cloud.of(self.coords[a:b])

    def check(self, what: str = "cloud") -> None:
        """Refuse splits that do not fit and coordinates that are not finite, naming example and row.

        Reads values, once: a synchronisation on the GPU.
        """
        self.cached("checked", lambda: self._check(what))

    def _check(self, what: str) -> bool:
        self.check_splits(what)
        # A sum is finite only if all its terms are; where it is not, huge coordinates may have overflowed.
        if self.coords.sum().isfinite():
            return True
        bad = (~self.coords.isfinite()).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            example = int(self.example[row])
            inside = row - int(self.splits[example]) if example < self.num_examples else row
            raise ValueError(
                f"{what}: {len(bad)} points are not finite, the first at row {inside} of example {example} "
                f"({self.coords[row].tolist()}): remove them first, e.g. x[x.isfinite().all(1)]"
            )
        return True


def _as_coords(x: Any) -> Tensor:
    coords = torch.as_tensor(x) if not isinstance(x, np.ndarray) else torch.from_numpy(np.ascontiguousarray(x))
    if coords.ndim != 2:
        raise ValueError(f"a cloud is an (S, D) array of coordinates, not {tuple(coords.shape)}")
    return coords
