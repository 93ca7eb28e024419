"""Classification: one label for each cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.prepare import Preparation, prepare, read_points, y_up
from gridless.pictures.report import confusion_counts
from gridless.tasks.base import FilePrediction, Task
from gridless.tasks.clouds import CloudTask, check_scale, preparation, views_of_cloud
from gridless.tasks.loading import (
    FOLDER,
    SIZES,
    check_kind,
    check_labels,
    chosen,
    folder_of,
    generated,
    made,
    topic_of,
    wrong_kind,
)
from gridless.training.batch import Batch
from gridless.training.evaluate import probabilities
from gridless.training.examples import Clouds, TrainingSet
from gridless.training.recipe import Recipe
from gridless.training.step import Loss, network_loss
from gridless.weights import class_names


class NameExamples(Task):
    """One class for each example: loss, scores and reports of clouds and of recordings."""

    examples = "examples"
    """Name of the examples in a report."""

    def views(self, recipe: Recipe, votes: int) -> Sequence[Any]:
        """The transform of each view whose probabilities are averaged; None for the example as it is."""
        raise NotImplementedError

    def seed_of_views(self, recipe: Recipe) -> int:
        return recipe.seed

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        return network_loss(model, batch, smoothing)

    @torch.no_grad()
    def score(self, model: Any, batch: Batch) -> Tensor:
        """(B, 1): the number of the predicted class."""
        return model(batch.geometry).argmax(1).double()[:, None]

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        answers, labels = scores[:, 0].long().cpu(), data.labels.cpu()
        count = max(len(data.class_names), int(torch.cat([answers, labels]).max()) + 1) if len(labels) else 0
        accuracy = (answers == labels).double().mean().item()
        return {"accuracy": accuracy, "confusion": confusion_counts(labels, answers, count)}

    def check_data(self, model: Any, data: TrainingSet) -> None:
        check_labels(data.labels, self.classes(getattr(model, "config", {})), "classes", "classes")

    def probabilities(
        self,
        model: Any,
        data: TrainingSet,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Class probabilities (N, classes), the mean over views of each example.

        Args:
            model: the network.
            data: the examples.
            recipe: decides how they are prepared, and the number of views.
            batch_size: examples per batch.
            votes: views of each example; by default the recipe's.
            progress: show a bar.
        """
        data = self.selected(recipe, data, train=False)
        size = batch_size or self.batch_size(recipe, data, train=False)
        views, seed = self.views(recipe, votes or recipe.votes), self.seed_of_views(recipe)
        return probabilities(model, data, views, size, seed, recipe.precision, progress)

    def evaluate(
        self,
        model: Any,
        data: TrainingSet,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> dict[str, Any]:
        probability = self.probabilities(model, data, recipe, batch_size, votes, progress)
        return report(probability, data.labels, data.class_names)

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        what = self.examples.format(points=recipe.points)
        mean = f"{figures['mean_class_accuracy']:.2%} as the mean over classes"
        return f"{figures['accuracy']:.2%} of {figures['examples']} {what}, {mean}"

    def prediction(self, model: Any, file: Path, probability: Tensor, top: int) -> FilePrediction:
        """The most probable classes of a file."""
        names = class_names(model, len(probability))
        order = probability.argsort(descending=True).tolist()
        line = ", ".join(f"{names[i]} {probability[i]:.1%}" for i in order[:top])
        record = {"class": names[order[0]], "probabilities": dict(zip(names, probability.tolist()))}
        return FilePrediction(f"{file}: {line}", {"file": str(file), **record})


class Classify(NameExamples, CloudTask):
    """One class for each cloud."""

    name = "classify"
    network = "a network that names whole clouds"
    data = ("modelnet40", "shapes", FOLDER)
    options = {
        "evaluate": ("--points", "--votes"),
        "predict": ("--points", "--up", "--keep-scale", "--votes", "--topic"),
    }
    examples = "clouds of {points} points"

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        import gridless.data as data

        if recipe.data == "shapes":
            up = options.pop("up", "y")
            shapes = made(data.Shapes, options, (*SIZES, "up"), points=recipe.points, **generated(split, options))
            return Clouds(y_up(shapes.coords, Preparation(up=up)), shapes.labels, list(shapes.class_names))
        root = folder_of(recipe, path)
        models = made(data.ModelNet40, options, root=root, split=split, points=recipe.points)
        return Clouds(models.coords, models.labels, list(models.class_names))

    def views(self, recipe: Recipe, votes: int) -> Sequence[Any]:
        return views_of_cloud(votes)

    def seed_of_views(self, recipe: Recipe) -> int:
        return 0

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        check_kind(file, recordings=False)
        settings = chosen(options, "points", "up", "keep_scale", "votes", "topic")
        try:
            probability = classify(model, file, **settings)
        except ValueError:
            if _is_recording(file):
                raise wrong_kind(file, recordings=False) from None
            raise
        return self.prediction(model, file, probability, options.get("top", 3))


def classify(
    model: Any,
    file: str | Path,
    points: int | None = None,
    up: str | None = None,
    keep_scale: bool = False,
    votes: int | None = None,
    topic: str | None = None,
) -> Tensor:
    """Probabilities (classes) of the cloud in a file, prepared as the training clouds were: y up, unit sphere.

    Args:
        model: a network from `gl.load`.
        file: a cloud, or a mesh, from which points are drawn.
        points: number of points used; None: as many as in training.
        up: the axis that points up in the file: x, y or z; None: as in training, or y.
        keep_scale: do not centre and scale to the unit sphere.
        votes: views whose probabilities are averaged; None: as in the recipe saved with the weights.
        topic: of a recording of ROS, where several topics have clouds; None: as in training.
    """
    if not isinstance(file, str | Path):
        remedy = "Give the path of a file. For points in memory call model(model.plan(points))."
        raise TypeError(f"classify: file is a {type(file).__name__}. {remedy}")
    recipe = getattr(model, "about", {}).get("recipe", {})
    points, how = points or int(recipe.get("points", 1024)), preparation(recipe, up, keep_scale)
    device = next(model.parameters()).device
    cloud = read_points(file, points, how, topic=topic_of(recipe, file, topic))
    cloud = prepare(cloud, str(file), points, how, how.features).to(device)
    check_scale(model.plan(cloud), str(file), how, stacklevel=3)
    one = TrainingSet.of(cloud, torch.zeros(1, dtype=torch.int64, device=device), features=how.features)
    return probabilities(model, one, views_of_cloud(votes or recipe.get("votes", 1)))[0].cpu()


def report(probability: Tensor, labels: Tensor, names: Sequence[str]) -> dict[str, Any]:
    """Accuracy, its mean over classes, and the accuracy of each class."""
    correct = (probability.argmax(1) == labels).double().cpu()
    labels = labels.cpu()
    each = {name: correct[labels == i].mean().item() for i, name in enumerate(names) if bool((labels == i).any())}
    mean = sum(each.values()) / max(len(each), 1)
    return {"accuracy": correct.mean().item(), "mean_class_accuracy": mean, "examples": len(labels), "by_class": each}


def _is_recording(file: Path) -> bool:
    """True if a file with a suffix of both clouds and recordings holds events."""
    from gridless.data import read_events
    from gridless.data.listing import RECORDINGS

    if file.suffix.lower() not in RECORDINGS:
        return False
    try:
        read_events(file)
    except ValueError:
        return False
    return True
