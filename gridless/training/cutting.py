"""Geometry of many examples, cut into batches: searches run once for several batches, with their launches and waits.

Examples do not see each other, so that a cut is what the plan would have found for those examples alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Geometry


def ends_of(plan: Plan, name: str) -> tuple[str, str]:
    """The clouds that the edges `name` of a plan lead from and to."""
    step = plan.steps[name]
    if step.op == "transpose":
        source, target = ends_of(plan, step.inputs[0])
        return target, source
    return step.inputs[0], step.inputs[1]


def cut(geometry: Geometry, plan: Plan, examples: Sequence[int]) -> list[Geometry]:
    """The geometry of the first examples[0] examples, of the next examples[1], and so on; one read-back for all."""
    bounds = torch.tensor([0, *examples]).cumsum(0)
    where = _positions(geometry, plan, bounds)
    pieces = []
    for k in range(len(examples)):
        rows = {name: (at[k], at[k + 1]) for name, at in where.items()}
        first, last = int(bounds[k]), int(bounds[k + 1])
        pieces.append(_piece(geometry, plan, rows, first, last))
    return pieces


def _positions(geometry: Geometry, plan: Plan, bounds: Tensor) -> dict[str, list[int]]:
    """Where each part begins, in rows of every cloud and in edges of every neighbourhood and its transpose."""
    names, columns = [], []
    rows: dict[str, Tensor] = {}
    for name, value in geometry.items():
        if isinstance(value, Cloud):
            rows[name] = value.splits[bounds.to(value.device, non_blocking=True)]
            names.append(name)
            columns.append(rows[name])
    for name, value in geometry.items():
        if isinstance(value, Edges):
            # The transposed edges of an example are as many, and begin where these do.
            names.append(name)
            columns.append(value.splits[rows[ends_of(plan, name)[1]]])
    return dict(zip(names, torch.stack(columns).tolist(), strict=True))


def _piece(geometry: Geometry, plan: Plan, rows: dict[str, tuple[int, int]], first: int, last: int) -> Geometry:
    values = {}
    for name, value in geometry.items():
        if isinstance(value, Cloud):
            inputs = plan.steps[name].inputs
            values[name] = _cut_cloud(value, rows[name], rows[inputs[0]] if inputs else (0, 0), first, last)
        elif isinstance(value, Edges):
            source, target = ends_of(plan, name)
            values[name] = _cut_edges(value, rows[name], rows[source], rows[target])
            if not value.symmetric:
                back = _cut_edges(value.transpose(), rows[name], rows[target], rows[source])
                values[name].cached("transpose", lambda back=back: back)
                back.cached("transpose", lambda edges=values[name]: edges)
    return Geometry(values)


def _cut_cloud(cloud: Cloud, rows: tuple[int, int], parent: tuple[int, int], first: int, last: int) -> Cloud:
    a, b = rows
    index = None if cloud.parent_index is None else cloud.parent_index[a:b] - parent[0]
    size = 0 if cloud.parent_index is None else parent[1] - parent[0]
    splits = cloud.splits[first : last + 1] - a
    # A copy, so that it begins at an aligned address: kernels are compiled apart for those that do not.
    coords = cloud.coords[a:b].clone()
    return cloud._changed(coords=coords, splits=splits, parent_index=index, num_parent=size, distance=None)


def _cut_edges(edges: Edges, kept: tuple[int, int], source: tuple[int, int], target: tuple[int, int]) -> Edges:
    a, b = kept
    splits = edges.splits[target[0] : target[1] + 1] - a
    return edges._changed(splits=splits, source=edges.source[a:b] - source[0], num_source=source[1] - source[0])
