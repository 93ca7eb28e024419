"""A folder of your own files: FOLDER/CLASS/* of clouds or recordings, or clouds whose points have labels.

    data = gl.data.CloudFolder("scans", "fit")                        scans/mug/03.ply, scans/chair/07.las ...
    data = gl.data.CloudFolder("sites", "fit", label="classification", up="z", block=10.0)      sites/**/*.laz
    data = gl.data.EventFolder("gestures", "fit")                     gestures/wave/01.aedat4 ...

Folders named `train`, `test` or `validation` (or `val`) are the splits. Without `train`, all other files are learned
from, and a folder `test` whose folders are no classes is a class. Without a folder for validation, a fifth of the files
is held out (`gridless/data/sessions.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless.data.base import Examples, Steps
from gridless.data.labels import LabelNames, ignored, labels_of
from gridless.data.listing import CLOUDS, RECORDINGS, listing
from gridless.data.prepare import (
    Preparation,
    blocks,
    check_length,
    check_scales,
    is_finite,
    joined,
    padded,
    prepare,
    read_points,
    row,
    scale,
)
from gridless.data.readers import events as recordings
from gridless.data.readers.bags import is_bag
from gridless.data.readings import READINGS, read_files
from gridless.geometry import grid_sample
from gridless.structures import Cloud, Events, Rows, collate


class CloudFile(NamedTuple):
    """One file as it was read: its examples, None if another split took them, and facts about it."""

    pieces: list[Cloud] | None
    labels: frozenset[int]
    """Labels of its points, before any were left out."""
    gaps: int
    """Points that are not finite, which were left out."""
    scales: dict[str, int]
    """Divisor of each feature, by name."""


class CloudFolder(Examples):
    """Clouds from files, each of a class, or with a label for every point: `data[i]` is (`Cloud`, class number).

    Args:
        root: the folder.
        split: `train`, or its parts `fit` and `validation`; or `test`.
        points: the most points of a cloud; from larger clouds they are drawn at random.
        label: the row with the labels of points, `auto` for one of the usual names; then folders are no classes.
            `NAME.2` is a column of a row.
        grid: where points have labels, one point is kept of every cell of this side, before anything else.
        held_out_list: a file that lists those for validation, as training leaves in OUT/split.txt.
        names: of labels of points, such as {2: ground}. Labels of one name are one, the lowest: {10: car, 252: car}.
        ignore: labels that mean "none", such as [0, 255], besides -1. Such points are seen, but neither learned nor
            judged, and have the part -1.
        class_names: numbers the classes; default: those of the folder.
        values: numbers the labels of points; default: those that occur.
        topic: of recordings of ROS, where several topics have clouds. The first message of each is read.
        transform, seed: those of `Examples`.
        progress: show a bar while files are read.
        read: read the files; without, there are no examples, and `read_file` reads one file of `listing`.
        how: the arguments of `Preparation`: up, keep_scale, features, block, scales.

    `clouds` is one ragged `Cloud` of all examples, `labels` (N) are their classes. `coords` (N, points, 3), `sizes` (N)
    and `rows` are the same with padding. `listing` says which file is where.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        points: int = 1024,
        label: str | None = None,
        grid: float | None = None,
        held_out_list: str | Path | None = None,
        names: dict[Any, str] | None = None,
        ignore: int | Sequence[int] = (),
        class_names: Sequence[str] | None = None,
        values: Sequence[int] | None = None,
        topic: str | None = None,
        transform: Steps = (),
        progress: bool = False,
        seed: int | None = None,
        read: bool = True,
        **how: Any,
    ) -> None:
        super().__init__(transform, seed)
        check_length("grid", grid)
        self.how, self.points, self.label, self.grid, self.topic = Preparation(**how), points, label, grid, topic
        self.split, self.ignore, self.names = split, ignored(ignore), LabelNames(names)
        if (self.how.block or grid or self.ignore) and not label:
            raise ValueError(
                "CloudFolder: block, grid and ignore are for points with labels. Give the row, label='auto'."
            )
        self.listing = listing(root, CLOUDS, label is None, held_out_list, None if label else class_names)
        self.class_names, self.known_values = list(self.listing.class_names), values
        if read:
            chosen = self.listing.rows(split)
            files = self._read_all(chosen, progress)
            self.conclude(files)
            self._fill(chosen, files)

    def conclude(self, files: Mapping[Path, CloudFile]) -> None:
        """Set `how`, `values` and `part_names` by the facts about all files."""
        self.how = replace(self.how, scales=_scales(files, self.how.scales))
        _warn_of_gaps(files)
        self.values = _values(files, self.listing.root, self.known_values) if self.label else []
        self.part_names = self.names.of(self.values)

    @property
    def settings(self) -> tuple:
        """The options that decide how a file is read."""
        how = replace(self.how, scales={})
        return self.label, self.points, self.grid, how, self.ignore, self.names.first, self.topic

    def _read_all(self, chosen: Sequence[int], progress: bool) -> dict[Path, CloudFile]:
        """Read the chosen files. If points have labels, all others, too: labels are numbered through all files."""
        rows = range(len(self.listing.files)) if self.label else chosen
        paths = {self.listing.root / self.listing.files[i]: i for i in rows}
        indices = set(chosen)
        wanted = {path for path, i in paths.items() if i in indices}
        READINGS.select((self.listing.root, *self.settings))

        def cached(path: Path) -> CloudFile | None:
            file = READINGS.get(path)
            return None if file is None or (path in wanted and file.pieces is None) else file

        files = read_files(list(paths), self.read_file, progress, cached=cached)
        for path, file in files.items() if self.label else ():
            READINGS.keep(path, file._replace(pieces=None) if path in wanted else file)
        return files

    def _fill(self, chosen: Sequence[int], files: dict[Path, CloudFile]) -> None:
        """Set the tensors of the chosen files."""
        paths = [self.listing.root / self.listing.files[i] for i in chosen]
        pieces = [(i, piece) for i, path in zip(chosen, paths) for piece in files[path].pieces or ()]
        self.files = [self.listing.files[i] for i, _ in pieces]
        self.labels = torch.tensor([self.listing.labels[i] for i, _ in pieces], device="cpu")
        clouds = collate([piece for _, piece in pieces])
        if self.values:
            part = clouds.rows["part"]
            number = torch.searchsorted(torch.tensor(self.values, device="cpu"), part)
            clouds = clouds._changed(rows=Rows({**clouds.rows, "part": torch.where(part < 0, -1, number)}))
        self.clouds = clouds

    def __repr__(self) -> str:
        kinds = f"labels of points: {', '.join(self.part_names)}" if self.label else _classes_in_words(self.class_names)
        head = f"CloudFolder({str(self.listing.root)!r}, {self.split!r}): {len(self):,} clouds"
        return f"{head}, {int(self.sizes.sum()):,} points, {kinds}"

    @property
    def sizes(self) -> Tensor:
        """(N) points of each example."""
        return self.clouds.sizes

    @cached_property
    def coords(self) -> Tensor:
        """(N, points, 3), zeros behind the shorter examples."""
        return padded([one.coords for one in self.clouds.examples])

    @cached_property
    def rows(self) -> dict[str, Tensor]:
        """(N, points, ...) by name, zeros behind the shorter examples."""
        return {name: padded([one.rows[name] for one in self.clouds.examples]) for name in self.clouds.rows}

    def read_file(self, path: Path) -> CloudFile:
        """The examples of one file, and the facts about it."""
        cloud = read_points(path, self.points, self.how, bool(self.label), self.topic)
        labels, gaps = frozenset[int](), 0
        if self.label:
            cloud, gaps = _finite(cloud, path)
            part = self.names.merged(labels_of(cloud, path, self.label, self.ignore))
            cloud = Cloud.of(cloud, part=part)
            # Before points are left out: how many are kept must not change which labels there are.
            labels = frozenset(part[part >= 0].unique().tolist())
            cloud = grid_sample(cloud, self.grid) if self.grid else cloud
        rows = (*self.how.features, "part") if self.label else self.how.features
        scales = {name: scale(row(cloud, name, str(path)).dtype) for name in self.how.features}
        pieces = [prepare(cloud[block], str(path), self.points, self.how, rows) for block in blocks(cloud, self.how)]
        return CloudFile(pieces, labels, gaps, scales)

    def batch(self) -> Cloud:
        """All clouds as one ragged batch."""
        return self.clouds

    def example(self, i: int) -> Cloud:
        return self.clouds.examples[i]

    def _seen(self, example: Any) -> Any:
        # Augmentation needs the rows by their names; the network sees one row of all features.
        return joined(example, self.how.features) if isinstance(example, Cloud) else example


