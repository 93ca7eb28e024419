"""Batches with their geometry, which the plan computes for several batches at once, with one run of each search.

Examples are independent, so the geometry cut out for one batch equals the geometry of that batch alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Events, Geometry, Structure, TapEdges

# Name -> rows of a cloud or stream, or edges of a neighbourhood; EXAMPLES -> number of examples.
Sizes = dict[str, int]
EXAMPLES = ""


class Batch:
    """One batch of a group: its geometry, labels (B) int64, and `share`, the loss weight of this process (alone: 1)."""

    def __init__(self, group: Group, number: int = 0) -> None:
        self.group, self.number = group, number
        a, b = group.bounds[number : number + 2].tolist()
        self.labels, self.share = group.labels[a:b], group.shares[number]

    @cached_property
    def geometry(self) -> Geometry:
        """The geometry of the batch, cut out of that of the group on first use."""
        return self.group.geometry if len(self.group) == 1 else self.group.cut(self.number)

    @property
    def sizes(self) -> Sizes:
        return {name: int(at[self.number + 1] - at[self.number]) for name, at in self.group.where.items()}

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        if self.labels.device == torch.device(device):
            return self
        return self._alone(lambda part: part.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        return self._alone(lambda part: part.pin_memory())

    def _alone(self, function: Any) -> Batch:
        return Batch(Group(self.group.plan, function(self.geometry), function(self.labels), [self.share]))


class Group(Sequence):
    """Batches whose geometry was computed together: the first has examples[0] examples, the next examples[1], ...

    Without `examples` the group is one batch.
    """

    def __init__(
        self,
        plan: Plan,
        geometry: Geometry,
        labels: Tensor,
        shares: Sequence[float] = (1.0,),
        examples: Sequence[int] | None = None,
    ) -> None:
        self.plan, self.geometry, self.labels, self.shares = plan, geometry, labels, list(shares)
        self.bounds = np.cumsum([0, *([len(labels)] if examples is None else examples)])

    def __len__(self) -> int:
        return len(self.shares)

    def __getitem__(self, k: Any) -> Any:
        if isinstance(k, slice):
            return [self[i] for i in range(len(self))[k]]
        return Batch(self, range(len(self))[k])

    @cached_property
    def where(self) -> dict[str, np.ndarray]:
        """Name -> offset of each batch in a cloud, stream or neighbourhood (EXAMPLES: in the examples), and the end.

        One read-back gives all offsets. Transposed edges have the same offsets as the edges.
        """
        if len(self) == 1:
            return {EXAMPLES: self.bounds} | {name: np.array([0, len(v)]) for name, v in self.geometry.items()}
        bounds = torch.from_numpy(self.bounds).to(self.labels.device, non_blocking=True)
        rows = {name: v.splits[bounds] for name, v in self.geometry.items() if isinstance(v, Cloud | Events)}
        for name, value in self.geometry.items():
            if isinstance(value, Edges):
                rows[name] = value.splits[rows[self.plan.ends(name)[1]]]
            elif isinstance(value, TapEdges):
                rows[name] = rows[self.plan.ends(name)[1]]
        begins = torch.stack(list(rows.values())).cpu().numpy()
        return {EXAMPLES: self.bounds, **dict(zip(rows, begins, strict=True))}

    @cached_property
    def fields(self) -> list[Field]:
        return fields(self.plan, self.geometry, self.labels)

    @cached_property
    def layout(self) -> tuple:
        """Key of the memory layout: names of rows, types and widths. Batches of one layout can overwrite each other."""
        rows = [(name, *value.rows) for name, value in self.geometry.items() if isinstance(value, Cloud | Events)]
        return *rows, *((field.tensor.dtype, field.tensor.shape[1:]) for field in self.fields)

    @cached_property
    def table(self) -> np.ndarray:
        """(batches, fields, 4) int64: first row, number of rows, offset subtracted from the values, padding value."""
        begins = {name: at[:-1] for name, at in self.where.items()}
        counts = {name: np.diff(at) for name, at in self.where.items()}
        none = np.zeros(len(self), np.int64)
        columns = (
            [begins[field.of] for field in self.fields],
            [counts[field.of] + field.splits for field in self.fields],
            [none if field.into is None else begins[field.into] for field in self.fields],
            [_padding(field, counts[field.into or EXAMPLES], none) for field in self.fields],
        )
        return np.array(columns).transpose(2, 1, 0)

    @cached_property
    def addresses(self) -> Tensor:
        """The table on the device, with first rows as addresses and counts in units (see `unit`)."""
        table, tensors = self.table.copy(order="C"), [field.tensor for field in self.fields]
        widths = np.array([t.element_size() * math.prod(t.shape[1:]) for t in tensors])
        table[..., 0] = table[..., 0] * widths + [t.data_ptr() for t in tensors]
        table[..., 1] *= widths // [unit(t) for t in tensors]
        return send(torch.from_numpy(table), self.labels.device)

    def parts(self, k: int) -> Iterator[Tensor]:
        """The part of every field that belongs to batch k."""
        for (first, count, shift, _), field in zip(self.table[k].tolist(), self.fields, strict=True):
            rows = field.tensor[first : first + count]
            # Both branches copy, which gives an aligned address: an unaligned one would compile another kernel.
            yield rows.clone() if field.into is None else rows - shift

    def cut(self, k: int) -> Geometry:
        """The geometry of batch k."""
        return with_fields(self.plan, self.geometry, self.parts(k), self[k].sizes)

    def tensors(self) -> Iterator[Tensor]:
        """All tensors, including cached ones that were derived from others."""
        yield self.labels
        yield from self.geometry.tensors()


class Field(NamedTuple):
    """A tensor of a batch with one row per row of `of`. Indices and splits refer to rows of `into`.

    A field of `splits` has one more entry, and padding repeats the last one. The padding of `taps` is -1.
    """

    tensor: Tensor
    of: str
    into: str | None = None
    splits: bool = False
    taps: bool = False

    @property
    def kind(self) -> str:
        """The kind of the field, as in `gridless.structures.base`."""
        return "splits" if self.splits else "tap index" if self.taps else "index" if self.into else "rows"


def _padding(field: Field, count: np.ndarray, none: np.ndarray) -> np.ndarray:
    """The padding value of a field for each batch. For an index, the position of the padding row is added."""
    return count if field.splits else none - 1 if field.taps else none


def fields(plan: Plan, geometry: Geometry, labels: Tensor) -> list[Field]:
    """The labels, then the tensors of every structure and of the transposed edges."""
    entries = [Field(labels, EXAMPLES)]
    for name, value, groups, into in _structures(plan, geometry):
        for kind, tensor in value.parts():
            if kind == "splits":
                entries.append(Field(tensor, groups, name, splits=True))
            elif kind == "tap index":
                entries.append(Field(tensor, groups, into, taps=True))
            else:
                entries.append(Field(tensor, name, into if kind.endswith("index") else None))
    return entries


def with_fields(
    plan: Plan, geometry: Geometry, tensors: Iterable[Tensor], sizes: Mapping[str, int], padding: Mapping[str, int] = {}
) -> Geometry:
    """The same structures with other tensors, in the order of `fields`, with row counts `sizes` and `padding`."""
    left = iter(tensors)
    next(left)
    values: dict[str, Any] = {}
    for name, value, _, into in _structures(plan, geometry):
        part = value.with_parts(left, None if into is None else sizes[into], padding.get(name, 0))
        first = values.setdefault(name, part)
        if first is not part:
            first.cached("transpose", lambda part=part: part)
            part.cached("transpose", lambda first=first: first)
    return Geometry(values, geometry.lines)


def _structures(plan: Plan, geometry: Geometry) -> Iterator[tuple[str, Structure, str, str | None]]:
    """(name, structure, name of what its splits group by, name of what it indexes); transposed edges follow edges."""
    for name, value in geometry.items():
        if isinstance(value, Cloud | Events):
            bare = value._changed(distance=None) if isinstance(value, Cloud) and value.distance is not None else value
            yield name, bare, EXAMPLES, next(iter(plan.steps[name].inputs), None)
        elif isinstance(value, Edges | TapEdges) and plan.steps[name].op != "causal":
            source, target = plan.ends(name)
            yield name, value, target, source
            if not value.symmetric:
                yield name, value.transpose(), source, target
        else:
            what, remedy = f"a {type(value).__name__}", ""
            if isinstance(value, Edges):
                what, remedy = "edges of events", " Build the network with form='scan'."
            raise TypeError(f"{name}: {what} cannot be cut or padded to a fixed size.{remedy}")


def unit(tensor: Tensor) -> int:
    """Bytes copied at once: 4 or 8 for numbers of that size, which may be shifted, else single bytes."""
    return tensor.element_size() if tensor.element_size() in (4, 8) else 1


def transposed(geometry: Geometry) -> Geometry:
    """The same geometry, with the transposed edges that the backward pass needs computed and cached."""
    for value in geometry.values():
        if isinstance(value, Edges) or (isinstance(value, TapEdges) and not value.symmetric):
            value.transpose()
    return geometry


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to the device asynchronously."""
    if device.type == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)
