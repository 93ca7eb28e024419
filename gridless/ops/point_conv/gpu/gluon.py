"""Launches of the Gluon kernels of the point convolution, which replace Triton kernels on some devices and sizes."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels.launch import Launcher, cdiv, is_simple
from gridless.ops.point_conv.edge_function import EdgeFunction
from gridless.ops.point_conv.gpu.arguments import terms
from gridless.ops.point_conv.gpu.rows import Choice, EdgeRows
from gridless.ops.point_conv.gpu.tiles import (
    gluon_tile,
    gluon_weight_tile,
    gluon_wide_tile,
    processors,
)

try:
    from gridless.ops.point_conv.gpu import gluon_kernels, gluon_weight, gluon_wide
except (ImportError, AttributeError):  # Gluon is an experimental part of Triton: its names may change.
    gluon_kernels = gluon_weight = gluon_wide = None

# False: the Triton kernels run everywhere.
GLUON = True
# The generation of devices that have `wgmma`, and 227 KB of shared memory for a program.
GENERATION = 9
# Bytes of features and columns that are asked for at the start: well inside the second-level cache.
FETCHED = 24 << 20


def forward(choice: Choice, has_bias: bool) -> Callable[..., bool] | None:
    """run(rows, inverse, features, weight, bias, out) writes the convolution to `out` and 1 / W to `inverse`, or where
    rows are sources the gradient of the features from that of the result; it is False, and wrote nothing, where the
    launch is refused. None where no kernel suits."""
    if not _suits(choice):
        return None
    _, dtype, terms, channels, width, count, edges, _, device, _ = choice
    function, flip, most = choice.kind.function, choice.kind.flip, processors(device)
    wide = gluon_wide_tile(dtype, terms, channels, width, count, edges)
    if wide is not None:
        along, tall = flip or dtype == torch.float32, 2 * wide.rows
        constants = (channels, width, *_function(function), flip, has_bias, along, wide.unroll)
        launch = _GluonLaunch(choice, gluon_wide, "wide_kernel", constants, wide.warps)

        def run_wide(
            rows: EdgeRows, inverse: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
        ) -> bool:
            # Products of float32 read Theta along the channels that they sum over.
            theta = weight.transpose(1, 2).contiguous() if along and not flip else weight
            tensors = (features, *rows.tensors, inverse, theta, theta if bias is None else bias, out)
            pairs = cdiv(rows.count, tall)
            return launch(min(pairs, most), tensors, (rows.count, pairs, rows.scale[0]))

        return run_wide
    tile = gluon_tile(dtype, terms, channels, width, count, edges, device)
    if tile is None:
        return None
    tall, row = tile.rows, channels * dtype.itemsize
    constants = (channels, width, *_function(function), flip, has_bias, tile.strip)
    launch = _GluonLaunch(choice, gluon_kernels, "forward_kernel", constants, tile.warps)

    def run(
        rows: EdgeRows, inverse: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
    ) -> bool:
        tensors = (features, *rows.tensors, inverse, weight, weight if bias is None else bias, out)
        tiles, read, columns = cdiv(rows.count, tall), rows.columns * row, 4 * rows.edges
        fetched = (read // 128, columns // 128) if read + columns <= FETCHED else (0, 0)
        return launch(min(tiles, most), tensors, (rows.count, tiles, *fetched, rows.scale[0]))

    return run


def weight(choice: Choice) -> Callable[..., Tensor | None] | None:
    """run(rows, inverse, grad, features, weight) returns parts (parts, M, Q, P) whose sum is the gradient of a wide
    layer's weight, or None where the launch is refused. None where no kernel suits."""
    if not _suits(choice):
        return None
    _, dtype, terms, channels, width, count, edges, _, device, _ = choice
    tile = gluon_weight_tile(dtype, terms, channels, width, count, edges)
    if tile is None:
        return None
    tall, strips = 2 * tile.rows, width // tile.strip
    most = max(processors(device) // strips, 1)
    constants = (channels, width, *_function(choice.kind.function), tile.unroll)
    launch = _GluonLaunch(choice, gluon_weight, "weight_kernel", constants, tile.warps)

    def run(rows: EdgeRows, inverse: Tensor, grad: Tensor, features: Tensor, weight: Tensor) -> Tensor | None:
        pairs = cdiv(rows.count, tall)
        groups = min(most, pairs)
        parts = torch.empty(groups, terms, channels, width, dtype=torch.float32, device=grad.device)
        tensors = (grad, features, *rows.tensors, inverse, parts)
        return parts if launch(groups * strips, tensors, (rows.count, pairs, groups, rows.scale[0])) else None

    return run


def _suits(choice: Choice) -> bool:
    """True if the kernels exist for these types, dimensions and device; the tiles check the sizes."""
    if gluon_kernels is None or not _runs_on(choice.device) or choice.index is not tl.int32:
        return False
    kind = choice.kind
    return choice.dtype != torch.float64 and kind.coords == torch.float32 and kind.function.dim == 3


@cache
def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or interpreting():
        return False
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device)[0] == GENERATION


def _function(function: EdgeFunction) -> tuple:
    constants = terms(function, 0, function.size)
    return *(constants[name] for name in ("M", "KIND", "TABLE", "SHARP")), function.falloff, function.normalise


@cache
def _launcher(kernels: ModuleType, name: str) -> Launcher:
    return Launcher(getattr(kernels, name))


class _GluonLaunch:
    """launch(programs, tensors, sizes) returns True if the kernel was launched or begins to compile. If this version of
    Triton cannot compile it, there is one warning and no second try.

    From its next launch on, a kernel of one program per multiprocessor leaves the first-level cache all the shared
    memory that it does not use. Triton asks for the most there is, and loads on their way then have nowhere to go.
    """

    def __init__(self, choice: Choice, kernels: Any, name: str, constants: tuple, warps: int) -> None:
        self._launch = _launcher(kernels, name).of((choice.device, choice.dtype), constants, warps)

    def __call__(self, programs: int, tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> bool:
        grid = programs, 1, 1
        return self._launch.at_once(grid, tensors, sizes) or self._first(grid, tensors, sizes)

    def _first(self, grid: tuple[int, int, int], tensors: tuple[Tensor, ...], sizes: tuple[float, ...]) -> bool:
        global GLUON
        # Copies to shared memory take 4 bytes at least, and where tensors begin decides how many.
        if not is_simple([tensor.data_ptr() for tensor in tensors], sizes):
            return False
        try:
            kernel = self._launch(grid, tensors, sizes)
        except Exception as error:
            if isinstance(error, RuntimeError) and "CUDA" in str(error):
                raise
            GLUON = False
            warnings.warn(
                f"Triton {triton.__version__} cannot compile the fastest point convolution for this device ({error}). "
                "A slower one runs instead.",
                stacklevel=2,
            )
            return False
        if kernel is not None:
            _carve(kernel.function, kernel.metadata.shared, tensors[0].device)
        return True


@cache
def _carve(function: int, shared: int, device: torch.device) -> None:
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    # 1 KB of each program's is the driver's. 9 is CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in per cent.
    share = min(-(-(shared + 1024) * 100 // whole), 100)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(ctypes.c_void_p(function), 9, share)
