"""Accuracy and predictions of a network that classifies clouds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gridless.progress import bar
from gridless.training.policy import Policy
from gridless.training.resident import ResidentClouds
from gridless.training.step import autocast

# What the further views of a cloud are, where several are averaged: another order of points, another size.
VIEW = Policy(shuffle=True, scale=(0.9, 1.1))


@torch.no_grad()
def probabilities(
    model: nn.Module,
    points: Tensor,
    batch_size: int = 256,
    votes: int = 1,
    precision: str = "32",
    policy: Policy | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Tensor:
    """Class probabilities (N, classes) of clouds (N, P, D), on their device, the mean over `votes` views of each.

    The first view is the cloud as it is (or after `policy`), the others are `VIEW`s of it; all are fixed by the seed.
    `progress` shows a bar.
    """
    was_training = model.training
    model.eval()
    total: Any = None
    labels = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    with bar("evaluate", votes * len(points), progress) as advance:
        for vote in range(votes):
            view = (policy or Policy()) if vote == 0 else VIEW
            clouds = ResidentClouds(points, labels, model.plan, batch_size, view, seed, shuffle=False)  # type: ignore[arg-type]
            clouds.epoch = vote
            parts = []
            for batch in clouds:
                with autocast(points.device, precision):
                    parts.append(model(batch.geometry).float().softmax(1))
                advance(len(batch.labels))
            total = torch.cat(parts) if total is None else total + torch.cat(parts)
    model.train(was_training)
    return total / votes


def accuracy(model: nn.Module, points: Tensor, labels: Tensor, **settings: Any) -> float:
    """The part of the clouds whose most probable class is their label; settings as of `probabilities`."""
    return (probabilities(model, points, **settings).argmax(1) == labels).double().mean().item()


def accuracy_by_points(
    model: nn.Module,
    points: Tensor,
    labels: Tensor,
    counts: tuple[int, ...] = (32, 64, 128, 256, 512, 1024),
    **settings: Any,
) -> dict[int, float]:
    """Accuracy when each cloud is only its first so many points, without retraining."""
    return {n: accuracy(model, points[:, :n], labels, **settings) for n in counts if n <= points.shape[1]}


def report(probability: Tensor, labels: Tensor, classes: list[str]) -> dict[str, Any]:
    """Accuracy, its mean over classes, and each class's own."""
    correct = (probability.argmax(1) == labels).double().cpu()
    labels = labels.cpu()
    each = {name: correct[labels == i].mean().item() for i, name in enumerate(classes) if bool((labels == i).any())}
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
