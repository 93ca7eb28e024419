"""The direct loop: the same steps as `gridless train`, with nothing around them. For benchmarks, sweeps and tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from gridless.tasks import find
from gridless.tasks.clouds import views_of_cloud
from gridless.training import Average, Recipe, TrainingSet, accuracy
from gridless.training.step import begin_step, make_step


@dataclass
class Run:
    """A run in progress: network, optimiser, step, loader and schedule, as the recipe says, on the data's device."""

    recipe: Recipe
    data: TrainingSet

    def __post_init__(self) -> None:
        recipe, device = self.recipe, self.data.labels.device
        self.model: nn.Module = recipe.make_model().to(device)
        self.optimiser = recipe.make_optimiser(self.model)
        self.average = Average(self.model, recipe.average) if recipe.average else None
        self.schedule = recipe.make_schedule()
        task = find(recipe.task_name)
        self.step = make_step(recipe, self.model, self.optimiser, self.average, loss=task.loss)
        self.loader = task.loader(recipe, self.data, self.model.plan, epochs=recipe.epochs)

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


def fit(
    recipe: Recipe,
    data: TrainingSet,
    valid: TrainingSet | None = None,
    report: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Train on clouds, on their device: the network to ship, and what happened."""
    run = Run(recipe, data)
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
            views = views_of_cloud(recipe.votes if last else 1)
            entry["valid"] = accuracy(run.best, valid.first(recipe.points), views=views, precision=recipe.precision)
        entry["seconds"] = time.perf_counter() - began
        history.append(entry)
        if report is not None and ("valid" in entry or last):
            report(entry)
    return run.best, history
