"""Launches of Triton kernels with little Python.

Triton's own `cdiv` and `next_power_of_2` serve its compiler too, and take microseconds.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import reduce
from operator import or_
from typing import Any

import torch
from torch import Tensor

INT32 = 2**31

# Whether kernels may compile at the same time: Python 3.11 raises a SystemError where threads parse beside each other.
TOGETHER = sys.version_info >= (3, 12)

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
        self._begun: dict[tuple, Future] = {}

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
        return self.bound(tensors, constants, warps, registers)(grid, sizes)

    def bound(
        self, tensors: tuple[Tensor, ...], constants: tuple, warps: int = 4, registers: int | None = None
    ) -> Callable[[tuple[int, int, int], tuple[float, ...]], Any]:
        """launch(grid, sizes), for several launches that differ in these alone."""
        key = (tensors[0].device, warps, registers, constants, *[t.dtype for t in tensors])
        pointers = [t.data_ptr() for t in tensors]
        aligned = not reduce(or_, pointers) & 15

        def launch(grid: tuple[int, int, int], sizes: tuple[float, ...]) -> Any:
            if _compiling.pool is not None:
                return self._begin(_compiling.pool, key, sizes)
            simple = aligned and max(sizes, default=0) < INT32
            if simple and (compiled := self._compiled.get(key)) is not None:
                compiled[grid](*pointers, *sizes, *constants)
                return compiled
            if (begun := self._begun.pop(key, None)) is not None:
                # Triton then has it, or meets the same error itself.
                with suppress(Exception):
                    begun.result()
            compiled = self.kernel[grid](*tensors, *sizes, *constants, **self._told(warps, registers))
            if simple and compiled is not None:
                self._compiled[key] = compiled
            return compiled

        return launch

    def _told(self, warps: int, registers: int | None) -> dict[str, Any]:
        """Options of a compilation. Registers are one for NVIDIA's devices alone, and an error for others."""
        return {"num_warps": warps, **self._options} | ({} if registers is None else {"maxnreg": registers})

    def _begin(self, pool: Executor, key: tuple, sizes: tuple[float, ...]) -> None:
        if TOGETHER and key not in self._compiled and key not in self._begun:
            device, warps, registers, constants, *types = key
            options = self._told(warps, registers)
            self._begun[key] = pool.submit(_compile, self.kernel, device, (*types, *sizes, *constants), options)


def _compile(kernel: Any, device: torch.device, arguments: tuple, options: dict[str, Any]) -> None:
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        kernel.warmup(*arguments, grid=(1,), **options)


class _Compiling(threading.local):
    pool: Executor | None = None


_compiling = _Compiling()


@contextmanager
def compiling_ahead() -> Iterator[None]:
    """Launches inside the block launch nothing: what is not compiled yet begins to compile, each kernel in a thread of
    its own, while the block and what follows it go on. A later launch waits for its kernel."""
    # Threads are enough: four fifths of a compilation need no interpreter.
    _compiling.pool = ThreadPoolExecutor(os.cpu_count(), "gridless-compile")
    try:
        yield
    finally:
        _compiling.pool.shutdown(wait=False)
        _compiling.pool = None


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not under n > 0."""
    return 1 << (n - 1).bit_length()
