"""Geometries that go to another process: their tensors travel as one.

multiprocessing opens a file, and a connection to send it, for each tensor. A batch of a point network has 27.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# Larger things are not copied first.
_LARGEST = 1 << 26
# Tensors begin at multiples of a cache line.
_ALIGNMENT = 64
# First byte, type and shape of a tensor.
_Place = tuple[int, torch.dtype, torch.Size]


class _Pickler(pickle.Pickler):
    """Pickles a thing without its tensors, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not isinstance(obj, Tensor):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self.tensors)
            self.tensors.append(obj)
        return self._numbers[id(obj)]


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, tensors: list[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, pid: int) -> Tensor:
        return self._tensors[pid]


def as_one(thing: Any) -> tuple[Callable, tuple]:
    """How multiprocessing pickles `thing`: with one tensor that holds all of its tensors.

    Tensors on a GPU or in shared memory, large ones and those that need gradients are sent one by one, as torch does.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(thing)
    places, size = [], 0
    for tensor in pickler.tensors:
        places.append((size, tensor.dtype, tensor.shape))
        size += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
    if not 0 < size <= _LARGEST or not all(map(_is_plain, pickler.tensors)):
        return thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    memory = torch.empty(size, dtype=torch.uint8)
    for part, tensor in zip(_parts(memory, places), pickler.tensors, strict=True):
        part.copy_(tensor)
    return _opened, (file.getvalue(), memory, places)


def _is_plain(tensor: Tensor) -> bool:
    is_own = tensor.is_cpu and not tensor.is_shared()
    return type(tensor) is Tensor and tensor.layout == torch.strided and is_own and not tensor.requires_grad


def _opened(pickled: bytes, memory: Tensor, places: list[_Place]) -> Any:
    return _Unpickler(io.BytesIO(pickled), _parts(memory, places)).load()


def _parts(memory: Tensor, places: list[_Place]) -> list[Tensor]:
    return [memory[at : at + shape.numel() * dtype.itemsize].view(dtype).view(shape) for at, dtype, shape in places]
