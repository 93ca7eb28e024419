"""Softmax, logarithms of sums, and standard deviations over all entries with one index, from sums and maxima.

Arguments, broadcasting and `dim_size` are as of `scatter`.
"""

import torch
from torch import Tensor

from gridless.compat.torch_scatter.scatter import count_of, scatter_max, scatter_sum
from gridless.compat.torch_scatter.utils import broadcast


def require_floats(src: Tensor, name: str) -> None:
    if not src.is_floating_point():
        raise ValueError(f"{name}: src must be floating point, not {src.dtype}. Convert it with .float().")


def scatter_softmax(src: Tensor, index: Tensor, dim: int = -1, dim_size: int | None = None) -> Tensor:
    """exp(src) over its sum over equal indices."""
    require_floats(src, "scatter_softmax")
    full = broadcast(index, src, dim)
    largest = scatter_max(src, index, dim, None, dim_size)[0]
    weight = (src - largest.gather(dim, full)).exp()
    return weight / scatter_sum(weight, index, dim, None, dim_size).gather(dim, full)


def scatter_log_softmax(
    src: Tensor, index: Tensor, dim: int = -1, eps: float = 1e-12, dim_size: int | None = None
) -> Tensor:
    """The logarithm of `scatter_softmax`; `eps` is added to each sum."""
    require_floats(src, "scatter_log_softmax")
    full = broadcast(index, src, dim)
    largest = scatter_max(src, index, dim, None, dim_size)[0]
    score = src - largest.gather(dim, full)
    total = scatter_sum(score.exp(), index, dim, None, dim_size)
    return score - (total + eps).log().gather(dim, full)


def scatter_logsumexp(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    eps: float = 1e-12,
) -> Tensor:
    """log(sum of exp(src)) over equal indices, 0 where there are none; with `out`, its exp is part of the sum."""
    require_floats(src, "scatter_logsumexp")
    full = broadcast(index, src, dim)
    if out is not None:
        dim_size = out.size(dim)
    elif dim_size is None:
        dim_size = int(index.max()) + 1 if index.numel() > 0 else 0
    shape = list(src.size())
    shape[dim] = dim_size
    lowest = torch.full(shape, -float("inf"), dtype=src.dtype, device=src.device)
    largest = scatter_max(src, index, dim, lowest)[0]
    score = src - largest.gather(dim, full)
    score = torch.where(torch.isnan(score), -float("inf"), score)
    start = torch.zeros_like(largest) if out is None else (out - largest).exp()
    total = scatter_sum(score.exp(), index, dim, start)
    value = ((total + eps).log() + largest).nan_to_num(neginf=0.0)
    return value if out is None else out.copy_(value)


def scatter_std(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    unbiased: bool = True,
) -> Tensor:
    """Standard deviations over equal indices; with `out`, squared deviations are added to it in place first."""
    if out is not None:
        dim_size = out.size(dim)
    total = scatter_sum(src, index, dim, None, dim_size)
    count = count_of(index, src, dim, total.size(dim)).clamp(min=1)
    mean = total / count
    mean = mean.to(src.dtype) if src.is_floating_point() else mean
    deviation = src - mean.gather(dim, broadcast(index, src, dim))
    squares = scatter_sum(deviation * deviation, index, dim, out, dim_size)
    if unbiased:
        count = (count - 1).clamp(min=1)
    deviation = (squares / (count + 1e-6)).sqrt()
    return deviation.to(src.dtype) if src.is_floating_point() else deviation
