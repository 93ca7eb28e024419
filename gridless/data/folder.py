"""A folder of your own files: FOLDER/CLASS/* of clouds or recordings, or clouds whose points have labels.

    data = gl.data.CloudFolder("scans", "fit")                        scans/mug/03.ply, scans/chair/07.las ...
    data = gl.data.CloudFolder("sites", "fit", label="classification", up="z", block=10.0)      sites/**/*.laz
    data = gl.data.EventFolder("gestures", "fit")                     gestures/wave/01.aedat4 ...

Where there are folders `train`, `test` or `validation` (or `val`), these are the splits; without `train` all else is
learned from, and a folder `test` whose folders are no classes is a class. For validation, where there is no such
folder, a fifth of the files is held out, by a rule that can disappoint: see `held_out`.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from gridless.data import splits
from gridless.data.base import Examples, Steps
from gridless.data.prepare import (
    Preparation,
    blocks,
    check_length,
    check_scales,
    joined,
    padded,
    prepare,
    read_points,
    row,
    scale,
    there,
)
from gridless.data.readers import clouds
from gridless.data.readers import events as recordings
from gridless.data.readers.bags import is_bag
from gridless.data.readers.clouds.lidar import label_files
from gridless.geometry import grid_sample
from gridless.kernels.progress import bar
from gridless.kernels.threads import in_threads
from gridless.structures import Cloud, Events, Rows, collate

T = TypeVar("T")

CLOUDS = tuple(sorted({*clouds.READERS, *clouds.MESHES}))
RECORDINGS = tuple(sorted(recordings.SUFFIXES))
SHARE = 0.2
# Rows that say what a point is, by the names that they have in practice.
LABELS = ("label", "labels", "class", "classification", "semantic", "part", "scalar_label", "scalar_classification")
_TRAIN, _VALIDATION, _TEST = ("train", "training"), ("validation", "val", "valid"), ("test", "testing")


@dataclass(frozen=True)
class Listing:
    """The files of a folder: their names below it, the class and the part (`fit`, `validation`, `test`) of each."""

    root: Path
    files: tuple[str, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    parts: tuple[str, ...]
    rule: str
    """How validation was chosen, in words."""
    others: tuple[str, ...] = ()
    """Suffixes, and names of notes, of files that were left out."""

    def rows(self, split: str) -> list[int]:
        wanted = ("fit", "validation") if splits.check(split) == "train" else (split,)
        rows = [i for i, part in enumerate(self.parts) if part in wanted]
        if not rows and split == "test":
            raise FileNotFoundError(f"{self.root} has no test files: put them into {self.root / 'test'}")
        if not rows:
            raise ValueError(
                f"{self.root}: nothing is left for {split!r} of {len(self.files)} files: there must be at least two of "
                "each class; or hold nothing out, split='train' (gridless train --all-data)"
            )
        return rows

    @property
    def held_out(self) -> list[str]:
        return [file for file, part in zip(self.files, self.parts, strict=True) if part == "validation"]


class Entry(NamedTuple):
    """A file of a part: its path, the names of the folders and the file below that of the part, and the part."""

    path: Path
    inside: tuple[str, ...]
    part: str


def listing(
    root: str | Path,
    suffixes: Sequence[str],
    by_class: bool = True,
    held_out_list: str | Path | None = None,
    class_names: Sequence[str] | None = None,
) -> Listing:
    """The files with one of the suffixes, by folders of classes or not; `held_out_list` names those for validation.

    Classes are numbered as in `class_names`, where these are given, and others are refused.
    """
    root = _checked_root(Path(root))
    places = _places(root, by_class)
    entries = [entry for part in places for entry in _entries(part, places, by_class)]
    readable = [entry for entry in entries if _is_readable(entry.path, suffixes)]
    if not readable:
        layout = "CLASS/FILE" if by_class else "FILE"
        raise FileNotFoundError(f"{root} holds no {layout} that can be read here: {', '.join(suffixes)}")
    if by_class:
        # Labels of points are the other way, which recordings do not have.
        remedy = "; where points have labels: label='auto' (gridless train own-scans)" if suffixes == CLOUDS else ""
        classes = _classes(root, places, readable, class_names, remedy)
        _warn_of_empty_folders(places, classes, [entry for entry in entries if entry not in set(readable)])
        labels = [classes.index(entry.inside[0]) for entry in readable]
    else:
        classes, labels = [root.name], [0] * len(readable)
    files = [_written(entry.path.relative_to(root)) for entry in readable]
    parts, rule = _parts(readable, files, labels, by_class, places, held_out_list)
    left_out = {_kind(entry.path) for entry in entries if not _is_readable(entry.path, suffixes)}
    return Listing(root, tuple(files), tuple(labels), tuple(classes), tuple(parts), rule, tuple(sorted(left_out)))


def _checked_root(root: Path) -> Path:
    if root.is_file():
        raise NotADirectoryError(f"{root} is a file: give the folder that holds your files")
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    return root


def _places(root: Path, by_class: bool) -> dict[str, Path]:
    """The folder of each part. Without a folder `train`, `fit` is the root but for the folders of other parts."""
    named = {child.name.lower(): child for child in sorted(root.iterdir()) if child.is_dir()}
    first = {part: next((named[n] for n in names if n in named), None) for part, names in _FOLDERS.items()}
    places = {part: folder for part, folder in first.items() if folder is not None}
    if "fit" in places:
        return places
    alone = [folder.name for folder in named.values() if folder not in places.values()]
    # A class may have the name of a part.
    return {"fit": root} | {k: v for k, v in places.items() if not by_class or _has_classes(v, alone)}


def _has_classes(folder: Path, classes: Sequence[str]) -> bool:
    """Whether all folders in it have the names of classes."""
    inside = [child.name for child in folder.iterdir() if child.is_dir()]
    return bool(inside) and set(inside) <= set(classes)


def _entries(part: str, places: dict[str, Path], by_class: bool) -> list[Entry]:
    """All files of a part, also behind links, in the order of their names; none of a run of training."""
    folder = places[part]
    apart = [other for other in places.values() if other != folder and other.is_relative_to(folder)]
    paths = _Walk(folder, apart, by_class).files()
    return [Entry(path, path.relative_to(folder).parts, part) for path in paths]


class _Walk:
    """A walk through a folder that reaches every file once, by its own path rather than through a link.

    A link is followed unless it leads to what the walk has reached already. Where that is of another class, this is
    said: a warning where one of the two is no link, and an error where both are, as either label may be meant.
    """

    def __init__(self, folder: Path, apart: Sequence[Path], by_class: bool) -> None:
        self.folder, self.apart, self.by_class = folder, set(apart), by_class
        self.real_folder = Path(os.path.realpath(folder))
        self.real_apart = [Path(os.path.realpath(other)) for other in apart]
        self.paths: list[Path] = []
        self.reached: dict[str, tuple[Path, bool]] = {}  # real path -> path, and whether it is behind a link
        self.links: list[tuple[Path, bool]] = []  # those not yet followed, and whether each is a folder

    def files(self) -> list[Path]:
        self._enter(self.folder, behind_link=False)
        while self.links:
            self.links.sort(reverse=True)
            path, is_folder = self.links.pop()
            if is_folder:
                self._enter(path, behind_link=True)
            else:
                self._reach(path, behind_link=True)
        return sorted(self.paths)

    def _enter(self, folder: Path, behind_link: bool) -> None:
        with os.scandir(folder) as found:
            entries = sorted((entry for entry in found if not entry.name.startswith(".")), key=lambda entry: entry.name)
        if folder != self.folder and _is_run(folder, [entry.name for entry in entries]):
            return
        if not self._claim(folder, behind_link):
            return
        for entry in entries:
            path = folder / entry.name
            if path in self.apart:
                continue
            if entry.is_symlink():
                if path.is_dir() or path.is_file():
                    self.links.append((path, path.is_dir()))
            elif entry.is_dir():
                self._enter(path, behind_link)
            elif entry.is_file():
                self._reach(path, behind_link)

    def _reach(self, path: Path, behind_link: bool) -> None:
        if self._claim(path, behind_link):
            self.paths.append(path)

    def _claim(self, path: Path, behind_link: bool) -> bool:
        """Whether this is the first time that the walk comes here."""
        real = Path(os.path.realpath(path)) if behind_link else self.real_folder / path.relative_to(self.folder)
        if behind_link and any(map(real.is_relative_to, self.real_apart)):
            warnings.warn(f"{path} is a link to {real}, in another split: it is not followed", stacklevel=1)
            return False
        before, was_behind_link = self.reached.setdefault(str(real), (path, behind_link))
        if before == path:
            return True
        classes = {self._class(path), self._class(before)}
        if len(classes) == 2 and None not in classes:
            message = f"{path} is a link to what {before} is, in another class"
            if was_behind_link:
                raise ValueError(f"{message}: remove one of the two links")
            # From one line: the warning is shown once, though a run lists a folder several times.
            warnings.warn(f"{message}: it is not followed", stacklevel=1)
        return False

    def _class(self, path: Path) -> str | None:
        inside = path.relative_to(self.folder).parts
        return inside[0] if self.by_class and inside else None


def _is_run(folder: Path, names: Sequence[str]) -> bool:
    """Whether training wrote this folder."""
    return "recipe.yaml" in names and not _RUN.isdisjoint(names)


def _is_note(path: Path) -> bool:
    return path.name.lower() in clouds.NOTES


def _is_readable(path: Path, suffixes: Sequence[str]) -> bool:
    return path.suffix.lower() in suffixes and not _is_note(path)


def _kind(path: Path) -> str:
    """The suffix of a file that is left out, or its name if it is a note or has none."""
    return path.name if _is_note(path) or not path.suffix else path.suffix.lower()


def _classes(
    root: Path, places: dict[str, Path], entries: Sequence[Entry], known: Sequence[str] | None, remedy: str
) -> list[str]:
    """The names of the classes, in the order of their numbers: those known, or the folders of `fit`."""
    classes = list(known or ())
    for entry in entries:
        if len(entry.inside) < 2:
            layout = f"{places[entry.part]}/CLASS/FILE{remedy}"
            raise ValueError(f"{entry.path}: a file outside the folders of classes: the layout is {layout}")
        name = entry.inside[0]
        if name in classes:
            continue
        if known is not None:
            raise ValueError(f"{entry.path}: these weights know no class {name!r}, only {', '.join(known)}")
        if entry.part != "fit":
            raise ValueError(f"{entry.path}: there is no class {name!r} in {places['fit']}")
        classes.append(name)
    if len(classes) < 2:
        raise ValueError(f"{root} has one class only, {classes[0]!r}: the layout is {root}/CLASS/FILE{remedy}")
    return classes


def _warn_of_empty_folders(places: dict[str, Path], classes: Sequence[str], left_out: Sequence[Entry]) -> None:
    """Say which folders are no classes, as nothing in them can be read. Folders of runs are passed over in silence."""
    bare = {places[entry.part] / entry.inside[0] for entry in left_out if len(entry.inside) > 1}
    for child in sorted(child for folder in places.values() for child in folder.iterdir()):
        if child.name in classes or child.name.startswith(".") or not child.is_dir():
            continue
        if child in bare or not any(files for *_, files in os.walk(child)):
            # From one line: the warning is shown once, though a run lists a folder several times.
            warnings.warn(f"{child} holds no file that can be read here: it is no class", stacklevel=1)


def _parts(
    entries: Sequence[Entry],
    files: Sequence[str],
    labels: Sequence[int],
    by_class: bool,
    places: dict[str, Path],
    held_out_list: str | Path | None,
) -> tuple[list[str], str]:
    """The part of each file, and in words how validation was chosen: by a list, a folder, or our rule."""
    parts = [entry.part for entry in entries]
    if held_out_list is not None:
        listed = set(Path(held_out_list).read_text("utf-8").split("\n"))
        parts = ["validation" if file in listed else "fit" if p == "validation" else p for p, file in zip(parts, files)]
        return parts, f"the files that {held_out_list} lists"
    if "validation" in places:
        return parts, f"the files in {places['validation']}"
    fit = [i for i, part in enumerate(parts) if part == "fit"]
    names = [Path(*entries[i].inside[by_class:]).as_posix() for i in fit]
    chosen, rule = held_out([labels[i] for i in fit], names)
    for i in chosen:
        parts[fit[i]] = "validation"
    return parts, rule


def _written(path: Path) -> str:
    """The name of a file, as lists of files have it."""
    try:
        path.as_posix().encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path.as_posix()!r}: the name of this file is not UTF-8: rename it") from None
    return path.as_posix()


# What is beside the recipe in the folder of a run.
_RUN = {"checkpoints", "logs", "split.txt", "weights.json"}
_FOLDERS = {"fit": _TRAIN, "validation": _VALIDATION, "test": _TEST}


def held_out(labels: Sequence[int], names: Sequence[str]) -> tuple[list[int], str]:
    """Which examples to hold out, and by which rule, in words.

    Neighbouring recordings of one session are so alike that a random split asks nothing new. So whole sessions are held
    out: a session is a folder below that of the class, and the file's name without the number at its end, whatever the
    class; of a name that ends in the date and time at which it was recorded, without the time. Of classes with one
    session only the last fifth is held out, in the order of the numbers.
    """
    session = [_session(_SUFFIX.sub("", name)) for name in names]
    members: dict[str, list[int]] = defaultdict(list)
    for i, key in enumerate(session):
        members[key].append(i)
    of_class: dict[int, list[int]] = defaultdict(list)
    for i, label in enumerate(labels):
        of_class[label].append(i)
    counts, chosen = Counter(labels), list[int]()
    several = {k for k, mine in of_class.items() if len({session[i] for i in mine}) > 1}
    left, held, taken = Counter(labels), Counter(), 0
    for key in sorted(members, key=lambda key: hashlib.sha256(key.encode()).digest()):
        mine = Counter(labels[i] for i in members[key])
        wanted = any(held[k] < SHARE * counts[k] for k in mine if k in several)
        # No class is without an example to learn from, and nothing is taken that would take far too much.
        if wanted and all(left[k] > n and held[k] + n <= max(2 * SHARE * counts[k], 1) for k, n in mine.items()):
            chosen += members[key]
            taken += 1
            held.update(mine)
            left.subtract(mine)
    rest = [k for k in counts if not held[k]]
    for k in rest:
        mine = sorted(of_class[k], key=lambda i: _natural(names[i]))
        chosen += mine[len(mine) - min(max(1, round(SHARE * len(mine))), len(mine) - 1) :]
    if not taken:
        return sorted(chosen), "the last fifth of each class, in the order of the file names"
    more = f"; the last fifth of {len(rest)} classes without several of them" if rest else ""
    return sorted(chosen), f"{taken} of {len(members)} sessions, by folder and file name{more}"


# Of a file's name; some have two parts.
_SUFFIX = re.compile(r"(\.pcd\.bin|\.copc\.la[sz]|\.[^./]*)$", re.IGNORECASE)


# As recorders name files: recording_2024-05-01_12-30-11, dvSave-2024_05_01_12_30_11, DVS128-2024-05-01T12-30-11+0200-0.
_STAMP = re.compile(
    r"((?:19|20)\d\d([-_.]?)[01]\d\2[0-3]\d)[-_T. ]*[0-2]\d([-_.:]?)[0-5]\d\3[0-5]\d(?:\.\d+)?(?:Z|[+-]\d{4}[^/]*)?$"
)


def _session(stem: str) -> str:
    """What the names of all files of a session have in common."""
    stamp = _STAMP.search(stem)
    return stem[: stamp.end(1)] if stamp else re.sub(r"[\W_]*\d+[\W_]*$", "", stem)


def _natural(name: str) -> list[Any]:
    """Numbers within names by their values: 9 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


