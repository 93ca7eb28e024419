"""A link: two streams, and the events of one that those of the other see."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gridless.geometry.lif import check_events
from gridless.geometry.taps import Taps, check_stride, coarser, offsets
from gridless.structures import Events


class Link(NamedTuple):
    """Two streams and the taps that join them: what all searches and convolutions on events are given.

    Target i sees, at tap u, the events of its example at the source pixel stride * pixel_i + offset_u that arrived up
    to and including row `until[i]` of the source.
    """

    source: Events
    target: Events
    until: Tensor
    offsets: tuple[tuple[int, int], ...]
    stride: int


def link(source: Events, target: Events, kernel: Taps = 3, stride: int = 1, what: str = "causal") -> Link:
    """Check that `target` was made from `source`, or is `source` itself: then each event sees up to itself."""
    taps = offsets(kernel)
    grid = coarser(source.sensor, check_stride(stride))
    for events in (source, target):
        check_events(what, events)
    if target.sensor != grid:
        raise ValueError(
            f"{what}: the target's grid is {target.sensor[0]} x {target.sensor[1]}. A stride of {stride} makes "
            f"{grid[0]} x {grid[1]} of the source's {source.sensor[0]} x {source.sensor[1]}."
        )
    if source.device != target.device or source.num_examples != target.num_examples:
        raise ValueError(
            f"{what}: source is {source.num_examples} examples on {source.device}, target {target.num_examples} on "
            f"{target.device}. Both must be one batch on one device."
        )
    if target is source:
        until = source.cached("rows", lambda: torch.arange(len(source), device=source.device))
    elif target.cause is None:
        raise ValueError(f"{what}: the target has no causes. Pass the source itself, or events that lif made from it.")
    elif target.num_parent != len(source):
        raise ValueError(f"{what}: the target was made from {target.num_parent} events, the source has {len(source)}")
    else:
        until = target.cause
    return Link(source, target, until, taps, stride)
