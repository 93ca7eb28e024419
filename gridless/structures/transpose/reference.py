"""The transpose as a specification: a stable sort by source."""

from __future__ import annotations

import torch
from torch import Tensor


def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    end = len(source) - padding
    target = torch.repeat_interleave(splits.diff())
    back = torch.zeros_like(source)
    back[:end] = target[source[:end].argsort(stable=True)]
    counts = torch.bincount(source[:end], minlength=num_source)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), back
