"""Folders of the user's files as examples: read into memory, or packed once and read batch by batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from gridless.data.packing import Item, Pack
from gridless.data.prepare import Preparation
from gridless.structures import Cloud, Events, Rows
from gridless.tasks.base import Task
from gridless.tasks.loading import FOLDER, folder_of, folder_options, made
from gridless.tasks.positions import TRUTH, padded, training_set, truth_of
from gridless.tasks.storage import PackSource, check_labelled, examples_of
from gridless.training.examples import TrainingSet
from gridless.training.packed import PackedSet
from gridless.training.recipe import Recipe

# Options of a folder that say how its points are prepared.
HOW = tuple(Preparation.__dataclass_fields__)
# Upper bound on the sensor of a packed folder: events are packed before the largest sensor is known.
PACKED_SENSOR = (4096, 4096)


class FileTask(Task):
    """A task on data sets that recipes name, and on folders of the user's files."""

    def load(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> TrainingSet:
        if recipe.data == FOLDER:
            options = folder_options(recipe, held_out_list, about)
            data = self.folder(recipe, options, root=folder_of(recipe, path), split=split, read=True).in_memory()
        else:
            data = self.load_set(recipe, path, split, dict(recipe.data_options))
        return check_labelled(data, split)

    def source(
        self,
        recipe: Recipe,
        path: Path | None,
        split: str,
        held_out_list: Path | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> PackSource | None:
        if recipe.data != FOLDER:
            return self.source_of_set(recipe, path, split, dict(recipe.data_options))
        options, part = folder_options(recipe, held_out_list, about), "test" if split == "test" else "train"
        return self.folder(recipe, options, root=folder_of(recipe, path), split=part, read=False).source()

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        """A split of a data set that a recipe names."""
        raise NotImplementedError

    def source_of_set(
        self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]
    ) -> PackSource | None:
        """The files of a data set that a recipe names; None if it is small."""
        return None

    def folder(self, recipe: Recipe, options: dict[str, Any], **settings: Any) -> FolderFiles:
        """A folder of the user's files; `settings` are its `root`, the `split`, and whether to `read` the files."""
        raise NotImplementedError


class FolderFiles:
    """A folder of the user's files: its examples in memory, or an item for each file, from which a pack is made.

    `folder` is a data set of `gridless.data`; `settings` decide how a file is read.
    """

    beside: ClassVar[Sequence[str]] = ()
    """Suffixes of files beside each file that are read with it."""

    def __init__(self, folder: Any, settings: tuple) -> None:
        self.folder, self.settings, self.listing = folder, settings, folder.listing
        self.names: Sequence[str] = folder.listing.files
        self.class_names: Sequence[str] = folder.listing.class_names

    def in_memory(self) -> TrainingSet:
        """The examples of the folder's split, which is read."""
        folder = self.folder
        return TrainingSet.of(folder.batch(), folder.labels, files=self.files, listing=self.listing, **self.facts())

    def facts(self) -> dict[str, Any]:
        """Fields of every training set of these files, once all are read."""
        return {"class_names": self.class_names}

    def item(self, path: Path, i: int) -> Item:
        """The examples of file i, for a pack."""
        raise NotImplementedError

    def fields(self, packed: Pack, index: Tensor, files: Tensor) -> dict[str, Any]:
        """Fields of the training set of the examples `index` of a pack, which are of the `files` of the listing."""
        return {"labels": torch.tensor(self.listing.labels)[files], **self.facts()}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, i: int) -> Item:
        return self.item(self.listing.root / self.names[i], i)

    @property
    def files(self) -> Tensor:
        """(N) the number in the listing of the file of each example of the split."""
        numbers = {file: i for i, file in enumerate(self.listing.files)}
        return torch.tensor([numbers[file] for file in self.folder.files])

    def source(self) -> PackSource:
        """The files for a pack."""
        paths = [self.listing.root / name for name in self.names]
        read = [file for path in paths for file in (path, *map(path.with_suffix, self.beside))]
        return PackSource(self, self.listing.root, read, self.settings, self.names, self.view)

    def view(self, packed: Pack, split: str, keep: str) -> PackedSet:
        """The examples of a split of the pack."""
        rows = torch.tensor(self.listing.rows(split))
        index, owner = examples_of(packed, [self.listing.files[i] for i in rows.tolist()])
        files = rows[owner]
        more = self.fields(packed, index, files)
        return PackedSet.of_pack(packed, index, keep, files=files, listing=self.listing, **more)


