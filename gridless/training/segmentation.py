"""How good a labelling of points is, as the field counts it on ShapeNetPart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def shape_ious(predicted: Tensor, part: Tensor, example: Tensor, category: Tensor, parts: Sequence[int]) -> Tensor:
    """Of each shape (B) float64, the mean over the parts of its category of intersection over union.

    A part that is neither there nor predicted counts 1. Points (S) have a predicted and a right part and an example;
    examples (B) a category; category k has parts[k] parts, numbered through.
    """
    count, total = len(category), sum(parts)

    def counted(values: Tensor, rows: Tensor) -> Tensor:
        return torch.bincount(rows * total + values, minlength=count * total).view(count, total).double()

    right = predicted == part
    common = counted(part[right], example[right])
    union = counted(predicted, example) + counted(part, example) - common
    iou = torch.where(union > 0, common / union.clamp(min=1), 1.0)
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)).to(category.device)
    mine = owner == category[:, None]
    return (iou * mine).sum(1) / mine.sum(1)


def mean_ious(ious: Tensor, category: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Instance mIoU, the mean over all shapes; category mIoU, the mean of the means of the categories; and those."""
    ious, category = ious.cpu(), category.cpu()
    each = {name: ious[category == k].mean().item() for k, name in enumerate(names) if bool((category == k).any())}
    mean = sum(each.values()) / max(len(each), 1)
    return {"instance_iou": ious.mean().item(), "category_iou": mean, "examples": len(ious), "by_category": each}
