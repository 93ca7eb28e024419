"""`run(recipe, data, valid, out, device="cuda")`: the training loop with the task of the recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gridless.tasks.registry import find
from gridless.training.examples import TrainingSet
from gridless.training.loop import train
from gridless.training.recipe import Recipe
from gridless.training.setup import Options


def run(
    recipe: Recipe, data: TrainingSet, valid: TrainingSet | None, out: Path, **options: Any
) -> dict[str, Any] | None:
    """Train by a recipe, write `out`/weights.* and `out`/results.json, and return the results.

    Args:
        recipe: everything that decides the weights.
        data: the training examples, on the CPU.
        valid: held-out examples that are evaluated during training, or None.
        out: the folder of logs, checkpoints, weights and results; an error if it holds a run already.
        options: the fields of `Options`.
    """
    return train(recipe, find(recipe.task_name), data, valid, out, Options(**options))
