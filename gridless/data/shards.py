"""Files of examples: ragged arrays of many examples, read back one example at a time from memory-mapped pages.

    magic (16 bytes) · length of the header (8 bytes) · header (JSON) · arrays, each at a multiple of 64 bytes

An example is flattened to named tensors and plain values (`flatten`); a tensor of all examples of a file is one array,
with the rows of example i between two entries of an array of offsets. Nothing in a file is ever executed.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.data.files import whole_file
from gridless.data.formats.base import FormatError
from gridless.structures import Cloud, Edges, Events, Geometry, Structure
from gridless.structures.base import kinds as _kinds

MAGIC = b"gridless shard 1"
_STRUCTURES: dict[str, type[Structure]] = {c.__name__: c for c in (Cloud, Edges, Events)}
_ALIGN = 64

Flat = dict[str, Any]


def flatten(value: Any, prefix: str = "") -> tuple[Any, Flat]:
    """A value as its shape, which JSON can hold, and its leaves by name: tensors, numbers, None."""
    if isinstance(value, Geometry):
        parts = {name: flatten(v, f"{prefix}{name}/") for name, v in value.items()}
        return {"geometry": {n: shape for n, (shape, _) in parts.items()}}, _join(flat for _, flat in parts.values())
    if isinstance(value, Structure) and type(value).__name__ in _STRUCTURES:
        leaves = {f"{prefix}{name}": getattr(value, name) for name, *_ in _kinds(type(value))}
        return {"structure": type(value).__name__}, leaves
    if isinstance(value, tuple | list):
        parts_ = [flatten(v, f"{prefix}{i}/") for i, v in enumerate(value)]
        return {"tuple": [shape for shape, _ in parts_]}, _join(flat for _, flat in parts_)
    if isinstance(value, np.ndarray | np.generic):
        value = torch.as_tensor(value)
    if isinstance(value, Tensor | int | float | bool | str | None):
        return "leaf", {prefix: value}
    raise TypeError(f"examples of {type(value).__name__} cannot be stored: use tensors, numbers, structures and tuples")


def _join(flats: Any) -> Flat:
    return {name: leaf for flat in flats for name, leaf in flat.items()}


def restore(shape: Any, leaves: Mapping[str, Any], prefix: str = "") -> Any:
    """The inverse of `flatten`."""
    if shape == "leaf":
        return leaves[prefix]
    if "geometry" in shape:
        return Geometry({n: restore(s, leaves, f"{prefix}{n}/") for n, s in shape["geometry"].items()})
    if "tuple" in shape:
        return tuple(restore(s, leaves, f"{prefix}{i}/") for i, s in enumerate(shape["tuple"]))
    cls = _STRUCTURES[shape["structure"]]
    fields = {name: leaves[f"{prefix}{name}"] for name, *_ in _kinds(cls)}
    return cls(**{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})


def write(path: Path, key: str, examples: Sequence[Any]) -> None:
    """A whole file of examples, or no file."""
    flat = [flatten(e) for e in examples]
    shape = flat[0][0]
    for number, (other, _) in enumerate(flat):
        if other != shape:
            raise TypeError(f"{path}: example {number} has other parts than the first: {other} and {shape}")
    arrays: dict[str, np.ndarray] = {}
    plain: dict[str, list] = {}
    for name in flat[0][1]:
        column = [leaves[name] for _, leaves in flat]
        if isinstance(column[0], Tensor):
            arrays |= _ragged(path, name, column)
        else:
            plain[name] = column
    header, at = {"key": key, "count": len(flat), "shape": shape, "plain": plain, "arrays": {}}, 0
    for name, array in arrays.items():
        header["arrays"][name] = [array.dtype.str, list(array.shape), at]
        at += -(-array.nbytes // _ALIGN) * _ALIGN
    header["bytes"] = at
    text = json.dumps(header).encode()
    text += b" " * (-(len(MAGIC) + 8 + len(text)) % _ALIGN)
    with whole_file(path) as file:
        file.write(MAGIC + struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.data)
            file.write(bytes(-array.nbytes % _ALIGN))


def _ragged(path: Path, name: str, column: list[Tensor]) -> dict[str, np.ndarray]:
    """One tensor of every example: an array of all their rows, and where those of each begin."""
    first = column[0]
    for number, tensor in enumerate(column):
        if not isinstance(tensor, Tensor) or tensor.dtype != first.dtype or tensor.shape[1:] != first.shape[1:]:
            raise TypeError(f"{path}: {name!r} of example {number} does not go with that of the first")
    # Scalars are rows of one number.
    rows = torch.cat([t.detach().cpu().reshape(1) if t.ndim == 0 else t.detach().cpu() for t in column])
    starts = np.cumsum([0] + [1 if t.ndim == 0 else len(t) for t in column], dtype=np.int64)
    return {name: np.ascontiguousarray(rows.numpy()), f"{name}@": starts if first.ndim else np.empty(0, np.int64)}


class Shard:
    """An open file of examples."""

    def __init__(self, path: Path, key: str) -> None:
        """Refuses, by name, a file that is none of ours, is not whole, or was made for another key."""
        self.path = path
        with path.open("rb") as file:
            size = path.stat().st_size
            begin = file.read(len(MAGIC) + 8)
            if not begin.startswith(MAGIC):
                raise FormatError(path, "not a file of gridless examples: remove it, or choose another folder")
            text = file.read(struct.unpack("<Q", begin[len(MAGIC) :])[0]) if len(begin) == len(MAGIC) + 8 else b""
            try:
                self.header = json.loads(text)
                self.start = len(begin) + len(text)
                whole = self.start + self.header["bytes"]
            except (ValueError, KeyError, TypeError):
                raise FormatError(path, "truncated inside its header: remove it, and it will be made again") from None
            if size != whole:
                raise FormatError(path, f"truncated: {size} of {whole} bytes: remove it, and it will be made again")
            if self.header["key"] != key:
                raise FormatError(path, f"made for {self.header['key']}, not for {key}: remove it")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.arrays = {name: self._array(*how) for name, how in self.header["arrays"].items()}

    def _array(self, dtype: str, shape: list[int], at: int) -> np.ndarray:
        return np.ndarray(shape, np.dtype(dtype), self.bytes, self.start + at)

    def __len__(self) -> int:
        return self.header["count"]

    def __getitem__(self, i: int) -> Any:
        leaves: Flat = {name: column[i] for name, column in self.header["plain"].items()}
        for name, array in self.arrays.items():
            if name.endswith("@"):
                continue
            starts = self.arrays[f"{name}@"]
            if len(starts):
                leaves[name] = torch.from_numpy(array[starts[i] : starts[i + 1]].copy())
            else:
                leaves[name] = torch.from_numpy(array[i : i + 1].copy())[0]
        return restore(self.header["shape"], leaves)
