"""The contract of a task: the functions that training, evaluation, prediction and saved weights call.

A task holds no state: a run is decided by its recipe, its data and its network. Your own task is a subclass of `Task`
in one file, used by `gridless train RECIPE --task FILE.py:CLASS`. It needs `load`, `loss`, `score` and `figures`; the
rest has defaults. A task that reads folders of the user's files derives from `gridless.tasks.folders.FileTask`.
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
class FilePrediction:
    """The answer of a network to one file: `line` is printed, or `record` with `--json`."""

    line: str
    record: dict[str, Any]


class Task:
    """The purpose of a network. Subclasses define its data, its loss and its answers."""

    name: ClassVar[str] = ""
    """The name in recipes and in weights files; FILE.py:CLASS for a user's own task."""
    network: ClassVar[str] = "a network"
    """Name of a network of this task in error messages."""
    data: ClassVar[Sequence[str]] = ()
    """The data sets that a recipe of this task can name; `folder` for the user's own files."""
    options: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Command options of this task, in addition to those of every task: {"predict": ["--votes"], ...}."""

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
            held_out_list: a file that lists the files for validation, instead of the data's own rule.
            about: metadata of saved weights, such as their class names, which number the classes.
        """
        raise NotImplementedError(f"task {self.name} does not load data. Implement load().")

    def source(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> Any:
        """A `gridless.tasks.storage.PackSource`: the files of a split that can be packed, not yet read; or None.

        The arguments are those of `Task.load`.
        """
        return None

    def fit(self, recipe: Recipe, data: TrainingSet) -> Recipe:
        """The recipe with the settings that depend on the data: number of classes, features, sensor."""
        return recipe

    def check_recipe(self, recipe: Recipe) -> None:
        """Reject settings of a recipe that this task does not have."""

    def check_data(self, model: nn.Module, data: TrainingSet) -> None:
        """Reject examples that the network has no answer for, such as a class beyond its last."""

    def with_edges(self, recipe: Recipe, model: Any) -> Any:
        """The network whose plan `gridless stats` counts: the same, or one whose plan lists all neighbours."""
        return model

    def describe(self, recipe: Recipe, data: TrainingSet, model: nn.Module) -> list[str]:
        """Lines that describe a folder of the user's files, printed before training; warnings last."""
        return [f"{len(data)} examples to learn from"]

    def augment(self, recipe: Recipe, train: bool) -> Any:
        """The transform applied to each example before its geometry is computed, or None."""
        return recipe.augment if train else None

    def describe_augmentation(self, recipe: Recipe) -> str:
        """The random augmentation of each training example, in plain words."""
        return recipe.augment.describe() or "nothing"

    def selected(self, recipe: Recipe, data: TrainingSet, train: bool) -> TrainingSet:
        """The parts of the examples that `loader` uses."""
        return data

    def batch_size(self, recipe: Recipe, data: TrainingSet, train: bool) -> int:
        """The default batch size of `loader` for the selected examples."""
        return recipe.batch_size

    def loader(
        self,
        recipe: Recipe,
        data: TrainingSet,
        plan: Plan,
        train: bool = True,
        batch_size: int | None = None,
        **more: Any,
    ) -> Loader:
        """The batches of `data` for training; with `train=False` for evaluation, in order and not augmented.

        `plan` computes their geometry; `batch_size` is by default that of the task for the recipe; `more` is passed to
        `Loader`.
        """
        data = self.selected(recipe, data, train)
        size = batch_size or self.batch_size(recipe, data, train)
        augment, repeats = self.augment(recipe, train), recipe.repeats
        return Loader(data, plan, size, augment, recipe.seed, shuffle=train, repeats=repeats, **more)

    # Learning and judging.

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The differentiable loss of a batch; `smoothing` is the label smoothing.

        It must not wait for the device, because a step may be captured as a graph.
        """
        raise NotImplementedError(f"task {self.name} has no loss. Implement loss().")

    def score(self, model: Any, batch: Batch) -> Tensor:
        """The scores (B, columns) float64 of the answers to a batch, one row per example. Computes no gradients."""
        raise NotImplementedError(f"task {self.name} has no scores. Implement score().")

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        """The figures of `data` from all its scores (N, columns), in its order. Numbers are logged as `valid_NAME`."""
        raise NotImplementedError(f"task {self.name} has no figures. Implement figures().")

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
            model: the network; its training or evaluation mode stays.
            data: the examples.
            recipe: decides how they are prepared.
            batch_size: examples per batch; by default the task chooses.
            votes: views averaged for each example, if the task supports it.
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
        """The line that `gridless evaluate` prints for the figures of `evaluate`."""
        return ", ".join(f"{name} {value:.4g}" for name, value in figures.items() if isinstance(value, float))

    # Saved weights and predictions.

    def about(self, data: TrainingSet) -> dict[str, Any]:
        """Metadata of the data, saved with the weights: `class_names`, and further entries for `load` and `predict`."""
        return {"class_names": list(data.class_names)} if data.class_names else {}

    def classes(self, config: Mapping[str, Any]) -> int | None:
        """The number of classes of a network by its config; None if it has none."""
        return config.get("classes")

    def with_classes(self, config: dict[str, Any], count: int) -> dict[str, Any] | None:
        """The config of the same network for `count` classes; None if it has no number of classes."""
        return {**config, "classes": count} if "classes" in config else None

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        """Reject files or options that do not go together, before the first file is read."""

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        """The answer to one file; `options` are the options given on the command line, such as {"points": 512}."""
        raise NotImplementedError(f"task {self.name} does not predict files. Implement predict().")

    def live(self, logits: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
        """The fields that `gridless stream` prints beside the time, for each answer (N, channels) of a live network."""
        shares, best = logits.softmax(1).max(1)
        return [{"class": names[k], "probability": round(p, 6)} for k, p in zip(best.tolist(), shares.tolist())]

    def refuse(self, command: str, options: Mapping[str, Any], weights: str) -> None:
        """Reject the first option given to a command that this task does not have."""
        for name in options:
            option = f"--{name.replace('_', '-')}"
            if option not in self.options.get(command, ()):
                raise ValueError(
                    f"{option} does nothing for {weights}, because {weights} is {self.network}. Leave it out."
                )
