"""The maximum over neighbours in torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(features: Tensor, splits: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    target = torch.repeat_interleave(splits.diff())
    source = source[: len(target)].long()
    shape, where = (len(splits) - 1, features.shape[1]), target[:, None].expand(-1, features.shape[1])
    value = features.new_zeros(shape).scatter_reduce(0, where, features[source], "amax", include_self=False)
    holds = features[source] == value[target]
    none = len(features)
    first = torch.where(holds, source[:, None], none)
    row = source.new_full(shape, none).scatter_reduce(0, where, first, "amin")
    return value, torch.where(row == none, -1, row).int()


def backward(grad: Tensor, row: Tensor, back_splits: Tensor, back_source: Tensor) -> Tensor:
    sources = len(back_splits) - 1
    spare = torch.where(row < 0, sources, row).long()
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    total = wide.new_zeros(sources + 1, grad.shape[1]).scatter_add(0, spare, wide)
    return total[:-1].to(grad.dtype)
