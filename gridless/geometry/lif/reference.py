"""Leaky integrate-and-fire, event by event in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.lif.rule import Rule
from gridless.structures import Events


def fire(events: Events, rule: Rule, potential: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """cause (S') int64, output pixel y * W' + x (S') int64, and the memory after."""
    potential, time = potential.clone(), time.clone()
    coarse, fine = torch.from_numpy(rule.coarse), torch.from_numpy(rule.fine)
    threshold, reset = torch.tensor(rule.threshold), torch.tensor(rule.reset)
    cause, at = [], []
    end = len(events) - events.padding
    rows = zip(events.example.tolist(), events.pixel.tolist(), events.time.tolist(), strict=True)
    for i, (example, (x, y), t) in enumerate(rows):
        if i == end:
            break
        x0, x1 = int(rule.low[0][x]), int(rule.high[0][x]) + 1
        y0, y1 = int(rule.low[1][y]), int(rule.high[1][y]) + 1
        here = (example, slice(y0, y1), slice(x0, x1))
        age = (t - time[here]).clamp(min=0).cpu()
        decay = coarse[(age >> rule.bits).clamp(max=len(coarse) - 1)] * fine[age & (len(fine) - 1)]
        share = torch.tensor(rule.share[max(x1 - x0, 0) * max(y1 - y0, 0)])
        value = potential[here].cpu() * decay + share
        fired = value > threshold
        potential[here] = torch.where(fired, reset, value).to(potential.device)
        time[here] = t
        for dy, dx in fired.nonzero().tolist():
            cause.append(i)
            at.append((y0 + dy) * rule.grid[0] + x0 + dx)
    device = events.device
    return (
        torch.tensor(cause, dtype=torch.int64, device=device),
        torch.tensor(at, dtype=torch.int64, device=device),
        potential,
        time,
    )
