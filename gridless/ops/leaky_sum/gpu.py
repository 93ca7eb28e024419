"""Leaky sums on the GPU: blocks of events, each one small matrix product, joined by the same sum over blocks.

A walk along a recording has as many steps as events, one after the other. Here 64 events are one step, then 64 blocks,
and so on: three levels for 262,144 events.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from gridless.structures import Events

BLOCK = 64


def leaky_sum(features: Tensor, rate: Tensor, events: Events, decay_time: float) -> Tensor:
    wide = torch.promote_types(features.dtype, torch.float32)
    values = features.to(wide).expand(len(rate), -1, -1)
    total = _sums(values, rate.to(wide) / decay_time, events.time, events.example)
    return total.transpose(0, 1).to(features.dtype)


def _sums(values: Tensor, rate: Tensor, time: Tensor, example: Tensor) -> Tensor:
    """values (V, S, C), rate (V) per microsecond, time and example (S), to (V, S, C)."""
    rows = values.shape[1]
    if not rows:
        return values
    blocks = -(-rows // BLOCK)
    more = blocks * BLOCK - rows
    # Padding repeats the last row with the value 0, and is cut off.
    at = torch.arange(blocks * BLOCK, device=time.device).clamp(max=rows - 1).view(blocks, BLOCK)
    time, example = time[at], example[at]
    values = functional.pad(values, (0, 0, 0, more)).unflatten(1, (blocks, BLOCK))  # (V, blocks, BLOCK, C)
    seen = (example[:, :, None] == example[:, None]) & torch.ones(BLOCK, BLOCK, device=at.device).tril().bool()
    inside = _decay(rate, time[:, :, None] - time[:, None], seen) @ values
    if blocks == 1:
        return inside.flatten(1, 2)[:, :rows]
    # Sums that the last event of each block sees of all blocks before it.
    ends = _sums(inside[:, :, -1], rate, time[:, -1], example[:, -1])
    before = functional.pad(ends, (0, 0, 1, 0))[:, :-1, None]  # (V, blocks, 1, C)
    first = functional.pad(time[:-1, -1], (1, 0))[:, None]
    same = example == functional.pad(example[:-1, -1], (1, 0), value=-1)[:, None]
    carried = _decay(rate, time - first, same)[..., None] * before
    return (inside + carried).flatten(1, 2)[:, :rows]


def _decay(rate: Tensor, age: Tensor, seen: Tensor) -> Tensor:
    """exp(-rate age) where `seen`, else 0: (V, ...). Ages that are not seen do not reach the gradient of the rate."""
    age = torch.where(seen, age, 0).to(rate.dtype)
    return torch.exp(-rate.view(-1, *[1] * age.ndim) * age) * seen
