"""Batch normalisation of the first rows, in torch: the specification."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def forward(
    x: Tensor,
    count: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    before: bool,
    after: bool,
    total: Tensor | None = None,
    add: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`total` rows of all processes, and `add`, which adds what each has, make the statistics those of all of them."""
    real, z = _input(x, count, before)
    total = count if total is None else total
    rows = total.clamp(min=1)
    mean = add(z.sum(0)) / rows
    squares = add(torch.where(real, z - mean, 0.0).square().sum(0))
    scale = (squares / rows + eps).rsqrt()
    y = torch.where(real, _output(z, mean, scale, weight, bias), 0.0)
    return (y.relu() if after else y).to(x.dtype), mean, scale, squares / (total - 1).clamp(min=1)


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
    real, z = _input(x, count, before)
    g = torch.where(real, grad.to(z.dtype), 0.0)
    if after:
        g = torch.where(_output(z, mean, scale, weight, bias) > 0, g, 0.0)
    h = torch.where(real, (z - mean) * scale, 0.0)
    d_bias, d_weight = g.sum(0), (g * h).sum(0)
    dx = (g - (d_bias + h * d_weight) / count.clamp(min=1)) * scale
    dx = torch.where(real, dx if weight is None else dx * weight, 0.0)
    return (torch.where(x > 0, dx, 0.0) if before else dx).to(x.dtype), torch.stack([d_bias, d_weight])


def track(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float,
) -> None:
    step = momentum * (count > 0)
    running_mean += step * (mean - running_mean)
    running_var += step * (var - running_var)
    tracked += count > 0


def _input(x: Tensor, count: Tensor, before: bool) -> tuple[Tensor, Tensor]:
    real = (torch.arange(x.shape[0], device=x.device) < count)[:, None]
    z = torch.where(real, x, 0.0).to(torch.promote_types(x.dtype, torch.float32))
    return real, z.relu() if before else z


def _output(z: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    h = (z - mean) * scale
    return h if weight is None or bias is None else h * weight + bias
