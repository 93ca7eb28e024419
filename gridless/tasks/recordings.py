"""Classification of recordings: one label for each, by event networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gridless.augment import events as augment
from gridless.augment.events import Chain, EventTransform, StartAtZero
from gridless.augment.policy import Policy
from gridless.data.packing import Item, Pack
from gridless.kernels.threads import in_threads
from gridless.structures import Events, collate
from gridless.tasks.base import FilePrediction
from gridless.tasks.classify import NameExamples
from gridless.tasks.loading import (
    FOLDER,
    SIZES,
    check_kind,
    describe_folder,
    folder_of,
    folder_options,
    generated,
    made,
    range_of,
    some_of,
    topic_of,
)
from gridless.tasks.storage import PackSource, examples_of, packed_recording, sensor_while_packing, set_sensor
from gridless.training.examples import TrainingSet
from gridless.training.packed import PackedSet
from gridless.training.recipe import Recipe

# The threshold of a network for a folder is halved at most so often,
MOST_HALVINGS = 3
# while more than this share of the recordings leaves no event for the last level.
QUIET = 0.1
# Recordings that one thread reads at a time.
CHUNK = 64


def _from_zero(train: bool) -> Chain:
    return Chain((StartAtZero(),))


# name -> (class in gridless.data, the paper's transforms of its recordings)
SETS: dict[str, tuple[str, Callable[[bool], Chain]]] = {
    "n_mnist": ("NMNIST", augment.n_mnist),
    "mnist_dvs": ("MNISTDVS", augment.mnist_dvs),
    "cifar10_dvs": ("CIFAR10DVS", augment.cifar10_dvs),
    "n_caltech101": ("NCaltech101", augment.n_caltech101),
    "asl_dvs": ("ASLDVS", augment.asl_dvs),
    "n_cars": ("NCars", _from_zero),
    "glyphs": ("MovingGlyphs", _from_zero),
}


class ClassifyRecordings(NameExamples):
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
            transform_of(entry)

    def load(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> TrainingSet:
        import gridless.data as data

        if recipe.data == FOLDER:
            options = folder_options(recipe, held_out_list, about)
            return _folder(recipe, folder_of(recipe, path), split, options)
        options = dict(recipe.data_options)
        if recipe.data == "glyphs":
            glyphs = made(data.MovingGlyphs, options, SIZES, **generated(split, options))
            events = Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
            return TrainingSet.of(events, glyphs.labels, glyphs.class_names)
        kind = getattr(data, SETS[recipe.data][0])
        return read(made(kind, options, root=folder_of(recipe, path), split=split))

    def source(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> PackSource | None:
        if recipe.data == FOLDER:
            options = folder_options(recipe, held_out_list, about)
            return _folder_source(recipe, folder_of(recipe, path), split, options)
        if recipe.data == "glyphs":
            return None
        return _set_source(recipe, folder_of(recipe, path), split)

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
        return [*describe_folder(data.listing), *_describe(recipe, data, model)]

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        check_kind(file, recordings=True)
        settings = {name: options[name] for name in ("repair", "votes", "topic") if name in options}
        return self.prediction(model, file, classify_events(model, file, **settings), options.get("top", 3))


def read(data: Any) -> TrainingSet:
    """Read all recordings of a data set with `batch(rows)`, `labels` and `class_names`, without its transform."""
    rows = np.arange(len(data))
    # Packs are in memory already.
    pieces = 1 if data.pack is not None else max(1, -(-len(data) // CHUNK))
    parts = in_threads(data.batch, [(part,) for part in np.array_split(rows, pieces)])
    return TrainingSet.of(parts[0] if len(parts) == 1 else collate(parts), data.labels, data.class_names)


def _set_source(recipe: Recipe, root: Path, split: str) -> PackSource | None:
    """The files of a published data set. Its parts `fit` and `validation` are views of the pack of `train`."""
    import gridless.data as data

    kind, options = getattr(data, SETS[recipe.data][0]), recipe.data_options
    whole = made(kind, options, root=root, split="test" if split == "test" else "train")

    def view(packed: Pack, name: str, keep: str) -> PackedSet:
        part = made(kind, options, root=root, split=name)
        index, _ = examples_of(packed, [str(file.relative_to(root)) for file in part.files])
        return PackedSet.of_pack(packed, index, keep)

    if whole.pack is not None:
        # An archive is in memory already.
        return None
    names = [str(file.relative_to(root)) for file in whole.files]
    return PackSource(whole, root, whole.files, (kind.__name__, str(whole.repair)), names, view)


class _RecordingFiles:
    """The recordings of a folder, read one by one, with the sensor of each."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.class_names = folder, folder.class_names

    def __len__(self) -> int:
        return len(self.folder.listing.files)

    def __getitem__(self, i: int) -> Item:
        listing = self.folder.listing
        file = listing.root / listing.files[i]
        events = self.folder.read_file(file)
        return packed_recording(file, events, listing.labels[i])


