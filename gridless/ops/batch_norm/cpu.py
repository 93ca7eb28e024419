"""Batch normalisation on the CPU: torch's own, over the rows that count."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.ops.batch_norm.reference import track

__all__ = ["backward", "forward", "track"]


def forward(
    x: Tensor, count: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, before: bool, after: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rows, real = x.shape[0], min(int(count), x.shape[0])
    wide = torch.promote_types(x.dtype, torch.float32)
    mean, unbiased = (torch.zeros(x.shape[1], dtype=wide) for _ in range(2))
    if real == 0:
        return torch.zeros_like(x), mean, torch.full_like(mean, eps**-0.5), unbiased
    z = x[:real].relu() if before else x[:real]
    # With a momentum of 1 the running statistics are those of this batch.
    w, b = _wide(wide, weight, bias)
    y, _, scale = torch.native_batch_norm(z, w, b, mean, unbiased, True, 1.0, eps)
    y = y.relu_() if after else y
    padding = (0, 0, 0, rows - real)
    return torch.nn.functional.pad(y, padding) if real < rows else y, mean, scale, unbiased if real > 1 else mean * 0


def backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor]:
    rows, real = x.shape[0], min(int(count), x.shape[0])
    if real == 0:
        return torch.zeros_like(x), mean.new_zeros(2, mean.shape[0])
    x, grad = x[:real], grad[:real]
    z = x.relu() if before else x
    weight, bias = _wide(mean.dtype, weight, bias)
    if after:
        h = (z - mean) * scale
        h = h if weight is None or bias is None else h * weight + bias
        grad = torch.where(h > 0, grad, 0.0)
    # The weight's gradient is wanted even where there is no weight: it costs nothing.
    dx, d_weight, d_bias = torch.ops.aten.native_batch_norm_backward(
        grad, z, torch.ones_like(mean) if weight is None else weight, None, None, mean, scale, True, 0.0, [True] * 3
    )
    dx = torch.where(x > 0, dx, 0.0) if before else dx
    dx = torch.nn.functional.pad(dx, (0, 0, 0, rows - real)) if real < rows else dx
    return dx, torch.stack([d_bias, d_weight])


def _wide(dtype: torch.dtype, *parameters: Tensor | None) -> list[Tensor | None]:
    return [None if p is None else p.to(dtype) for p in parameters]
