"""Helpers of all reductions. TorchScript compiles everything in this package: its limits explain the plain code."""

import torch
from torch import Tensor


def broadcast(src: Tensor, other: Tensor, dim: int) -> Tensor:
    """Expands an index to the shape of `other`: one dimension lies along `dim`, several begin at the first."""
    dim = other.dim() + dim if dim < 0 else dim
    if src.dim() == 1:
        for _ in range(dim):
            src = src.unsqueeze(0)
    for _ in range(src.dim(), other.dim()):
        src = src.unsqueeze(-1)
    return src.expand(other.size())


def output_shape(src: Tensor, index: Tensor, dim: int, dim_size: int | None) -> list[int]:
    """The shape of `src` with `dim_size` entries along `dim`, by default one more than the largest index."""
    shape = list(src.size())
    if dim_size is not None:
        shape[dim] = dim_size
    elif index.numel() == 0:
        shape[dim] = 0
    else:
        shape[dim] = int(index.max()) + 1
    return shape


def places(index: Tensor, src: Tensor, dim: int) -> list[Tensor | None]:
    """One index per dimension, such that x[places] = x.gather(dim, index). On a GPU its gradient is deterministic."""
    dim = src.dim() + dim if dim < 0 else dim
    where: list[Tensor | None] = []
    for d in range(index.dim()):
        if d == dim:
            where.append(index)
        else:
            shape = [1] * index.dim()
            shape[d] = index.size(d)
            where.append(torch.arange(index.size(d), device=index.device).view(shape))
    return where


def along(index: Tensor, src: Tensor, dim: int) -> list[Tensor | None]:
    """The `places` of an index that was not yet broadcast. One dimension selects slices, which is much faster."""
    dim = src.dim() + dim if dim < 0 else dim
    if index.dim() == 1:
        slices: list[Tensor | None] = []
        for _ in range(dim):
            slices.append(None)
        slices.append(index)
        return slices
    return places(broadcast(index, src, dim), src, dim)
