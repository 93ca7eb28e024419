"""The contract of a task: what training, evaluation, prediction and saved weights ask about one kind of network.

A task holds no state: everything that a run decides is in its recipe, its data and its network. A task of your own is a
subclass of `Task` in one file, `gridless train RECIPE --task FILE.py:CLASS`; it needs `load`, `loss`, `score` and
`figures`, the rest has defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gridless.kernels.progress import bar
from gridless.plan import Plan
from gridless.training.batch import Batch
from gridless.training.examples import TrainingSet
from gridless.training.loader import Loader
from gridless.training.recipe import Recipe
from gridless.training.step import Loss, autocast


@dataclass(frozen=True)
class Prediction:
    """What a network says about one file: `line`, which is printed, or `record` with `--json`."""

    line: str
    record: dict[str, Any]


class Task:
    """What a network is for. Subclasses say what its data, its loss and its answers are."""

    name: ClassVar[str] = ""
    """The name in recipes and in weights files; of a user's own task FILE.py:CLASS."""
    network: ClassVar[str] = "a network"
    """What errors call a network of this task."""
    data: ClassVar[Sequence[str]] = ()
    """The data sets that a recipe of this task can name; `folder` for the user's own files."""
    options: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Options of commands that this task has, beside those that every task has: {"predict": ["--votes"], ...}."""

    # Data.

    def load(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> TrainingSet:
        """The examples of a split, `train`, its parts `fit` and `validation`, or `test`.

        Args:
            recipe: names the data set and its options.
            path: the folder of the data; None for data that is generated.
            split: which examples.
            held_out_list: a file that lists those for validation, instead of the data's own rule.
            about: of saved weights, as which classes are numbered.
        """
        raise NotImplementedError(f"task {self.name}: it does not say how its data is loaded (load)")

    def source(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Any:
        """The files of a split as a `gridless.tasks.storage.Source`, to be packed instead of read into memory; or None.

        Nothing is read yet.

        Args:
            recipe: names the data set and its options.
            path: the folder of the data.
            split: `train`, `fit`, `validation` or `test`.
            held_out_list: the file that lists what an earlier run held out, or None.
            about: facts saved with weights, if the data is for weights.
        """
        return None

    def fit(self, recipe: Recipe, data: TrainingSet) -> Recipe:
        """The recipe with what the data decides filled in: number of classes, features, sensor."""
        return recipe

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse settings of a recipe that this task does not have."""

    def check_data(self, model: nn.Module, data: TrainingSet) -> None:
        """Refuse examples that the network has no answer for, such as those of a class beyond its last."""

    def describe(self, recipe: Recipe, data: TrainingSet, model: nn.Module) -> list[str]:
        """Lines about a folder of the user's files, printed before training; warnings last."""
        return [f"{len(data)} examples to learn from"]

    def augment(self, recipe: Recipe, train: bool) -> Any:
        """What is done to each example before its geometry is made, or None."""
        return recipe.augment if train else None

    def describe_augmentation(self, recipe: Recipe) -> str:
        """What is done to each training example at random, in plain words."""
        return recipe.augment.describe() or "nothing"

    def loader(
        self,
        recipe: Recipe,
        data: TrainingSet,
        plan: Plan,
        train: bool = True,
        batch_size: int | None = None,
        **more: Any,
    ) -> Loader:
        """The batches of `data` for training; without `train` those of an evaluation, in order and not augmented.

        `plan` makes their geometry; `batch_size` is the recipe's if left out; `more` goes to `Loader`.
        """
        size = batch_size or recipe.batch_size
        return Loader(data, plan, size, self.augment(recipe, train), recipe.seed, shuffle=train, **more)

    # Learning and judging.

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The loss of a batch, which is differentiated. `smoothing` is that of labels.

        A step may be captured: nothing may wait for the device.
        """
        raise NotImplementedError(f"task {self.name}: it does not say what is learned (loss)")

    def score(self, model: Any, batch: Batch) -> Tensor:
        """How good the answers to a batch are: (B, columns) float64, a row for each example. Makes no gradients."""
        raise NotImplementedError(f"task {self.name}: it does not say how answers are judged (score)")

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        """The figures of all scores (N, columns) of `data`, in its order. Numbers are logged as `valid_NAME`."""
        raise NotImplementedError(f"task {self.name}: it does not say what scores amount to (figures)")

    def evaluate(
        self,
        model: Any,
        data: TrainingSet,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """The figures of a network on examples, for `gridless evaluate`.

        Args:
            model: the network, which stays in its mode.
            data: the examples.
            recipe: says how they are prepared.
            batch_size: examples at a time; chosen by the task if left out.
            votes: views that are averaged for each example, if the task has such.
            progress: show a bar.
        """
        return self.judge(model, data, recipe, batch_size, progress)

    @torch.no_grad()
    def judge(
        self,
        model: Any,
        data: TrainingSet,
        recipe: Recipe,
        batch_size: int | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        """The figures of a network on examples as they are, each seen once. Validation during training uses them.

        Args:
            model: the network; its mode, training or not, is restored.
            data: the examples.
            recipe: decides precision, points and batch size.
            batch_size: examples at a time, by default the recipe's.
            progress: show a bar.
        """
        was_training, scores = model.training, []
        model.eval()
        with bar("evaluate", len(data), progress) as advance:
            for batch in self.loader(recipe, data, model.plan, train=False, batch_size=batch_size):
                with autocast(batch.labels.device, recipe.precision):
                    scores.append(self.score(model, batch))
                advance(len(batch.labels))
        model.train(was_training)
        return self.figures(torch.cat(scores), data)

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        """The line that `gridless evaluate` prints about the figures of `evaluate`."""
        return ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, float))

    # Saved weights and predictions.

    def about(self, data: TrainingSet) -> dict[str, Any]:
        """Facts of the data that are saved with the weights: `class_names`, and what `load` and `predict` need."""
        return {"class_names": list(data.class_names)} if data.class_names else {}

    def classes(self, config: Mapping[str, Any]) -> int | None:
        """The number of classes of a network by its config; None if it has none."""
        return config.get("classes")

    def with_classes(self, config: dict[str, Any], count: int) -> dict[str, Any] | None:
        """The config of the same network for `count` classes; None if it has no number of classes."""
        return {**config, "classes": count} if "classes" in config else None

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        """Refuse what cannot be answered together, before the first file is read."""

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> Prediction:
        """The answer to one file. `options` are those of the command line that were given: {"points": 512}."""
        raise NotImplementedError(f"task {self.name}: it does not say how a file is answered (predict)")

    def live(self, logits: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
        """What `gridless stream` prints for each answer (N, channels) of a live network, beside its time."""
        shares, best = logits.softmax(1).max(1)
        return [{"class": names[k], "probability": round(p, 6)} for k, p in zip(best.tolist(), shares.tolist())]

    def refuse(self, command: str, options: Mapping[str, Any], weights: str) -> None:
        """Refuse the first option of a command that was given and that this task does not have."""
        for name in options:
            option = f"--{name.replace('_', '-')}"
            if option not in self.options.get(command, ()):
                raise ValueError(f"{option} does nothing here, {weights} is {self.network}: leave it out")
