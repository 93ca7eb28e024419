"""Triton's interpreter, quicker: without what it works out again at every operation of a kernel, and throws away."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any


def quicken() -> None:
    from triton.language.core import block_type, tensor
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    patched: set[int] = set()
    one_at_a_time = threading.Lock()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        """It patches the language again at every call of a helper, which is needed once. And it parses helpers, which
        Python 3.11 cannot do in two threads."""
        module = id(self.fn.__globals__)
        with one_at_a_time:
            if module not in patched:
                interpreter._patch_lang(self.fn)
                patched.add(module)
            function = self.rewrite()
        return function(*args, **kwargs)

    interpreter.InterpretedFunction.__call__ = call
    # It looks for overflow in integers, but tells only where it debugs, and it does not.
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = replace(builder.options, sanitize_overflow=False)

    types: dict[str, Any] = {}
    np_dtype = interpreter._get_np_dtype

    def known(given: Any) -> Any:
        """It makes a table of all types to look one up."""
        if given.name not in types:
            types[given.name] = np_dtype(given)
        return types[given.name]

    interpreter._get_np_dtype = known

    broadcast, with_element = TritonSemantic.broadcast_impl_value, block_type.with_element_ty

    def same_shape(self: Any, lhs: Any, rhs: Any) -> Any:
        a, b = lhs.type, rhs.type
        if a.is_block() and b.is_block() and [*a.shape] == [*b.shape]:
            return lhs, rhs
        return broadcast(self, lhs, rhs)

    def same_element(self: Any, element: Any) -> Any:
        return self if element is self.element_ty else with_element(self, element)

    TritonSemantic.broadcast_impl_value, block_type.with_element_ty = same_shape, same_element

    blocks: dict[Any, dict[str, Any]] = {}
    tensors: dict[str, dict[str, Any]] = {}
    make_block, make_tensor = block_type.__init__, tensor.__init__

    def block(self: Any, element: Any, shape: Any) -> None:
        """It checks every shape, and writes its name, each time that there is a value of it."""
        key = (element.name, *(getattr(size, "value", size) for size in shape))
        if key not in blocks:
            make_block(self, element, shape)
            blocks[key] = vars(self).copy()
        vars(self).update(blocks[key])

    def value(self: Any, handle: Any, kind: Any) -> None:
        if kind.name not in tensors:
            make_tensor(self, handle, kind)
            tensors[kind.name] = {name: vars(self)[name] for name in ("shape", "numel")}
        vars(self).update(tensors[kind.name], handle=handle, type=kind, dtype=kind.scalar)

    block_type.__init__, tensor.__init__ = block, value
