"""Training. The modules, in the order in which a run uses them:

- recipe: everything that decides a run.
- examples: a ragged training set.
- loader: batches with their geometry, made here or by workers.
- step: forward, loss, backward, optimiser; eager or captured.
- setup and loop: a whole run. Lightning Fabric starts several processes.
- checkpoints: files from which a run resumes.
- normalisation: statistics for the current weights.
- evaluate: accuracy of the result.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gridless.augment.policy import Policy
from gridless.training.batch import Batch
from gridless.training.evaluate import accuracy, probabilities
from gridless.training.examples import Clouds, Recordings, TrainingSet
from gridless.training.loader import Loader
from gridless.training.normalisation import update_statistics
from gridless.training.packed import PackedSet
from gridless.training.prefetch import ahead
from gridless.training.recipe import Recipe, load_recipe
from gridless.training.step import Average as Average
from gridless.training.step import StepCounter, TrainStep

# Functions of tasks that are also exported here: name -> module.
_LAZY = {
    "classify": "gridless.tasks.classify",
    "classify_events": "gridless.tasks.recordings",
    "load_data": "gridless.tasks.loading",
}

__all__ = [
    "Batch",
    "Clouds",
    "Loader",
    "PackedSet",
    "Policy",
    "Recipe",
    "Recordings",
    "StepCounter",
    "TrainStep",
    "TrainingSet",
    "accuracy",
    "ahead",
    "classify",
    "classify_events",
    "load_data",
    "load_recipe",
    "probabilities",
    "update_statistics",
]

if TYPE_CHECKING:
    from gridless.tasks.classify import classify
    from gridless.tasks.loading import load_data
    from gridless.tasks.recordings import classify_events


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'gridless.training' has no attribute {name!r}")
