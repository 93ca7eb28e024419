"""Launches with little Python, and constants that are copied to the device once.

Triton's own `cdiv` and `next_power_of_2` serve its compiler too, and take microseconds.
"""

from __future__ import annotations

from functools import cache, reduce
from operator import or_
from typing import Any

import torch
import triton
from torch import Tensor

# The versions of Triton whose compiled kernels have been launched in this way on a device.
DIRECT = triton.__version__.startswith("3.6.")


class Launcher:
    """kernel[grid](*tensors, *sizes, *constants, num_warps=warps), for kernels of a simple kind.

    At every launch Triton looks at each argument anew: its type, whether it can be divided by 16, and for tensors
    whether the driver knows them. Here `constants` are all constexpr, and `sizes` (all int32) are listed under
    do_not_specialize; so the same constants, with tensors of the same types that begin at multiples of 16 bytes, are
    the same compiled kernel, and that is launched at once. Any other launch, and any with another version of Triton,
    goes through Triton.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._ready: dict[tuple, Any] = {}

    def __call__(
        self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[int, ...], constants: tuple,
        warps: int,
    ) -> None:  # fmt: skip
        pointers = [t.data_ptr() for t in tensors]
        key = (tensors[0].device, warps, constants, *(t.dtype for t in tensors))
        simple = DIRECT and not reduce(or_, pointers) & 15
        if simple and (ready := self._ready.get(key)) is not None:
            ready[grid](*pointers, *sizes, *constants)
            return
        compiled = self.kernel[grid](*tensors, *sizes, *constants, num_warps=warps)
        # The interpreter returns nothing.
        if simple and compiled is not None:
            self._ready[key] = compiled


def cdiv(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is not under n > 0."""
    return 1 << (n - 1).bit_length()


@cache
def per_microsecond(decay_time: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1 / decay_time (1): what a rate is multiplied by where ages are microseconds."""
    return torch.full((1,), 1 / decay_time, dtype=dtype, device=device)
