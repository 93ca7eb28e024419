"""Training. An example meets these rooms in this order:

recipe (what decides a run), examples (clouds or recordings, as tensors), loader (batches with their geometry, made here
or by workers), step (forward, loss, backward, optimiser; perhaps captured), module and run (Lightning), evaluate.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# name -> module
_LAZY = {
    "Average": "gridless.training.step",
    "Batch": "gridless.training.batch",
    "Clouds": "gridless.training.examples",
    "Loader": "gridless.training.loader",
    "Policy": "gridless.augment.policy",
    "Recipe": "gridless.training.recipe",
    "Recordings": "gridless.training.examples",
    "StepCounter": "gridless.training.step",
    "TrainStep": "gridless.training.step",
    "accuracy": "gridless.training.evaluate",
    "accuracy_by_points": "gridless.training.evaluate",
    "classify": "gridless.training.predict",
    "classify_events": "gridless.training.predict",
    "load_data": "gridless.training.examples",
    "load_recipe": "gridless.training.recipe",
    "probabilities": "gridless.training.evaluate",
}

__all__ = [*_LAZY]

if TYPE_CHECKING:
    from gridless.augment.policy import Policy as Policy
    from gridless.training.batch import Batch as Batch
    from gridless.training.evaluate import accuracy as accuracy
    from gridless.training.evaluate import accuracy_by_points as accuracy_by_points
    from gridless.training.evaluate import probabilities as probabilities
    from gridless.training.examples import Clouds as Clouds
    from gridless.training.examples import Recordings as Recordings
    from gridless.training.examples import load_data as load_data
    from gridless.training.loader import Loader as Loader
    from gridless.training.predict import classify as classify
    from gridless.training.predict import classify_events as classify_events
    from gridless.training.recipe import Recipe as Recipe
    from gridless.training.recipe import load_recipe as load_recipe
    from gridless.training.step import Average as Average
    from gridless.training.step import StepCounter as StepCounter
    from gridless.training.step import TrainStep as TrainStep


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.training' has no attribute {name!r}")
