"""Kernels on grids: the window of a kernel, the sites that it leaves, and what they are refused for."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.checks import check_whole
from gridless.geometry.voxels import reference

# One number for all axes, or one for each.
Axes = int | Sequence[int]

# Products of coordinates and strides stay below this.
_FAR = 1 << 61
_INT32 = torch.iinfo(torch.int32)


class Window:
    """A kernel with its stride, padding and dilation, one number for each axis."""

    def __init__(self, kernel: list[int], stride: list[int], padding: list[int], dilation: list[int]) -> None:
        self.kernel, self.stride, self.padding, self.dilation = kernel, stride, padding, dilation
        self.settings = kernel, stride, padding, dilation

    @classmethod
    def of(cls, kernel: Axes, stride: Axes, padding: Axes, dilation: Axes, dim: int) -> Window:
        sides, pads = axis_numbers("kernel", kernel, dim), axis_numbers("padding", padding, dim, least=0)
        return cls(sides, axis_numbers("stride", stride, dim), pads, axis_numbers("dilation", dilation, dim))

    @classmethod
    def centred(cls, kernel: Axes, stride: Axes, dilation: Axes, dim: int) -> Window:
        """The window whose middle tap is the site itself; the middle of an even kernel is entry kernel // 2."""
        sides, steps = axis_numbers("kernel", kernel, dim), axis_numbers("dilation", dilation, dim)
        padding = [step * (side // 2) for side, step in zip(sides, steps, strict=True)]
        return cls(sides, axis_numbers("stride", stride, dim), padding, steps)

    @property
    def is_centred(self) -> bool:
        """True if sites that see each other do so at opposite taps."""
        axes = zip(*self.settings, strict=True)
        return all(k % 2 and s == 1 and pad == d * (k // 2) for k, s, pad, d in axes)

    def offsets(self, device: torch.device) -> Tensor:
        """dilation * k - padding of every tap k (T, D) int64, in order."""
        return _offsets(tuple(zip(*self.settings, strict=True)), device)

    def steps(self, device: torch.device) -> Tensor:
        """The stride (D) int64."""
        return numbers(tuple(self.stride), device)

    def extent(self, what: str, shape: Sequence[int]) -> list[int]:
        """The shape of the grid that a dense convolution leaves."""
        sizes = axis_numbers("shape", shape, len(self.kernel))
        axes = zip(sizes, *self.settings, strict=True)
        left = [(size + 2 * pad - d * (k - 1) - 1) // s + 1 for size, k, s, pad, d in axes]
        if min(left) < 1:
            raise ValueError(
                f"{what}: a kernel of {self.kernel} leaves nothing of the shape {list(shape)}. Use more padding."
            )
        return left

    def transposed_extent(self, what: str, shape: Sequence[int], extra: list[int]) -> list[int]:
        sizes = axis_numbers("shape", shape, len(self.kernel))
        axes = zip(sizes, extra, *self.settings, strict=True)
        left = [(size - 1) * s - 2 * pad + d * (k - 1) + e + 1 for size, e, k, s, pad, d in axes]
        if min(left) < 1:
            raise ValueError(
                f"{what}: a padding of {self.padding} leaves nothing of the shape {list(shape)}. Use less padding."
            )
        return left


# Kept on the device: each copy to a GPU would wait for it.


@lru_cache(256)
def _offsets(axes: tuple[tuple[int, int, int, int], ...], device: torch.device) -> Tensor:
    along = [[dilation * k - padding for k in range(kernel)] for kernel, _, padding, dilation in axes]
    return torch.tensor(list(itertools.product(*along)), dtype=torch.int64).to(device)


@lru_cache(256)
def numbers(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Whole numbers as a tensor int64."""
    return torch.tensor(values, dtype=torch.int64).to(device)


def sites_seeing(what: str, sites: Tensor, window: Window, extent: list[int] | None) -> Tensor:
    """The distinct sites of the new grid that see one of `sites`, in order: from 0 to below the extent, or all without.

    A GPU waits for how many there are. Before that it waits for the box of `sites` if they are int64, or if there is no
    extent or a large one.
    """
    if not len(sites):
        return sites.new_empty(sites.shape)
    if extent is not None and sites.dtype == torch.int32 and math.prod(extent) < 1 << 30:
        low, sides = [_INT32.min] + [0] * len(extent), [1 << 32, *extent]
    else:
        low, sides = _box(sites, window, extent)
    if min(sides) < 1:
        return sites.new_empty(0, sites.shape[1])
    axes = zip(low[1:], sides[1:], window.stride, window.padding, strict=True)
    reach = max(max(abs(begin), abs(begin + side)) * stride + padding for begin, side, stride, padding in axes)
    is_near = reach < 1 << 31 and math.prod(sides) < 1 << 62
    module = backends.implementation(reference, sites.device) if is_near else reference
    return _in_dtype_of(what, sites, module.seeing(sites.contiguous(), low, sides, *window.settings))


def _box(sites: Tensor, window: Window, extent: list[int] | None) -> tuple[list[int], list[int]]:
    """Where the sites that see `sites` begin, example first, and how far they reach."""
    (first, *least), (last, *most) = torch.stack(sites.aminmax(dim=0)).tolist()
    low, sides = [first], [last - first + 1]
    for x, end, side, *axis in zip(least, most, extent or [None] * len(least), *window.settings, strict=True):
        kernel, stride, padding, dilation = axis
        begin, stop = (x + padding - dilation * (kernel - 1)) // stride, (end + padding) // stride + 1
        if side is not None:
            begin, stop = max(begin, 0), min(stop, side)
        low.append(begin)
        sides.append(stop - begin)
    return low, sides


def distinct_sites(what: str, sites: Tensor, candidates: Tensor, extent: list[int] | None) -> Tensor:
    """The distinct candidates inside the extent, in order, in the dtype of the sites."""
    if extent is not None:
        limit = numbers(tuple(extent), candidates.device)
        inside = ((candidates[:, 1:] >= 0) & (candidates[:, 1:] < limit)).all(1)
        candidates = candidates[inside]
    distinct = backends.implementation(reference, sites.device).distinct(candidates.contiguous())
    return _in_dtype_of(what, sites, distinct) if extent is None else distinct.to(sites.dtype)


def _in_dtype_of(what: str, sites: Tensor, new: Tensor) -> Tensor:
    if new.dtype == torch.int64 and sites.dtype == torch.int32 and len(new):
        low, high = (int(v) for v in new.aminmax())
        if low < _INT32.min or high > _INT32.max:
            raise ValueError(f"{what}: new sites run from {low} to {high}, beyond int32. Give the sites as int64.")
    return new.to(sites.dtype)


def check_sites(what: str, sites: Tensor) -> int:
    """The dimensions of the sites; refuses what is none."""
    if not isinstance(sites, Tensor) or sites.dtype not in (torch.int32, torch.int64):
        kind = sites.dtype if isinstance(sites, Tensor) else type(sites).__name__
        raise TypeError(f"{what}: sites must be an int32 or int64 tensor (S, 1 + D), example first, not {kind}")
    if sites.ndim != 2 or not 2 <= sites.shape[1] <= 5:
        raise ValueError(
            f"{what}: sites must be (S, 1 + D), example first, with D from 1 to 4, not {tuple(sites.shape)}"
        )
    return sites.shape[1] - 1


def check_range(what: str, source: Tensor, target: Tensor, window: Window) -> None:
    """Refuse 64-bit coordinates whose products with the stride, or differences, overflow."""
    reach = max(k * d + p for k, _, p, d in zip(*window.settings, strict=True))
    for sites, stride in ((source, 1), (target, max(window.stride))):
        if not len(sites):
            continue
        low, high = (int(v) for v in sites.aminmax())
        if max(-low, high) * stride + reach >= _FAR:
            raise ValueError(f"{what}: coordinates run from {low} to {high}, beyond 2^61 / stride. Shift them.")


def axis_numbers(name: str, value: Axes, dim: int, least: int = 1) -> list[int]:
    """One whole number for each axis."""
    values = list(value) if isinstance(value, Sequence | torch.Size) else [value] * dim
    if len(values) != dim:
        raise ValueError(f"voxels: {name} must be a number or {dim} of them, not {value!r}")
    numbers = [check_whole("voxels", name, v, least) for v in values]
    if name == "kernel" and math.prod(numbers) > 1 << 16:
        raise ValueError(f"voxels: a kernel of {numbers} has more than {1 << 16} taps")
    return numbers
