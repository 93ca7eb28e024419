"""Batch normalisation of the first rows, in torch: the specification."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Mean (C) and variance (C) that a layer keeps, batches that they have seen () int64, and how far one moves them at
# least: batch n moves them by max(momentum, 1 / n).
Running = tuple[Tensor, Tensor, Tensor, float]


def forward(
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    before: bool,
    after: bool,
    running: Running | None = None,
    add: Callable[[Tensor], Tensor] = lambda sums: sums,
) -> tuple[Tensor, Tensor]:
    """y (S, C), and of the rows that count mean, 1 / sqrt(var + eps) and variance divided by rows - 1, (3, C).

    An `add` that adds what all processes have makes the statistics those of all of them.
    """
    count = counted(x, count)
    real, z = _input(x, count, before)
    total = add(count)
    rows = total.clamp(min=1)
    mean = add(z.sum(0)) / rows
    squares = add(torch.where(real, z - mean, 0.0).square().sum(0))
    scale = (squares / rows + eps).rsqrt()
    y = torch.where(real, _output(z, mean, scale, weight, bias), 0.0)
    statistics = torch.stack([mean, scale, squares / (total - 1).clamp(min=1)]).detach()
    track(statistics, total, running)
    return (y.relu() if after else y).to(x.dtype), statistics


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
    """Gradients of x (S, C), of the weight and of the bias (C)."""
    count = counted(x, count)
    real, z = _input(x, count, before)
    mean, scale, _ = statistics
    g = torch.where(real, grad.to(z.dtype), 0.0)
    if after:
        g = torch.where(_output(z, mean, scale, weight, bias) <= 0, 0.0, g)
    h = torch.where(real, (z - mean) * scale, 0.0)
    d_bias, d_weight = g.sum(0), (g * h).sum(0)
    dx = (g - (d_bias + h * d_weight) / count.clamp(min=1)) * scale
    dx = torch.where(real, dx if weight is None else dx * weight, 0.0)
    dtype = d_weight.dtype if weight is None else weight.dtype
    return (torch.where(x <= 0, 0.0, dx) if before else dx).to(x.dtype), d_weight.to(dtype), d_bias.to(dtype)


def track(statistics: Tensor, count: Tensor, running: Running | None) -> None:
    """Move the running statistics towards those of a batch of `count` rows, and count it, unless it had none."""
    if running is not None:
        mean, var, batches, momentum = running
        weight = (batches + 1).to(statistics.dtype).reciprocal().clamp(min=momentum)
        step = weight * (count > 0)
        mean += step * (statistics[0] - mean)
        var += step * (statistics[2] - var)
        batches += count > 0


def counted(x: Tensor, count: Tensor | None) -> Tensor:
    """Number of rows of x that count, () int64; all of them without `count`."""
    return torch.full((), x.shape[0], dtype=torch.int64, device=x.device) if count is None else count


def _input(x: Tensor, count: Tensor, before: bool) -> tuple[Tensor, Tensor]:
    real = (torch.arange(x.shape[0], device=x.device) < count)[:, None]
    z = torch.where(real, x, 0.0).to(torch.promote_types(x.dtype, torch.float32))
    return real, z.relu() if before else z


def _output(z: Tensor, mean: Tensor, scale: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    h = (z - mean) * scale
    return h if weight is None or bias is None else h * weight + bias