class CloudFiles(FolderFiles):
    """Clouds, by classes, or with the option `label` by the labels of points."""

    def __init__(self, options: Mapping[str, Any], **settings: Any) -> None:
        from gridless.data.folder import CloudFolder

        folder = made(CloudFolder, options, HOW, **settings, progress=True)
        super().__init__(folder, ("clouds", *folder.settings))

    def facts(self) -> dict[str, Any]:
        folder = self.folder
        facts = {name: getattr(folder, name) for name in ("class_names", "values")}
        return facts | {"features": folder.how.features, "parts": folder.part_names, "scales": folder.how.scales}

    def item(self, path: Path, i: int) -> Item:
        file = self.folder.read_file(path)
        facts = {"labels": sorted(file.labels), "gaps": file.gaps, "scales": file.scales}
        return Item([(with_short_labels(piece), self.listing.labels[i]) for piece in file.pieces], facts)

    def fields(self, packed: Pack, index: Tensor, files: Tensor) -> dict[str, Any]:
        from gridless.data.folder import CloudFile

        facts = [packed.facts[number] for number in range(len(self))]
        read = [CloudFile(None, frozenset(each["labels"]), each["gaps"], each["scales"]) for each in facts]
        self.folder.conclude({self.listing.root / name: each for name, each in zip(self.names, read, strict=True)})
        values = self.folder.values
        return super().fields(packed, index, files) | {"codes": torch.tensor(values) if values else None}


class RecordingFiles(FolderFiles):
    """Recordings by classes.

    A pack is of any sensor, because training and evaluation share one. The sensor changes what is packed only if the
    repair `drop` removes the events outside it.
    """

    kind, word = "EventFolder", "recordings"

    def __init__(self, options: Mapping[str, Any], read: bool, **settings: Any) -> None:
        import gridless.data as data

        self.sensor = options.get("sensor")
        if not read and "drop" not in options.get("repair", ()):
            options = {**options, "sensor": None}
        folder = made(getattr(data, self.kind), options, **settings, read=read, progress=True)
        super().__init__(folder, (self.word, str(folder.asked), str(folder.repair), folder.topic))

    def item(self, path: Path, i: int) -> Item:
        events = self.recording(path, i)
        if max(events.sensor) > max(PACKED_SENSOR):
            size = "{} x {}".format(*events.sensor)
            raise ValueError(f"{path}: {size} pixels are too many for a pack. Crop or pool pixels.")
        packed = events._changed(sensor=PACKED_SENSOR)
        return Item([(packed, self.listing.labels[i])], {"sensor": list(events.sensor)})

    def recording(self, path: Path, i: int) -> Events:
        """The recording in file i."""
        return self.folder.read_file(path)

    def view(self, packed: Pack, split: str, keep: str) -> PackedSet:
        if self.sensor is not None:
            (width, height), (widest, highest) = self.sensor, packed.sensor
            if widest > width or highest > height:
                problem = f"recordings have {widest} x {highest} pixels, more than {width} x {height}"
                raise ValueError(f"{packed.path}: {problem}. Give a larger data_options.sensor.")
            packed.sensor = (int(width), int(height))
        return super().view(packed, split, keep)

    def fields(self, packed: Pack, index: Tensor, files: Tensor) -> dict[str, Any]:
        sizes = packed.sizes_of(index)
        if len(sizes) and not int(sizes.min()):
            empty = self.listing.root / self.listing.files[int(files[sizes.argmin()])]
            raise ValueError(f"{empty}: the recording has no events. Remove it.")
        return super().fields(packed, index, files)


class TrackFiles(RecordingFiles):
    """Recordings, each with known positions of an object."""

    kind, word, beside = "TrackFolder", "track", (".csv",)

    def __init__(self, options: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(options, **settings)
        self.names, self.class_names = self.folder.files, ()

    def in_memory(self) -> TrainingSet:
        return training_set(self.folder)

    def recording(self, path: Path, i: int) -> Events:
        events = super().recording(path, i)
        rows, _ = truth_of(events.time, self.folder.positions[i])
        return events._changed(rows=Rows({TRUTH: rows}))

    def fields(self, packed: Pack, index: Tensor, files: Tensor) -> dict[str, Any]:
        known = dict(zip(self.names, self.folder.positions, strict=True))
        positions = [known[self.listing.files[i]] for i in files.tolist()]
        starts = packed.starts[index].tolist()
        labels = [values[values[:, 0] >= start] for values, start in zip(positions, starts, strict=True)]
        return {"labels": padded(labels, torch.nan)}


def with_short_labels(cloud: Cloud) -> Cloud:
    """The same cloud with the rows `part` as int32: `PackedSet` gives them back as int64."""
    if "part" not in cloud.rows:
        return cloud
    return cloud._changed(rows=Rows({**cloud.rows, "part": cloud.rows["part"].int()}))
