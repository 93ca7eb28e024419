"""Files of examples: ragged arrays of many examples, read back one example at a time from memory-mapped pages.

    magic (16 bytes) · digest of the header (16) · its length (8) · header (JSON) · arrays, each at a multiple of 64

An example is flattened to named tensors and plain values (`flatten`); a tensor of all examples of a file is one array,
with the rows of example i between two entries of an array of offsets. Nothing in a file is ever executed.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.data.errors import FormatError
from gridless.data.files import whole_file
from gridless.structures import Cloud, Edges, Events, Geometry, Structure

MAGIC = b"gridless shard 4"
_BEGIN = len(MAGIC) + 16 + 8
_STRUCTURES: dict[str, type[Structure]] = {c.__name__: c for c in (Cloud, Edges, Events)}
_ALIGN = 64
_DTYPES = ["|b1", "|u1", "|i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8", "<c8", "<c16"]
_AGAIN = "remove it, and it will be made again"

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
        parts = {n: restore(s, leaves, f"{prefix}{n}/") for n, s in shape["geometry"].items()}
        return Geometry(parts, shape["lines"] and dict(shape["lines"]))
    if "tuple" in shape:
        return tuple(restore(s, leaves, f"{prefix}{i}/") for i, s in enumerate(shape["tuple"]))
    cls = _STRUCTURES[shape["structure"]]
    fields = {name: leaves[f"{prefix}{name}"] for name in shape["leaves"]}
    return cls.of_leaves({n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()})


def write(path: Path, key: str, examples: Sequence[Any], origin: Sequence[Any]) -> None:
    """A whole file of examples, or no file; `origin` is, for each, what JSON can hold of what it was made from."""
    flat = [flatten(e) for e in examples]
    shape = flat[0][0]
    for number, (other, _) in enumerate(flat):
        if other != shape:
            raise TypeError(f"{path}: example {number} has other parts than the first: {other} and {shape}")
    arrays: dict[str, np.ndarray] = {}
    plain: dict[str, list] = {}
    for name in flat[0][1]:
        column = [leaves[name] for _, leaves in flat]
        if any(isinstance(leaf, Tensor) for leaf in column):
            arrays |= _ragged(path, name, column)
        else:
            plain[name] = column
    header, at = {"key": key, "count": len(flat), "shape": shape, "origin": list(origin), "plain": plain}, 0
    header["arrays"], crc = {}, 0
    for name, array in arrays.items():
        if array.dtype.str not in _DTYPES:
            raise TypeError(f"{path}: {name!r} is {array.dtype}, which cannot be stored: convert it")
        header["arrays"][name] = [array.dtype.str, list(array.shape), at]
        at += -(-array.nbytes // _ALIGN) * _ALIGN
        crc = zlib.crc32(bytes(-array.nbytes % _ALIGN), zlib.crc32(array.data, crc))
    header["bytes"], header["crc"] = at, crc
    text = json.dumps(header).encode()
    text += b" " * (-(_BEGIN + len(text)) % _ALIGN)
    with whole_file(path) as file:
        file.write(MAGIC + _digest(text) + struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.data)
            file.write(bytes(-array.nbytes % _ALIGN))


def _ragged(path: Path, name: str, column: list[Tensor]) -> dict[str, np.ndarray]:
    """One tensor of every example: an array of all their rows, and where those of each begin."""
    first = column[0]
    kinds = [(t.dtype, t.ndim, t.shape[1:]) if isinstance(t, Tensor) else type(t).__name__ for t in column]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            words = "does not go with that of the first: give tensors of one type and number of dimensions"
            raise TypeError(f"{path}: {name!r} of example {number} {words}")
    if first.dtype == torch.bfloat16:
        raise TypeError(f"{path}: {name!r} is {first.dtype}, which cannot be stored: convert it")
    # Scalars are rows of one number.
    parts = [t.detach().cpu().reshape(1) if t.ndim == 0 else t.detach().cpu() for t in column]
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64) if first.ndim else np.empty(0, np.int64)
    return {name: np.ascontiguousarray(torch.cat(parts).numpy()), f"@{name}": starts}


class Shard:
    """An open file of examples."""

    def __init__(self, path: Path, key: str) -> None:
        """Refuses, by name, a file that is none of ours, is not whole, is damaged, or was made for another key."""
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            begin = file.read(_BEGIN)
            if not begin.startswith(MAGIC):
                raise FormatError(path, "not a file of gridless examples: remove it, or choose another folder")
            length = struct.unpack("<Q", begin[-8:])[0] if len(begin) == _BEGIN else size
            text = file.read(length) if length <= size - _BEGIN else b""
            if not text:
                raise FormatError(path, f"truncated inside its header: {_AGAIN}")
            if begin[len(MAGIC) : -8] != _digest(text):
                raise FormatError(path, f"its header is damaged: {_AGAIN}")
            self.start = _BEGIN + length
            with _refusing(path, "its header makes no sense"):
                header = json.loads(text)
                self.key, self.count, self.shape = str(header["key"]), int(header["count"]), header["shape"]
                self.origin = _column(header["origin"], self.count)
                self.plain = {name: _column(values, self.count) for name, values in header["plain"].items()}
                whole = self.start + int(header["bytes"])
                self.crc = header.get("crc")
            if size != whole:
                raise FormatError(path, f"truncated: {size} of {whole} bytes: {_AGAIN}")
            if self.key != key:
                raise FormatError(path, f"made for {self.key}, not for {key}: remove it")
            self.bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with _refusing(path, "its header makes no sense"):
            arrays = {name: self._array(*how) for name, how in header["arrays"].items()}
            self.columns = {name: (a, arrays[f"@{name}"]) for name, a in arrays.items() if not name.startswith("@")}

    def _array(self, dtype: str, shape: list[int], at: int) -> np.ndarray:
        # Only plain numbers, and only inside the file: NumPy would follow anything else.
        if dtype not in _DTYPES or not all(isinstance(n, int) and n >= 0 for n in (at, *shape)):
            raise ValueError(f"no array of {dtype}, {shape} at {at}")
        kind = np.dtype(dtype)
        if self.start + at + math.prod(shape) * kind.itemsize > len(self.bytes):
            raise ValueError(f"an array of {dtype}, {shape} at {at} ends behind the file")
        return np.ndarray(shape, kind, self.bytes, self.start + at)

    def verify(self) -> None:
        """Refuse arrays that are damaged, where the file says what they were."""
        with memoryview(self.bytes) as whole:
            if self.crc is not None and zlib.crc32(whole[self.start :]) != self.crc:
                raise FormatError(self.path, f"its arrays are damaged: {_AGAIN}")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> Any:
        leaves: Flat = {name: column[i] for name, column in self.plain.items()}
        with _refusing(self.path, f"example {i} is damaged"):
            for name, (array, starts) in self.columns.items():
                a, b = (int(starts[i]), int(starts[i + 1])) if len(starts) else (i, i + 1)
                if not 0 <= a <= b <= len(array):
                    raise ValueError(f"rows {a} to {b} of {len(array)}")
                rows = torch.from_numpy(array[a:b].copy())
                leaves[name] = rows if len(starts) else rows[0]
            return restore(self.shape, leaves)


def _column(values: Any, count: int) -> list[Any]:
    if not isinstance(values, list) or len(values) != count:
        raise ValueError(f"a column is not a list of {count} values")
    return values


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:16]


@contextmanager
def _refusing(path: Path, what: str) -> Iterator[None]:
    """Whatever a damaged file leads to becomes the one error that names it."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        raise FormatError(path, f"{what} ({error}): {_AGAIN}") from None
