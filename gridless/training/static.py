"""Geometry at fixed sizes and fixed addresses, so that one captured graph serves every batch.

Capacities are a little above what was seen; the padding belongs to no example and no edge (`gridless.structures.pad`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad

from gridless.backends import backend_for
from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Geometry
from gridless.training.batches import Batch, Sizes, ends_of, join, tensors_of


def capacity(high: Mapping[str, int], low: Mapping[str, int] | None = None, slack: float = 0.02) -> Sizes:
    """Sizes that hold the largest seen and more: twice as far again as they were spread, and a little.

    Multiples of 64, so that rows stay aligned.
    """
    low = high if low is None else low
    return {n: -(-int(size * (1 + slack) + 2 * (size - low[n]) + 64) // 64) * 64 for n, size in high.items()}


def holds(room: Mapping[str, int], needed: Mapping[str, int]) -> bool:
    # One row of padding at least, so that every layer knows it must look at the splits.
    return all(needed[name] < room[name] for name in needed)


def padded(batch: Batch, plan: Plan, room: Sizes) -> Batch:
    """The batch with every structure, and the transposed edges, grown to its capacity: in tensors of its own."""
    values = {}
    for name, value in batch.geometry.items():
        step = plan.steps[name]
        if isinstance(value, Edges):
            source, target = ends_of(plan, name)
            values[name] = _grow_edges(value, room[source], room[target], room[name])
            if not value.symmetric:
                back = _grow_edges(value.transpose(), room[target], room[source], room[name])
                join(values[name], back)
        elif isinstance(value, Cloud):
            parent = room[step.inputs[0]] if step.inputs else 0
            values[name] = _grow_cloud(value, room[name], parent)
        else:
            raise TypeError(f"{name}: a {type(value).__name__} cannot be given a fixed size")
    return Batch(Geometry(values), batch.labels.clone(), batch.share)


def _rows(tensor: Tensor, rows: int) -> Tensor:
    return pad(tensor, [0, 0] * (tensor.ndim - 1) + [0, rows - len(tensor)])


def _grow_edges(edges: Edges, sources: int, targets: int, length: int) -> Edges:
    splits = torch.cat([edges.splits, edges.splits[-1:].expand(targets + 1 - len(edges.splits))])
    padding = length - len(edges) + edges.padding
    return edges._changed(splits=splits, source=_rows(edges.source, length), num_source=sources, padding=padding)


def _grow_cloud(cloud: Cloud, length: int, parent: int) -> Cloud:
    index = None if cloud.parent_index is None else _rows(cloud.parent_index, length)
    padding = length - len(cloud) + cloud.padding
    coords = _rows(cloud.coords, length)
    changes = {"coords": coords, "splits": cloud.splits.clone(), "parent_index": index, "num_parent": parent}
    return cloud._changed(**changes, distance=None, padding=padding)


class Slot:
    """One padded batch at fixed addresses. `load` overwrites it; `batch` is what the network is given."""

    def __init__(self, batch: Batch, plan: Plan) -> None:
        self._tensors = list(tensors_of(batch))
        self._plan = plan
        self._batch = batch
        self._fill = None
        if backend_for(batch.labels.device) == "gpu":
            from gridless.training.filling import Filling

            self._fill = Filling(self._tensors)

    def load(self, batch: Batch) -> None:
        """Copy another batch, which the capacities hold, over this one, and the padding after it."""
        group, k = batch.parts(self._plan)
        if self._fill is not None:
            return self._fill(group, k)
        for mine, cut in zip(self._tensors, group.cuts, strict=True):
            part = cut.part(k)
            mine[: len(part)] = part
            mine[len(part) :] = 0 if isinstance(cut.fill, int) else int(cut.fill[k])

    @property
    def batch(self) -> Batch:
        """The same tensors in fresh structures, so that nothing derived from an earlier batch is found beside them."""
        values = {}
        for name, value in self._batch.geometry.items():
            values[name] = value._changed()
            if isinstance(value, Edges) and not value.symmetric:
                join(values[name], value.transpose()._changed())
        return Batch(Geometry(values), self._batch.labels, self._batch.share)