def _folder_source(recipe: Recipe, path: Path, split: str, options: dict[str, Any]) -> PackSource:
    from gridless.data.folder import EventFolder

    options = _with_sensor(recipe, options)
    sensor = options.get("sensor")
    options["sensor"] = sensor_while_packing(options)
    folder = made(EventFolder, options, root=path, split=split, progress=False, read=False)
    listing = folder.listing

    def view(packed: Pack, name: str, keep: str) -> PackedSet:
        rows = torch.tensor(listing.rows(name))
        index, owner = examples_of(packed, [listing.files[i] for i in rows.tolist()])
        set_sensor(packed, sensor)
        files = rows[owner]
        labels = torch.tensor(listing.labels)[files]
        data = PackedSet.of_pack(
            packed, index, keep, labels=labels, class_names=listing.class_names, files=files, listing=listing
        )
        if len(data) and not int(data.sizes.min()):
            empty = path / listing.files[int(files[data.sizes.argmin()])]
            raise ValueError(f"{empty}: the recording has no events. Remove it.")
        return data

    settings = ("recordings", str(folder.asked), str(folder.repair), folder.topic)
    return PackSource(
        _RecordingFiles(folder), path, [path / file for file in listing.files], settings, listing.files, view
    )


def _with_sensor(recipe: Recipe, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a folder with the sensor of the network, unless preparation changes the sensor."""
    same = prepared_sensor(recipe, _ANY_SENSOR) == _ANY_SENSOR
    return {"sensor": recipe.model.get("sensor") if same else None, **options}


def _folder(recipe: Recipe, path: Path, split: str, options: dict[str, Any]) -> TrainingSet:
    from gridless.data.folder import EventFolder

    options = _with_sensor(recipe, options)
    folder = made(EventFolder, options, root=path, split=split, progress=True, read=True)
    files = torch.tensor(folder.listing.rows(split))
    return TrainingSet.of(folder.batch(), folder.labels, folder.class_names, files=files, listing=folder.listing)


def chain(recipe: Recipe, train: bool) -> Chain:
    """The transforms of a recording: augmentation (the recipe's, else the data set's), then preparation (of both)."""
    whole = SETS["glyphs" if recipe.data not in SETS else recipe.data][1]
    own = whole(False).steps
    altered: Iterable[EventTransform] = ()
    if train and recipe.transforms is None:
        steps = whole(True).steps
        altered = steps[: len(steps) - len(own)]
    elif train:
        altered = map(transform_of, recipe.transforms or ())
    return Chain((*altered, *map(transform_of, recipe.prepare), *own))


_ANY_SENSOR = (1 << 20, 1 << 20)


def prepared_sensor(recipe: Recipe, sensor: Sequence[int]) -> tuple[int, int]:
    """The sensor (width, height) of recordings after preparation."""
    return chain(recipe, train=False)(Events.of([], tuple(sensor))).sensor  # type: ignore[arg-type]


def transform_of(entry: Any) -> EventTransform:
    """An event transform from a recipe: `ReverseTime`, or `{Zoom: [0.85, 1.2]}` with its arguments in order."""
    name, arguments = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, [])
    known = {k: v for k, v in vars(augment).items() if isinstance(v, type) and issubclass(v, EventTransform)}
    known = {k: v for k, v in known.items() if k not in ("EventTransform", "Chain") and not k.startswith("_")}
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"recipe: transforms: unknown transform {name!r}. Choose from {', '.join(sorted(known))}.")
    try:
        return known[name](*(arguments if isinstance(arguments, list) else [arguments]))
    except TypeError as error:
        raise ValueError(f"recipe: transforms: {name}: {error}") from None


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


def _describe(recipe: Recipe, data: TrainingSet, model: Any) -> list[str]:
    """Lines with the number of events, and the number left at each level; warnings last."""
    events = data.cut(some_of(data)) if data.on_disk else data.events
    # A folder refuses recordings without events.
    length = events.time[events.splits[1:] - 1] - events.time[events.splits[:-1]]
    lines = [
        f"{len(data)} recordings to learn from, {events.sensor[0]} x {events.sensor[1]} pixels",
        f"events each: {range_of(data.sizes)}; milliseconds each: {range_of(length / 1000)}",
    ]
    levels = _levels(recipe, data, model)
    lines += [f"  {name}: {range_of(sizes)} events" for name, sizes in levels.items()]
    if "threshold" in model.config:
        lines.append(f"levels fire above {model.config['threshold']:g} (--set model.threshold=...)")
    if "threshold" in model.config and list(levels.values())[-1].median() < 1:
        change = f"--set model.threshold={model.config['threshold'] / 2:g}, or --set model.levels=..."
        lines.append(f"warning: most recordings leave no event for the last level: {change}")
    return lines


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
    import gridless.data as data

    sensor = tuple(model.config["sensor"])
    if recipe.data not in SETS:
        known = tuple(recipe.data_options.get("sensor") or sensor)
    else:
        known = getattr(getattr(data, SETS[recipe.data][0]), "sensor", sensor)
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