FileState = tuple[int, int]


class _Readings:
    """Files that were read for one split and are wanted by another: those of the folder that was read last.

    Which labels there are, and how large the sensor is, all files together say. So a split reads files of others, too,
    and these ask here first. What a split took is not kept, only what the file says of itself (`without`).
    """

    def __init__(self) -> None:
        self.key: Any = None
        self.kept: dict[Path, tuple[FileState, Any]] = {}
        self.lock = threading.Lock()

    def select(self, key: Any) -> None:
        """Forget what was read in another way, or from another folder."""
        with self.lock:
            if key != self.key:
                self.key, self.kept = key, {}

    def get(self, path: Path) -> Any:
        """What was read of this file, if it has not changed."""
        state, reading = self.kept.get(path, (None, None))
        return reading if state is not None and state == _state(path) else None

    def keep(self, path: Path, reading: Any) -> None:
        self.kept[path] = _state(path), reading


_READINGS = _Readings()


def _state(path: Path) -> FileState:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _read_files(
    paths: Sequence[Path],
    read: Callable[[Path], T],
    progress: bool,
    remedy: str = "mend or remove them",
    known: Callable[[Path], T | None] = lambda path: None,
) -> list[T]:
    """What `read` makes of each file that is not `known`, several at a time; those it refuses are named together."""
    failed = list[str]()
    with bar("read", len(paths), progress) as advance:

        def one(path: Path) -> Any:
            try:
                reading = known(path)
                return read(path) if reading is None else reading
            except (ValueError, OSError) as error:
                failed.append(str(error))
                return None
            finally:
                advance(1)

        readings = in_threads(one, [(path,) for path in paths])
    if failed:
        words = "; ".join(sorted(failed)[:3]) + ("; ..." if len(failed) > 3 else "")
        raise ValueError(f"{len(failed)} of {len(paths)} files cannot be used, {remedy}: {words}")
    return readings


