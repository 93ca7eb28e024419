"""Rejection sampling as a specification: one point after the other."""

from __future__ import annotations

from itertools import count, pairwise

import torch
from torch import Tensor

from gridless.geometry.ball.reference import squared_distance
from gridless.geometry.checks import CROSSING, refuse_crossing, squared_radius
from gridless.structures import Cloud, Edges


def sample(cloud: Cloud, near: Edges | None, radius: float | None, distance: bool) -> Cloud:
    coords, splits = cloud.coords.detach(), cloud.splits.tolist()
    closest = torch.full((len(cloud),), torch.inf, dtype=coords.dtype, device=cloud.device)
    samples: list[int] = []
    ends = [0]
    for first, last in pairwise(splits):
        samples += sample_example(coords, first, last, near, radius, closest)
        ends.append(len(samples))
    closest[splits[-1] :] = 0
    index = torch.tensor(samples, dtype=torch.int64, device=cloud.device)
    return cloud.sampled(index, torch.tensor(ends, device=cloud.device), closest.sqrt() if distance else None)


def neighbours(near: Edges, i: int, first: int, last: int) -> Tensor:
    """Row i of `near`, which must stay within its example."""
    j = near.source[near.splits[i] : near.splits[i + 1]].long()
    if len(j) and not (first <= int(j.min()) and int(j.max()) < last):
        refuse_crossing([CROSSING])
    return j


def sample_example(
    coords: Tensor, first: int, last: int, near: Edges | None, radius: float | None, closest: Tensor
) -> list[int]:
    """The samples among rows first to last; lowers `closest`, the squared distances, at all they reject."""
    rejected = torch.zeros(len(coords), dtype=torch.bool, device=coords.device)
    samples = []
    for i in range(first, last):
        if rejected[i]:
            continue
        samples.append(i)
        if near is not None:
            j = neighbours(near, i, first, last)
            d2 = squared_distance(coords[j], coords[i : i + 1])[0]
        else:
            d2 = squared_distance(coords[first:last], coords[i : i + 1])[0]
            j = (d2 <= squared_radius(radius or 0, coords.dtype)).nonzero()[:, 0]
            j, d2 = j + first, d2[j]
        rejected[j] = True
        closest[j] = torch.minimum(closest[j], d2)
        closest[i] = 0
    return samples


def ball_of_samples(near: Edges, sample: Cloud) -> Edges:
    rows = sample.parent_index
    assert rows is not None
    counts = near.counts[rows]
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    shift = torch.repeat_interleave(near.splits[rows] - splits[:-1], counts)
    source = near.source[shift + torch.arange(len(shift), device=rows.device)]
    return Edges.made(splits=splits, source=source, num_source=near.num_source).trusted()


def doubtful_depth(rows: Edges, depth: Tensor, known: float, radius: float) -> float:
    target, source = rows.target.long(), rows.source.long()
    earlier, none = source < target, torch.zeros(len(depth), dtype=torch.int32, device=depth.device)

    def any_earlier(state: Tensor) -> Tensor:
        return none.index_add(0, target, (state[source] & earlier).int()) > 0

    here, whole = depth > known, depth > known + radius
    before = is_kept, is_rejected = whole, torch.zeros_like(whole)
    # Each depends on earlier ones only, so that this converges to one answer from any start; a GPU
    # is asked every fourth time.
    for turn in count(1):
        is_kept, is_rejected = whole & ~any_earlier(~is_rejected), here & any_earlier(is_kept)
        if turn % 4 == 0:
            if torch.equal(torch.stack(before), torch.stack((is_kept, is_rejected))):
                break
            before = is_kept, is_rejected
    doubtful = depth[~(is_kept | is_rejected)]
    return float(doubtful.max()) if len(doubtful) else known
