"""Reductions of `src` over all entries with one index.

    scatter_sum(src, index, dim)[..., i, ...] = sum of src[..., j, ...] over j with index[..., j, ...] = i

`index` is broadcast to `src`: one dimension lies along `dim`. `out` is reduced in place with the values it has;
without it the result has `dim_size` entries along `dim`, by default one more than the largest index. Entries without
a source are 0, of products 1, and their `arg` is `src.size(dim)`. `scatter_min` and `scatter_max` return (values,
positions along `dim`).
"""

import torch
from torch import Tensor

from gridless.compat.torch_scatter.utils import along, broadcast, output_shape


def scatter_sum(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Sums over equal indices; with `out`, added to it in place."""
    if out is None:
        out = torch.zeros(output_shape(src, index, dim, dim_size), dtype=src.dtype, device=src.device)
    # On a GPU scatter_add adds floats in any order; index_put sorts, and always adds in the same one.
    if src.is_cuda and src.is_floating_point():
        return torch.ops.aten.index_put_(out, along(index, src, dim), src, True)
    return out.scatter_add_(dim, broadcast(index, src, dim), src)


def scatter_add(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Another name of `scatter_sum`."""
    return scatter_sum(src, index, dim, out, dim_size)


def scatter_mul(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Products over equal indices; with `out`, multiplied into it in place."""
    full = broadcast(index, src, dim)
    if out is None:
        start = torch.ones(output_shape(src, index, dim, dim_size), dtype=src.dtype, device=src.device)
    else:
        start = out.clone()
    if src.is_cuda and src.is_floating_point():
        product = start * sorted_product(src, full, dim, start.size(dim))
    else:
        product = start.scatter_reduce(dim, full, src, "prod", include_self=True)
    return product if out is None else out.copy_(product)


def sorted_product(src: Tensor, index: Tensor, dim: int, dim_size: int) -> Tensor:
    """Products over equal indices, always in the same order: entries are sorted by their output."""
    rows, targets = src.movedim(dim, -1), index.movedim(dim, -1)
    shape = list(rows.size())
    shape[-1] = dim_size
    first = torch.arange(targets.numel() // max(targets.size(-1), 1), device=src.device).unsqueeze(-1) * dim_size
    cell = (targets.reshape(first.size(0), -1) + first).flatten()
    cells = first.size(0) * dim_size
    order = torch.argsort(cell, stable=True)
    lengths = torch.bincount(cell, minlength=cells)
    product = torch.segment_reduce(rows.reshape(-1)[order], "prod", lengths=lengths, unsafe=True)
    return product.view(shape).movedim(-1, dim)


def scatter_mean(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> Tensor:
    """Means over equal indices, of integers rounded down; with `out`, (out + sum) / count in place."""
    total = scatter_sum(src, index, dim, out, dim_size)
    count = count_of(index, src, dim, total.size(dim)).clamp(min=1)
    if total.is_floating_point():
        return total.true_divide_(count)
    return total.div_(count, rounding_mode="floor")


def count_of(index: Tensor, src: Tensor, dim: int, dim_size: int) -> Tensor:
    """The number of sources of each output, int64, in a shape that broadcasts to the output."""
    dim = src.dim() + dim if dim < 0 else dim
    index_dim = dim if index.dim() > dim else index.dim() - 1
    shape = list(index.size())
    shape[index_dim] = dim_size
    count = torch.zeros(shape, dtype=torch.long, device=src.device)
    count = count.scatter_add_(index_dim, index, torch.ones_like(index, dtype=torch.long))
    if count.dim() == 1:
        for _ in range(dim):
            count = count.unsqueeze(0)
    for _ in range(count.dim(), src.dim()):
        count = count.unsqueeze(-1)
    return count


def scatter_min(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Minima over equal indices, and the position of each, the first of equal ones; NaN and inf never win."""
    return extreme(src, index, dim, out, dim_size, "amin")


def scatter_max(
    src: Tensor, index: Tensor, dim: int = -1, out: Tensor | None = None, dim_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Maxima over equal indices, and the position of each, the first of equal ones; NaN and -inf never win."""
    return extreme(src, index, dim, out, dim_size, "amax")


def extreme(
    src: Tensor, index: Tensor, dim: int, out: Tensor | None, dim_size: int | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """`scatter_min` ("amin") or `scatter_max` ("amax"). The gradient goes to the positions."""
    dim = src.dim() + dim if dim < 0 else dim
    index = broadcast(index, src, dim)
    shape = output_shape(src, index, dim, dim_size) if out is None else list(out.size())
    none = src.size(dim)
    plain, worst = comparable(src, reduce)
    best = torch.zeros(shape, dtype=src.dtype, device=src.device)
    best = best.scatter_reduce(dim, index, plain, reduce, include_self=False)
    wins = (plain == best.gather(dim, index)) & (plain != worst)
    arg = torch.full(shape, none, dtype=torch.long, device=src.device)
    arg = arg.scatter_reduce(dim, index, torch.where(wins, row_numbers(src, dim), none), "amin", include_self=True)
    value = pick(src, arg, dim)
    if out is None:
        return value, arg
    better = (arg < none) & (value < out if reduce == "amin" else value > out)
    return out.copy_(torch.where(better, value, out)), torch.where(better, arg, none)


def comparable(src: Tensor, reduce: str) -> tuple[Tensor, float]:
    """`src` without gradient, with the value that never wins in place of NaN, and that value."""
    worst = float("inf") if reduce == "amin" else -float("inf")
    plain = src.detach()
    if src.is_floating_point():
        plain = torch.where(torch.isnan(plain), worst, plain)
    return plain, worst


def row_numbers(src: Tensor, dim: int) -> Tensor:
    """The position along `dim` of each entry of `src`."""
    shape = [1] * src.dim()
    shape[dim] = src.size(dim)
    return torch.arange(src.size(dim), device=src.device).view(shape).expand(src.size())


def pick(src: Tensor, arg: Tensor, dim: int) -> Tensor:
    """The entries of `src` at positions `arg`, and 0 at position src.size(dim)."""
    if src.numel() == 0:
        return torch.zeros(arg.size(), dtype=src.dtype, device=src.device) + src.sum()
    none = src.size(dim)
    return src.gather(dim, arg.clamp(max=none - 1)).masked_fill(arg == none, 0)


def scatter(
    src: Tensor,
    index: Tensor,
    dim: int = -1,
    out: Tensor | None = None,
    dim_size: int | None = None,
    reduce: str = "sum",
) -> Tensor:
    """Reduces over equal indices by "sum" ("add"), "mul", "mean", "min" or "max"; values only, without positions."""
    if reduce == "sum" or reduce == "add":
        return scatter_sum(src, index, dim, out, dim_size)
    if reduce == "mul":
        return scatter_mul(src, index, dim, out, dim_size)
    if reduce == "mean":
        return scatter_mean(src, index, dim, out, dim_size)
    if reduce == "min":
        return scatter_min(src, index, dim, out, dim_size)[0]
    if reduce == "max":
        return scatter_max(src, index, dim, out, dim_size)[0]
    raise ValueError(f"scatter: reduce is {reduce}. Choose sum, add, mul, mean, min or max.")
