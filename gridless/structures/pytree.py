"""Structures as containers of tensors that torch knows: what `torch.export.export(model, (geometry,))` needs."""

from __future__ import annotations

from ast import literal_eval
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node

from gridless.structures.base import Structure
from gridless.structures.cloud import Cloud
from gridless.structures.edges import Edges
from gridless.structures.events import Events
from gridless.structures.geometry import Geometry
from gridless.structures.rows import Rows
from gridless.structures.tap_edges import TapEdges
from gridless.structures.voxels import Voxels


def _flat(x: Structure) -> tuple[list[Tensor], Any]:
    """The tensors; and all names, with what is no tensor: another geometry must have the same."""
    leaves = x.leaves()
    what = tuple((name, (None,) if isinstance(value, Tensor) else value) for name, value in leaves.items())
    return [value for value in leaves.values() if isinstance(value, Tensor)], what


def _again(kind: type[Structure], tensors: Any, what: Any) -> Structure:
    left = iter(tensors)
    values = {name: next(left) if value == (None,) else value for name, value in what}
    rows = {name.removeprefix("rows."): values.pop(name) for name in [*values] if name.startswith("rows.")}
    # Not looked at: in a graph that is being made tensors have no values.
    return kind.made(**values, **({"rows": Rows(rows)} if rows else {})).trusted()


def _named(x: Structure) -> tuple[list[tuple[Any, Tensor]], Any]:
    tensors, what = _flat(x)
    names = [name for name, value in what if value == (None,)]
    return [(MappingKey(name), tensor) for name, tensor in zip(names, tensors, strict=True)], what


def _geometry(geometry: Geometry) -> tuple[list[Structure], tuple[str, ...]]:
    if torch.onnx.is_in_onnx_export():
        raise TypeError(
            "ONNX has no convolutions over ragged neighbourhoods, so it cannot hold a network over a Geometry. "
            "Use torch.export.export(model, (model.plan.fixed(x),)), or C for an event network."
        )
    return [*geometry.values()], tuple(geometry)


def _register(kind: type, flat: Any, again: Any, named: Any) -> None:
    register_pytree_node(
        kind,
        flat,
        again,
        flatten_with_keys_fn=named,
        serialized_type_name=f"gridless.{kind.__name__}",
        to_dumpable_context=repr,
        from_dumpable_context=literal_eval,
    )


for _kind in (Cloud, Edges, Events, TapEdges, Voxels):
    _register(_kind, _flat, partial(_again, _kind), _named)
_register(
    Geometry,
    _geometry,
    lambda values, names: Geometry(dict(zip(names, values, strict=True))),
    lambda g: ([(MappingKey(name), value) for name, value in g.items()], _geometry(g)[1]),
)
