"""Triton's interpreter, quicker: it patches the language again at every call of a helper, which is needed once."""

from __future__ import annotations

from typing import Any


def quicken() -> None:
    from triton.runtime import interpreter

    patched: set[int] = set()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        module = id(self.fn.__globals__)
        if module not in patched:
            interpreter._patch_lang(self.fn)
            patched.add(module)
        return self.rewrite()(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
