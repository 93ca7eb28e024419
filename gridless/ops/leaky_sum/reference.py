"""Leaky sums in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.structures import Events


def leaky_sum(features: Tensor, rate: Tensor, events: Events, decay_time: float) -> Tensor:
    age = (events.time[:, None] - events.time).to(rate.dtype) / decay_time  # (S, S)
    seen = (events.example[:, None] == events.example) & torch.ones_like(age, dtype=torch.bool).tril()
    decay = torch.exp(-rate[:, None, None] * torch.where(seen, age, 0.0)) * seen
    return (decay @ features).transpose(0, 1)
