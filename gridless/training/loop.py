"""The direct loop: the same steps as `gridless train`, with nothing around them. For benchmarks and sweeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gridless.training import stateless
from gridless.training.evaluate import accuracy
from gridless.training.recipe import Recipe
from gridless.training.resident import ResidentClouds
from gridless.training.schedule import set_rate
from gridless.training.step import Average, TrainStep


@dataclass
class Run:
    """A run in progress: network, optimiser, step, loader and schedule, as the recipe says, on the data's device."""

    recipe: Recipe
    points: Tensor
    labels: Tensor
    capture: bool = field(init=False)

    def __post_init__(self) -> None:
        recipe, device = self.recipe, self.points.device
        self.capture = device.type == "cuda" if recipe.capture is None else recipe.capture
        self.model: nn.Module = recipe.make_model().to(device)
        self.optimiser = recipe.make_optimiser(self.model)
        self.average = Average(self.model, recipe.average) if recipe.average else None
        self.schedule = recipe.make_schedule()
        self.step = make_step(recipe, self.model, self.optimiser, self.average, self.capture)
        self.loader = make_loader(recipe, self.points, self.labels, self.model, self.step)

    def epoch(self, epoch: int) -> None:
        """One pass; nothing waits for the device."""
        self.model.train()
        self.loader.epoch, self.loader.start = epoch, 0
        for number, batch in enumerate(self.loader):
            begin_step(self.recipe, self.schedule, self.optimiser, epoch, number, len(self.loader))
            self.step(batch)

    @property
    def best(self) -> nn.Module:
        """The network to evaluate and ship: the average, where one is kept."""
        return self.model if self.average is None else self.average.model


def make_step(
    recipe: Recipe,
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    average: Average | None,
    capture: bool,
    **more: Any,
) -> TrainStep:
    return TrainStep(
        model, optimiser, recipe.smoothing, recipe.precision, recipe.clip, average, recipe.compiled, capture, **more
    )


def make_loader(
    recipe: Recipe, points: Tensor, labels: Tensor, model: nn.Module, step: TrainStep, **more: Any
) -> ResidentClouds:
    plan: Any = model.plan
    points = points[:, : recipe.points]
    settings = {"epochs": recipe.epochs, **more}
    loader = ResidentClouds(points, labels, plan, recipe.batch_size, recipe.augment, recipe.seed, **settings)
    step.alone = loader.busy
    return loader


def begin_step(recipe: Recipe, schedule: Any, optimiser: Any, epoch: int, number: int, steps: int) -> None:
    """The learning rate and the random numbers (of dropout) of a step, by its position alone."""
    set_rate(optimiser, schedule(epoch + number / steps))
    seed = int(stateless.keys(recipe.seed, epoch, torch.tensor([-2 - number]))[0])
    torch.manual_seed(seed)


def fit(
    recipe: Recipe,
    points: Tensor,
    labels: Tensor,
    valid: tuple[Tensor, Tensor] | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Train on clouds (N, P, 3) with labels (N), on their device: the network to ship, and what happened."""
    if points.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    run = Run(recipe, points, labels)
    history = []
    began = time.perf_counter()
    for epoch in range(recipe.epochs):
        run.epoch(epoch)
        last = epoch + 1 == recipe.epochs
        entry: dict[str, Any] = {"epoch": epoch + 1}
        if recipe.schedule == "plateau" or last or (epoch + 1) % recipe.validate_every == 0:
            entry["loss"], entry["accuracy"] = run.step.read()
            run.schedule.epoch_ended(entry["accuracy"])
        if valid is not None and (last or (epoch + 1) % recipe.validate_every == 0):
            settings = {"votes": recipe.votes if last else 1, "precision": recipe.precision}
            entry["valid"] = accuracy(run.best, valid[0][:, : recipe.points], valid[1], **settings)
        entry["seconds"] = time.perf_counter() - began
        history.append(entry)
        if report is not None and ("valid" in entry or last):
            report(entry)
    return run.best, history
