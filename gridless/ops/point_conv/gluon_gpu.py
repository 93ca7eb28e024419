"""Where the Gluon kernels of the point convolution run in place of the Triton kernels, which compute the same."""

# Kernels take plain numbers where they declare constants.
# pyright: reportArgumentType=false, reportCallIssue=false, reportOptionalMemberAccess=false

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.backends import interpreting
from gridless.ops.point_conv.tiles_gpu import gluon_backward_tile, gluon_tile, processors

# False: the Triton kernels run everywhere.
GLUON = True
# The versions of Triton with which the kernels have run on a device: their language still changes.
VERSIONS = ("3.6.",)
if triton.__version__.startswith(VERSIONS):
    from gridless.ops.point_conv import gluon_kernels
else:
    gluon_kernels = None
# The generation of devices that have `wgmma`, and 227 KB of shared memory for a program.
GENERATION = 9
# Bytes of features and columns that are asked for at the start: well inside the second-level cache.
FETCHED = 24 << 20


def forward(walk: Any, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> bool:
    """Writes the convolution to `out` and 1 / W to the walk's tensor; False, and nothing, where no kernel suits."""
    _, channels, width = weight.shape
    tile = gluon_tile(*weight.shape, walk.rows, walk.edges, out.device)
    if tile is None or not _suits(walk, features, weight):
        return False
    tiles = triton.cdiv(walk.rows, tile.rows)
    fetched = (features.numel(), walk.edges) if features.nbytes + 4 * walk.edges <= FETCHED else (0, 0)
    kernel = gluon_kernels.forward_kernel[(min(tiles, processors(out.device)),)](
        features, *walk.tensors, weight, weight if bias is None else bias, out, walk.rows, tiles, *fetched,
        walk.scale[0], C=channels, P=width, **_kernel(walk), HAS_BIAS=bias is not None, num_warps=tile.warps,
    )  # fmt: skip
    _leave_cache(kernel, out.device)
    return True


def backward(
    walk: Any, grad: Tensor, features: Tensor, weight: Tensor, d_features: Tensor | None, need_weight: bool
) -> Tensor | None:
    """Writes the gradient of the features, and returns parts (programs, M, Q, P) whose sum is the weight's gradient
    (none of them without `need_weight`); None, and writes nothing, where no kernel suits."""
    _, channels, width = weight.shape
    tile = gluon_backward_tile(*weight.shape, walk.rows, walk.edges, grad.device)
    if tile is None or not _suits(walk, features, weight):
        return None
    tiles = triton.cdiv(walk.rows, tile.rows)
    each = triton.cdiv(tiles, processors(grad.device)) if need_weight else 1
    programs = triton.cdiv(tiles, each)
    parts = torch.empty(programs if need_weight else 0, *weight.shape, dtype=torch.float32, device=grad.device)
    kernel = gluon_kernels.backward_kernel[(programs,)](
        grad, features, *walk.tensors, weight, features if d_features is None else d_features, parts, walk.rows, tiles,
        each, walk.scale[0], Q=channels, P=width, **_kernel(walk), NEED_F=d_features is not None, NEED_W=need_weight,
        num_warps=tile.warps,
    )  # fmt: skip
    if need_weight:
        _leave_cache(kernel, grad.device)
    return parts


def _suits(walk: Any, features: Tensor, weight: Tensor) -> bool:
    """Whether types, dimensions and the device are those of the kernels; sizes are left to the tiles."""
    return (
        GLUON
        and gluon_kernels is not None
        and features.dtype == torch.float32
        and walk.tensors[0].dtype == torch.float32
        and walk.kernel.dim == 3
        and walk.index(max(weight.shape[1:])) is tl.int32
        and _runs_on(features.device)
    )


@cache
def _runs_on(device: torch.device) -> bool:
    if device.type != "cuda" or interpreting():
        return False
    return torch.version.cuda is not None and torch.cuda.get_device_capability(device)[0] == GENERATION


def _kernel(walk: Any) -> dict[str, Any]:
    kernel = walk.kernel
    return walk.terms(0, kernel.size) | {"FALLOFF": kernel.falloff, "NORMALISE": kernel.normalise}


def _leave_cache(kernel: Any, device: torch.device) -> None:
    """From its next launch on, a kernel of one program per multiprocessor leaves the first-level cache all the shared
    memory that it does not use. Triton asks for the most there is, and loads on their way then have nowhere to go."""
    _carve(kernel.function, kernel.metadata.shared, device)


@cache
def _carve(function: int, shared: int, device: torch.device) -> None:
    whole = torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor
    # 1 KB of each program's is the driver's. 9 is CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in per cent.
    share = min(-(-(shared + 1024) * 100 // whole), 100)
    with suppress(OSError):
        ctypes.CDLL("libcuda.so.1").cuFuncSetAttribute(ctypes.c_void_p(function), 9, share)
