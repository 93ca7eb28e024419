"""Clouds: the points of a batch of examples."""

# ruff: noqa: RUF009 (the field makers are called once per class, as dataclasses.field is)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless.structures.base import Ragged, as_splits, index, named_rows, per_row, same, size, splits_of
from gridless.structures.rows import NO_ROWS, Rows, tensor_of


@dataclass(frozen=True, eq=False, repr=False)
class Cloud(Ragged):
    """Points of a batch of examples: coords (S, D) float32 or float64, splits (B + 1).

    A cloud that was sampled from another knows where its points came from: `parent_index` (S), rows of a cloud of
    `num_parent` points. `distance` (num_parent), on request, is how far each of those is from its closest sample.

    `rows` are what else belongs to each point: a colour, an intensity, a label. They follow the points wherever these
    are cut, put in another order, sampled, batched, padded or moved. The rows named in `directions` are vectors
    (S, ..., D) across the surface, such as normals: augmentation turns them with the coordinates.
    """

    coords: Tensor = per_row()
    splits: Tensor = splits_of("coords")
    parent_index: Tensor | None = index("num_parent", holes=False, default=None)
    num_parent: int = size(default=0)
    distance: Tensor | None = per_row(of="num_parent", default=None)
    padding: int = same(default=0)
    rows: Rows = named_rows()
    directions: tuple[str, ...] = same(default=())

    _length: ClassVar[str] = "coords"
    _row: ClassVar[str] = "point"
    _example: ClassVar[str] = "example"

    def __post_init__(self) -> None:
        coords = _checked(self.coords)
        object.__setattr__(self, "coords", coords)
        object.__setattr__(self, "splits", as_splits(self.splits, coords.device, "Cloud"))
        for name, length in (("parent_index", len(coords)), ("distance", self.num_parent)):
            value = getattr(self, name)
            if value is not None and (value.shape != (length,) or value.device != coords.device):
                raise ValueError(f"Cloud: {name} must be ({length},) on {coords.device}, not {tuple(value.shape)}")
        if self.rows is not NO_ROWS or self.directions:
            object.__setattr__(self, "rows", Rows.of(self.rows, coords, "Cloud"))
            object.__setattr__(self, "directions", _names(self.directions))
            _check_directions(self.directions, self.rows, coords.shape[1])
        if coords.device.type == "cpu":
            self.check_splits("Cloud")

    @classmethod
    def of(cls, x: Any, /, *, directions: str | Sequence[str] = (), **rows: Any) -> Cloud:
        """One example from an (S, D) tensor or array, or a batch from a list of them.

        >>> cloud = gl.Cloud.of(xyz, rgb=rgb, label=label)
        >>> cloud = gl.Cloud.of([xyz1, xyz2], normal=[normal1, normal2], directions="normal")

        Memory is shared where it can be: what is written to an array later is written to the cloud. Searches look at
        the points at every call, but while one runs nobody may write to them.

        Args:
            x: coordinates, or a `Cloud` that gets further rows.
            directions: the names of rows that are directions, such as normals: those turn when the points are turned,
                and stay across the surface when the axes are scaled differently.
            rows: what belongs to each point, by name: tensors or arrays (S, ...) of any type, found again in `rows`;
                with a list of examples, a list of them.
        """
        if isinstance(x, Cloud):
            if not rows and not directions:
                return x
            # What was said of the rows before holds on.
            named = (*x.directions, *_names(directions))
            return dataclasses.replace(x, rows={**x.rows, **rows}, directions=tuple(dict.fromkeys(named)))
        if isinstance(x, (list, tuple)):
            return cls._of_several(x, directions, rows)
        coords = _as_coords(x)
        # From an array: several times as fast as torch.tensor.
        splits = torch.from_numpy(np.array((0, coords.shape[0])))
        if coords.device.type != "cpu":
            splits = splits.to(coords.device)
        if not rows and not directions:
            return cls.made(coords=_checked(coords), splits=splits)
        return cls(
            coords,
            splits,
            rows=rows or NO_ROWS,  # type: ignore[arg-type]
            directions=_names(directions),
        )

    @classmethod
    def _of_several(cls, x: Sequence[Any], directions: str | Sequence[str], rows: Mapping[str, Any]) -> Cloud:
        coords = [_as_coords(c) for c in x]
        if not coords:
            raise ValueError("Cloud.of: an empty list has no dimension: pass at least one (S, D) array")
        for name, values in rows.items():
            if not isinstance(values, (list, tuple)) or len(values) != len(coords):
                raise ValueError(f"Cloud.of: {name} must be a list of {len(coords)} arrays, one for each example")
        joined = NO_ROWS
        if rows:
            each = [Rows.of({n: v[i] for n, v in rows.items()}, c, "Cloud.of") for i, c in enumerate(coords)]
            joined = Rows.joined(each, "Cloud.of")
        sizes = torch.tensor([0] + [len(c) for c in coords], device=coords[0].device)
        return cls(torch.cat(coords), sizes.cumsum(0), rows=joined, directions=_names(directions))

    @property
    def dim(self) -> int:
        return self.coords.shape[1]

    def sampled(self, kept: Tensor, splits: Tensor, distance: Tensor | None = None) -> Cloud:
        """The points at the positions `kept` int64, which know where they came from: what samplers return."""
        return Cloud.made(
            coords=torch.index_select(self.coords, 0, kept),
            splits=splits,
            parent_index=kept,
            num_parent=len(self),
            distance=distance,
            rows=self.rows.taken(kept),
            directions=self.directions,
        ).trusted()

    def check(self, what: str = "cloud") -> None:
        """Refuse splits that do not fit and coordinates that are not finite, naming example and row.

        Reads values, once: a synchronisation on the GPU.
        """
        if not self.is_checked:
            self._check(what)
            self.trusted()

    def _check(self, what: str) -> None:
        self.check_splits(what)
        # A sum is finite only if all its terms are; where it is not, huge coordinates may have overflowed.
        if self.coords.sum().isfinite():
            return
        bad = (~self.coords.isfinite()).any(1).nonzero()
        if len(bad):
            row = int(bad[0])
            example = int(self.example[row])
            inside = row - int(self.splits[example]) if example < self.num_examples else row
            raise ValueError(
                f"{what}: {len(bad)} points are not finite, the first at row {inside} of example {example} "
                f"({self.coords[row].tolist()}): remove them first, e.g. x[x.isfinite().all(1)]"
            )


