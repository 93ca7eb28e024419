"""Where the Gluon kernels of the point convolution run in place of the Triton kernels, which compute the same."""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import ctypes
import warnings
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.kernels.launch import Launcher, cdiv
from gridless.ops.point_conv.gpu.tiles import gluon_backward_tile, gluon_tile, gluon_weight_tile, processors

try:
    from gridless.ops.point_conv.gpu import gluon_kernels, gluon_weight
except (ImportError, AttributeError):  # Gluon is an experimental part of Triton: its names may change.
    gluon_kernels = gluon_weight = None

# False: the Triton kernels run everywhere.
GLUON = True
# The generation of devices that have `wgmma`, and 227 KB of shared memory for a program.
GENERATION = 9
# Bytes of features and columns that are asked for at the start: well inside the second-level cache.
FETCHED = 24 << 20


def forward(rows: Any, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> bool:
    """Writes the convolution to `out` and 1 / W to the rows' tensor, or where rows are sources the gradient of the
    features from that of the result; False, and nothing, where no kernel suits."""
    sizes = weight.shape[0], features.shape[1], out.shape[1]
    tile = gluon_tile(features.dtype, *sizes, rows.count, rows.edges, out.device)
    if tile is None or not _suits(rows, features, weight):
        return False
    tiles = cdiv(rows.count, tile.rows)
    read = features.nbytes, 4 * rows.edges
    fetched = (size // 128 if sum(read) <= FETCHED else 0 for size in read)
    kernel = _launch(
        gluon_kernels, "forward_kernel", min(tiles, processors(out.device)),
        (features, *rows.tensors, weight, weight if bias is None else bias, out),
        (rows.count, tiles, *fetched, rows.scale[0]),
        (*sizes[1:], *_function(rows), rows.flip, bias is not None, tile.strip), tile.warps,
    )  # fmt: skip
    if kernel is None:
        return False
    _leave_cache(kernel, out.device)
    return True


def backward(
    rows: Any, grad: Tensor, features: Tensor, weight: Tensor, d_features: Tensor | None, need_weight: bool
) -> Tensor | None:
    """Writes the gradient of the features, and returns parts (programs, M, Q, P) whose sum is the weight's gradient
    (none of them without `need_weight`); None, and writes nothing, where no kernel suits."""
    _, channels, width = weight.shape
    tile = gluon_backward_tile(*weight.shape, rows.count, rows.edges, grad.device)
    if tile is None or not _suits(rows, features, weight):
        return None
    tiles = cdiv(rows.count, tile.rows)
    programs = min(tiles, processors(grad.device)) if need_weight else tiles
    parts = torch.empty(programs if need_weight else 0, *weight.shape, dtype=torch.float32, device=grad.device)
    kernel = _launch(
        gluon_kernels, "backward_kernel", programs,
        (grad, features, *rows.tensors, weight, features if d_features is None else d_features, parts),
        (rows.count, tiles, rows.scale[0]),
        (channels, width, *_function(rows), d_features is not None, need_weight), tile.warps,
    )  # fmt: skip
    if kernel is None:
        return None
    if need_weight:
        _leave_cache(kernel, grad.device)
    return parts


def weight(rows: Any, grad: Tensor, features: Tensor, weight: Tensor) -> Tensor | None:
    """Parts (groups, M, Q, P) whose sum is the gradient of a wide layer's weight; None where no kernel suits."""
    _, channels, width = weight.shape
    tile = gluon_weight_tile(features.dtype, *weight.shape, rows.count, rows.edges)
    if tile is None or not _suits(rows, features, weight):
        return None
    pairs, strips = cdiv(rows.count, 2 * tile.rows), width // tile.strip
    groups = min(max(processors(grad.device) // strips, 1), pairs)
    parts = torch.empty(groups, *weight.shape, dtype=torch.float32, device=grad.device)
    mine, theirs, splits, columns, inverse = rows.tensors
    # One load brings what an edge needs of its column beside the gradient.
    normalise = rows.function.normalise
    near = torch.cat((theirs, inverse[:, None]), 1) if normalise else torch.nn.functional.pad(theirs, (0, 1))
    kernel = _launch(
        gluon_weight, "weight_kernel", groups * strips, (grad, features, mine, near, splits, columns, parts),
        (rows.count, pairs, groups, rows.scale[0]), (channels, width, *_function(rows), tile.unroll), tile.warps,
    )  # fmt: skip
    if kernel is None:
        return None
    _leave_cache(kernel, grad.device)
    return parts


def _suits(rows: Any, features: Tensor, weight: Tensor) -> bool:
    """Whether types, dimensions and the device are those of the kernels; sizes are left to the tiles."""
    return (
        GLUON
        and gluon_kernels is not None
        and features.dtype != torch.float64
        and rows.tensors[0].dtype == torch.float32
        and rows.function.dim == 3
        and rows.index(max(weight.shape[1:])) is tl.int32
        and _runs_on(features.device)
    )


@cache
def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or interpreting():
        return False
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device)[0] == GENERATION


def _function(rows: Any) -> tuple:
    terms = rows.terms()
    return *(terms[name] for name in ("M", "KIND", "TABLE", "SHARP")), rows.function.falloff, rows.function.normalise


@cache
def _launcher(kernels: ModuleType, name: str) -> Launcher:
    return Launcher(getattr(kernels, name))


def _launch(kernels: Any, name: str, programs: int, tensors: tuple, sizes: tuple, constants: tuple, warps: int) -> Any:
    """The kernel, launched (True where it only begins to compile); None, and a word once, where this version of Triton
    cannot compile it."""
    global GLUON
    try:
        return _launcher(kernels, name)((programs, 1, 1), tensors, sizes, constants, warps) or True
    except Exception as error:
        if isinstance(error, RuntimeError) and "CUDA" in str(error):
            raise
        GLUON = False
        warnings.warn(
            f"Triton {triton.__version__} cannot compile the fastest point convolution for this device ({error}); "
            "a slower one runs instead",
            stacklevel=2,
        )
        return None


def _leave_cache(kernel: Any, device: torch.device) -> None:
    """From its next launch on, a kernel of one program per multiprocessor leaves the first-level cache all the shared
    memory that it does not use. Triton asks for the most there is, and loads on their way then have nowhere to go."""
    if kernel is not True:
        _carve(kernel.function, kernel.metadata.shared, device)


@cache
def _carve(function: int, shared: int, device: torch.device) -> None:
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    # 1 KB of each program's is the driver's. 9 is CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in per cent.
    share = min(-(-(shared + 1024) * 100 // whole), 100)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(ctypes.c_void_p(function), 9, share)
