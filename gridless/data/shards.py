"""Shards: safetensors files of examples. One example is read back from memory-mapped pages.

`flatten` turns an example into named tensors and plain values. Each named tensor of a shard holds the rows of all its
examples, and `@name` says where those of example i begin and end. Plain values and shapes are JSON in the metadata.
An example that is read has the checksum of the one that was written: its structures need no further check.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from gridless.data.errors import FormatError
from gridless.data.files import whole_file
from gridless.structures import Cloud, Edges, Events, Geometry, Structure

FORMAT = "gridless shard 6"
SUFFIX = ".safetensors"
_STRUCTURES: dict[str, type[Structure]] = {c.__name__: c for c in (Cloud, Edges, Events)}
_REMEDY = "Remove it, and it will be made again."

Flat = dict[str, Any]


def flatten(value: Any, prefix: str = "") -> tuple[Any, Flat]:
    """A value as its shape, which JSON can hold, and its leaves by name: tensors, numbers, None."""
    if isinstance(value, Geometry):
        parts = {name: flatten(v, f"{prefix}{name}/") for name, v in value.items()}
        shape = {"geometry": {n: shape for n, (shape, _) in parts.items()}, "lines": value.lines}
        return shape, _join(flat for _, flat in parts.values())
    if isinstance(value, Structure) and type(value).__name__ in _STRUCTURES:
        leaves = value.leaves()
        return (
            {"structure": type(value).__name__, "leaves": list(leaves)},
            {f"{prefix}{name}": leaf for name, leaf in leaves.items()},
        )
    if isinstance(value, tuple | list):
        items = [flatten(v, f"{prefix}{i}/") for i, v in enumerate(value)]
        return {"tuple": [shape for shape, _ in items]}, _join(flat for _, flat in items)
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor | int | float | bool | str | None):
        return "leaf", {prefix: value}
    raise TypeError(
        f"examples of {type(value).__name__} cannot be stored. Use tensors, numbers, structures and tuples."
    )


def _join(flats: Any) -> Flat:
    return {name: leaf for flat in flats for name, leaf in flat.items()}


def restore(shape: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:
    """The inverse of `flatten`, for leaves that come from it."""
    if shape == "leaf":
        return leaves[prefix]
    if "geometry" in shape:
        parts = {n: restore(s, leaves, f"{prefix}{n}/") for n, s in shape["geometry"].items()}
        return Geometry(parts, shape["lines"] and dict(shape["lines"]))
    if "tuple" in shape:
        return tuple(restore(s, leaves, f"{prefix}{i}/") for i, s in enumerate(shape["tuple"]))
    cls = _STRUCTURES[shape["structure"]]
    fields = {name: leaves[f"{prefix}{name}"] for name in shape["leaves"]}
    return cls.of_leaves({n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})


def write(path: Path, key: str, examples: Sequence[Any], origin: Sequence[Any]) -> None:
    """Write a whole file of examples, or no file.

    - `key`: names the folder's contents; `Shard` refuses a file of another key.
    - `origin`: for each example, the trace of what it was made from, which JSON can hold.
    """
    flat = [flatten(e) for e in examples]
    shape = flat[0][0]
    for number, (other, _) in enumerate(flat):
        if other != shape:
            raise TypeError(
                f"{path}: example {number} has the parts {other}, the first {shape}. Give all the same parts."
            )
    tensors: dict[str, Tensor] = {}
    plain: dict[str, list] = {}
    for name in flat[0][1]:
        column = [leaves[name] for _, leaves in flat]
        if any(isinstance(leaf, Tensor) for leaf in column):
            tensors |= _ragged(path, name, column)
        else:
            plain[name] = column
    columns, shape_text = _columns(tensors), json.dumps(shape)
    sums = [_checksum(shape_text, plain, columns, i) for i in range(len(flat))]
    about = {"key": key, "count": len(flat), "shape": shape, "origin": list(origin), "plain": plain, "sums": sums}
    text = json.dumps(about)
    metadata = {"format": FORMAT, "about": text, "digest": _digest(text, tensors)}
    with whole_file(path) as file:
        file.write(save(tensors, metadata))


def _ragged(path: Path, name: str, column: list[Tensor]) -> dict[str, Tensor]:
    """One tensor of every example: the rows of all, and where those of each begin."""
    first = column[0]
    kinds = [(t.dtype, t.ndim, t.shape[1:]) if isinstance(t, Tensor) else type(t).__name__ for t in column]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            remedy = "Give tensors of one type and number of dimensions."
            raise TypeError(f"{path}: {name!r} of example {number} differs from the first example's. {remedy}")
    if first.dtype == torch.complex128:
        raise TypeError(f"{path}: {name!r} is {first.dtype}, which cannot be stored. Convert it.")
    # Scalars are rows of one number.
    parts = [t.detach().cpu().reshape(1) if t.ndim == 0 else t.detach().cpu() for t in column]
    starts = list(accumulate(map(len, parts), initial=0)) if first.ndim else []
    return {name: torch.cat(parts), f"@{name}": torch.tensor(starts, dtype=torch.int64, device="cpu")}


class _Column:
    """The rows of all examples, and where those of each begin; without `starts` each has one number."""

    def __init__(self, rows: Tensor, starts: Tensor) -> None:
        self.rows, self.starts, self._count = rows, starts.tolist(), len(rows)
        self._bytes = rows.reshape(-1).view(torch.uint8).numpy().data
        self._width = len(self._bytes) // max(self._count, 1)

    def range(self, i: int) -> tuple[int, int]:
        first, end = self.starts[i : i + 2] if self.starts else (i, i + 1)
        if not 0 <= first <= end <= self._count:
            raise ValueError(f"rows {first} to {end} of {self._count}")
        return first, end

    def __getitem__(self, i: int) -> Tensor:
        return self.rows[slice(*self.range(i)) if self.starts else i]

    def bytes(self, i: int) -> memoryview:
        first, end = self.range(i)
        return self._bytes[first * self._width : end * self._width]


def _columns(tensors: Mapping[str, Tensor]) -> dict[str, _Column]:
    """By name, in order: a checksum goes through them."""
    return {name: _Column(tensors[name], tensors[f"@{name}"]) for name in sorted(tensors) if name[:1] != "@"}


class Shard:
    """An open file of examples."""

    def __init__(self, path: Path, key: str) -> None:
        """Refuses, by name, a file that is none of ours, is not whole, is damaged, or was made for another key."""
        self.path = path
        try:
            with safe_open(path, "pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, no mapping
        except (SafetensorError, RuntimeError) as error:
            raise FormatError(path, f"not a whole file of examples: {error}. {_REMEDY}") from None
        if metadata.get("format") != FORMAT:
            raise FormatError(path, "not a file of gridless examples. Remove it, or choose another folder.")
        text = metadata.get("about", "")
        if metadata.get("digest") != _digest(text, tensors):
            raise FormatError(path, f"its header is damaged. {_REMEDY}")
        with _refusing(path, "its header makes no sense"):
            about = json.loads(text)
            self.key, self.count, self.shape = str(about["key"]), int(about["count"]), about["shape"]
            self.origin, self.sums = (_values(about[name], self.count) for name in ("origin", "sums"))
            self.plain = {name: _values(values, self.count) for name, values in about["plain"].items()}
            self.columns, self._shape_text = _columns(tensors), json.dumps(self.shape)
        if self.key != key:
            raise FormatError(path, f"made for {self.key}, not for {key}. Remove it.")

    def verify(self) -> None:
        """Refuse examples that are damaged."""
        for i in range(self.count):
            self.read(i)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        """Example i, a copy."""
        return self.read(i, copy=True)

    def read(self, i: int, copy: bool = False) -> Any:
        """Example i. Without `copy` its tensors are those of the file, which must stay as they are."""
        with _refusing(self.path, f"example {i} is damaged"):
            if _checksum(self._shape_text, self.plain, self.columns, i) != self.sums[i]:
                raise ValueError("its checksum is another")
            leaves: Flat = {name: column[i] for name, column in self.plain.items()}
            leaves |= {name: column[i].clone() if copy else column[i] for name, column in self.columns.items()}
            return restore(self.shape, leaves)


def _values(values: Any, count: int) -> list[Any]:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"a column is not a list of {count} values")
    return values


def _digest(about: str, tensors: Mapping[str, Tensor]) -> str:
    """Identifies all that the header says: safetensors checks that it fits the file, not that it is unchanged."""
    header = [about, [(name, str(tensors[name].dtype), list(tensors[name].shape)) for name in sorted(tensors)]]
    return hashlib.sha256(json.dumps(header).encode()).hexdigest()[:32]


def _checksum(shape: str, plain: Mapping[str, list], columns: Mapping[str, _Column], i: int) -> int:
    """Of all that example i is made of; `shape` is JSON."""
    crc = zlib.crc32((shape + json.dumps([values[i] for values in plain.values()])).encode())
    for column in columns.values():
        crc = zlib.crc32(column.bytes(i), crc)
    return crc


@contextmanager
def _refusing(path: Path, problem: str) -> Iterator[None]:
    """Turn each error that a damaged file leads to into one that names the file."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(path, f"{problem} ({error}). {_REMEDY}") from None
