"""Causal neighbourhoods by comparing every target with every source, in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.causal.link import Link
from gridless.structures import Events


def cells(events: Events) -> Tensor:
    """(b H + y) W + x of each event (S) int64; B H W for padding rows and events outside the sensor."""
    width, height = events.sensor
    x, y = events.pixel.long().unbind(1)
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (events.example < events.num_examples)
    return torch.where(inside, (events.example * height + y) * width + x, events.num_examples * height * width)


def by_pixel(events: Events) -> tuple[Tensor, Tensor]:
    sorted_cells, order = torch.sort(cells(events), stable=True)
    ends = torch.arange(events.num_examples * events.sensor[0] * events.sensor[1] + 1, device=events.device)
    return order.int(), torch.searchsorted(sorted_cells, ends)


def seen(link: Link, tap: int) -> Tensor:
    """Mask of the sources that each target sees at a tap, all history: (S', S) bool."""
    source, target = link.source, link.target
    wanted = target.pixel * link.stride + torch.tensor(link.offsets[tap], device=target.device)
    same_pixel = (wanted[:, None] == source.pixel[None]).all(2)
    same_example = target.example[:, None] == source.example[None]
    real = (target.example < target.num_examples)[:, None]
    arrived = torch.arange(len(source), device=source.device)[None] <= link.until[:, None]
    return same_pixel & same_example & real & arrived


def causal(link: Link, window: int) -> tuple[Tensor, Tensor]:
    age = link.target.time[:, None] - link.source.time[None]
    near = torch.stack([seen(link, u) & (age <= window) for u in range(len(link.offsets))], 1).flatten(0, 1)
    counts = near.sum(1)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]), near.nonzero()[:, 1].int()
