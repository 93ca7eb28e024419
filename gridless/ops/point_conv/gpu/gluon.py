"""Where the Gluon kernels of the point convolution run in place of the Triton kernels, which compute the same."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import ctypes
import warnings
from contextlib import suppress
from functools import cache, lru_cache, reduce
from operator import or_
from types import ModuleType
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels.launch import Launcher, cdiv
from gridless.ops.point_conv.edge_function import EdgeFunction
from gridless.ops.point_conv.gpu.arguments import fits_int32, scale, terms
from gridless.ops.point_conv.gpu.tiles import (
    gluon_backward_tile,
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


class Call(NamedTuple):
    """How a kernel is launched, its tensors apart."""

    programs: int
    sizes: tuple[float, ...]
    constants: tuple
    warps: int


def forward(rows: Any, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> bool:
    """Writes the convolution to `out` and 1 / W to the rows' tensor, or where rows are sources the gradient of the
    features from that of the result; False, and nothing, where no kernel suits."""
    if not GLUON:
        return False
    given = features.dtype, weight.shape[0], features.shape[1], out.shape[1], bias is not None, rows.shape, out.device
    if (call := _wide_call(*given)) is not None:
        # Products of float32 read Theta along the channels that they sum over.
        across = features.dtype == torch.float32 and not rows.flip
        theta = weight.transpose(1, 2).contiguous() if across else weight
        tensors = (features, *rows.tensors, theta, theta if bias is None else bias, out)
        return _launch(gluon_wide, "wide_kernel", tensors, call)
    call = _forward_call(*given)
    tensors = (features, *rows.tensors, weight, weight if bias is None else bias, out)
    return call is not None and _launch(gluon_kernels, "forward_kernel", tensors, call)


@lru_cache
def _forward_call(
    dtype: torch.dtype, terms: int, channels: int, width: int, has_bias: bool, shape: tuple, device: torch.device
) -> Call | None:
    function, flip, count, columns, edges, _ = shape
    tile = gluon_tile(dtype, terms, channels, width, count, edges, device)
    if tile is None or not _suits(dtype, shape, max(channels, width), device):
        return None
    tiles = cdiv(count, tile.rows)
    read = columns * channels * dtype.itemsize, 4 * edges
    fetched = (size // 128 if sum(read) <= FETCHED else 0 for size in read)
    sizes = (count, tiles, *fetched, scale(function.radius)[0])
    constants = (channels, width, *_function(function), flip, has_bias, tile.strip)
    return Call(min(tiles, processors(device)), sizes, constants, tile.warps)


@lru_cache
def _wide_call(
    dtype: torch.dtype, terms: int, channels: int, width: int, has_bias: bool, shape: tuple, device: torch.device
) -> Call | None:
    function, flip, count, _, edges, _ = shape
    tile = gluon_wide_tile(dtype, terms, channels, width, count, edges)
    if tile is None or not _suits(dtype, shape, max(channels, width), device):
        return None
    pairs = cdiv(count, 2 * tile.rows)
    along = flip or dtype == torch.float32
    constants = (channels, width, *_function(function), flip, has_bias, along, tile.unroll)
    return Call(min(pairs, processors(device)), (count, pairs, scale(function.radius)[0]), constants, tile.warps)


def backward(rows: Any, grad: Tensor, features: Tensor, weight: Tensor, d_features: Tensor | None) -> Tensor | None:
    """Writes the gradient of the features where there is one, and returns parts (parts, M, Q, P) whose sum is the
    weight's gradient; None, and writes nothing, where no kernel suits."""
    need_features = d_features is not None
    call = _backward_call(features.dtype, *weight.shape, need_features, rows.shape, grad.device) if GLUON else None
    if call is None:
        return None
    parts = torch.empty(call.programs, *weight.shape, dtype=torch.float32, device=grad.device)
    tensors = (grad, features, *rows.tensors, weight, features if d_features is None else d_features, parts)
    return parts if _launch(gluon_kernels, "backward_kernel", tensors, call) else None


@lru_cache
def _backward_call(
    dtype: torch.dtype, terms: int, channels: int, width: int, need_features: bool, shape: tuple, device: torch.device
) -> Call | None:
    function, _, count, _, edges, _ = shape
    tile = gluon_backward_tile(terms, channels, width, count, edges, device)
    if tile is None or not _suits(dtype, shape, max(channels, width), device):
        return None
    tiles = cdiv(count, tile.rows)
    sizes, constants = (count, tiles, scale(function.radius)[0]), (channels, width, *_function(function), need_features)
    return Call(min(tiles, processors(device)), sizes, constants, tile.warps)


def weight(rows: Any, grad: Tensor, features: Tensor, weight: Tensor) -> Tensor | None:
    """Parts (parts, M, Q, P) whose sum is the gradient of a wide layer's weight; None where no kernel suits."""
    call = _weight_call(features.dtype, *weight.shape, rows.shape, grad.device) if GLUON else None
    if call is None:
        return None
    parts = torch.empty(int(call.sizes[2]), *weight.shape, dtype=torch.float32, device=grad.device)
    tensors = (grad, features, *rows.tensors, parts)
    return parts if _launch(gluon_weight, "weight_kernel", tensors, call) else None


@lru_cache
def _weight_call(
    dtype: torch.dtype, terms: int, channels: int, width: int, shape: tuple, device: torch.device
) -> Call | None:
    function, _, count, _, edges, _ = shape
    tile = gluon_weight_tile(dtype, terms, channels, width, count, edges)
    if tile is None or not _suits(dtype, shape, max(channels, width), device):
        return None
    pairs, strips = cdiv(count, 2 * tile.rows), width // tile.strip
    groups = min(max(processors(device) // strips, 1), pairs)
    sizes = (count, pairs, groups, scale(function.radius)[0])
    return Call(groups * strips, sizes, (channels, width, *_function(function), tile.unroll), tile.warps)


def _suits(dtype: torch.dtype, shape: tuple, width: int, device: torch.device) -> bool:
    """Whether types, dimensions and the device are those of the kernels; sizes are left to the tiles."""
    function, _, count, columns, edges, coords = shape
    types = dtype != torch.float64 and coords == torch.float32 and fits_int32(count, columns, edges, width)
    return gluon_kernels is not None and types and function.dim == 3 and _runs_on(device)


@cache
def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or interpreting():
        return False
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device)[0] == GENERATION


def _function(function: EdgeFunction) -> tuple:
    told = terms(function, 0, function.size)
    return *(told[name] for name in ("M", "KIND", "TABLE", "SHARP")), function.falloff, function.normalise


@cache
def _launcher(kernels: ModuleType, name: str) -> Launcher:
    return Launcher(getattr(kernels, name))


def _launch(kernels: Any, name: str, tensors: tuple[Tensor, ...], call: Call) -> bool:
    """Launches the kernel, or begins to compile it; False, and a word once, where this version of Triton cannot.

    From its next launch on, a kernel of one program per multiprocessor leaves the first-level cache all the shared
    memory that it does not use. Triton asks for the most there is, and loads on their way then have nowhere to go.
    """
    global GLUON
    # Copies to shared memory take 4 bytes at least, and where tensors begin decides how many.
    if reduce(or_, [tensor.data_ptr() for tensor in tensors]) & 15:
        return False
    try:
        kernel = _launcher(kernels, name)((call.programs, 1, 1), tensors, *call[1:])
    except Exception as error:
        if isinstance(error, RuntimeError) and "CUDA" in str(error):
            raise
        GLUON = False
        warnings.warn(
            f"Triton {triton.__version__} cannot compile the fastest point convolution for this device ({error}); "
            "a slower one runs instead",
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
