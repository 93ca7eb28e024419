"""Reductions over runs of equal indices. `index` ascends along its last dimension, which is the one that is reduced.

The leading dimensions of `index` are expanded to those of `src`. `out`, `dim_size`, empty entries and positions are
as of `scatter`.
"""

import torch
from torch import Tensor

from gridless.compat.torch_scatter.scatter import count_of, scatter_max, scatter_mean, scatter_min, scatter_sum
from gridless.compat.torch_scatter.utils import along, places


def leading(index: Tensor, src: Tensor) -> Tensor:
    """Expands the dimensions that `index` has to those of `src`."""
    if index.dim() == 1:
        return index
    return index.expand(src.size()[: index.dim()])


def size_without_entries(src: Tensor, index: Tensor, dim_size: int | None) -> int | None:
    """`dim_size`; if it is left out and rows of `src` have no entries, one more than the largest index."""
    if dim_size is None and src.numel() == 0 and index.numel() > 0:
        return int(index.max()) + 1
    return dim_size


def segment_sum_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Sums over equal indices; with `out`, added to it in place."""
    return scatter_sum(src, leading(index, src), index.dim() - 1, out, dim_size)


def segment_add_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Another name of `segment_sum_coo`."""
    return segment_sum_coo(src, index, out, dim_size)


def segment_mean_coo(src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None) -> Tensor:
    """Means over equal indices, of integers rounded towards 0; with `out`, (out + sum) / count in place."""
    full, dim = leading(index, src), index.dim() - 1
    if src.is_floating_point():
        return scatter_mean(src, full, dim, out, dim_size)
    total = scatter_sum(src, full, dim, out, dim_size)
    return total.div_(count_of(full, src, dim, total.size(dim)).clamp(min=1), rounding_mode="trunc")


def segment_min_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Minima over equal indices, and the position of each."""
    return scatter_min(src, leading(index, src), index.dim() - 1, out, size_without_entries(src, index, dim_size))


def segment_max_coo(
    src: Tensor, index: Tensor, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Maxima over equal indices, and the position of each."""
    return scatter_max(src, leading(index, src), index.dim() - 1, out, size_without_entries(src, index, dim_size))


def segment_coo(
    src: Tensor,
    index: Tensor,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduces runs of equal indices by "sum" ("add"), "mean", "min" or "max"; values only, without positions."""
    if reduce == "sum" or reduce == "add":
        return segment_sum_coo(src, index, out, dim_size)
    if reduce == "mean":
        return segment_mean_coo(src, index, out, dim_size)
    if reduce == "min":
        return segment_min_coo(src, index, out, dim_size)[0]
    if reduce == "max":
        return segment_max_coo(src, index, out, dim_size)[0]
    raise ValueError(f"segment_coo: reduce is {reduce}. Choose sum, add, mean, min or max.")


def gather_coo(src: Tensor, index: Tensor, out: Tensor | None = None) -> Tensor:
    """The entry of `src` at each index: the transpose of `segment_sum_coo`."""
    dim = index.dim() - 1
    shape = list(src.size())
    shape[dim] = index.size(dim)
    if index.dim() == 1 and not src.is_cuda:
        value = src.index_select(0, index)
    elif index.dim() == 1:
        # The gradient of index_select adds in any order on a GPU.
        value = torch.ops.aten.index(src, along(index, src, 0))
    else:
        index = index.expand(shape[: index.dim()])
        for _ in range(index.dim(), src.dim()):
            index = index.unsqueeze(-1)
        index = index.expand(shape)
        value = torch.ops.aten.index(src, places(index, src, dim)) if src.is_cuda else src.gather(dim, index)
    return value if out is None else out.copy_(value)
