"""`njit` for the CPU kernels: Numba's, with a disk cache that knows all files a kernel may be made of.

Numba keeps a compiled function until the function's own file changes. Functions and constants of other files are
compiled into it, too; when only those change, Numba would run the old code.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

# A fork waits for a kernel that another thread compiles: its child would wait for that thread for ever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )

# False after the first kernel that could not be written to disk.
_on_disk = True


def njit(inner: bool = False, cache: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Any]:
    """`numba.njit`; with `cache=True` a function is compiled anew when a file changes that its own one imports.

    inner    only other kernels call it. It is optimised and kept on disk as part of each of them, without an entry
             from Python
    """

    announce_compilation()
    options |= {"no_cpython_wrapper": inner, "no_cfunc_wrapper": True}

    def decorate(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        # The function itself under NUMBA_DISABLE_JIT.
        if dispatcher is function:
            return function
        if inner:
            dispatcher = _Inner(function, targetoptions=dispatcher.targetoptions)
        elif cache:
            _keep(dispatcher)
        # Absent without a cache; a later Numba without it keeps its own stamp.
        file: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        if hasattr(file, "_source_stamp"):
            file._source_stamp = (file._source_stamp, digest(function.__module__))
        return dispatcher

    return decorate


def _keep(dispatcher: Any) -> None:
    """Cache on disk, or in memory alone if Numba finds no folder to write to."""
    global _on_disk
    try:
        dispatcher.enable_caching()
    except RuntimeError as error:
        if _on_disk:
            _on_disk = False
            remedy = "Install the package as .py files in a folder"
            if Path(inspect.getfile(dispatcher.py_func)).is_file():
                remedy = "Set NUMBA_CACHE_DIR to a writable folder"
            warnings.warn(
                f"compiled CPU kernels cannot be cached, so each process compiles them ({error}). {remedy}.",
                stacklevel=4,
            )


class _Inner(CPUDispatcher):
    """A kernel that only other kernels call: LLVM optimises and assembles it within each of them, and not by itself."""

    def __init__(self, function: Callable[..., Any], targetoptions: dict[str, Any]) -> None:
        super().__init__(function, targetoptions=targetoptions, pipeline_class=_InnerCompiler)

    def __call__(self, *args: Any, **named: Any) -> None:
        raise TypeError(f"{self.__name__} has inner=True, so Python cannot call it. Call it from another kernel.")

    def add_overload(self, cres: Any) -> None:
        self.overloads[tuple(cres.signature.args)] = cres


class _InnerCompiler(Compiler):
    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.state.flags.no_compile = True
        self.state.library = _InnerLibrary(self.state.targetctx.codegen(), "inner")

    def _compile_core(self) -> Any:
        # Callers find the kernel by its entry, which is no function here.
        result = super()._compile_core()._replace(entry_point=object())
        self.state.targetctx.insert_user_function(result.entry_point, result.fndesc, [result.library])
        return result


class _InnerLibrary(JITCodeLibrary):
    """LLVM code that is linked into that of other kernels."""

    def finalize(self) -> None:
        for library in dict.fromkeys(self._linking_libraries):
            self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalize_dynamic_globals()
        self._finalized = True


@functools.cache
def digest(module: str) -> str:
    """Digest of the files of a module and of all it imports from its package, directly or not."""
    package, pending, digests = module.partition(".")[0], [module], {}
    while pending:
        name = pending.pop()
        # The package itself imports nearly everything, and holds nothing that a kernel is made of.
        if name not in digests and (name != package or name == module):
            digests[name], imported = _file(name)
            pending += imported
    return hashlib.sha256("".join(digests[name] for name in sorted(digests)).encode()).hexdigest()


@functools.cache
def _file(module: str) -> tuple[str, list[str]]:
    """A digest of a module's file, and the modules it imports from its package; empty for names of other things."""
    package, _, rest = module.partition(".")
    top = getattr(sys.modules.get(package), "__file__", None)
    if top is None:
        return "", []
    path = Path(top).parent.joinpath(*rest.split(".")) if rest else Path(top)
    files = [path] if not rest else [path.with_suffix(".py"), path / "__init__.py"]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return "", []
    text, imported = file.read_text("utf-8"), []
    names = rf"^[ \t]*(?:from[ \t]+({package}[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|.*)|import[ \t]+({package}[\w.]*))"
    for source, members, whole in re.findall(names, text, re.MULTILINE):
        imported += [source or whole, *(f"{source}.{name}" for name in re.findall(r"\w+", members))]
    if file.name == "__init__.py" and "pkgutil.iter_modules(__path__)" in text:
        # It imports all files of its folder.
        imported += [f"{module}.{other.stem}" for other in file.parent.glob("*.py")]
    return hashlib.sha256(text.encode()).hexdigest(), imported


@functools.cache
def announce_compilation() -> None:
    """Say once, on stderr, that kernels are being compiled, if one takes over a second."""
    from numba.core import event

    class Listener(event.Listener):
        timer: threading.Timer | None = None
        announced = False
        depth = 0

        def announce(self) -> None:
            if not Listener.announced:
                Listener.announced = True
                once = ", once; the result is kept on disk" if _on_disk else ""
                print(f"gridless: compiling CPU kernels{once}", file=sys.stderr, flush=True)

        def on_start(self, event: Any) -> None:
            self.depth += 1
            if self.depth == 1 and not Listener.announced:
                self.timer = threading.Timer(1.0, self.announce)
                self.timer.daemon = True
                self.timer.start()

        def on_end(self, event: Any) -> None:
            self.depth -= 1
            if self.depth == 0 and self.timer is not None:
                self.timer.cancel()

    event.register("numba:compile", Listener())
