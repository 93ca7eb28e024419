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

# Kernels compile in parallel from Python 3.12 on: 3.11 raises a SystemError if two threads parse.
TOGETHER = sys.version_info >= (3, 12)

# Every launch says whether products are fused with sums, as the default changes with Triton 3.10. Kernels whose results
# decide something need the bits of the reference.
EXACT: dict[str, Any] = {"enable_fp_fusion": False}
FUSED: dict[str, Any] = {"enable_fp_fusion": True}


class Launch:
    """`launch(grid, tensors, sizes)` is kernel[grid](*tensors, *sizes, *constants), launched quickly.

    At every launch Triton looks at each argument anew: its type, whether it can be divided by 16, and for tensors
    whether the driver knows them. With some twenty arguments that takes longer than a small kernel runs. Here they
    decide nothing:

    - `tensors` are on one device and of the same types at every launch, and begin at multiples of 16 bytes;
    - `sizes` are numbers that the kernel lists under do_not_specialize (or float32);
    - `constants`, constexpr or not, are those of this object.

    A compiled kernel then takes addresses and numbers as they are (`compiled[grid](...)`, as in Triton's tutorials).
    Any other launch goes through Triton: the first, tensors that begin elsewhere, sizes beyond int32.
    """

    __slots__ = ("_compilation", "_compiled", "_constants", "_kernel", "_options")

    def __init__(self, kernel: Any, constants: tuple, options: dict[str, Any]) -> None:
        self._kernel, self._constants, self._options = kernel, constants, options
        self._compiled: Any = None
        self._compilation: Future | None = None

    def __call__(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> Any:
        """Launches the kernel, and returns it compiled where Triton did (None in its interpreter)."""
        if self.at_once(grid, tensors, sizes):
            return None
        if _compiling.pool is not None:
            return self._begin(_compiling.pool, tensors, sizes)
        compilation, self._compilation = self._compilation, None
        if compilation is not None:
            # Triton then has it, or meets the same error itself.
            with suppress(Exception):
                compilation.result()
        compiled = self._kernel[grid](*tensors, *sizes, *self._constants, **self._options)
        if is_simple([t.data_ptr() for t in tensors], sizes):
            self._compiled = compiled
        return compiled

    def at_once(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> bool:
        """Launches the kernel if it is compiled for such arguments, and says whether it did."""
        compiled = self._compiled
        if compiled is None or _compiling.pool is not None:
            return False
        pointers = [t.data_ptr() for t in tensors]
        if not is_simple(pointers, sizes):
            return False
        compiled[grid](*pointers, *sizes, *self._constants)
        return True

    def _begin(self, pool: Executor, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> None:
        if TOGETHER and self._compiled is None and self._compilation is None:
            arguments = (*(t.dtype for t in tensors), *sizes, *self._constants)
            self._compilation = pool.submit(_compile, self._kernel, tensors[0].device, arguments, self._options)


class Launcher:
    """`launch(grid, tensors, sizes, constants)`: a kernel, whose `Launch` is found by all that decides it.

    With `exact` no product is fused with a sum.
    """

    def __init__(self, kernel: Any, exact: bool = False) -> None:
        self.kernel, self._options = kernel, EXACT if exact else FUSED
        self._launches: dict[tuple, Launch] = {}

    def ordered(self, constants: dict[str, Any]) -> tuple:
        """Constants by name, in the order of the kernel, which may have fewer."""
        return tuple(constants[name] for name in self.kernel.arg_names if name in constants)

    def of(
        self, types: tuple, constants: tuple, warps: int = 4, registers: int | None = None, stages: int | None = None
    ) -> Launch:
        """The kernel with these constants and so many warps. `types` are `types_of` the tensors, or what these follow
        from; `registers` is the most that a thread may have, and `stages` how many steps of a loop are in flight, or
        None to leave either to the compiler."""
        key = types, constants, warps, registers, stages
        launch = self._launches.get(key)
        if launch is None:
            # An option for NVIDIA's devices alone, and an error for others.
            limit = {} if registers is None else {"maxnreg": registers}
            limit |= {} if stages is None else {"num_stages": stages}
            launch = Launch(self.kernel, constants, {"num_warps": warps, **self._options, **limit})
            self._launches[key] = launch
        return launch

    def __call__(
        self,
        grid: tuple[int, int, int],
        tensors: tuple[Tensor, ...],
        sizes: tuple[float, ...],
        constants: tuple,
        warps: int = 4,
        registers: int | None = None,
        stages: int | None = None,
    ) -> Any:
        return self.of(types_of(tensors), constants, warps, registers, stages)(grid, tensors, sizes)


def is_simple(pointers: list[int], sizes: tuple[float, ...]) -> bool:
    """True if tensors begin at multiples of 16 bytes, and 32 bits hold the sizes."""
    return not reduce(or_, pointers) & 15 and max(sizes, default=0) < INT32


def types_of(tensors: tuple[Tensor, ...]) -> tuple:
    """Key of a compiled kernel: the device of the tensors, and the type of each."""
    return (tensors[0].device, *[t.dtype for t in tensors])


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


def is_compiling_ahead() -> bool:
    """True inside `compiling_ahead`, where nothing is launched: what kernels write must not be read."""
    return _compiling.pool is not None


_begun: set[tuple] = set()


def compile_once(key: tuple, begin: Callable[[], None]) -> None:
    """Calls `begin` inside `compiling_ahead` at the first call with this key, unless a graph is captured.

    Best effort: if it fails, the real launch reports the error.
    """
    if key in _begun or not TOGETHER or is_compiling_ahead() or torch.cuda.is_current_stream_capturing():
        return
    _begun.add(key)
    with suppress(Exception), compiling_ahead():
        begin()


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not under n > 0."""
    return 1 << (n - 1).bit_length()