def _as_coords(x: Any) -> Tensor:
    if isinstance(x, Cloud):
        raise TypeError("Cloud.of: a list of Clouds becomes a batch with gl.collate([...])")
    coords = tensor_of(x)
    if coords.ndim != 2:
        raise ValueError(f"a cloud is an (S, D) array of coordinates, not {tuple(coords.shape)}")
    return coords


def _checked(coords: Any) -> Tensor:
    if not isinstance(coords, Tensor):
        raise TypeError(f"Cloud: coords must be a tensor, not {type(coords).__name__}: use Cloud.of(...)")
    if coords.ndim != 2 or not 1 <= coords.shape[1] <= 8:
        raise ValueError(f"Cloud: coords must be (points, 1 to 8 dimensions), not {tuple(coords.shape)}")
    if coords.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"Cloud: coords must be float32 or float64, not {coords.dtype}: convert with .float()")
    return coords.detach().contiguous() if not coords.requires_grad else coords


def _names(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _check_directions(directions: tuple[str, ...], rows: Rows, dim: int) -> None:
    for name in directions:
        value = rows[name]
        if value.ndim < 2 or value.shape[-1] != dim or not value.is_floating_point():
            raise ValueError(
                f"Cloud: directions such as {name!r} are floating-point vectors (S, {dim}), not {tuple(value.shape)} "
                f"{value.dtype}"
            )
