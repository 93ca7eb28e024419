"""Training: recipes, data that lives on the device, the step, and Lightning around it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# name -> module
_LAZY = {
    "Average": "gridless.training.step",
    "Batch": "gridless.training.batches",
    "Policy": "gridless.training.policy",
    "Recipe": "gridless.training.recipe",
    "Recordings": "gridless.training.recordings",
    "ResidentClouds": "gridless.training.resident",
    "ResidentRecordings": "gridless.training.recordings",
    "TrainStep": "gridless.training.step",
    "accuracy": "gridless.training.evaluate",
    "accuracy_by_points": "gridless.training.evaluate",
    "fit": "gridless.training.loop",
    "load_data": "gridless.training.sources",
    "load_recipe": "gridless.training.recipe",
    "probabilities": "gridless.training.evaluate",
}

__all__ = [*_LAZY]

if TYPE_CHECKING:
    from gridless.training.batches import Batch as Batch
    from gridless.training.evaluate import accuracy as accuracy
    from gridless.training.evaluate import accuracy_by_points as accuracy_by_points
    from gridless.training.evaluate import probabilities as probabilities
    from gridless.training.loop import fit as fit
    from gridless.training.policy import Policy as Policy
    from gridless.training.recipe import Recipe as Recipe
    from gridless.training.recipe import load_recipe as load_recipe
    from gridless.training.recordings import Recordings as Recordings
    from gridless.training.recordings import ResidentRecordings as ResidentRecordings
    from gridless.training.resident import ResidentClouds as ResidentClouds
    from gridless.training.sources import load_data as load_data
    from gridless.training.step import Average as Average
    from gridless.training.step import TrainStep as TrainStep


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.training' has no attribute {name!r}")
