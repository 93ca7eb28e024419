"""Accuracy and predictions of a network that classifies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gridless.kernels.progress import bar
from gridless.training.examples import TrainingSet
from gridless.training.loader import Loader
from gridless.training.step import autocast


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
        model: the network; its training or evaluation mode stays.
        data: clouds or recordings.
        views: the transform of each view; None leaves examples as they are.
        batch_size: examples per batch.
        seed: seed of the views.
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


def accuracy(model: nn.Module, data: TrainingSet, views: Sequence[Any] = (None,), precision: str = "32") -> float:
    """The accuracy on `data`, from 0 to 1; `model`, `views` and `precision` are those of `probabilities`."""
    return (probabilities(model, data, views, precision=precision).argmax(1) == data.labels).double().mean().item()


def seen(about: dict[str, Any], split: str) -> str:
    """The examples of a split that the weights were trained on: `all`, `some`, `none` or `unknown`."""
    trained = about.get("split")
    if trained is None:
        return "unknown"
    if split == "test":
        return "none"
    if trained == "train" or split == "fit":
        return "all"
    return "some" if split == "train" else "none"
