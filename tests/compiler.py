"""Numba's compiler, quicker: it remembers which template types an operation of numbers and arrays."""

from __future__ import annotations

from typing import Any


def quicken() -> None:
    from numba.core import types
    from numba.core.types.functions import BaseFunction

    resolve = BaseFunction.get_call_type
    signatures: dict[Any, Any] = {}
    plain = (types.Integer, types.Float, types.Boolean, types.Array)

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        """For each sum of a kernel Numba tries all templates of sums, those of strings, lists and arrays, too."""
        if kws or not all(isinstance(each, plain) for each in args):
            return resolve(self, context, args, kws)
        key = (self, context, args)
        if key not in signatures:
            signature = resolve(self, context, args, kws)
            # Others are written in Python, and compiled with the options of the kernel.
            if self.get_impl_key(signature) is not self.typing_key:
                return signature
            signatures[key] = signature
        return signatures[key]

    BaseFunction.get_call_type = get_call_type
