"""Farthest sampling as a specification: argmax, and lower the distances."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.geometry.ball.reference import squared_distance
from gridless.geometry.rejection.reference import neighbours
from gridless.geometry.rejection.reference import sample_example as reject_example
from gridless.structures import Cloud, Edges


def sample(cloud: Cloud, sizes: Tensor, start: int, near: Edges | None, reject: bool) -> Tensor:
    coords, splits = cloud.coords.detach(), cloud.splits.tolist()
    taken: list[int] = []
    for first, last, size in zip(splits, splits[1:], sizes.tolist(), strict=False):
        # Infinite where no sample was met, -1 where taken.
        closest = torch.full((len(coords),), torch.inf, dtype=coords.dtype, device=cloud.device)
        samples = reject_example(coords, first, last, near, None, closest)[:size] if reject else []
        closest[samples] = -1
        while len(samples) < size:
            samples.append(first + (_argmax(closest[first:last]) if samples else start))
            _lower(closest, coords, samples[-1], near, slice(first, last))
        taken += samples
    return torch.tensor(taken, dtype=torch.int64, device=cloud.device)


def _lower(closest: Tensor, coords: Tensor, i: int, near: Edges | None, example: slice) -> None:
    j = example if near is None else neighbours(near, i, example.start, example.stop)
    closest[j] = torch.minimum(closest[j], squared_distance(coords[j], coords[i : i + 1])[0])
    closest[i] = -1


def _argmax(closest: Tensor) -> int:
    """The first of the largest."""
    return int((closest == closest.max()).nonzero()[0])
