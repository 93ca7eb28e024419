"""Leaky integrate-and-fire in Numba: one pass over the events of each example, examples shared among threads."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.lif.rule import Rule
from gridless.kernels.compile import njit
from gridless.kernels.threads import in_threads
from gridless.structures import Events


def fire(events: Events, rule: Rule, potential: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    potential, time = (x.clone(memory_format=torch.contiguous_format) for x in (potential, time))
    splits = events.splits.tolist()
    pixel, t = events.pixel.numpy(), events.time.numpy()
    settings = (*rule.low, *rule.high, rule.share, rule.coarse, rule.fine, rule.bits, rule.threshold, rule.reset)
    cause, at = [], []
    jobs = []
    for b, (first, last) in enumerate(pairwise(splits)):
        # Room for the most that could fire; pages that are not written to are never claimed.
        cause.append(np.empty((last - first) * rule.most, np.int64))
        at.append(np.empty((last - first) * rule.most, np.int64))
        state = (potential[b].view(-1).numpy(), time[b].view(-1).numpy())
        jobs.append((first, last, pixel, t, rule.grid[0], *settings, *state, cause[-1], at[-1]))
    counts = in_threads(_fire, jobs)
    return _joined(cause, counts), _joined(at, counts), potential, time


def _joined(parts: list[np.ndarray], counts: list[int]) -> Tensor:
    filled = [part[:n] for part, n in zip(parts, counts, strict=True)]
    return torch.from_numpy(np.concatenate(filled) if filled else np.empty(0, np.int64))


@njit(nogil=True, cache=True)
def _fire(
    first, last, pixel, time, width, low_x, low_y, high_x, high_y, share, coarse, fine, bits, threshold, reset,
    potential, since, cause, at,
):  # fmt: skip
    """Integrate the events first to last, and write the row and the pixel of each event that they fire."""
    count = 0
    mask = len(fine) - 1
    end = len(coarse) - 1
    for i in range(first, last):
        x, y, t = pixel[i, 0], pixel[i, 1], time[i]
        x0, x1, y0, y1 = low_x[x], high_x[x], low_y[y], high_y[y]
        add = share[max(x1 - x0 + 1, 0) * max(y1 - y0 + 1, 0)]
        for oy in range(y0, y1 + 1):
            for o in range(oy * width + x0, oy * width + x1 + 1):
                age = max(t - since[o], 0)
                value = potential[o] * (coarse[min(age >> bits, end)] * fine[age & mask]) + add
                if value > threshold:
                    value = reset
                    cause[count] = i
                    at[count] = o
                    count += 1
                potential[o] = value
                since[o] = t
    return count
