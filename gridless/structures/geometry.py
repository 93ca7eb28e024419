"""Geometry: what a plan computed, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Structure
from gridless.structures.edges import Edges
from gridless.structures.sending import as_one


def expect_geometry(geometry: Any) -> None:
    """Refuse points, and nothing, in place of a geometry, which is what a network meets that is called with points."""
    if geometry is None or isinstance(geometry, Tensor | np.ndarray | list | tuple):
        kinds = {Tensor: "a tensor", np.ndarray: "an array", list: "a list", tuple: "a tuple"}
        actual = next((kind_name for kind, kind_name in kinds.items() if isinstance(geometry, kind)), "None")
        raise TypeError(
            f"expected a Geometry, not {actual}. Call model(model.plan(x)), or model(features, model.plan(x))."
        )


def points_of(what: str, features: Tensor, geometry: Geometry, name: str) -> Any:
    """The cloud or the events `name`, of which `what` takes a row of features for each."""
    cloud = geometry[name]
    if isinstance(cloud, Edges):
        raise TypeError(f"{what}: {name} are edges, not points. Pass the name of their target, {name}.target.")
    if features.shape[0] != len(cloud):
        raise ValueError(f"{what}: features have {features.shape[0]} rows, but {name} has {len(cloud)} points")
    return cloud


class Geometry(Mapping[str, Structure]):
    """The results of a plan, by name: `geometry["X1"]` is a cloud, `geometry["N01"]` its edges."""

    def __init__(self, values: Mapping[str, Any], lines: Mapping[str, str] | None = None) -> None:
        """`lines` are the fingerprints of what the plan found under each name, where that is known."""
        self._values = {getattr(name, "plain", name): value for name, value in values.items()}
        self._lines = lines

    @classmethod
    def made(cls, values: dict[str, Structure], lines: Mapping[str, str] | None = None) -> Geometry:
        """A geometry that has these values for its own; their names are plain."""
        new = object.__new__(cls)
        new._values, new._lines = values, lines
        return new

    def __getitem__(self, name: str) -> Any:
        # Plain, where a name is of a plan: torch.compile takes only plain strings for constants.
        plain = getattr(name, "plain", name)
        try:
            value = self._values[plain]
        except KeyError:
            raise KeyError(
                f"this geometry has no {name!r}, only {', '.join(self._values)}. Run the plan of this network."
            ) from None
        line = getattr(name, "line", None)
        if line is not None and self._lines is not None and self._lines.get(plain, line) != line:
            raise ValueError(
                f"{plain} of this geometry comes from another plan, with other settings. "
                "Run the plan of this network: model.plan(x)."
            )
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        lines = "\n".join(f"  {name}: {value!r}" for name, value in self._values.items())
        return f"Geometry(\n{lines}\n)"

    @property
    def lines(self) -> Mapping[str, str] | None:
        """Fingerprints of the plan's lines, by name; None if they are not known."""
        return self._lines

    @property
    def device(self) -> torch.device:
        for value in self._values.values():
            return value.device
        raise ValueError("this geometry is empty, so it has no device")

    def tensors(self) -> Iterator[Tensor]:
        """Every tensor of every structure, those included that were derived from others and are kept beside them."""
        for value in self._values.values():
            yield from value.tensors()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Geometry:
        return Geometry({n: v.to(device, non_blocking=non_blocking) for n, v in self._values.items()}, self._lines)

    def cpu(self) -> Geometry:
        return self.to("cpu")

    def cuda(self) -> Geometry:
        return self.to("cuda")

    def pin_memory(self) -> Geometry:
        return Geometry({n: v.pin_memory() for n, v in self._values.items()}, self._lines)


ForkingPickler.register(Geometry, as_one)
