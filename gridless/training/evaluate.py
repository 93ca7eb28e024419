"""Accuracy and predictions of a network that classifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gridless.kernels.progress import bar
from gridless.training.loader import Loader, TrainingSet
from gridless.training.step import autocast
from gridless.training.task import Labels

if TYPE_CHECKING:
    from gridless.training.recipe import Recipe


@torch.no_grad()
def probabilities(
    model: nn.Module,
    data: TrainingSet,
    views: Sequence[Any] = (None,),
    batch_size: int = 256,
    seed: int = 0,
    precision: str = "32",
    progress: bool = False,
) -> Tensor:
    """Class probabilities (N, classes) of clouds or recordings, on their device, the mean over views of each.

    Args:
        model: the network; it is left in the mode it was in.
        data: `Clouds` or `Recordings`.
        views: what is done to an example for each view; None leaves it as it is.
        batch_size: examples at a time.
        seed: of the views.
        precision: `32`, or on a GPU `bf16`.
        progress: show a bar.
    """
    was_training = model.training
    model.eval()
    total: Any = 0
    with bar("evaluate", len(views) * len(data.labels), progress) as advance:
        for number, view in enumerate(views):
            loader = Loader(data, model.plan, batch_size, view, seed, shuffle=False)  # type: ignore[arg-type]
            loader.epoch = number
            parts = []
            for batch in loader:
                with autocast(data.labels.device, precision):
                    parts.append(model(batch.geometry).float().softmax(1))
                advance(len(batch.labels))
            total = total + torch.cat(parts)
    model.train(was_training)
    return total / len(views)


@torch.no_grad()
def judged(
    model: nn.Module,
    data: Any,
    recipe: Recipe,
    batch_size: int | None = None,
    progress: bool = False,
    task: Any = None,
) -> dict[str, Any]:
    """The figures of a network on clouds or recordings as they are: accuracy, and mIoU where points have parts.

    `task` says what is scored; None: labels (`gridless.training.scores`). The network is left in the mode it was in.
    """
    task, was_training, found = task or Labels(), model.training, []
    model.eval()
    with bar("evaluate", len(data), progress) as advance:
        for batch in task.loader(recipe, data, model.plan, train=False, batch_size=batch_size):
            with autocast(batch.labels.device, recipe.precision):
                found.append(task.score(model, batch))
            advance(len(batch.labels))
    model.train(was_training)
    return task.figures(torch.cat(found), data)


def accuracy(model: nn.Module, data: TrainingSet, views: Sequence[Any] = (None,), precision: str = "32") -> float:
    """The part of the examples of `data` whose most probable class is their label; `model`, `views` and `precision` are
    those of `probabilities`."""
    return (probabilities(model, data, views, precision=precision).argmax(1) == data.labels).double().mean().item()


def report(probability: Tensor, labels: Tensor, class_names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, its mean over classes, and each class's own."""
    correct = (probability.argmax(1) == labels).double().cpu()
    labels = labels.cpu()
    each = {name: correct[labels == i].mean().item() for i, name in enumerate(class_names) if bool((labels == i).any())}
    mean = sum(each.values()) / max(len(each), 1)
    return {"accuracy": correct.mean().item(), "mean_class_accuracy": mean, "examples": len(labels), "by_class": each}


def seen(about: dict[str, Any], split: str) -> str:
    """How many examples of a split the weights were trained on: `all`, `some`, `none` or `unknown`."""
    trained = about.get("split")
    if trained is None:
        return "unknown"
    if split == "test":
        return "none"
    if trained == "train" or split == "fit":
        return "all"
    return "some" if split == "train" else "none"
