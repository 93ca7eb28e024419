"""What the loop asks of the kind of network that it trains: data in batches, loss, scores, figures, facts to save."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gridless.training.batch import Batch
from gridless.training.loader import Loader
from gridless.training.scores import figures, scores


class Loss(NamedTuple):
    """What one batch taught: scalars on the device of the batch.

    `right` of `judged` items (examples, points) were right. Over an epoch their quotient is the training accuracy,
    which the plateau schedule watches. Without them it watches the loss.
    """

    value: Tensor
    right: Tensor | None = None
    judged: Tensor | None = None


class Labels:
    """Networks that name clouds or recordings, or label the points of clouds."""

    def loader(self, recipe: Any, data: Any, plan: Any, train: bool = True, **more: Any) -> Loader:
        """The batches of training; without `train` those of an evaluation, in order and not augmented."""
        return data.loader(recipe, plan, train, **more)

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The network's own loss where it has one, else the cross entropy; `smoothing` is that of labels."""
        own = getattr(model, "loss", None)
        if own is None:
            logits = model(batch.geometry).float()
            loss = cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        else:
            loss, logits = own(batch.geometry, batch.labels, smoothing)
        loss, logits = loss.float(), logits.detach().float()
        count = torch.full_like(loss.detach(), len(batch.labels))
        if logits.ndim:
            return Loss(loss, (logits.argmax(1) == batch.labels).sum(), count)
        # A network that labels points counts itself: the share of points that are right, summed over examples.
        judged = _judged_points(batch, count)
        return Loss(loss, logits / count * judged, judged)

    def score(self, model: Any, batch: Batch) -> Tensor:
        """A row of numbers for each example (B, columns)."""
        return scores(model, batch)

    def figures(self, scores: Tensor, data: Any) -> dict[str, Any]:
        """The figures of all scores (N, columns) of `data`. Numbers are logged as `valid_NAME`."""
        names = getattr(data, "parts", ()) if scores.shape[1] > 3 else ()
        result = figures(scores, data.labels, names or data.class_names)
        files = getattr(data, "files", None)
        # Blocks of one scan are several examples.
        return result | {"scans": len(files.unique())} if "scans" in result and files is not None else result

    def check_data(self, model: nn.Module, data: Any) -> None:
        """Refuse examples of classes, or points of parts, that the network does not have."""
        config: Any = getattr(model, "config", {})
        part = getattr(data, "rows", {}).get("part")
        found = {"classes": (data.labels if part is None else part, config.get("classes"))}
        if "parts" in config:
            found = {"categories": (data.labels, len(config["parts"])), "parts": (part, sum(config["parts"]))}
        for name, (numbers, count) in found.items():
            if numbers is not None and count is not None and numbers.numel() and int(numbers.max()) >= count:
                setting, last = "parts" if "parts" in config else "classes", int(numbers.max())
                words = f"the network has {count} {name}, and there is number {last}: at least {last + 1} are needed"
                raise ValueError(f"recipe: model.{setting}: {words}")

    def about(self, data: Any) -> dict[str, Any]:
        """Facts of the data that are saved with the weights."""
        facts = {name: list(getattr(data, name, ())) for name in ("parts", "values")}
        return {"class_names": data.class_names} | {name: value for name, value in facts.items() if value}


def _judged_points(batch: Batch, count: Tensor) -> Tensor:
    """How many points have a label; `count` where points have none."""
    cloud: Any = next(iter(batch.geometry.values()))
    if "part" not in cloud.rows:
        return count
    return ((cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)).sum().to(count.dtype)
