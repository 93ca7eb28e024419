"""The convolution over taps in torch: the specification. Autograd differentiates it, any number of times."""

from __future__ import annotations

import torch
from torch import Tensor


def conv(features: Tensor, weight: Tensor, bias: Tensor | None, table: Tensor) -> Tensor:
    wide = torch.promote_types(features.dtype, torch.float32)
    rows, theta = features.to(wide), weight.to(wide)
    out = rows.new_zeros(len(table), weight.shape[2])
    for k in range(weight.shape[0]):
        target = (table[:, k] >= 0).nonzero()[:, 0]
        out = out.index_add(0, target, rows[table[target, k].long()] @ theta[k])
    if bias is not None:
        out = out + bias.to(wide)
    return out.to(features.dtype)
