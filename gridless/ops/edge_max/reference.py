"""The maximum over neighbours in torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(features: Tensor, splits: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    target = torch.repeat_interleave(splits.diff())
    source = source[: len(target)].long()
    shape, where = (len(splits) - 1, features.shape[1]), target[:, None].expand(-1, features.shape[1])
    near, none = features.detach()[source], len(source)
    most = near.new_zeros(shape).scatter_reduce(0, where, near, "amax", include_self=False)
    holds = (near == most[target]) | near.isnan()
    edge = torch.where(holds, torch.arange(none, device=source.device)[:, None], none)
    first = target.new_full(shape, none).scatter_reduce(0, where, edge, "amin")
    row = torch.cat([source, source.new_full((1,), len(features))])[first]
    # Taken from the row that holds it, so that torch gives the gradient to that one alone.
    value = torch.cat([features, features.new_zeros(1, features.shape[1])]).gather(0, row)
    return value, torch.where(row == len(features), -1, row).int()


def backward(grad: Tensor, row: Tensor, back_splits: Tensor, back_source: Tensor) -> Tensor:
    sources = len(back_splits) - 1
    spare = torch.where(row < 0, sources, row).long()
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    total = wide.new_zeros(sources + 1, grad.shape[1]).scatter_add(0, spare, wide)
    return total[:-1].to(grad.dtype)
