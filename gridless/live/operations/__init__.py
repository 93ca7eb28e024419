"""The operations of a live program, one file each; `gelu.py` is a short example.

Importing this package imports every file of the folder, and adds its `Operation` classes that have a name. `register`
adds one from elsewhere, before the first stream of the process is made.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

from torch import nn

from gridless.live.operation import Operation
from gridless.live.rows import Row

__all__ = ["OPERATIONS", "added", "freeze", "function_readers", "layer_reader", "number_of", "of", "register"]

# Operations by name. The position of an operation is its number in the compiled loop.
OPERATIONS: dict[str, Operation] = {}
_LAYERS: dict[type, Callable[..., Any]] = {}
_FUNCTIONS: dict[str, list[Callable[..., Any]]] = {}

# Operations that `register` has added, and whether the loop is compiled.
added: list[str] = []
frozen = False


def register(kind: type[Operation]) -> type[Operation]:
    """Add an operation; also as a decorator of its class."""
    if frozen:
        raise RuntimeError(f"register: {kind.name!r} comes after the first stream. Register it earlier.")
    if kind.name in OPERATIONS:
        raise ValueError(f"register: the operation {kind.name!r} exists already. Choose another name.")
    _add(kind)
    added.append(kind.name)
    return kind


def freeze() -> None:
    """Refuse further operations: the loop is compiled with those that are there."""
    global frozen
    frozen = True


def _add(kind: type[Operation]) -> None:
    operation = OPERATIONS[kind.name] = kind()
    _LAYERS.update(operation.layer_readers())
    for name, reader in operation.function_readers().items():
        _FUNCTIONS.setdefault(name, []).append(reader)


def of(row: Row) -> Operation:
    return OPERATIONS[row.operation]


def number_of(row: Row) -> int:
    return list(OPERATIONS).index(row.operation)


def layer_reader(layer: nn.Module) -> Callable[..., Any] | None:
    """The reader of a layer, or None. A subclass with a `forward` of its own has none."""
    for kind, reader in _LAYERS.items():
        if isinstance(layer, kind) and getattr(layer.forward, "__func__", None) is kind.forward:
            return reader
    return None


def function_readers(name: str) -> list[Callable[..., Any]]:
    """Readers of a function or method of this name; the first that does not return NotImplemented counts."""
    return _FUNCTIONS.get(name, [])


for _info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
    _module = importlib.import_module(f"{__name__}.{_info.name}")
    for _kind in vars(_module).values():
        _own = inspect.isclass(_kind) and _kind.__module__ == _module.__name__
        if _own and issubclass(_kind, Operation) and _kind.name:
            _add(_kind)
