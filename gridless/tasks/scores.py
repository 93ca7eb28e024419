"""Intersection over union of point labels, as is usual for part and scene segmentation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def confusions(predicted: Tensor, part: Tensor, example: Tensor, count: int, kinds: int) -> Tensor:
    """The confusion matrix of `kinds` labels in each of `count` examples, (count, kinds, kinds) float64.

    Rows are true labels, columns predicted ones.
    """
    if len(part) and int(part.max()) >= kinds:
        raise ValueError(f"points have the part {int(part.max())}, but the network has {kinds}. Number parts from 0.")
    at = (example * kinds + part) * kinds + predicted
    return torch.bincount(at, minlength=count * kinds * kinds).view(count, kinds, kinds).double()


def overlaps(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Points in the intersection and in the union of each label (..., C), from confusion matrices (..., C, C)."""
    common = counts.diagonal(dim1=-2, dim2=-1)
    return common, counts.sum(-1) + counts.sum(-2) - common


def mean_overlap(common: Tensor, union: Tensor, names: Sequence[str]) -> dict[str, float]:
    """Intersection over union of each class that occurs, by name."""
    known = names if len(names) == len(union) else [str(k) for k in range(len(union))]
    return {known[k]: (common[k] / union[k]).item() for k in range(len(union)) if union[k] > 0}


def shape_ious(predicted: Tensor, part: Tensor, example: Tensor, category: Tensor, parts: Sequence[int]) -> Tensor:
    """The mean intersection over union of each shape (B) float64, over the parts of its category.

    A part that is neither present nor predicted counts 1. Points (S) have a predicted part, a true part and an example;
    examples (B) have a category; category k has parts[k] parts, numbered through all categories.
    """
    common, union = overlaps(confusions(predicted, part, example, len(category), sum(parts)))
    iou = torch.where(union > 0, common / union, 1.0)
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)).to(category.device)
    mine = owner == category[:, None]
    return (iou * mine).sum(1) / mine.sum(1)


def mean_ious(ious: Tensor, category: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Instance mIoU (mean over all shapes), category mIoU (mean over categories), and the mIoU of each category."""
    ious, category = ious.cpu(), category.cpu()
    each = {name: ious[category == k].mean().item() for k, name in enumerate(names) if bool((category == k).any())}
    mean = sum(each.values()) / max(len(each), 1)
    return {"instance_iou": ious.mean().item(), "category_iou": mean, "examples": len(ious), "by_category": each}
