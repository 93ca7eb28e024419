"""The base of all data sets: examples with their transforms, and labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gridless.augment.events import EventTransform
from gridless.augment.points import PointTransform
from gridless.data.seeds import seeded
from gridless.plan import Plan

Step = Callable[[Any], Any]
Steps = Sequence[Step] | Step


class Examples(torch.utils.data.Dataset):
    """A map-style data set of (example, class number). Subclasses say what `example(i)` is, and set `labels` (N).

    Args:
        transform: steps applied to the example in order: transforms of `gl.augment`, then for instance a plan.
        seed: where given, the transforms of example i draw from the seed, the epoch (`set_epoch`) and i alone;
            otherwise from torch's generator, which a DataLoader seeds in each worker.
    """

    labels: Tensor

    def __init__(self, transform: Steps = (), seed: int | None = None) -> None:
        self.transform: tuple[Step, ...] = (transform,) if callable(transform) else tuple(transform)
        self.seed, self.epoch = seed, 0

    def example(self, i: int) -> Any:
        """Example i before its transforms."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"{type(self).__name__} has no example {i}, only {len(self)} examples")
        i = int(i) % len(self)
        return self._transformed(self.example(i), i), int(self.labels[i])

    def _transformed(self, example: Any, i: int) -> Any:
        generator = None if self.seed is None else seeded(self.seed, self.epoch, i)
        for step in self.transform:
            if isinstance(step, EventTransform | PointTransform):
                example = step(example, generator)
            else:
                example = step(self._seen(example) if isinstance(step, Plan) else example)
        return self._seen(example)

    def _seen(self, example: Any) -> Any:
        """The example as a network sees it, once it is augmented."""
        return example

    def set_epoch(self, epoch: int) -> None:
        """With a seed, another epoch draws other numbers.

        Persistent workers of a DataLoader keep the epoch in which they began: leave them off, or use `Precomputed`.
        """
        self.epoch = epoch
