"""A batch of a group copied into tensors of fixed size, all of them in one launch."""

# Triton compiles these functions itself; to a type checker they are plain Python.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportIndexIssue=false, reportOperatorIssue=false

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.training.batches import Cut, Group
from gridless.training.policy import send

BLOCK = 2048


class Filling:
    """Where the parts of a batch go: tensors, on one device, in the order of `Group.cuts`."""

    def __init__(self, into: Sequence[Tensor]) -> None:
        device = into[0].device
        self.whole = torch.tensor([[t.data_ptr(), t.numel(), t.element_size()] for t in into], device=device)
        starts = [np.arange(0, t.numel(), BLOCK) for t in into]
        which = np.repeat(np.arange(len(into)), [len(s) for s in starts])
        self.blocks = torch.from_numpy(np.stack([which, np.concatenate(starts)], 1)).to(device)

    def __call__(self, group: Group, k: int) -> None:
        if len(group.cuts) != len(self.whole):
            raise ValueError(f"a batch of {len(group.cuts)} tensors does not fill a slot of {len(self.whole)}")
        parts = group.__dict__.get("_parts")
        if parts is None:
            parts = group.__dict__["_parts"] = send(_parts(group.cuts, len(group)), self.whole.device)
        with torch.cuda.device_of(parts):
            _fill[(len(self.blocks),)](parts, self.whole, self.blocks, k * len(self.whole), BLOCK)


def _parts(cuts: Sequence[Cut], batches: int) -> Tensor:
    """(batches, tensors, 4): the address of the first element, how many there are, what is taken off, what pads."""
    table = np.zeros((batches, len(cuts), 4), np.int64)
    for i, (tensor, first, count, shift, fill) in enumerate(cuts):
        width = tensor[:1].numel() if len(tensor) else 0
        table[:, i, 0] = tensor.data_ptr() + first * width * tensor.element_size()
        table[:, i, 1] = count * width
        table[:, i, 2], table[:, i, 3] = shift, fill
    return torch.from_numpy(table)


@triton.jit(do_not_specialize=["offset"])
def _fill(parts, whole, blocks, offset, BLOCK: tl.constexpr):
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    at = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    part = parts + (offset + tensor) * 4
    count = tl.load(part + 1)
    shift = tl.load(part + 2)
    fill = tl.load(part + 3)
    size = tl.load(whole + 3 * tensor + 1)
    # Floating point is copied as it is, with a shift of 0.
    if tl.load(whole + 3 * tensor + 2) == 8:
        wide = tl.load(part).to(tl.pointer_type(tl.int64)) + at
        wide_into = tl.load(whole + 3 * tensor).to(tl.pointer_type(tl.int64)) + at
        tl.store(wide_into, tl.where(at < count, tl.load(wide, at < count, other=0) - shift, fill), at < size)
    else:
        short = tl.load(part).to(tl.pointer_type(tl.int32)) + at
        short_into = tl.load(whole + 3 * tensor).to(tl.pointer_type(tl.int32)) + at
        value = tl.load(short, at < count, other=0) - shift.to(tl.int32)
        tl.store(short_into, tl.where(at < count, value, fill.to(tl.int32)), at < size)
