"""The transpose on the GPU: a stable radix sort by source. Nothing is read back."""

# pyright: reportCallIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv

_ROWS = 32


def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    end, rows = len(source) - padding, len(splits) - 1
    ordered, order = torch.sort(source[:end], stable=True)
    starts = torch.searchsorted(ordered, torch.arange(num_source + 1, dtype=torch.int32, device=source.device))
    target = torch.empty(end, dtype=torch.int32, device=source.device)
    if end:
        _TARGETS((cdiv(rows, _ROWS), 1, 1), (splits, target), (rows,), (_ROWS, 128), 1)
    back = target.index_select(0, order)
    return starts, torch.cat([back, back.new_zeros(padding)]) if padding else back


@triton.jit(do_not_specialize=["rows"])
def _targets(splits, target, rows, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The row of every edge of a block of rows, by bisection among their splits."""
    top = tl.program_id(0) * ROWS
    last = tl.load(splits + tl.minimum(top + ROWS, rows))
    for begin in range(tl.load(splits + top), last, BLOCK):
        at = begin + tl.arange(0, BLOCK)
        row = tl.zeros([BLOCK], tl.int32) + top
        step = ROWS // 2
        while step > 0:
            further = (row + step < rows) & (tl.load(splits + tl.minimum(row + step, rows)) <= at)
            row = tl.where(further, row + step, row)
            step = step // 2
        tl.store(target + at, row, mask=at < last)


_TARGETS = Launcher(_targets, exact=True)
