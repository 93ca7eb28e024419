"""Convolutions of features over `IndiceData`, and sums of sparse tensors with different sites."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from gridless.compat.rows import sum_rows
from gridless.compat.spconv import constants
from gridless.compat.spconv.pytorch.core import SparseConvTensor
from gridless.kernels.launch import compile_once
from gridless.ops.tap_conv import compile_ahead, tap_conv
from gridless.structures import TapEdges

__all__ = ["convolve", "sparse_add", "sparse_add_hash_based"]


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
    for layer in LAYERS:
        weight = layer.weight
        if weight.device == device and weight.dtype in (dtype, torch.float32) and not layer.conv1x1:
            taps = math.prod(layer.kernel_size)
            theta = weight.new_empty((), dtype=dtype).expand(taps, layer.in_channels, layer.out_channels)
            symmetric = layer.subm and all(side % 2 for side in layer.kernel_size)
            needs = layer is not fixed, weight.requires_grad
            compile_ahead(theta, layer.bias is not None, symmetric, needs)


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
    """The sum of tensors of one shape: all of their sites, in lexicographic order."""
    kinds = {(tuple(x.spatial_shape), x.batch_size, x.features.shape[1]) for x in tens}
    if len(kinds) != 1:
        raise AssertionError(f"sparse_add: shapes, batch sizes or channels differ: {sorted(kinds)}.")
    sites, row = torch.cat([x.indices for x in tens]).unique(dim=0, return_inverse=True)
    features = torch.cat([x.features for x in tens])
    total, first = sum_rows(features, row, len(sites)), tens[0]
    return SparseConvTensor(total, sites.contiguous(), first.spatial_shape, first.batch_size)


sparse_add_hash_based = sparse_add
