"""Convolutions of features over `IndiceData`, and sums of sparse tensors with different sites."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.compat.rows import sum_rows
from gridless.compat.spconv import constants
from gridless.compat.spconv.pytorch.core import SparseConvTensor
from gridless.ops.tap_conv import tap_conv
from gridless.structures import TapEdges

__all__ = ["convolve", "sparse_add", "sparse_add_hash_based"]


def convolve(features: Tensor, weight: Tensor, bias: Tensor | None, taps: TapEdges) -> Tensor:
    """The convolution of features (N, C_in) with weight (C_out, kernel..., C_in).

    Under autocast on a GPU everything becomes float16, whatever its dtype, as in spconv. float32 is IEEE, unless
    `constants.SPCONV_ALLOW_TF32` is set.
    """
    if features.is_cuda and torch.is_autocast_enabled("cuda") and features.dtype != torch.float64:
        features, weight = features.half(), weight.half()
        bias = None if bias is None else bias.half()
        # `tap_conv` would convert to the dtype of autocast.
        with torch.autocast("cuda", enabled=False):
            return convolve(features, weight, bias, taps)
    theta = weight.reshape(weight.shape[0], taps.num_taps, weight.shape[-1]).permute(1, 2, 0)
    if not features.is_cuda or _is_tf32() == constants.SPCONV_ALLOW_TF32:
        return tap_conv(features, theta, bias, taps)
    before = _set_precision(_precision())
    try:
        out = tap_conv(features, theta, bias, taps)
    finally:
        _set_precision(before)
    if out.grad_fn is not None:
        # The backward pass reads the switch, too.
        out.grad_fn.register_prehook(lambda _: _set_precision(_precision()) and None)
        out.grad_fn.register_hook(lambda *_: _set_precision(before) and None)
    return out


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
