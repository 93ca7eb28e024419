"""Labelled points: the figures of merit, and a network that learns parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from gridless.training.segmentation import mean_ious, shape_ious

PARTS = [2, 3, 1]


def by_hand(predicted: list[int], part: list[int], first: int, count: int) -> float:
    """The mean over a category's parts of |both| / |either|, 1 where neither is there, by sets of points."""
    found = []
    for k in range(first, first + count):
        a = {i for i, p in enumerate(predicted) if p == k}
        b = {i for i, p in enumerate(part) if p == k}
        found.append(1.0 if not a | b else len(a & b) / len(a | b))
    return sum(found) / count


@pytest.mark.parametrize("seed", range(5))
def test_intersection_over_union_is_that_of_sets(seed):
    random = np.random.default_rng(seed)
    first = np.cumsum([0, *PARTS])
    category = random.integers(0, 3, 12)
    sizes = random.integers(1, 9, 12)
    # Predictions of parts of other categories count for no part of this one, but leave it smaller.
    predicted = [random.integers(0, 6, n) for n in sizes]
    part = [first[k] + random.integers(0, PARTS[k], n) for k, n in zip(category, sizes, strict=True)]
    example = torch.from_numpy(np.repeat(np.arange(12), sizes))
    flat = [torch.from_numpy(np.concatenate(rows)) for rows in (predicted, part)]
    ious = shape_ious(*flat, example, torch.from_numpy(category), PARTS)
    wanted = [
        by_hand(a.tolist(), b.tolist(), int(first[k]), PARTS[k])
        for a, b, k in zip(predicted, part, category, strict=True)
    ]
    assert ious.tolist() == pytest.approx(wanted, abs=1e-12)
    means = mean_ious(ious, torch.from_numpy(category), ["one", "two", "three"])
    assert means["instance_iou"] == pytest.approx(np.mean(wanted))
    each = [np.mean([w for w, c in zip(wanted, category, strict=True) if c == k]) for k in np.unique(category)]
    assert means["category_iou"] == pytest.approx(np.mean(each))
    assert means["examples"] == 12


def test_parts_that_are_nowhere_count_as_right():
    ious = shape_ious(
        *torch.tensor([[2, 2, 2], [2, 2, 3]]), torch.zeros(3, dtype=torch.int64), torch.tensor([1]), PARTS
    )
    # Part 2: two of three; part 3: none of one; part 4: nowhere.
    assert ious.tolist() == pytest.approx([(2 / 3 + 0 + 1) / 3])
