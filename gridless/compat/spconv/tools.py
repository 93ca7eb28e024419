"""Timers, which measure nothing here."""

from contextlib import nullcontext

from gridless.compat.spconv.constants import CPU_ONLY_BUILD
from gridless.compat.spconv.pytorch.core import Timer

__all__ = ["CPU_ONLY_BUILD", "CUDAKernelTimer", "nullcontext"]


class CUDAKernelTimer(Timer):
    """Takes the arguments of spconv's timer."""

    def __init__(self, enable: bool = True) -> None:
        self.enable = enable
