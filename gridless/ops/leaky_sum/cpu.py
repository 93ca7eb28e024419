"""Leaky sums on the CPU: the scan of the event convolution, on one pixel. A walk along the events costs the least."""

from __future__ import annotations

from torch import Tensor

from gridless.ops.event_conv import event_gather
from gridless.structures import Events


def leaky_sum(features: Tensor, rate: Tensor, events: Events, decay_time: float) -> Tensor:
    return event_gather(features, rate[None], events, decay_time)[:, 0]
