"""How good a network is on a batch, and over many: classes, or parts of points as the field counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gridless.training.batch import Batch


@torch.no_grad()
def scores(model: nn.Module, batch: Batch) -> Tensor:
    """Of each example (B, 1) whether its class is right, or, where points have parts, (B, 3): the points whose part is
    right, all points, and the mean over parts of intersection over union. Of a network that gives every point of a scan
    one of C classes (B, 2 + 2 C): those two, then the points in the intersection and in the union of each class. Points
    of negative parts are not judged."""
    cloud: Any = next(iter(batch.geometry.values()))
    if "part" not in cloud.rows:
        return (model(batch.geometry).argmax(1) == batch.labels).double()[:, None]
    real = (cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)
    if "parts" not in model.config:  # type: ignore[operator]
        return _scan_scores(model(batch.geometry).argmax(1), cloud, real, model)
    best = model(batch.geometry, batch.labels).argmax(1)[real]
    part, example = cloud.rows["part"][real], cloud.example[real]
    right, every = (torch.bincount(e, minlength=cloud.num_examples) for e in (example[best == part], example))
    parts: Any = model.config["parts"]  # type: ignore[union-attr]
    ious = shape_ious(best, part, example, batch.labels, parts)
    return torch.stack([right.double(), every.double(), ious], 1)


def _scan_scores(best: Tensor, cloud: Any, judged: Tensor, model: Any) -> Tensor:
    best, part, example = best[judged], cloud.rows["part"][judged], cloud.example[judged]
    common, union = _overlaps(best, part, example, cloud.num_examples, model.config["classes"])
    every = torch.bincount(example, minlength=cloud.num_examples)
    return torch.cat([common.sum(1, keepdim=True), every[:, None], common, union], 1)


def _overlaps(predicted: Tensor, part: Tensor, example: Tensor, count: int, kinds: int) -> tuple[Tensor, Tensor]:
    """Points in the intersection and in the union of each of `kinds` parts, in each of `count` examples."""
    if len(part) and int(part.max()) >= kinds:
        raise ValueError(f"points have the part {int(part.max())}, but the network has {kinds}, numbered from 0")

    def counted(values: Tensor, rows: Tensor) -> Tensor:
        return torch.bincount(rows * kinds + values, minlength=count * kinds).view(count, kinds).double()

    right = predicted == part
    common = counted(part[right], example[right])
    return common, counted(predicted, example) + counted(part, example) - common


def figures(found: Tensor, labels: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """The share of examples that are right; where points have parts that of points, and the instance and the category
    mIoU; of scans the mean over the classes that occur of intersection over union, over all scans."""
    if found.shape[1] == 1:
        return {"accuracy": found.mean().item()}
    right, every = found[:, :2].sum(0)
    accuracy = {"accuracy": (right / every.clamp(min=1)).item()}
    if found.shape[1] > 3:
        common, union = found[:, 2:].sum(0).cpu().chunk(2)
        each = {
            names[k] if len(names) == len(union) else str(k): (common[k] / union[k]).item()
            for k in range(len(union))
            if union[k] > 0
        }
        mean = sum(each.values()) / max(len(each), 1)
        return accuracy | {"mean_iou": mean, "scans": len(found), "examples": len(found), "by_class": each}
    return accuracy | mean_ious(found[:, 2], labels, names)


def shape_ious(predicted: Tensor, part: Tensor, example: Tensor, category: Tensor, parts: Sequence[int]) -> Tensor:
    """Of each shape (B) float64, the mean over the parts of its category of intersection over union.

    A part that is neither there nor predicted counts 1. Points (S) have a predicted and a right part and an example;
    examples (B) a category; category k has parts[k] parts, numbered through.
    """
    common, union = _overlaps(predicted, part, example, len(category), sum(parts))
    iou = torch.where(union > 0, common / union, 1.0)
    owner = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(parts)).to(category.device)
    mine = owner == category[:, None]
    return (iou * mine).sum(1) / mine.sum(1)


def mean_ious(ious: Tensor, category: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Instance mIoU, the mean over all shapes; category mIoU, the mean of the means of the categories; and those."""
    ious, category = ious.cpu(), category.cpu()
    each = {name: ious[category == k].mean().item() for k, name in enumerate(names) if bool((category == k).any())}
    mean = sum(each.values()) / max(len(each), 1)
    return {"instance_iou": ious.mean().item(), "category_iou": mean, "examples": len(ious), "by_category": each}
