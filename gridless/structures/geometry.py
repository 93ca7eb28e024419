"""Geometry: what a plan computed, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Structure


def expect_geometry(geometry: Any) -> None:
    """Refuse points, and nothing, in place of a geometry, which is what a network meets that is called with points."""
    if geometry is None or isinstance(geometry, Tensor | np.ndarray):
        found = "a tensor" if isinstance(geometry, Tensor) else "None" if geometry is None else "an array"
        raise TypeError(
            f"expected a Geometry, not {found}: call model(model.plan(x)), or, with features, "
            "model(features, model.plan(x))"
        )


class Geometry(Mapping[str, Structure]):
    """What a plan computed, by name: `geometry["X1"]` is a cloud, `geometry["N01"]` its edges."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = {getattr(name, "plain", name): value for name, value in values.items()}

    @classmethod
    def made(cls, values: dict[str, Structure]) -> Geometry:
        """A geometry that has these values for its own; their names are plain."""
        new = object.__new__(cls)
        new._values = values
        return new

    def __getitem__(self, name: str) -> Any:
        try:
            # Plain, where a name is of a plan: torch.compile takes only plain strings for constants.
            return self._values[getattr(name, "plain", name)]
        except KeyError:
            raise KeyError(
                f"this geometry has no {name!r}, only {', '.join(self._values)}: was it made by another plan?"
            ) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        lines = "\n".join(f"  {name}: {value!r}" for name, value in self._values.items())
        return f"Geometry(\n{lines}\n)"

    @property
    def device(self) -> torch.device:
        return next(iter(self._values.values())).device

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of every structure, those included that were derived from others and are kept beside them."""
        for value in self._values.values():
            yield from value.tensors()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Geometry:
        return Geometry({n: v.to(device, non_blocking=non_blocking) for n, v in self._values.items()})

    def pin_memory(self) -> Geometry:
        return Geometry({n: v.pin_memory() for n, v in self._values.items()})
