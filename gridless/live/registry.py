"""The list of live operations, by which programs are read, run and written.

`gridless.live.operations` fills it with the operations of its files. `register` adds one from elsewhere, before the
first stream of the process is made.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from gridless.live.operation import Operation
from gridless.live.rows import Row

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


def add_files(package: str, folder: Iterable[str]) -> None:
    """Add the operations that have a name from all files of a package, in the order of their names."""
    for info in sorted(pkgutil.iter_modules(folder), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        for kind in vars(module).values():
            is_own = inspect.isclass(kind) and kind.__module__ == module.__name__
            if is_own and issubclass(kind, Operation) and kind.name:
                _add(kind)
