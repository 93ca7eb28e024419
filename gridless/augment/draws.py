"""The random numbers of augmentation."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor

from gridless.structures import Ragged

# The largest setting: a float32 holds it, and its products.
FINITE = 1e30


class Settings:
    """The numbers of a transform, which are looked at when it is made: `bounds` are the least and the most of each."""

    bounds: ClassVar[dict[str, tuple[float, float]]] = {}

    def __post_init__(self) -> None:
        for name, (least, most) in self.bounds.items():
            value = getattr(self, name)
            if not isinstance(value, int | float | np.integer | np.floating) or not least <= value <= most:
                ends = f"from {least:g} to {most:g}" if most < FINITE else f"of {least:g} or more"
                raise ValueError(f"{type(self).__name__}: {name} must be a number {ends}, not {value!r}")

    def describe(self) -> str:
        """The transform in a few plain words, for the lines before training."""
        return type(self).__name__


class Draws:
    """Numbers for each example of a batch, or for each of its points or events, on the device of the batch.

    They are drawn from `generator`, on its device, or from torch's own on the device of the batch, which a DataLoader
    seeds in each worker. A subclass may draw them otherwise, so that they do not depend on the batch.
    """

    def __init__(self, generator: Generator | None = None) -> None:
        self.generator = generator

    @staticmethod
    def of(generator: Generator | Draws | None) -> Draws:
        return generator if isinstance(generator, Draws) else Draws(generator)

    def uniform(self, batch: Ragged, *shape: int, each: str = "example", dtype: torch.dtype = torch.float32) -> Tensor:
        """From 0 to 1, of `dtype`: (B, *shape) for each example of the batch, or (S, *shape) for `each="row"`."""
        return self._drawn(torch.rand, batch, shape, each, dtype)

    def normal(self, batch: Ragged, *shape: int, each: str = "example", dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal numbers of mean 0 and variance 1; the arguments are those of `uniform`."""
        return self._drawn(torch.randn, batch, shape, each, dtype)

    def _drawn(self, function, batch: Ragged, shape: tuple[int, ...], each: str, dtype: torch.dtype) -> Tensor:  # type: ignore[no-untyped-def]
        size = (batch.num_examples if each == "example" else len(batch), *shape)
        device = batch.device if self.generator is None else self.generator.device
        return function(size, generator=self.generator, dtype=dtype, device=device).to(batch.device)
