"""Batch normalisation on the CPU: torch's own, over the rows that count."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.ops.batch_norm.reference import Running, track

__all__ = ["backward", "forward"]


def forward(
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    before: bool,
    after: bool,
    running: Running | None = None,
) -> tuple[Tensor, Tensor]:
    rows, real = x.shape[0], _real(x, count)
    wide = torch.promote_types(x.dtype, torch.float32)
    statistics = x.new_zeros(3, x.shape[1], dtype=wide)
    mean, scale, unbiased = statistics
    if real == 0 or not x.shape[1]:
        scale.fill_(eps**-0.5)
        return torch.zeros_like(x), statistics
    z = x[:real].relu() if before else x[:real]
    # A momentum of 1 makes the running statistics those of this batch.
    w, b = _wide(wide, weight, bias)
    y, _, inverse = torch.native_batch_norm(z, w, b, mean, unbiased, True, 1.0, eps)
    scale.copy_(inverse)
    if real == 1:
        unbiased.zero_()
    track(statistics, torch.tensor(real, device=x.device), running)
    y = y.relu_() if after else y
    return torch.nn.functional.pad(y, (0, 0, 0, rows - real)) if real < rows else y, statistics


def backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    rows, real = x.shape[0], _real(x, count)
    mean, scale, _ = statistics
    dtype = statistics.dtype if weight is None else weight.dtype
    if real == 0:
        # Two tensors: results of an operator that torch traces share no memory.
        nothing = x.new_zeros(x.shape[1], dtype=dtype)
        return torch.zeros_like(x), nothing, nothing.clone()
    x, grad = x[:real], grad[:real]
    z = x.relu() if before else x
    weight, bias = _wide(mean.dtype, weight, bias)
    if after:
        h = (z - mean) * scale
        h = h if weight is None or bias is None else h * weight + bias
        grad = torch.where(h <= 0, 0.0, grad)
    # The weight's gradient is wanted even where there is no weight: it costs nothing.
    dx, d_weight, d_bias = torch.ops.aten.native_batch_norm_backward(
        grad, z, torch.ones_like(mean) if weight is None else weight, None, None, mean, scale, True, 0.0, [True] * 3
    )
    dx = torch.where(x <= 0, 0.0, dx) if before else dx
    dx = torch.nn.functional.pad(dx, (0, 0, 0, rows - real)) if real < rows else dx
    return dx, d_weight.to(dtype), d_bias.to(dtype)


def _real(x: Tensor, count: Tensor | None) -> int:
    return x.shape[0] if count is None else min(int(count), x.shape[0])


def _wide(dtype: torch.dtype, *parameters: Tensor | None) -> list[Tensor | None]:
    return [None if p is None else p.to(dtype) for p in parameters]
