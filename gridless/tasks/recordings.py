"""Classification of recordings: one label for each, by event networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.augment import events as augment
from gridless.augment.events import Chain
from gridless.augment.policy import Policy, event_transform
from gridless.structures import Events
from gridless.tasks.base import FilePrediction
from gridless.tasks.classify import NameExamples
from gridless.tasks.folders import FileTask, RecordingFiles
from gridless.tasks.loading import (
    FOLDER,
    SIZES,
    check_kind,
    chosen,
    describe_folder,
    folder_of,
    generated,
    made,
    range_of,
    some_of,
    topic_of,
)
from gridless.tasks.storage import PackSource, source_of_set
from gridless.training.examples import TrainingSet
from gridless.training.recipe import Recipe

# The threshold of a network for a folder is halved at most so often,
MOST_HALVINGS = 3
# while more than this share of the recordings leaves no event for the last level.
QUIET = 0.1


# name -> (class in gridless.data, the paper's transforms of its recordings)
SETS: dict[str, tuple[str, Callable[[bool], Chain]]] = {
    "n_mnist": ("NMNIST", augment.n_mnist),
    "mnist_dvs": ("MNISTDVS", augment.mnist_dvs),
    "cifar10_dvs": ("CIFAR10DVS", augment.cifar10_dvs),
    "n_caltech101": ("NCaltech101", augment.n_caltech101),
    "asl_dvs": ("ASLDVS", augment.asl_dvs),
    "n_cars": ("NCars", augment.from_zero),
    "glyphs": ("MovingGlyphs", augment.from_zero),
}


class ClassifyRecordings(NameExamples, FileTask):
    """One class for each recording of an event camera."""

    name = "recordings"
    network = "a network that names recordings"
    data = (*SETS, FOLDER)
    options = {"evaluate": ("--votes",), "predict": ("--votes", "--repair", "--topic")}
    examples = "recordings"

    def check_recipe(self, recipe: Recipe) -> None:
        if recipe.augment != Policy():
            raise ValueError("recipe: augment is only for clouds. For recordings use transforms.")
        for entry in [*(recipe.transforms or ()), *recipe.prepare]:
            event_transform(entry)

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        kind = _set_class(recipe.data)
        if recipe.data == "glyphs":
            glyphs = made(kind, options, SIZES, **generated(split, options))
            events = Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
            return TrainingSet.of(events, glyphs.labels, glyphs.class_names)
        recordings = made(kind, options, root=folder_of(recipe, path), split=split)
        return TrainingSet.of(recordings.whole(), recordings.labels, recordings.class_names)

    def source_of_set(
        self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]
    ) -> PackSource | None:
        if recipe.data == "glyphs":
            return None
        kind, root = _set_class(recipe.data), folder_of(recipe, path)
        settings = (kind.__name__, str(options.get("repair", ())))
        return source_of_set(lambda name: made(kind, options, root=root, split=name), root, split, settings)

    def folder(self, recipe: Recipe, options: dict[str, Any], **settings: Any) -> RecordingFiles:
        # The sensor of the network, unless preparation changes the sensor.
        same = prepared_sensor(recipe, _ANY_SENSOR) == _ANY_SENSOR
        return RecordingFiles({"sensor": recipe.model.get("sensor") if same else None, **options}, **settings)

    def fit(self, recipe: Recipe, data: TrainingSet) -> Recipe:
        if recipe.data != FOLDER:
            return recipe
        recorded = data.events.sensor
        prepared = prepared_sensor(recipe, recorded)
        model = {"sensor": list(prepared), **recipe.model, "classes": len(data.class_names)}
        if tuple(model["sensor"]) != prepared:
            of = "{0} x {1}".format
            sizes = f"are {of(*prepared)} when prepared, but the network is for {of(*model['sensor'])}"
            raise ValueError(f"recipe: model.sensor: recordings of {of(*recorded)} {sizes}. Leave it out.")
        options = recipe.data_options if prepared == recorded else {**recipe.data_options, "sensor": list(recorded)}
        return _with_threshold(recipe.fitted(model=model, data_options=options), data)

    def with_edges(self, recipe: Recipe, model: Any) -> Any:
        if model.config.get("form") == "scan":
            return recipe.changed(model={**recipe.model, "form": "edges"}).make_model()
        return model

    def augment(self, recipe: Recipe, train: bool) -> Chain:
        return chain(recipe, train)

    def describe_augmentation(self, recipe: Recipe) -> str:
        whole, prepared = (chain(recipe, train).steps for train in (True, False))
        descriptions = [step.describe() for step in whole[: len(whole) - len(prepared)]]
        return ", ".join(word for word in descriptions if word) or "nothing"

    def views(self, recipe: Recipe, votes: int) -> Sequence[Any]:
        """The transforms of the views: all but the first are augmented."""
        return [chain(recipe, train=vote > 0) for vote in range(votes)]

    def batch_size(self, recipe: Recipe, data: TrainingSet, train: bool) -> int:
        return recipe.batch_size if train else 2 * recipe.batch_size

    def describe(self, recipe: Recipe, data: TrainingSet, model: Any) -> list[str]:
        if data.listing is None:
            return []
        events = data.cut(some_of(data)) if data.on_disk else data.events
        # A folder refuses recordings without events.
        length = events.time[events.splits[1:] - 1] - events.time[events.splits[:-1]]
        levels, threshold = _levels(recipe, data, model), model.config.get("threshold")
        lines = [
            *describe_folder(data.listing),
            f"{len(data)} recordings to learn from, {events.sensor[0]} x {events.sensor[1]} pixels",
            f"events each: {range_of(data.sizes)}; milliseconds each: {range_of(length / 1000)}",
            *(f"  {name}: {range_of(sizes)} events" for name, sizes in levels.items()),
        ]
        if threshold is not None:
            lines.append(f"levels fire above {threshold:g} (--set model.threshold=...)")
            if list(levels.values())[-1].median() < 1:
                change = f"--set model.threshold={threshold / 2:g}, or --set model.levels=..."
                lines.append(f"warning: most recordings leave no event for the last level: {change}")
        return lines

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        check_kind(file, recordings=True)
        settings = chosen(options, "repair", "votes", "topic")
        return self.prediction(model, file, classify_events(model, file, **settings), options.get("top", 3))


def _set_class(name: str) -> Any:
    """The class of a published data set."""
    import gridless.data as data

    return getattr(data, SETS[name][0])


def chain(recipe: Recipe, train: bool) -> Chain:
    """The transforms of a recording: augmentation (the recipe's, else the data set's), then preparation (of both)."""
    whole = SETS.get(recipe.data, SETS["glyphs"])[1]
    own, prepared = whole(False).steps, map(event_transform, recipe.prepare)
    if not train:
        return Chain((*prepared, *own))
    altered = whole(True).steps[: -len(own)] if recipe.transforms is None else map(event_transform, recipe.transforms)
    return Chain((*altered, *prepared, *own))


_ANY_SENSOR = (1 << 20, 1 << 20)


def prepared_sensor(recipe: Recipe, sensor: Sequence[int]) -> tuple[int, int]:
    """The sensor (width, height) of recordings after preparation."""
    return chain(recipe, train=False)(Events.of([], tuple(sensor))).sensor  # type: ignore[arg-type]


def _levels(recipe: Recipe, data: TrainingSet, model: Any) -> dict[str, Tensor]:
    """For each level, the number of events of some of the recordings."""
    geometry = model.plan(data.draw(chain(recipe, train=False), 0, 0, some_of(data)))
    steps = model.plan.steps.items()
    return {f"{name} {step.op}": geometry[name].sizes for name, step in steps if step.op in ("events", "lif")}


def _with_threshold(recipe: Recipe, data: TrainingSet) -> Recipe:
    """The recipe with a threshold that fits the recordings, unless the recipe or initial weights decide it.

    It is the network's default, halved until nine of ten recordings leave an event for the last level.
    """
    if "threshold" in recipe.model or recipe.start is not None:
        return recipe
    config: Any = recipe.make_model().config
    if "threshold" not in config:
        return recipe
    quiet: dict[float, float] = {}
    for halvings in range(MOST_HALVINGS + 1):
        threshold = config["threshold"] / 2**halvings
        lower = recipe.fitted(model={**recipe.model, "threshold": threshold})
        *_, last = _levels(lower, data, lower.make_model()).values()
        quiet[threshold] = (last == 0).double().mean().item()
        if quiet[threshold] <= QUIET:
            break
    return recipe.fitted(model={**recipe.model, "threshold": min(quiet, key=lambda key: quiet[key])})


def classify_events(
    model: Any,
    file: str | Path,
    repair: str | Sequence[str] = (),
    votes: int | None = None,
    topic: str | None = None,
) -> Tensor:
    """Probabilities (classes) of the recording in a file, prepared as those of the training set were.

    Args:
        model: a network from `gl.load`.
        file: the recording.
        repair: repairs of damaged recordings, those of `read_events`; if empty, as in training.
        votes: views whose probabilities are averaged; None: as in the recipe saved with the weights.
        topic: of a recording of ROS, where several topics have events; None: as in training.
    """
    from gridless.data import read_events

    recipe = Recipe.from_dict(getattr(model, "about", {}).get("recipe") or {"model": model.config, "data": "glyphs"})
    repair, sensor = repair or recipe.data_options.get("repair", ()), recorded_sensor(model, recipe)
    topic = topic_of(recipe, file, topic)
    events = read_events(file, sensor if "drop" in repair else None, repair, topic=topic)
    events = fitted(events, sensor, str(file))
    if not len(events):
        raise ValueError(f"{file}: the recording has no events. Leave it out.")
    data = TrainingSet.of(events, torch.zeros(1, dtype=torch.int64)).to(next(model.parameters()).device)
    return ClassifyRecordings().probabilities(model, data, recipe, 1, votes)[0].cpu()


def recorded_sensor(model: Any, recipe: Recipe) -> tuple[int, int]:
    """The sensor (width, height) of the training recordings before preparation."""
    sensor = tuple(model.config["sensor"])
    if recipe.data not in SETS:
        known = tuple(recipe.data_options.get("sensor") or sensor)
    else:
        known = getattr(_set_class(recipe.data), "sensor", sensor)
    # If preparation pools pixels, the network's own sensor is smaller than the camera.
    return known if prepared_sensor(recipe, known) == sensor else sensor


def fitted(events: Events, sensor: tuple[int, int], what: str) -> Events:
    """The same events with the sensor of the network; an error if one lies outside."""
    if len(events) and not bool((events.pixel < torch.tensor(sensor)).all()):
        raise ValueError(
            f"{what}: recorded with {events.sensor[0]} x {events.sensor[1]} pixels, but the network is for "
            f"{sensor[0]} x {sensor[1]}. Crop or pool pixels first (gridless.augment), or train another network."
        )
    return events._changed(sensor=sensor)