def _finite(cloud: Cloud, path: Path) -> tuple[Cloud, int]:
    """The points that are finite, and how many are not."""
    finite = is_finite(cloud)
    gaps = int((~finite).sum())
    if gaps == len(cloud):
        raise ValueError(f"{path}: no point is finite")
    return (cloud[finite] if gaps else cloud), gaps


def _scales(files: Mapping[Path, CloudFile], trained: Mapping[str, int]) -> dict[str, int]:
    """The divisor of each feature, the same in all files, and as in training if that is known."""
    scales = {name: {by: "training"} for name, by in trained.items()}
    for path, file in files.items():
        for name, by in file.scales.items():
            scales.setdefault(name, {}).setdefault(by, str(path))
    check_scales(scales)
    return {name: next(iter(places)) for name, places in scales.items()}


def _warn_of_gaps(files: Mapping[Path, CloudFile]) -> None:
    gaps = {str(path): file.gaps for path, file in files.items() if file.gaps}
    if gaps:
        points = f"{sum(gaps.values())} points of {len(gaps)} files, such as {min(gaps)},"
        warnings.warn(f"{points} are not finite and are left out", stacklevel=4)


def _values(files: Mapping[Path, CloudFile], root: Path, known: Sequence[int] | None) -> list[int]:
    """The labels of points, in order: those that weights know, or all that occur."""
    occurring = {label: path for path, file in files.items() for label in sorted(file.labels)}
    values = sorted(occurring if known is None else known)
    if not values:
        raise ValueError(f"{root}: no point has a label other than -1 and the ignored ones")
    for label, path in occurring.items():
        if label not in values:
            listed = ", ".join(map(str, values))
            raise ValueError(f"{path}: these weights do not know the label {label}, only {listed}")
    return values


