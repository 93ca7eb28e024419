"""Grid sampling as a specification: the cells of an example, and the first point of each."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def group(numbers: Tensor, splits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first: list[int] = []
    inverse: list[int] = []
    ends = [0]
    rows = [tuple(row) for row in numbers.tolist()]
    for a, b in pairwise(splits.tolist()):
        place: dict[tuple[int, ...], int] = {}
        for i in range(a, b):
            if rows[i] not in place:
                place[rows[i]] = len(first)
                first.append(i)
            inverse.append(place[rows[i]])
        ends.append(len(first))
    tensors = (torch.tensor(values, dtype=torch.int64, device=numbers.device) for values in (first, inverse, ends))
    return tuple(tensors)  # type: ignore[return-value]
