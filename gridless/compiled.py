"""`njit` for the CPU kernels: Numba's, with a disk cache that knows everything a kernel is made of.

Numba keeps a compiled function until the function's own file changes. What the function calls in other files, and the
constants it takes from them, is compiled into it all the same; when only those change, Numba would run the old code.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import numba
import numpy as np
from llvmlite import ir

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic, np.dtype, ir.Type, numba.types.Type)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`; with `cache=True` the function is compiled anew when anything that it is made of has changed."""

    announce_compilation()

    def decorate(function: Callable[..., Any]) -> Any:
        _read_imports(function.__module__)
        dispatcher = numba.njit(**options)(function)
        # Absent without a cache, under NUMBA_DISABLE_JIT, and perhaps in Numbas to come: theirs is as it is then.
        kept: Any = getattr(dispatcher, "_cache", None)
        file: Any = getattr(kept, "_cache_file", None)
        if hasattr(file, "_source_stamp") and hasattr(kept, "_index_key"):
            file._source_stamp = _Stamp(function, file._source_stamp)
            kept._index_key = _key_with_constants(function, kept._index_key)
        return dispatcher

    return decorate


class _Stamp:
    """What Numba compares with the stamp on disk, of its own and of the sources: others, and all that is kept is stale.

    They are read when a kernel is first wanted: only then are all names of the module bound, those below the function
    too. On disk the stamp is plain bytes.
    """

    def __init__(self, function: Callable[..., Any], own: object) -> None:
        self.function = function
        self.own = own

    @property
    def value(self) -> bytes:
        return repr(self.own).encode() + _digests(self.function)[0]

    def __eq__(self, other: object) -> bool:
        return self.value == (other.value if isinstance(other, _Stamp) else other)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[type, tuple[bytes]]:
        return bytes, (self.value,)


def _key_with_constants(function: Callable[..., Any], key: Callable[..., tuple[Any, ...]]) -> Callable[..., Any]:
    """The key of a kernel among those of its function that are kept: signature, CPU, and here the constants.

    Some constants depend on the CPU; machines of several kinds that share a disk keep their kernels side by side.
    """
    return lambda *arguments: (*key(*arguments), _digests(function)[1])


@cache
def _digests(function: Callable[..., Any]) -> tuple[bytes, bytes]:
    """Of the sources and of the constants that a function is made of."""
    sources, constants = (hashlib.sha256("\n".join(sorted(lines)).encode()) for lines in made_of(function))
    return sources.digest(), constants.digest()


def made_of(function: Callable[..., Any]) -> tuple[set[str], set[str]]:
    """The sources and the constants that the compiled `function` depends on within its package, a line each.

    Sources are the files of all functions that it reaches (compiled ones, intrinsics, and what those call), and the
    version of the package. Constants are what the names in these functions stand for, wherever they come from.
    An `overload` is found by the file of the function that it overloads, and belongs there.
    """
    package = function.__module__.partition(".")[0]
    sources, constants = {f"{package} {getattr(sys.modules.get(package), '__version__', '')}"}, set()
    pending: list[tuple[str, Any]] = [("", function)]
    reached: set[int] = set()
    while pending:
        name, value = pending.pop()
        if _ours(value, package):
            value = inspect.unwrap(value)
            sources.add(f"{value.__module__} {_source(value.__module__)}")
        if isinstance(value, FunctionType) and _ours(value, package):
            place = f"{value.__module__}.{value.__qualname__}"
            constants.add(f"{name} = {place}")
            if id(value) not in reached:
                reached.add(id(value))
                pending.extend((f"{place}: {used}", part) for used, part in _used(value))
        elif isinstance(value, dict | tuple | list):
            parts = value.items() if isinstance(value, dict) else value
            pending.extend((f"{name}[{i}]", part) for i, part in enumerate(parts))
        elif isinstance(value, np.ndarray):
            constants.add(f"{name} = {value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}")
        elif isinstance(value, _PLAIN):
            constants.add(f"{name} = {type(value).__name__} {value}")
    return sources, constants


def _used(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What the names in a function's code stand for: globals, members of modules, variables of functions around it."""
    names = _names(function.__code__)
    for name in names & function.__globals__.keys():
        value = function.__globals__[name]
        yield name, value
        if isinstance(value, ModuleType):
            yield from ((f"{name}.{member}", vars(value)[member]) for member in names & vars(value).keys())
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents
    yield "defaults", (function.__defaults__ or ())


def _names(code: CodeType) -> set[str]:
    """The names in a function's code, and in that of the functions inside it."""
    return set(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _ours(value: Any, package: str) -> bool:
    """Whether a function, a class or an object of a class was written in the package."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == package


@cache
def _read_imports(module: str) -> None:
    """Read the files of a module and of those it imports from, while they are as imported: they may be edited later."""
    package = module.partition(".")[0]
    _source(module)
    for value in list(vars(sys.modules[module]).values()):
        if _ours(value, package):
            _source(value.__module__)


@cache
def _source(module: str) -> str:
    """A digest of a module's file as it was when first asked for."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None or not Path(file).is_file():
        return ""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


@cache
def announce_compilation() -> None:
    """Say once, on stderr, that kernels are being compiled, if one takes over a second."""
    from numba.core import event

    class Listener(event.Listener):
        timer: threading.Timer | None = None
        said = False
        depth = 0

        def say(self) -> None:
            if not Listener.said:
                Listener.said = True
                print("gridless: compiling CPU kernels, once; the result is kept on disk", file=sys.stderr, flush=True)

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1 and not Listener.said:
                self.timer = threading.Timer(1.0, self.say)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0 and self.timer is not None:
                self.timer.cancel()

    event.register("numba:compile", Listener())
