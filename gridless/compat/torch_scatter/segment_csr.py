"""Reductions over runs of rows. Run i is `indptr[..., i]` to `indptr[..., i + 1] - 1` along dimension indptr.dim() - 1.

The leading dimensions of `indptr` are expanded to those of `src`. `out` is overwritten. Empty runs are 0, and their
`arg` is `src.size(dim)`.
"""

import torch
from torch import Tensor

from gridless.compat.torch_scatter.scatter import comparable, extreme, pick, row_numbers, scatter_sum
from gridless.compat.torch_scatter.segment_coo import gather_coo


def runs(indptr: Tensor) -> int:
    return max(indptr.size(-1) - 1, 0)


def run_of(src: Tensor, indptr: Tensor) -> Tensor:
    """The run of each row, and `runs(indptr)` for rows outside all runs."""
    shape = list(src.size()[: indptr.dim()])
    return run_of_rows(indptr, shape)


def run_of_rows(indptr: Tensor, shape: list[int]) -> Tensor:
    if indptr.numel() == 0:
        return torch.zeros(shape, dtype=torch.long, device=indptr.device)
    row = torch.arange(shape[-1], device=indptr.device).expand(shape).contiguous()
    ends = indptr.expand(shape[:-1] + [indptr.size(-1)]).contiguous()
    run = torch.searchsorted(ends, row, right=True) - 1
    return torch.where(run < 0, runs(indptr), run)


def is_plain(src: Tensor, indptr: Tensor) -> bool:
    """True if torch.segment_reduce takes these: floats, and runs along the first dimension."""
    return indptr.dim() == 1 and src.is_floating_point() and src.numel() > 0 and indptr.numel() > 1


def segment_sum_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Sums of runs."""
    if is_plain(src, indptr):
        # Sums of 16-bit floats are taken in 32 bits.
        wide = src if src.dtype == torch.double else src.float()
        total = torch.segment_reduce(wide.contiguous(), "sum", offsets=indptr, axis=0, unsafe=True).to(src.dtype)
    else:
        run = run_of(src, indptr)
        dim, size = indptr.dim() - 1, runs(indptr)
        total = scatter_sum(src, run, dim, None, size + 1).narrow(dim, 0, size)
    return total if out is None else out.copy_(total)


def segment_add_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Another name of `segment_sum_csr`."""
    return segment_sum_csr(src, indptr, out)


def segment_mean_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """Means of runs, of integers rounded towards 0."""
    count = indptr.diff(dim=-1).clamp(min=1)
    for _ in range(indptr.dim(), src.dim()):
        count = count.unsqueeze(-1)
    if src.is_floating_point():
        # The sum of 16-bit floats may overflow where their mean does not.
        wide = src if src.dtype == torch.double else src.float()
        mean = (segment_sum_csr(wide, indptr) / count).to(src.dtype)
    else:
        mean = segment_sum_csr(src, indptr).div(count, rounding_mode="trunc").to(src.dtype)
    return mean if out is None else out.copy_(mean)


def segment_min_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Minima of runs, and the position of each, the first of equal ones; NaN and inf never win."""
    return extreme_csr(src, indptr, out, "amin")


def segment_max_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Maxima of runs, and the position of each, the first of equal ones; NaN and -inf never win."""
    return extreme_csr(src, indptr, out, "amax")


def extreme_csr(src: Tensor, indptr: Tensor, out: Tensor | None, reduce: str) -> tuple[Tensor, Tensor]:
    """`segment_min_csr` ("amin") or `segment_max_csr` ("amax"). The gradient goes to the positions."""
    dim, size = indptr.dim() - 1, runs(indptr)
    if is_plain(src, indptr):
        plain, worst = comparable(src, reduce)
        plain = plain.contiguous()
        best = torch.segment_reduce(plain, reduce[1:], offsets=indptr, axis=0, unsafe=True)
        run = run_of(src, indptr)
        wins = (plain == best.index_select(0, run.clamp(max=size - 1))) & (plain != worst)
        # Reductions of runs take floats only; float64 holds every row number.
        row = torch.where(wins, row_numbers(src, 0).double(), float(src.size(0)))
        first = torch.segment_reduce(row, "min", offsets=indptr, axis=0, unsafe=True)
        arg = first.clamp(max=src.size(0)).long()
        value = pick(src, arg, 0)
    else:
        run = run_of(src, indptr)
        value, arg = extreme(src, run, dim, None, size + 1, reduce)
        value, arg = value.narrow(dim, 0, size), arg.narrow(dim, 0, size)
    return value if out is None else out.copy_(value), arg


def segment_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None, reduce: str = "sum") -> Tensor:
    """Reduces runs by "sum" ("add"), "mean", "min" or "max"; values only, without positions."""
    if reduce == "sum" or reduce == "add":
        return segment_sum_csr(src, indptr, out)
    if reduce == "mean":
        return segment_mean_csr(src, indptr, out)
    if reduce == "min":
        return segment_min_csr(src, indptr, out)[0]
    if reduce == "max":
        return segment_max_csr(src, indptr, out)[0]
    raise ValueError(f"segment_csr: reduce is {reduce}. Choose sum, add, mean, min or max.")


def gather_csr(src: Tensor, indptr: Tensor, out: Tensor | None = None) -> Tensor:
    """The entry of `src` of each row's run: the transpose of `segment_sum_csr`."""
    dim = indptr.dim() - 1
    shape = list(src.size()[: indptr.dim()])
    if out is not None:
        shape[dim] = out.size(dim)
    elif indptr.numel() == 0:
        shape[dim] = 0
    else:
        shape[dim] = int(indptr.flatten()[-1])
    index = run_of_rows(indptr, shape).clamp(max=max(src.size(dim) - 1, 0))
    return gather_coo(src, index, out)
