"""Timers, which measure nothing here."""

from contextlib import nullcontext

from gridless.compat.spconv.pytorch.core import Timer

__all__ = ["CUDAKernelTimer", "nullcontext"]


class CUDAKernelTimer(Timer):
    """Takes the arguments of spconv's timer."""

    def __init__(self, enable: bool = True) -> None:
        self.enable = enable
