"""One algebra of batches for all structures, on the kinds of their fields: merge (`collate`) and pad.

`Structure.parts` lists tensors by kind, and `with_parts` takes others in their place: training cuts and pads with them.

Padding is of the batch: few shapes for compiled and captured graphs, the same results. Padding rows come after the last
example and belong to none; padding targets have no edge; padding edges belong to no target. Whatever walks splits never
meets them. Their indices point at different rows: gradients that go to one wait for each other on a GPU.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from numbers import Number
from operator import attrgetter
from typing import Any, TypeVar, overload

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from gridless.structures.base import Structure, kinds
from gridless.structures.edges import MAX_EDGES, Edges
from gridless.structures.geometry import Geometry
from gridless.structures.rows import Rows
from gridless.structures.tap_edges import TapEdges

Buckets = str | Sequence[int]
Example = TypeVar("Example", bound=Structure | Geometry)


@overload
def collate(examples: Sequence[Example], bucket: str | Sequence[int] | None = None) -> Example: ...
@overload
def collate(
    examples: Sequence[tuple[Example, int]], bucket: str | Sequence[int] | None = None
) -> tuple[Example, Tensor]: ...
@overload
def collate(examples: Sequence[Any], bucket: str | Sequence[int] | None = None) -> Any: ...
def collate(examples: Sequence[Any], bucket: str | Sequence[int] | None = None) -> Any:
    """One ragged batch from a list of examples: the `collate_fn` of a DataLoader.

    Structures and geometries become block-diagonal, with their rows; tuples and dicts are collated part by part;
    numbers, arrays and tensors belong to an example, and are stacked. With `bucket` ("power_of_two", or a list of
    allowed sizes) every structure is padded to the next bucket, so that compiled and captured graphs meet few shapes;
    the padding belongs to no example and no edge.
    """
    if not examples:
        raise ValueError("collate: the list of examples is empty")
    first = examples[0]
    _check_alike(examples)
    if isinstance(first, Geometry):
        if any(set(e) != set(first) or e.lines != first.lines for e in examples):
            raise ValueError("collate: these geometries come from different plans. Run one plan on all examples.")
        return Geometry({n: collate([e[n] for e in examples], bucket) for n in first}, first.lines)
    if isinstance(first, Structure):
        merged = _merge(examples)
        return merged if bucket is None else pad(merged, bucket)
    if isinstance(first, tuple | list):
        parts = [collate(list(part), bucket) for part in zip(*examples)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if isinstance(first, Mapping):
        return {k: collate([e[k] for e in examples], bucket) for k in first}
    if isinstance(first, Tensor | np.ndarray) and len(shapes := {tuple(e.shape) for e in examples}) > 1:
        raise ValueError(
            f"collate: tensors of shapes {sorted(shapes)} cannot be stacked. For points with values, use "
            "gl.Cloud.of(xyz, rgb=rgb), and read geometry['X0'].rows['rgb']."
        )
    try:
        return torch.utils.data.default_collate(list(examples))
    except TypeError as error:
        raise TypeError(f"collate: {error}. Convert points of another library with gl.Cloud.of(x).") from None


# Types that are collated in one way, and may be mixed.
_ALIKE = (Geometry, Structure, tuple | list, Mapping, Tensor, np.ndarray, Number | np.bool_, str | bytes)


def _check_alike(examples: Sequence[Any]) -> None:
    """Refuse what examples cannot have in common with the first, naming the one that differs."""
    first = examples[0]
    if first is None or len({*map(type, examples)}) > 1:
        for i, example in enumerate(examples):
            if example is None:
                raise TypeError(f"collate: example {i} has a None, which cannot be batched. Leave it out.")
            if _alike(example) is not _alike(first):
                kinds_in_words = f"{type(first).__name__} in example 0 and {type(example).__name__} in example {i}"
                raise TypeError(f"collate: {kinds_in_words} cannot share a batch. Give all the same type.")
    if isinstance(first, tuple | list):
        for i, example in enumerate(examples):
            if len(example) != len(first):
                raise ValueError(
                    f"collate: {len(first)} values in example 0 and {len(example)} in example {i} cannot share a batch"
                )
    elif isinstance(first, Mapping) and not isinstance(first, Geometry):
        for i, example in enumerate(examples):
            if example.keys() != first.keys():
                odd = next(iter(example.keys() ^ first.keys()))
                has, lacks = (0, i) if odd in first else (i, 0)
                raise ValueError(f"collate: example {has} has {odd!r}, example {lacks} has not. Give it to all.")


def _alike(value: Any) -> Any:
    return next((kind for kind in _ALIKE if isinstance(value, kind)), type(value))


def _refuse(batch: Sequence[Any], *, collate_fn_map: Any = None) -> None:
    what = type(batch[0]).__name__
    raise TypeError(f"DataLoader cannot batch {what} by default. Pass collate_fn=gl.collate.")


# A DataLoader without our `collate`, Lightning's included, refuses our structures.
default_collate_fn_map.update({Structure: _refuse, Geometry: _refuse})


def _merge(parts: Sequence[Structure]) -> Structure:
    """Concatenate structures; indices and splits are shifted by what came before them."""
    cls = type(parts[0])
    others = set(map(type, parts)) - {cls}
    if others:
        names = ", ".join(sorted(other.__name__ for other in others))
        raise TypeError(f"collate: {cls.__name__} and {names} cannot share a batch")
    fields = kinds(cls)
    # Batches of hundreds: one pass over each example, and as little Python for each of its fields as there can be.
    names = [name for name, *_ in fields]
    columns: dict[str, tuple] = dict(zip(names, zip(*map(attrgetter(*names), parts), strict=True), strict=True))
    devices = {t.device for t in columns[cls._length]}
    if len(devices) > 1:
        raise ValueError(f"collate: {_several(cls)} are on different devices: {', '.join(map(str, devices))}")
    values: dict[str, Any] = {}
    for name, kind, refers in fields:
        column = columns[name]
        if kind == "same":
            if column.count(column[0]) != len(column):
                settings = " and ".join(dict.fromkeys(map(str, column)))
                raise ValueError(f"collate: {_several(cls)} with different {name} cannot share a batch: {settings}")
            if name == "padding" and column[0]:
                raise ValueError("collate: padded batches cannot be collated. Collate first, then pad.")
            values[name] = column[0]
        elif kind == "size":
            values[name] = sum(column)
        elif kind == "named rows":
            values[name] = Rows.joined(column, "collate")
        elif any(v is None for v in column):
            if any(v is not None for v in column):
                raise ValueError(f"collate: only some {_several(cls)} have {name}. Give it to all or to none.")
            values[name] = None
        elif kind == "rows":
            values[name] = _stacked(column, name)
        elif kind == "splits":
            values[name] = _joined(column, [t.shape[0] for t in columns[refers or ""]])
        else:
            values[name] = _shifted(column, columns[refers or ""], holes=kind != "full index")
    if issubclass(cls, Edges) and (len(values["source"]) > MAX_EDGES or values["num_source"] > MAX_EDGES):
        raise ValueError(f"collate: {len(values['source'])} edges are more than {MAX_EDGES}. Use smaller batches.")
    batch = cls.made(**values)
    return batch.trusted() if all(p.is_checked for p in parts) else batch


def _several(cls: type) -> str:
    return cls.__name__ if cls.__name__.endswith("s") else f"{cls.__name__}s"


def _stacked(column: Sequence[Tensor], name: str) -> Tensor:
    try:
        return torch.cat(column)  # type: ignore[arg-type]
    except RuntimeError:
        other = next((i for i, t in enumerate(column) if t.shape[1:] != column[0].shape[1:]), None)
        if other is None:
            raise
        shapes = f"{tuple(column[0].shape)} in example 0 and {tuple(column[other].shape)} in example {other}"
        raise ValueError(f"collate: {name} are {shapes}. Give all examples the same dimensions.") from None


def _shifted(parts: tuple[Tensor, ...] | list[Tensor], sizes: Sequence[int], holes: bool = False) -> Tensor:
    """One tensor of all parts, each raised by the sizes of those before it, except where a hole points at nothing."""
    merged = torch.cat(parts)
    nothing = merged < 0 if holes else None
    lengths, before = np.array([p.numel() for p in parts]), np.array([*accumulate(sizes[:-1], initial=0)])
    if merged.device.type == "cpu":
        from gridless.structures.kernels import raise_pieces

        raise_pieces(merged.view(-1).numpy(), lengths, before)
    else:
        there = (torch.from_numpy(a).to(merged.device) for a in (before, lengths))
        merged += torch.repeat_interleave(*there, output_size=merged.numel()).view_as(merged)
    return merged if nothing is None else merged.masked_fill_(nothing, -1)


def _joined(parts: tuple[Tensor, ...], sizes: Sequence[int]) -> Tensor:
    """The splits of all parts as one: each raised by the sizes of those before it; only the first keeps its 0."""
    if parts[0].device.type != "cpu":
        return _shifted([parts[0], *(p[1:] for p in parts[1:])], sizes)
    from gridless.structures.kernels import drop_firsts

    # Hundreds of slices take longer than leaving their first elements out afterwards.
    merged = _shifted(parts, sizes)
    return merged[: drop_firsts(merged.numpy(), np.array([p.shape[0] for p in parts]))]


def bucket_size(length: int, bucket: Buckets) -> int:
    """The smallest bucket that holds `length` rows."""
    if isinstance(bucket, str):
        if bucket != "power_of_two":
            raise ValueError(f"bucket must be 'power_of_two' or a list of sizes, not {bucket!r}")
        return 1 << max(length - 1, 0).bit_length()
    sizes = sorted(bucket)
    if not sizes or not all(isinstance(s, int) and s > 0 for s in sizes):
        raise ValueError(f"bucket must be 'power_of_two' or a list of positive sizes, not {bucket!r}")
    at = bisect_left(sizes, length)
    if at == len(sizes):
        raise ValueError(f"no bucket holds {length} rows, the largest is {sizes[-1]}. Add a larger bucket.")
    return sizes[at]


def pad(value: Any, bucket: Buckets) -> Any:
    """The structure with every tensor grown to its bucket; example counts stay as they are."""
    sizes = [of for name, kind, of in kinds(type(value)) if kind.endswith("index") and getattr(value, name) is not None]
    into = bucket_size(getattr(value, sizes[0] or ""), bucket) if sizes else None
    parts = []
    for kind, tensor in value.parts():
        splits, rows = kind == "splits", len(tensor)
        # Splits of edges have a row per target, and so they grow; those of clouds and events have one per example.
        if not splits or isinstance(value, Edges):
            rows = bucket_size(rows - splits, bucket) + splits
        parts.append(grown(tensor, rows, kind, into if kind.endswith("index") else None))
    more = bucket_size(len(value), bucket) - len(value)
    return value.with_parts(parts, into, value.padding + more)


def grown(tensor: Tensor, rows: int, kind: str, into: int | None) -> Tensor:
    """The tensor with padding: of splits the last entry, of an index its place modulo `into` rows, of taps -1, or 0."""
    padding = tensor.new_zeros(rows - len(tensor), *tensor.shape[1:])
    if kind == "splits":
        padding += tensor[-1]
    elif kind == "tap index":
        padding -= 1
    elif into is not None:
        padding += (torch.arange(padding.numel(), device=tensor.device) + tensor.numel()).view_as(padding) % into
    return torch.cat([tensor, padding])


def fixed(geometry: Geometry, like: Geometry | None = None) -> Geometry:
    """The geometry in the shapes of another, or with room for twice its rows; its last example is there to be filled.

    Unlike `pad`, which says how many rows are padding, nothing in it but tensors depends on the input: what is added
    belongs to the last example, its points are one point, and its edges join that with itself.
    """
    values = {}
    for name, value in geometry.items():
        joins = isinstance(value, Edges)
        size = "num_source" if joins or isinstance(value, TapEdges) else "num_parent"
        into = _room(getattr(value, size)) if like is None else getattr(like[name], size)
        length = _room(len(value)) if like is None else len(like[name])
        parts = []
        for at, (kind, tensor) in enumerate(value.parts()):
            if like is not None:
                rows = len([*like[name].parts()][at][1])
            elif kind == "splits":
                rows = _room(len(tensor) - 1) + 1 if joins else len(tensor)
            else:
                rows = length
            more = rows - len(tensor)
            if more < 0:
                raise ValueError(f"fixed: {name} has {len(tensor)} rows, but only {rows} fit")
            if kind == "splits":
                tensor = torch.cat([tensor[:-1], tensor[-1:].expand(more), tensor.new_full((1,), length)])
            elif kind == "tap index":
                tensor = grown(tensor, rows, kind, into)
            elif kind.endswith("index"):
                tensor = torch.cat([tensor, tensor.new_full((more,), into - 1)])
            else:
                tensor = torch.cat([tensor, tensor[-1:].expand(more, *tensor.shape[1:])])
            parts.append(tensor)
        values[name] = value.with_parts(parts, into, padding=0)
    return Geometry(values, geometry.lines)


def _room(rows: int) -> int:
    return bucket_size(2 * rows, "power_of_two") if rows else 0
