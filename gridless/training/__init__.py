"""Training. An example meets these rooms in this order:

recipe (what decides a run), examples (clouds or recordings, as tensors), loader (batches with their geometry, made here
or by workers), step (forward, loss, backward, optimiser; perhaps captured), setup and loop (a whole run, on Fabric),
checkpoints, normalisation (statistics for the weights as they are), evaluate.
"""

from gridless.augment.policy import Policy
from gridless.training.batch import Batch
from gridless.training.evaluate import accuracy, probabilities
from gridless.training.examples import Clouds, Recordings, load_data
from gridless.training.loader import Loader
from gridless.training.normalisation import update_statistics
from gridless.training.predict import classify, classify_events
from gridless.training.prefetch import ahead
from gridless.training.recipe import Recipe, load_recipe
from gridless.training.step import Average as Average
from gridless.training.step import StepCounter, TrainStep

__all__ = [
    "Batch",
    "Clouds",
    "Loader",
    "Policy",
    "Recipe",
    "Recordings",
    "StepCounter",
    "TrainStep",
    "accuracy",
    "ahead",
    "classify",
    "classify_events",
    "load_data",
    "load_recipe",
    "probabilities",
    "update_statistics",
]
