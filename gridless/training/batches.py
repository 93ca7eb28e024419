"""Batches with their geometry, alone or cut from that of a group: searches then run once for several batches.

Examples do not see each other, so that a cut is what the plan would have found for those examples alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Events, Geometry

Sizes = dict[str, int]


@dataclass(frozen=True)
class Batch:
    """A batch with its geometry: labels (B) int64, and `share`, this process's part of the loss (1 when alone)."""

    geometry: Geometry
    labels: Tensor
    share: float = 1.0

    @property
    def sizes(self) -> Sizes:
        """Rows of every cloud and edges of every neighbourhood."""
        return {name: len(value) for name, value in self.geometry.items()}

    def parts(self, plan: Plan) -> tuple[Group, int]:
        """The group it is of, and which of its batches it is."""
        return Group(self.geometry, self.labels, plan, [len(self.labels)], [self.share]), 0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        labels = self.labels.to(device, non_blocking=non_blocking)
        return Batch(self.geometry.to(device, non_blocking), labels, self.share)

    def pin_memory(self) -> Batch:
        return Batch(self.geometry.pin_memory(), self.labels.pin_memory(), self.share)


class Piece(Batch):
    """One batch of a group; its geometry is cut when it is asked for."""

    group: Group
    number: int

    def __init__(self, group: Group, number: int) -> None:
        a, b = group.bounds[number : number + 2].tolist()
        # Frozen, as every batch is.
        self.__dict__.update(group=group, number=number, labels=group.labels[a:b], share=group.shares[number])

    @property
    def sizes(self) -> Sizes:
        return self.group.sizes(self.number)

    def parts(self, plan: Plan) -> tuple[Group, int]:
        return self.group, self.number

    @cached_property
    def geometry(self) -> Geometry:  # type: ignore[override]
        return self.group.cut(self.number)


class Cut(NamedTuple):
    """Part k of a tensor is tensor[first[k] : first[k] + count[k]] - shift[k]; what pads it is fill[k]."""

    tensor: Tensor
    first: np.ndarray
    count: np.ndarray
    shift: Any = 0
    fill: Any = 0

    def part(self, k: int) -> Tensor:
        rows = self.tensor[self.first[k] : self.first[k] + self.count[k]]
        # A copy either way, so that it begins at an aligned address: kernels are compiled apart for those that do not.
        return rows.clone() if isinstance(self.shift, int) else rows - int(self.shift[k])


class Group(Sequence):
    """Several batches whose geometry was found at once: the first examples[0] examples, the next examples[1], ..."""

    def __init__(
        self, geometry: Geometry, labels: Tensor, plan: Plan, examples: Sequence[int], shares: Sequence[float]
    ) -> None:
        self.geometry, self.labels, self.plan, self.shares = geometry, labels, plan, shares
        self.bounds = np.cumsum([0, *examples])

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        k = range(len(self))[k]
        return Batch(self.geometry, self.labels, self.shares[0]) if len(self) == 1 else Piece(self, k)

    def sizes(self, k: int) -> Sizes:
        """Rows of every cloud and edges of every neighbourhood of batch k."""
        return {name: int(at[k + 1] - at[k]) for name, at in self.where.items()}

    @cached_property
    def where(self) -> dict[str, np.ndarray]:
        """Where each batch begins, in rows of every cloud and in edges of every neighbourhood; one read-back for all.

        The transposed edges of an example are as many, and begin where these do.
        """
        if len(self) == 1:
            return {name: np.array([0, len(value)]) for name, value in self.geometry.items()}
        bounds = torch.from_numpy(self.bounds).to(self.labels.device, non_blocking=True)
        rows = {name: v.splits[bounds] for name, v in self.geometry.items() if isinstance(v, Cloud)}
        for name, value in self.geometry.items():
            if isinstance(value, Edges):
                rows[name] = value.splits[rows[ends_of(self.plan, name)[1]]]
        return dict(zip(rows, torch.stack(list(rows.values())).cpu().numpy(), strict=True))

    @cached_property
    def cuts(self) -> list[Cut]:
        """How every tensor is cut: the labels, then those of every structure, as `tensors_of` a batch has them."""
        examples, where = np.diff(self.bounds), self.where
        found = [Cut(self.labels, self.bounds[:-1], examples)]
        for name, value in self.geometry.items():
            at = where[name][:-1]
            count = np.diff(where[name])
            if isinstance(value, Cloud):
                found.append(Cut(value.coords, at, count))
                found.append(Cut(value.splits, self.bounds[:-1], examples + 1, at))
                if value.parent_index is not None:
                    found.append(Cut(value.parent_index, at, count, where[self.plan.steps[name].inputs[0]][:-1]))
            elif isinstance(value, Edges):
                both = ends_of(self.plan, name)
                ways = [(value, both)] if value.symmetric else [(value, both), (value.transpose(), both[::-1])]
                for edges, (source, target) in ways:
                    rows = where[target]
                    found.append(Cut(edges.splits, rows[:-1], np.diff(rows) + 1, at, count))
                    found.append(Cut(edges.source, at, count, where[source][:-1]))
            else:
                raise TypeError(f"{name}: a {type(value).__name__} cannot be cut, or given a fixed size")
        return found

    def cut(self, k: int) -> Geometry:
        """The geometry of batch k."""
        parts = iter([cut.part(k) for cut in self.cuts][1:])
        sizes = self.sizes(k)
        values: dict[str, Any] = {}
        for name, value in self.geometry.items():
            if isinstance(value, Cloud):
                changes: dict[str, Any] = {"coords": next(parts), "splits": next(parts), "distance": None}
                if value.parent_index is not None:
                    parent = sizes[self.plan.steps[name].inputs[0]]
                    changes |= {"parent_index": next(parts), "num_parent": parent}
                values[name] = value._changed(**changes)
            elif isinstance(value, Edges):
                source, target = ends_of(self.plan, name)
                values[name] = value._changed(splits=next(parts), source=next(parts), num_source=sizes[source])
                if not value.symmetric:
                    back = value.transpose()._changed(splits=next(parts), source=next(parts), num_source=sizes[target])
                    join(values[name], back)
        return Geometry(values)


def ends_of(plan: Plan, name: str) -> tuple[str, str]:
    """The clouds that the edges `name` of a plan lead from and to."""
    step = plan.steps[name]
    if step.op == "transpose":
        source, target = ends_of(plan, step.inputs[0])
        return target, source
    return step.inputs[0], step.inputs[1]


def join(edges: Edges, back: Edges) -> None:
    """Let each be known as the other's transpose."""
    edges.cached("transpose", lambda: back)
    back.cached("transpose", lambda: edges)


def transposed(geometry: Geometry) -> Geometry:
    """The same geometry, with the transposes that a backward pass will want beside the edges."""
    for value in geometry.values():
        if isinstance(value, Edges):
            value.transpose()
    return geometry


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor of a batch or of a group, the transposed edges included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Batch | Group):
        yield value.labels
        yield from tensors_of(value.geometry)
    elif isinstance(value, Geometry):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, Edges):
        yield from (value.splits, value.source)
        back = value.__dict__.get("_kept", {}).get("transpose")
        if back is not None:
            yield from (back.splits, back.source)
    elif isinstance(value, Cloud):
        yield from (t for t in (value.coords, value.splits, value.parent_index, value.distance) if t is not None)
    elif isinstance(value, Events):
        yield from (t for t in (value.pixel, value.time, value.polarity, value.splits, value.cause) if t is not None)
        # What was derived on the way, such as the order by pixel, is used again by the network.
        yield from tensors_of(list(value.__dict__.get("_kept", {}).values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
