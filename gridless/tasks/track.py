"""Tracking: the position of one object after any event, learned from positions that are known at some times.

A network of this task has `camera`, the name of its events, and `positions(geometry, at)`: the positions (B, P, 2) in
pixels after the events `at` (B, P), numbers of events in the batch that ascend in each row. `model(geometry)` is the
position (B, 2) after the last event. The loss compares each known position with that after the last event up to its
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from gridless.augment.events import Chain
from gridless.augment.policy import Policy
from gridless.tasks.base import FilePrediction
from gridless.tasks.folders import FileTask, TrackFiles
from gridless.tasks.loading import (
    FOLDER,
    SIZES,
    check_kind,
    check_stems,
    folder_of,
    generated,
    made,
    range_of,
    topic_of,
)
from gridless.tasks.positions import TRUTH, Turn, last_event, pieces, training_set, write_positions
from gridless.training.examples import TrainingSet
from gridless.training.recipe import Recipe
from gridless.training.step import Loss

# Options of a recipe, in microseconds: length of a training piece, and of the events before it without loss.
PIECES = {"piece": 80_000, "warm_up": 400_000}
# Microseconds of events that `predict` gives to a live network at once.
PACKET = 1000
# Default folder of `predict`, and the suffixes of an `--out` that is a file.
OUT, SUFFIXES = Path("tracks"), (".csv", ".json")
# Errors above this many pixels have a linear loss, because known positions may be wrong.
BEND = 1.0


class Track(FileTask):
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

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        from gridless.data import MovingBlobs, Spots

        options = _without_pieces(options)
        if recipe.data == "blobs":
            return training_set(made(MovingBlobs, options, SIZES, **generated(split, options)))
        return training_set(made(Spots, options, root=folder_of(recipe, path), split=split))

    def folder(self, recipe: Recipe, options: dict[str, Any], **settings: Any) -> TrackFiles:
        return TrackFiles({"sensor": recipe.model.get("sensor"), **_without_pieces(options)}, **settings)

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
        check_stems(files, out)

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


def _without_pieces(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the data set: those that are not of its pieces."""
    return {name: value for name, value in options.items() if name not in PIECES}
