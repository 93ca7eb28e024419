"""A batch of a group copied into tensors of fixed size, all of them in one launch."""

# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import EXACT
from gridless.training.batch import Group, unit

BLOCK = 2048


class Fill:
    """Copies a batch into the tensors `into`, one per field of `Group.fields`; index field i refers to rows[i] rows."""

    def __init__(self, into: Sequence[Tensor], rows: Sequence[int | None]) -> None:
        device = into[0].device
        units = [unit(t) for t in into]
        sizes = [t.numel() * t.element_size() // u for t, u in zip(into, units)]
        each = zip(into, sizes, units, rows, strict=True)
        self.whole = torch.tensor([[t.data_ptr(), size, u, r or 1] for t, size, u, r in each], device=device)
        starts = [np.arange(0, size, BLOCK) for size in sizes]
        which = np.repeat(np.arange(len(into)), [len(s) for s in starts])
        self.blocks = torch.from_numpy(np.stack([which, np.concatenate(starts)], 1)).to(device)

    def __call__(self, group: Group, k: int) -> None:
        parts = group.addresses
        with torch.cuda.device_of(parts):
            _fill[(len(self.blocks),)](parts, self.whole, self.blocks, k * len(self.whole), BLOCK, **EXACT)


@triton.jit(do_not_specialize=["offset"])
def _fill(parts, whole, blocks, offset, BLOCK: tl.constexpr):
    """Each program writes one block of one tensor: rows of the batch, shifted, then padding."""
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    at = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    part = parts + (offset + tensor) * 4
    count = tl.load(part + 1)
    shift = tl.load(part + 2)
    fill = tl.load(part + 3)
    whole += 4 * tensor
    size = tl.load(whole + 1)
    unit = tl.load(whole + 2)
    # The position of a padding row is added to an index, as in `grown`. Other fields add 0, the remainder by 1.
    fill += at.to(tl.int32) % tl.load(whole + 3).to(tl.int32)
    # Floating-point values have a shift of 0 and are copied as integers of their size.
    if unit == 8:
        wide = tl.load(part).to(tl.pointer_type(tl.int64)) + at
        wide_into = tl.load(whole).to(tl.pointer_type(tl.int64)) + at
        tl.store(wide_into, tl.where(at < count, tl.load(wide, at < count, other=0) - shift, fill), at < size)
    elif unit == 1:
        byte = tl.load(part).to(tl.pointer_type(tl.int8)) + at
        byte_into = tl.load(whole).to(tl.pointer_type(tl.int8)) + at
        tl.store(byte_into, tl.load(byte, at < count, other=0), at < size)
    else:
        short = tl.load(part).to(tl.pointer_type(tl.int32)) + at
        short_into = tl.load(whole).to(tl.pointer_type(tl.int32)) + at
        value = tl.load(short, at < count, other=0) - shift.to(tl.int32)
        tl.store(short_into, tl.where(at < count, value, fill.to(tl.int32)), at < size)
