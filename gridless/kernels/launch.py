"""Launches of Triton kernels with little Python.

Triton's own `cdiv` and `next_power_of_2` serve its compiler too, and take microseconds.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor

INT32 = 2**31

# Whether products are fused with sums is said at every launch: what Triton does by itself changes with 3.10. Kernels
# whose results decide something have the bits of the reference.
EXACT: dict[str, Any] = {"enable_fp_fusion": False}
FUSED: dict[str, Any] = {"enable_fp_fusion": True}


class Launcher:
    """`launch(grid, tensors, sizes, constants)` is kernel[grid](*tensors, *sizes, *constants), launched quickly.

    At every launch Triton looks at each argument anew: its type, whether it can be divided by 16, and for tensors
    whether the driver knows them. With some twenty arguments that takes longer than a small kernel runs. Here the
    arguments come in three groups, and a compiled kernel is found again by what decides it:

    - `tensors` by their types; they begin at multiples of 16 bytes;
    - `sizes`, numbers that the kernel lists under do_not_specialize (or float32), decide nothing;
    - `constants`, constexpr or not, by their values.

    A compiled kernel then takes addresses and numbers as they are (`compiled[grid](...)`, as in Triton's tutorials).
    Any other launch goes through Triton: the first of its kind, tensors that begin elsewhere, sizes beyond int32.

    With `exact` no product is fused with a sum.
    """

    def __init__(self, kernel: Any, exact: bool = False) -> None:
        self.kernel, self._options = kernel, EXACT if exact else FUSED
        self._compiled: dict[tuple, Any] = {}

    def ordered(self, given: int, constants: dict[str, Any]) -> tuple:
        """Constants by name, in the order of the kernel, whose first `given` arguments are tensors and sizes."""
        return tuple(constants[name] for name in self.kernel.arg_names[given:])

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        sizes: tuple[float, ...],
        constants: tuple,
        warps: int = 4,
        registers: int | None = None,
    ) -> Any:
        """Launches the kernel with so many warps, and returns it compiled (None in Triton's interpreter).

        `registers` is the most that a thread may have, or None to leave it to the compiler.
        """
        pointers = [t.data_ptr() for t in tensors]
        key = (tensors[0].device, warps, registers, constants, *[t.dtype for t in tensors])
        simple = not reduce(or_, pointers) & 15 and max(sizes, default=0) < INT32
        if simple and (compiled := self._compiled.get(key)) is not None:
            compiled[grid](*pointers, *sizes, *constants)
            return compiled
        compiled = self.kernel[grid](*tensors, *sizes, *constants, num_warps=warps, maxnreg=registers, **self._options)
        if simple and compiled is not None:
            self._compiled[key] = compiled
        return compiled


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not under n > 0."""
    return 1 << (n - 1).bit_length()
