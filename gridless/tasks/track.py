"""Tracking: the position of one object after any event, learned from positions that are known at some times.

A network of this task has `camera`, the name of its events, and `positions(geometry, at)`: the positions (B, P, 2) in
pixels after the events `at` (B, P), numbers of events in the batch that ascend in each row. `model(geometry)` is the
position (B, 2) after the last event. The loss compares each known position with that after the last event up to its
time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gridless.augment.draws import Draws
from gridless.augment.events import Chain, EventTransform, draw, replaced
from gridless.augment.policy import Policy
from gridless.data.files import write_whole
from gridless.data.packing import Item, Pack
from gridless.kernels.progress import track
from gridless.structures import Rows
from gridless.tasks.base import FilePrediction, Task
from gridless.tasks.loading import (
    FOLDER,
    SIZES,
    check_kind,
    folder_of,
    folder_options,
    generated,
    made,
    range_of,
    topic_of,
)
from gridless.tasks.storage import PackSource, examples_of, packed_recording, sensor_while_packing, set_sensor
from gridless.training.examples import TrainingSet
from gridless.training.packed import PackedSet
from gridless.training.recipe import Recipe
from gridless.training.step import Loss

# Name of the rows with the known position (x, y) of an event; NaN for events without one.
TRUTH = "truth"
# Options of a recipe, in microseconds: length of a training piece, and of the events before it without loss.
PIECES = {"piece": 80_000, "warm_up": 400_000}
# Microseconds of events that `predict` gives to a live network at once.
PACKET = 1000
# Default folder of `predict`, and the suffixes of an `--out` that is a file.
OUT, SUFFIXES = Path("tracks"), (".csv", ".json")
# Errors above this many pixels have a linear loss, because known positions may be wrong.
BEND = 1.0


class Track(Task):
    """The position of one object in recordings of an event camera."""

    name = "track"
    network = "a network that tracks an object"
    data = ("spots", "blobs", FOLDER)
    options = {"evaluate": (), "predict": ("--out", "--repair", "--topic")}

    def check_recipe(self, recipe: Recipe) -> None:
        if recipe.augment != Policy() or recipe.prepare or recipe.transforms not in (None, []):
            raise ValueError("recipe: augment, prepare and transforms do not transform positions. Leave them out.")
        for name, least in (("piece", 1), ("warm_up", 0)):
            value = recipe.data_options.get(name, least)
            if type(value) is not int or value < least:
                raise ValueError(f"recipe: data_options.{name} is {value!r}. Give whole microseconds, {least} or more.")

    def load(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> TrainingSet:
        from gridless.data import MovingBlobs, Spots, TrackFolder

        options = _data_options(recipe)
        if recipe.data == "blobs":
            return training_set(made(MovingBlobs, options, SIZES, **generated(split, options)))
        if recipe.data == "spots":
            return training_set(made(Spots, options, root=folder_of(recipe, path), split=split))
        settings = {"root": folder_of(recipe, path), "split": split, "held_out_list": held_out_list}
        return training_set(made(TrackFolder, _folder_options(recipe), **settings, progress=True))

    def source(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> PackSource | None:
        if recipe.data != FOLDER:
            return None
        from gridless.data import TrackFolder

        options, part = _folder_options(recipe), "test" if split == "test" else "train"
        sensor, options["sensor"] = options["sensor"], sensor_while_packing(options)
        settings = {"root": folder_of(recipe, path), "split": part, "held_out_list": held_out_list}
        folder = made(TrackFolder, options, **settings, read=False)

        def view(packed: Pack, name: str, keep: str) -> PackedSet:
            rows = folder.listing.rows(name)
            index, _ = examples_of(packed, [folder.listing.files[i] for i in rows])
            set_sensor(packed, sensor)
            known = dict(zip(folder.files, folder.positions, strict=True))
            positions = [known[folder.listing.files[i]] for i in rows]
            starts = packed.starts[index].tolist()
            labels = [values[values[:, 0] >= start] for values, start in zip(positions, starts, strict=True)]
            more = {"files": torch.tensor(rows), "listing": folder.listing}
            return PackedSet.of_pack(packed, index, keep, labels=_padded(labels, torch.nan), **more)

        files = [file for path in folder.paths for file in (path, path.with_suffix(".csv"))]
        reading = ("track", str(folder.asked), str(folder.repair), folder.topic)
        return PackSource(_TrackFiles(folder), folder.listing.root, files, reading, folder.files, view)

    def fit(self, recipe: Recipe, data: TrainingSet) -> Recipe:
        if TRUTH not in data.rows:
            raise ValueError("track: these examples have no known positions. Give a folder with CSV files.")
        return recipe.fitted(model={"sensor": list(data.events.sensor), **recipe.model})

    def check_data(self, model: Any, data: TrainingSet) -> None:
        sensor = tuple(model.config["sensor"])
        if data.events.sensor != sensor:
            raise ValueError(
                f"recipe: model.sensor is {sensor}, the recordings have {data.events.sensor}. Leave it out."
            )

    def describe(self, recipe: Recipe, data: TrainingSet, model: Any) -> list[str]:
        known = data.labels[..., 0].isfinite().sum(1)
        lines = [] if data.listing is None else [f"{data.listing.root}: held out: {data.listing.rule}"]
        lines.append("{} recordings to learn from, {} x {} pixels".format(len(data), *data.events.sensor))
        return [*lines, f"events each: {range_of(data.sizes)}; known positions each: {range_of(known)}"]

    def augment(self, recipe: Recipe, train: bool) -> Any:
        return Chain((Turn(),)) if train and recipe.transforms is None else None

    def describe_augmentation(self, recipe: Recipe) -> str:
        return Turn().describe() if recipe.transforms is None else "nothing"

    def selected(self, recipe: Recipe, data: TrainingSet, train: bool) -> TrainingSet:
        """Pieces for training, whole recordings for evaluation."""
        sizes = {name: recipe.data_options.get(name, size) for name, size in PIECES.items()}
        return pieces(data, **sizes) if train else data

    def batch_size(self, recipe: Recipe, data: TrainingSet, train: bool) -> int:
        return recipe.batch_size if train else 1

    def loss(self, model: Any, batch: Any, smoothing: float = 0.0) -> Loss:
        """Half the squared distance up to `BEND` pixels, then linear, over the known positions."""
        events, place = batch.geometry[model.camera], batch.labels
        # Rows end with -1: these repeat the last place, and do not count.
        at = events.splits[:-1, None] + place.cummax(1).values
        answers, truth, known = model.positions(batch.geometry, at).float(), events.rows[TRUTH][at], place >= 0
        error = functional.smooth_l1_loss(answers, truth, reduction="none", beta=BEND).sum(2)
        return Loss((error * known).sum() / known.sum().clamp(min=1))

    @torch.no_grad()
    def score(self, model: Any, batch: Any) -> Tensor:
        """(B, 3): number of known positions, and sums of squared errors of the answers and of the mean position."""
        events, time, truth = batch.geometry[model.camera], batch.labels[..., 0], batch.labels[..., 1:]
        ends, known = events.splits.tolist(), time.isfinite()
        # Rows end with NaN, which comes after the last event.
        later = time.nan_to_num(2.0**62)
        at = [last_event(events.time[a:b], row) + a for a, b, row in zip(ends, ends[1:], later, strict=False)]
        answers = model.positions(batch.geometry, torch.stack(at))
        errors = answers - truth, truth - truth.nanmean(1, keepdim=True)
        sums = [error.square().sum(2).nan_to_num().sum(1) for error in errors]
        return torch.stack([known.sum(1), *sums], 1).double()

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        """RMS errors in pixels, averaged over recordings: of the answers, and of each recording's mean position."""
        each = (scores[:, 1:] / scores[:, :1].clamp(min=1)).sqrt()
        rms, constant = each.mean(0).tolist()
        return {"rms": rms, "rms_of_the_mean": constant, "recordings": len(each), "by_recording": each[:, 0].tolist()}

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        error = f"{figures['rms']:.3f} pixels RMS, the mean of {figures['recordings']} recordings"
        return f"{error} (their own mean positions: {figures['rms_of_the_mean']:.3f})"

    def live(self, logits: Tensor, names: Sequence[str]) -> list[dict[str, Any]]:
        return [{"x": round(x, 3), "y": round(y, 3)} for x, y in logits.tolist()]

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        out = options.get("out", OUT)
        if len(files) > 1 and out.suffix in SUFFIXES:
            raise ValueError(f"--out {out} is one file for {len(files)} recordings. Give a folder.")
        if len({file.stem for file in files}) < len(files):
            raise ValueError(f"two of the files have the same name and would share one file in {out}. Use two calls.")

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        """Write the positions to `out`, a file .csv or .json, or a folder: after each `PACKET` with events, or all of
        a network that answers after every event."""
        from gridless.data import read_events
        from gridless.live import stream

        check_kind(file, recordings=True)
        topic = topic_of(getattr(model, "about", {}).get("recipe") or {}, file, options.get("topic"))
        sensor, repair = tuple(model.config["sensor"]), options.get("repair", ())
        events = read_events(file, sensor=sensor, repair=repair, topic=topic)
        sizes = (events.time // PACKET).unique_consecutive(return_counts=True)[1]
        engine, ends = stream(model), sizes.cumsum(0).tolist()
        answers = [p for a, b in zip([0, *ends], ends, strict=False) for p in engine.push(events[a:b])]
        out = options.get("out", OUT)
        out = out if out.suffix in SUFFIXES else out / f"{file.stem}.csv"
        columns = np.array([(p.time, *p.logits.tolist()) for p in answers]).reshape(-1, 3)
        write_positions(out, columns)
        x, y = columns[-1, 1:] if len(columns) else model.middle.tolist()
        line = f"{file}: {len(columns):,} positions, the last ({x:.2f}, {y:.2f}), in {out}"
        return FilePrediction(line, {"file": str(file), "positions": len(columns), "x": x, "y": y, "out": str(out)})


def training_set(data: Any) -> TrainingSet:
    """The training set of a data set with `sensor`, `batch()`, `positions` and `listing`, such as `gl.data.Spots`.

    Labels (N, P, 3) are the known positions from the first event on, padded with NaN; events have the rows `truth`.
    """
    events = data.batch()
    times = events.time.split(events.splits.diff().tolist())
    truths, known = zip(*map(_truth, times, data.positions), strict=True)
    labels, files = _padded(known, torch.nan), None
    if data.listing is not None:
        numbers = {file: i for i, file in enumerate(data.listing.files)}
        files = torch.tensor([numbers[file] for file in data.names])
    events = events._changed(rows=Rows({TRUTH: torch.cat(truths)}))
    return TrainingSet.of(events, labels, files=files, listing=data.listing)


def _data_options(recipe: Recipe) -> dict[str, Any]:
    """The recipe's options of the data set: those that are not of its pieces."""
    return {name: value for name, value in recipe.data_options.items() if name not in PIECES}


def _folder_options(recipe: Recipe) -> dict[str, Any]:
    """The options of a folder; its recordings have the sensor of the network, if that is known."""
    options = folder_options(recipe.fitted(data_options=_data_options(recipe)))
    return {"sensor": recipe.model.get("sensor"), **options}


class _TrackFiles:
    """The recordings of a folder with the rows `truth`, read one by one."""

    def __init__(self, folder: Any) -> None:
        self.folder, self.class_names = folder, ()

    def __len__(self) -> int:
        return len(self.folder.paths)

    def __getitem__(self, i: int) -> Item:
        file = self.folder.paths[i]
        events = self.folder.read_file(file)
        truth, _ = _truth(events.time, self.folder.positions[i])
        return packed_recording(file, events._changed(rows=Rows({TRUTH: truth})))


def _truth(time: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The rows `truth` (S, 2) of a recording with events at `time` (S), and its known positions from then on."""
    truth = torch.full((len(time), 2), torch.nan)
    known = known[known[:, 0] >= time[0]] if len(time) else known[:0]
    truth[last_event(time, known[:, 0])] = known[:, 1:].float()
    return truth, known


def _padded(rows: Sequence[Tensor], value: float) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), True, value)


def last_event(time: Tensor, known: Tensor) -> Tensor:
    """The number of the last event up to each known time."""
    return torch.searchsorted(time, known.to(torch.int64), right=True) - 1


def pieces(data: TrainingSet, piece: int, warm_up: int) -> TrainingSet:
    """Pieces of `piece` microseconds, each after `warm_up` microseconds of events that have no loss.

    Labels (N, P) are the places of the events with a known position in the piece, then -1.
    """
    parts, places = [], []
    for i in track(range(len(data)), "cut", shown=data.on_disk):
        events = data.cut(torch.tensor([i]))
        own, known = events.time.cpu(), events.rows[TRUTH].isfinite().all(1).cpu()
        starts = torch.arange(int(own[0]), int(own[-1]) + 1, piece) if len(own) else own
        seen, judged, ends = (torch.searchsorted(own, starts + by) for by in (-warm_up, 0, piece))
        for a, b, c in zip(seen.tolist(), judged.tolist(), ends.tolist(), strict=True):
            place = known[b:c].nonzero()[:, 0] + (b - a)
            if len(place):
                parts.append((i, a, c - a))
                places.append(place)
    if not places:
        raise ValueError("track: no position is known in these recordings. Give positions at times of events.")
    index, begin, sizes = torch.tensor(parts).unbind(1)
    return data.parts_of(index, begin, sizes, _padded(places, -1).to(data.device))


def write_positions(path: Path, columns: np.ndarray) -> None:
    """Write (K, 3) of time in microseconds, x and y as a CSV or, by its suffix, JSON file."""
    if path.suffix == ".json":
        time, x, y = columns.T.tolist()
        text = json.dumps({"time_us": list(map(int, time)), "x": x, "y": y})
    else:
        text = "time_us,x,y\n" + "".join(f"{int(time)},{x:.4f},{y:.4f}\n" for time, x, y in columns)
    write_whole(path, text.encode())


@dataclass(frozen=True)
class Turn(EventTransform):
    """Mirror each recording along x, along y, and on a square sensor about the diagonal, each with probability 1/2.

    The rows `truth` follow the pixels.
    """

    def describe(self) -> str:
        return "mirrored and turned by right angles"

    def apply(self, events: Any, draws: Draws) -> Any:
        pixel, truth = events.pixel.clone(), events.rows[TRUTH].clone()
        for axis, side in enumerate(events.sensor):
            chosen = (draw(events, draws) < 0.5)[events.example]
            for place in (pixel, truth):
                place[:, axis] = torch.where(chosen, side - 1 - place[:, axis], place[:, axis])
        if events.sensor[0] == events.sensor[1]:
            chosen = (draw(events, draws) < 0.5)[events.example][:, None]
            pixel, truth = (torch.where(chosen, place.flip(1), place) for place in (pixel, truth))
        return replaced(events, pixel=pixel, rows={**events.rows, TRUTH: truth})