class CloudFile(NamedTuple):
    """A file of clouds as it was read: its examples, unless another split took them, and what they are made of."""

    pieces: list[Cloud] | None
    labels: frozenset[int] = frozenset()
    """Labels of its points, before any were left out."""
    gaps: int = 0
    """Points that are not finite, which were left out."""
    scales: dict[str, int] = {}
    """By the name of a feature, what it is divided by."""


class CloudFolder(Examples):
    """Clouds from files, each of a class, or with a label for every point: `data[i]` is (`Cloud`, class number).

    Args:
        root: the folder.
        split: `train`, or its parts `fit` and `validation`; or `test`.
        points: each cloud's points at most, drawn at random.
        label: the row with the labels of points, `auto` for one of the usual names; then folders are no classes.
            `NAME.2` is a column of a row.
        grid: where points have labels, one point is kept of every cell of this side, before anything else.
        held_out_list: a file that lists those for validation, as training leaves in OUT/split.txt.
        names: of labels of points, such as {2: ground}. Labels of one name are one, the lowest: {10: car, 252: car}.
        ignore: labels of points that have none, such as [0, 255], beside -1, which always says so: such points are
            seen, but neither learned nor judged, and have the part -1.
        class_names: as which classes are numbered; those of the folder when left out.
        values: as which labels of points are numbered; those that occur when left out.
        topic: of recordings of ROS, where several topics have clouds. The first message of each is read.
        transform, seed: those of `Examples`.
        progress: show a bar while files are read.
        read: read the files; without, there are no examples, and `read_file` reads one of `listing`.
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
        check_names(names, "CloudFolder: names")
        check_length("grid", grid)
        self.how, self.points, self.grid, self.topic = Preparation(**how), points, grid, topic
        self.ignore, self.label, self.known_values = _ignored(ignore), label, values
        if (self.how.block or grid or self.ignore) and not label:
            raise ValueError(
                "CloudFolder: block, grid and ignore are for points with labels: give the row, label='auto'"
            )
        # Keys are words where a recipe went through JSON.
        named = {int(value): name for value, name in (names or {}).items()}
        first: dict[str, int] = {}
        self._one = {value: first.setdefault(named[value], value) for value in sorted(named)}
        self.listing = listing(root, CLOUDS, label is None, held_out_list, None if label else class_names)
        self.named, self.class_names = named, list(self.listing.class_names)
        if read:
            chosen = self.listing.rows(split)
            files = self._read_all(label, chosen, progress)
            self.conclude(files)
            self._fill(chosen, files)

    def conclude(self, files: Mapping[Path, CloudFile]) -> None:
        """Set `how`, `values` and `part_names` by what all files say of themselves."""
        self.how = replace(self.how, scales=_scales(files, self.how.scales))
        _warn_of_gaps(files)
        self.values = _values(files, self.listing.root, self.known_values) if self.label else []
        self.part_names = _part_names(self.named, self._one, self.values)

    @property
    def settings(self) -> tuple:
        """What decides how a file is read."""
        how = replace(self.how, scales={})
        return self.label, self.points, self.grid, how, self.ignore, self._one, self.topic

    def _read_all(self, label: str | None, chosen: Sequence[int], progress: bool) -> dict[Path, CloudFile]:
        """The chosen files as they were read. Where points have labels, also all others: their labels are numbered
        through all files, whatever the split."""
        rows = range(len(self.listing.files)) if label else chosen
        paths = {self.listing.root / self.listing.files[i]: i for i in rows}
        wanted = {path for path, i in paths.items() if i in set(chosen)}
        _READINGS.select((self.listing.root, *self.settings))

        def known(path: Path) -> CloudFile | None:
            file = _READINGS.get(path)
            return None if file is None or (path in wanted and file.pieces is None) else file

        read = _read_files(list(paths), self.read_file, progress, known=known)
        files = dict(zip(paths, read, strict=True))
        for path, file in files.items() if label else ():
            _READINGS.keep(path, file._replace(pieces=None) if path in wanted else file)
        return files

    def _fill(self, chosen: Sequence[int], files: dict[Path, CloudFile]) -> None:
        """The tensors of the chosen files."""
        paths = [self.listing.root / self.listing.files[i] for i in chosen]
        pieces = [(i, piece) for i, path in zip(chosen, paths) for piece in files[path].pieces or ()]
        self.files = [self.listing.files[i] for i, _ in pieces]
        self.labels = torch.tensor([self.listing.labels[i] for i, _ in pieces], device="cpu")
        clouds = collate([piece for _, piece in pieces])
        if self.values:
            part = clouds.rows["part"]
            number = torch.searchsorted(torch.tensor(self.values, device="cpu"), part)
            rows = {**clouds.rows, "part": torch.where(part < 0, -1, number)}
            clouds = clouds._changed(rows=Rows(rows))
        self.clouds = clouds

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

    def read_file(self, file: Path) -> CloudFile:
        """The examples of one file, and what it says of itself."""
        label = self.label
        cloud = read_points(file, self.points, self.how, bool(label), self.topic)
        labels, gaps = frozenset[int](), 0
        if label:
            placed = there(cloud)
            if not placed.any():
                raise ValueError(f"{file}: holds no points that are finite")
            gaps = int((~placed).sum())
            cloud = cloud[placed] if gaps else cloud
            part = _labels(cloud, file, label, self.ignore)
            for value, one in self._one.items():
                part[part == value] = one
            cloud = Cloud.of(cloud, part=part)
            # Before points are left out: with how many should not change which labels there are.
            labels = frozenset(part[part >= 0].unique().tolist())
            cloud = grid_sample(cloud, self.grid) if self.grid else cloud
        kept = (*self.how.features, "part") if label else self.how.features
        scales = {name: scale(row(cloud, name, str(file)).dtype) for name in self.how.features}
        pieces = [prepare(cloud[piece], str(file), self.points, self.how, kept) for piece in blocks(cloud, self.how)]
        return CloudFile(pieces, labels, gaps, scales)

    def example(self, i: int) -> Cloud:
        return self.clouds.examples[i]

    def _seen(self, example: Any) -> Any:
        # What is augmented has its own names; what the network sees is one row.
        return joined(example, self.how.features) if isinstance(example, Cloud) else example


def _ignored(ignore: int | Sequence[int]) -> list[int]:
    labels = [ignore] if isinstance(ignore, int) else list(ignore)
    if not all(type(value) is int for value in labels):
        raise ValueError(f"CloudFolder: ignore must be labels, whole numbers such as [0, 255], not {ignore!r}")
    return labels


def _scales(files: Mapping[Path, CloudFile], trained: Mapping[str, int]) -> dict[str, int]:
    """What each feature is divided by, in all files alike, and as in training where that is known."""
    scales = {name: {by: "training"} for name, by in trained.items()}
    for path, file in files.items():
        for name, by in file.scales.items():
            scales.setdefault(name, {}).setdefault(by, str(path))
    check_scales(scales)
    return {name: next(iter(places)) for name, places in scales.items()}


def _warn_of_gaps(files: Mapping[Path, CloudFile]) -> None:
    gaps = {str(path): file.gaps for path, file in files.items() if file.gaps}
    if gaps:
        some = f"{sum(gaps.values())} points of {len(gaps)} files, such as {min(gaps)},"
        warnings.warn(f"{some} are not finite: they are left out", stacklevel=4)


def _values(files: Mapping[Path, CloudFile], root: Path, known: Sequence[int] | None) -> list[int]:
    """The labels of points, in order: those that weights know, or all that occur."""
    occurring = {label: path for path, file in files.items() for label in sorted(file.labels)}
    values = sorted(occurring if known is None else known)
    if not values:
        raise ValueError(f"{root}: no point has a label: there are -1 and those that are ignored only")
    for label, path in occurring.items():
        if label not in values:
            words = ", ".join(map(str, values))
            raise ValueError(f"{path}: these weights know no points of the label {label}, only of {words}")
    return values


def _part_names(named: Mapping[int, str], one: Mapping[int, int], values: Sequence[int]) -> list[str]:
    """The name of each label; a label without a name is called by its number."""
    part_names = [named.get(value, str(value)) for value in values]
    for value, name in named.items():
        if one[value] not in values:
            known = ", ".join(map(str, values)) or "none, as classes are folders"
            raise ValueError(f"CloudFolder: names: no point has the label {value} ({name}): there are {known}")
        if part_names.count(name) > 1:
            raise ValueError(f"CloudFolder: names: {name!r} is another label, too: give {value} another name")
    return part_names


def check_names(names: Any, what: str) -> None:
    """Refuse names of labels that are no names, or are turned round."""
    if names is None:
        return
    if not isinstance(names, dict):
        raise ValueError(f"{what} must be a mapping of labels to names, such as {{2: ground}}, not {names!r}")
    for label, name in names.items():
        if not str(label).isdigit():
            words = "no label, a whole number from 0 up: write the label first, {2: ground}"
            raise ValueError(f"{what}: {label!r} is {words}")
        if not isinstance(name, str):
            raise ValueError(f"{what}: {name!r} of the label {label} is no name: give a word, {{{label}: ground}}")


def _labels(cloud: Cloud, file: Path, name: str, ignore: Sequence[int]) -> Tensor:
    """The label of every point, int64, from 0 up, or -1 where it has none."""
    if name == "auto":
        name = next((known for known in LABELS if known in cloud.rows), "")
        if not name:
            if file.suffix.lower() == ".bin":
                beside, apart = label_files(file)
                raise ValueError(f"{file}: its labels are neither in {beside} nor in {apart}: put them there")
            found, columns = ", ".join(cloud.rows) or "none", cloud.rows.get("features")
            last = "NAME" if columns is None or columns.ndim == 1 else f"features.{columns.shape[1] - 1}"
            remedy = f"say label='{last}' (in a recipe --set data_options.label={last})"
            raise ValueError(f"{file}: which rows are labels? There are {found}: {remedy}")
    values = row(cloud, name, str(file))
    values = values[:, 0] if values.shape[1:] == (1,) else values
    if values.ndim != 1 or not bool((values == values.long()).all()):
        raise ValueError(f"{file}: labels must be whole numbers from 0 up, one a point: {name!r} is something else")
    values = values.long()
    values = torch.where(torch.isin(values, torch.tensor(ignore, dtype=torch.int64)), -1, values)
    if bool((values < -1).any()):
        words = f"{name!r} has {int(values.min())}: leave out such points (ignore: [{int(values.min())}])"
        raise ValueError(f"{file}: labels must be whole numbers from 0 up, or -1 for none: {words}")
    return values


class _EventFile(NamedTuple):
    """A recording as it was read, unless another split took it, and its sensor."""

    sensor: tuple[int, int]
    events: Events | None


class EventFolder(Examples):
    """Recordings from FOLDER/CLASS/*: `data[i]` is (`Events`, class number), all on one sensor.

    `root`, `split`, `held_out_list`, `class_names`, `transform`, `progress`, `seed` and `read` are those of
    `CloudFolder`; `sensor`, `repair` and `topic` those of `read_events`. Without `sensor` it is that of the largest,
    for which the files of all splits are read.
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
        self.listing = listing(root, RECORDINGS, True, held_out_list, class_names)
        self.class_names = list(self.listing.class_names)
        self.given = None if sensor is None else (int(sensor[0]), int(sensor[1]))
        self.repair, self.topic = repair, topic
        if read:
            self._read_split(split, progress)

    def read_file(self, file: Path) -> Events:
        """The recording in one file, on the sensor that was given, else on its own."""
        return recordings.read_events(
            file, sensor=self.given, repair=self.repair, topic=self.topic if is_bag(file) else None
        )

    def _read_split(self, split: str, progress: bool) -> None:
        given, rows = self.given, self.listing.rows(split)
        self.files = [self.listing.files[i] for i in rows]
        self.labels = torch.tensor([self.listing.labels[i] for i in rows], device="cpu")
        wanted = {self.listing.root / file for file in self.files}
        _READINGS.select((self.listing.root, str(self.repair), self.topic, "events"))

        def known(path: Path) -> _EventFile | None:
            file = _READINGS.get(path)
            if file is None or (path in wanted and not file.events):
                return None
            fits = given is None or (file.sensor[0] <= given[0] and file.sensor[1] <= given[1])
            return file if fits else None

        def read(path: Path) -> _EventFile:
            events = self.read_file(path)
            if path in wanted and not len(events):
                raise ValueError(f"{path}: there is no event in it: remove it")
            return _EventFile(events.sensor, events)

        every = self.listing.files if given is None else self.files
        paths = [self.listing.root / file for file in every]
        remedy = "mend or remove them, or say how to repair them (repair=, in a recipe --set data_options.repair=sort)"
        files = dict(zip(paths, _read_files(paths, read, progress, remedy, known), strict=True))
        for path, file in files.items() if given is None else ():
            _READINGS.keep(path, file._replace(events=None) if path in wanted else file)
        self.sensor = given or tuple(int(v) for v in np.max([file.sensor for file in files.values()], 0))
        self.recordings = [
            file.events._changed(sensor=self.sensor)
            for path, file in files.items()
            if path in wanted and file.events is not None
        ]

    def batch(self) -> Events:
        """All recordings as one ragged batch."""
        return collate(self.recordings)

    def example(self, i: int) -> Events:
        return self.recordings[i]