def _classes_in_words(names: Sequence[str]) -> str:
    return f"{len(names)} classes: {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


class EventFile(NamedTuple):
    """One recording as it was read: its sensor, and its events, None if another split took them."""

    sensor: tuple[int, int]
    events: Events | None


class EventFolder(Examples):
    """Recordings from FOLDER/CLASS/*: `data[i]` is (`Events`, class number), all on one sensor.

    Args:
        root: the folder.
        split: `train`, or its parts `fit` and `validation`; or `test`.
        held_out_list: a file that lists those for validation, as training leaves in OUT/split.txt.
        sensor: (width, height); default: that of the largest recording, for which the files of all splits are read.
        repair: faults of recordings to repair, as in `read_events`.
        class_names: numbers the classes; default: those of the folder.
        topic: of recordings of ROS, where several topics have events.
        transform, seed: those of `Examples`.
        progress: show a bar while files are read.
        read: read the files; without, there are no examples, and `read_file` reads one file of `listing`.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        held_out_list: str | Path | None = None,
        sensor: Sequence[int] | None = None,
        repair: str | Sequence[str] = (),
        class_names: Sequence[str] | None = None,
        topic: str | None = None,
        transform: Steps = (),
        progress: bool = False,
        seed: int | None = None,
        read: bool = True,
    ) -> None:
        super().__init__(transform, seed)
        self.listing, self.split = listing(root, RECORDINGS, True, held_out_list, class_names), split
        self.repair, self.topic = repair, topic
        self.class_names = list(self.listing.class_names)
        self.asked = None if sensor is None else (int(sensor[0]), int(sensor[1]))
        if read:
            self._fill(progress)

    def read_file(self, path: Path) -> Events:
        """The recording in one file, on the sensor that was asked for, else on its own."""
        topic = self.topic if is_bag(path) else None
        return recordings.read_events(path, sensor=self.asked, repair=self.repair, topic=topic)

    def _fill(self, progress: bool) -> None:
        """Set the tensors of the split's files."""
        rows = self.listing.rows(self.split)
        self.files = [self.listing.files[i] for i in rows]
        self.labels = torch.tensor([self.listing.labels[i] for i in rows], device="cpu")
        files = self._read_all(self.asked, progress)
        self.sensor = self.asked or tuple(int(v) for v in np.max([file.sensor for file in files.values()], 0))
        chosen = [files[self.listing.root / file].events for file in self.files]
        self.recordings = [events._changed(sensor=self.sensor) for events in chosen if events is not None]

    def _read_all(self, sensor: tuple[int, int] | None, progress: bool) -> dict[Path, EventFile]:
        """Read the chosen files. If no sensor is given, all others, too: the largest decides."""
        wanted = {self.listing.root / file for file in self.files}
        READINGS.select((self.listing.root, str(self.repair), self.topic, "events"))

        def cached(path: Path) -> EventFile | None:
            file = READINGS.get(path)
            if file is None or (path in wanted and not file.events):
                return None
            fits = sensor is None or (file.sensor[0] <= sensor[0] and file.sensor[1] <= sensor[1])
            return file if fits else None

        def read(path: Path) -> EventFile:
            events = self.read_file(path)
            if path in wanted and not len(events):
                raise ValueError(f"{path}: the recording has no events. Remove it.")
            return EventFile(events.sensor, events)

        paths = [self.listing.root / file for file in (self.listing.files if sensor is None else self.files)]
        remedy = "Mend or remove them, or say how to repair them (repair=, in a recipe --set data_options.repair=sort)."
        files = read_files(paths, read, progress, remedy, cached)
        for path, file in files.items() if sensor is None else ():
            READINGS.keep(path, file._replace(events=None) if path in wanted else file)
        return files

    def __repr__(self) -> str:
        size, events = " x ".join(map(str, self.sensor)), sum(map(len, self.recordings))
        head = f"EventFolder({str(self.listing.root)!r}, {self.split!r}): {len(self):,} recordings"
        return f"{head}, {events:,} events on {size} pixels, {_classes_in_words(self.class_names)}"

    def batch(self) -> Events:
        """All recordings as one ragged batch."""
        return collate(self.recordings)

    def example(self, i: int) -> Events:
        return self.recordings[i]
