"""Convolutions of features over `IndiceData`, and sums of sparse tensors with different sites."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from gridless.compat.rows import sum_rows
from gridless.compat.spconv import constants
from gridless.compat.spconv.pytorch.core import SparseConvTensor, taps_of_pairs
from gridless.geometry.voxels import strided_taps, submanifold_taps
from gridless.kernels.launch import compile_once
from gridless.ops.edge_max import edge_max
from gridless.ops.tap_conv import compile_ahead, tap_conv
from gridless.structures import TapEdges

__all__ = [
    "convolve",
    "indice_conv",
    "indice_inverse_conv",
    "indice_maxpool",
    "indice_subm_conv",
    "sparse_add",
    "sparse_add_hash_based",
]


# The layers of this process: the kernels of all begin to compile when the first of them runs on a GPU.
LAYERS: WeakSet[Any] = WeakSet()


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, taps: TapEdges, layer: Any = None) -> Tensor:
    """The convolution of features (N, C_in) with weight (C_out, kernel..., C_in) of a layer.

    Under autocast on a GPU everything becomes float16, whatever its dtype, as in spconv. float32 is IEEE, unless
    `constants.SPCONV_ALLOW_TF32` is set.
    """
    if features.is_cuda and torch.is_autocast_enabled("cuda") and features.dtype != torch.float64:
        features, weight = features.half(), weight.half()
        bias = None if bias is None else bias.half()
        # `tap_conv` would convert to the dtype of autocast.
        with torch.autocast("cuda", enabled=False):
            return convolve(features, weight, bias, taps, layer)
    theta = weight.reshape(weight.shape[0], taps.num_taps, weight.shape[-1]).permute(1, 2, 0)
    if not features.is_cuda or _is_tf32() == constants.SPCONV_ALLOW_TF32:
        return _convolve(features, theta, bias, taps, layer)
    before = _set_precision(_precision())
    try:
        out = _convolve(features, theta, bias, taps, layer)
    finally:
        _set_precision(before)
    if out.grad_fn is not None:
        # The backward pass reads the switch, too.
        out.grad_fn.register_prehook(lambda _: _set_precision(_precision()) and None)
        out.grad_fn.register_hook(lambda *_: _set_precision(before) and None)
    return out


def _convolve(features: Tensor, theta: Tensor, bias: Tensor | None, taps: TapEdges, layer: Any) -> Tensor:
    """`tap_conv` as it is computed: dtype and precision are set."""
    if features.is_cuda and not torch.compiler.is_compiling():
        device, dtype = features.device, features.dtype
        key = "spconv", device, dtype, torch.is_grad_enabled(), constants.SPCONV_ALLOW_TF32
        compile_once(key, lambda: compile_layers(device, dtype, None if features.requires_grad else layer))
    return tap_conv(features, theta, bias, taps)


def compile_layers(device: torch.device, dtype: torch.dtype, fixed: Any = None) -> None:
    """Inside `compiling_ahead`: tells what the layers on a device will launch for features of `dtype`.

    Autocast converts parameters of float32. Features of the layer `fixed` get no gradient.
    """
    searches = set()
    for layer in LAYERS:
        weight = layer.weight
        if weight.device == device and weight.dtype in (dtype, torch.float32) and not layer.conv1x1:
            if not layer.inverse:
                searches.add((*layer.kernel_size, layer.subm or layer.transposed))
            taps = math.prod(layer.kernel_size)
            theta = weight.new_empty((), dtype=dtype).expand(taps, layer.in_channels, layer.out_channels)
            symmetric = layer.subm and all(side % 2 for side in layer.kernel_size)
            needs = layer is not fixed, weight.requires_grad
            compile_ahead(theta, layer.bias is not None, symmetric, needs)
    for *kernel, keeps_sites in searches:
        search = submanifold_taps if keeps_sites else strided_taps
        search(torch.zeros(1, 1 + len(kernel), dtype=torch.int32, device=device), kernel)


def _is_tf32() -> bool:
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def _precision() -> str:
    return "tf32" if constants.SPCONV_ALLOW_TF32 else "ieee"


def _set_precision(name: str) -> str:
    """Sets torch's switch for float32 products on GPUs, and returns what it was."""
    before = str(torch.backends.cuda.matmul.fp32_precision)
    torch.backends.cuda.matmul.fp32_precision = name
    return before


def sparse_add(*tens: SparseConvTensor) -> SparseConvTensor:
    """The sum of tensors of one shape, at all of their sites.

    Sites are in lexicographic order. If one tensor has all of them, they are in its order, and the sum has what layers
    keep under their `indice_key` for that tensor.
    """
    kinds = {(tuple(x.spatial_shape), x.batch_size, x.features.shape[1]) for x in tens}
    if len(kinds) != 1:
        raise AssertionError(f"sparse_add: shapes, batch sizes or channels differ: {sorted(kinds)}.")
    sites, row = torch.cat([x.indices for x in tens]).unique(dim=0, return_inverse=True)
    features = torch.cat([x.features for x in tens])
    start = 0
    for x in tens:
        own = row[start : start + len(x.indices)]
        start += len(own)
        if len(own) == len(sites) == len(own.unique()):
            place = torch.empty_like(own)
            place[own] = torch.arange(len(own), device=row.device)
            return x.replace_feature(sum_rows(features, place[row], len(own)))
    total, first = sum_rows(features, row, len(sites)), tens[0]
    return SparseConvTensor(total, sites.contiguous(), first.spatial_shape, first.batch_size)


sparse_add_hash_based = sparse_add


def indice_conv(
    features: Tensor,
    filters: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
    num_activate_out: int,
    algo: Any = None,
    timer: Any = None,
    bias: Tensor | None = None,
    *,
    is_subm: bool = False,
) -> Tensor:
    """The convolution over the tables of `ops.get_indice_pairs`: features (N, C_in) to (num_activate_out, C_out).

    Args:
        filters: (C_out, kernel..., C_in).
        algo, timer: without effect.
        is_subm: the tables are those of a submanifold layer.
    """
    taps = taps_of_pairs(indice_pairs, indice_pair_num, len(features), num_activate_out, is_subm)
    return convolve(features, filters, bias, taps)


def indice_subm_conv(*args: Any, **options: Any) -> Tensor:
    """`indice_conv` of a submanifold layer, whose tables may have the first half of the taps only."""
    return indice_conv(*args, **options, is_subm=True)


def indice_inverse_conv(
    features: Tensor,
    filters: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
    num_activate_out: int,
    algo: Any = None,
    timer: Any = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`indice_conv` from the outputs of the pairs back to their inputs."""
    return indice_conv(features, filters, indice_pairs.flip(0), indice_pair_num, num_activate_out, bias=bias)


def indice_maxpool(features: Tensor, indice_pairs: Tensor, indice_pair_num: Tensor, num_activate_out: int) -> Tensor:
    """The largest feature of those that each output sees, or 0 if all are negative: (num_activate_out, C)."""
    return max_pool(features, taps_of_pairs(indice_pairs, indice_pair_num, len(features), num_activate_out))


def max_pool(features: Tensor, taps: TapEdges) -> Tensor:
    """`indice_maxpool` over edges. spconv begins with 0, and so do networks that were trained with it."""
    return edge_max(features, taps.edges).clamp(min=0)
