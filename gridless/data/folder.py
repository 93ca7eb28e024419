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
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

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
from gridless.data.readers.clouds.lidar import label_files
from gridless.geometry import grid_sample
from gridless.kernels.progress import bar
from gridless.kernels.threads import in_threads
from gridless.structures import Cloud, Events, collate

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
        found = [i for i, part in enumerate(self.parts) if part in wanted]
        if not found and split == "test":
            raise FileNotFoundError(f"{self.root} has no test files: put them into {self.root / 'test'}")
        if not found:
            raise ValueError(
                f"{self.root}: nothing is left for {split!r} of {len(self.files)} files: there must be at least two of "
                "each class; or hold nothing out, split='train' (gridless train --all-data)"
            )
        return found

    @property
    def held_out(self) -> list[str]:
        return [file for file, part in zip(self.files, self.parts, strict=True) if part == "validation"]


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
    root = Path(root)
    if root.is_file():
        raise NotADirectoryError(f"{root} is a file: give the folder that holds your files")
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    named = {child.name.lower(): child for child in sorted(root.iterdir()) if child.is_dir()}
    first = {part: next((named[n] for n in names if n in named), None) for part, names in _FOLDERS.items()}
    places = {k: v for k, v in first.items() if v is not None}
    if first["fit"] is None:
        # All that is not in the folders of other parts; a class may have the name of a part.
        alone = [folder.name for folder in named.values() if folder not in places.values()]
        places = {"fit": root} | {k: v for k, v in places.items() if not by_class or _has_classes(v, alone)}
    # Labels of points are the other way, which recordings do not have.
    other = "; where points have labels: label='auto' (gridless train own-scans)" if suffixes == CLOUDS else ""
    files, labels, parts, others, bare, classes = [], [], [], set(), set(), list(class_names or ())
    for part, folder in places.items():
        apart = [other for other in places.values() if other != folder and other.is_relative_to(folder)]
        for path in _files(folder):
            inside = path.relative_to(folder).parts
            if any(name.startswith(".") for name in inside) or any(map(path.is_relative_to, apart)):
                continue
            note = path.name.lower() in clouds.NOTES
            if note or path.suffix.lower() not in suffixes:
                others.add(path.name if note or not path.suffix else path.suffix.lower())
                bare |= {folder / inside[0]} if len(inside) > 1 else set()
                continue
            if by_class and len(inside) < 2:
                raise ValueError(
                    f"{path}: a file outside the folders of classes: the layout is {folder}/CLASS/FILE{other}"
                )
            name = inside[0] if by_class else root.name
            if name not in classes:
                if class_names is not None:
                    raise ValueError(f"{path}: these weights know no class {name!r}, only {', '.join(class_names)}")
                if part != "fit":
                    raise ValueError(f"{path}: there is no class {name!r} in {places['fit']}")
                classes.append(name)
            files.append(_written(path.relative_to(root)))
            labels.append(classes.index(name))
            parts.append(part)
    if not files:
        layout = "CLASS/FILE" if by_class else "FILE"
        raise FileNotFoundError(f"{root} holds no {layout} that can be read here: {', '.join(suffixes)}")
    for child in sorted(child for folder in places.values() if by_class for child in folder.iterdir()):
        known = child.name in classes or child.name.startswith(".") or not child.is_dir()
        # Folders of runs hold files, too, and are passed over in silence.
        if not known and (child in bare or not any(inside for *_, inside in os.walk(child))):
            # From one line, whoever asks: it is shown once, though a run reads several splits.
            warnings.warn(f"{child} holds no file that can be read here: it is no class", stacklevel=1)
    if by_class and len(classes) < 2:
        raise ValueError(f"{root} has one class only, {classes[0]!r}: the layout is {root}/CLASS/FILE{other}")
    rule = f"the files in {places.get('validation')}"
    if held_out_list is not None:
        listed = set(Path(held_out_list).read_text("utf-8").split("\n"))
        parts = ["validation" if file in listed else "fit" if p == "validation" else p for p, file in zip(parts, files)]
        rule = f"the files that {held_out_list} lists"
    elif "validation" not in places:
        fit = [i for i, part in enumerate(parts) if part == "fit"]
        below = [Path(files[i]).relative_to(places["fit"].relative_to(root)).parts[by_class:] for i in fit]
        chosen, rule = held_out([labels[i] for i in fit], [Path(*inside).as_posix() for inside in below])
        for i in chosen:
            parts[fit[i]] = "validation"
    return Listing(root, tuple(files), tuple(labels), tuple(classes), tuple(parts), rule, tuple(sorted(others)))


def _files(folder: Path) -> list[Path]:
    """All files below a folder, also behind links, but none of a run of training."""
    found, seen = [], set()
    for here, folders, files in os.walk(folder, followlinks=True):
        run = here != str(folder) and "recipe.yaml" in files and not _RUN.isdisjoint([*files, *folders])
        if run or (real := os.path.realpath(here)) in seen:
            folders.clear()
            continue
        seen.add(real)
        found += [Path(here, name) for name in files]
    return sorted(path for path in found if path.is_file())


def _has_classes(folder: Path, classes: Sequence[str]) -> bool:
    """Whether all folders in it have the names of classes."""
    inside = [child.name for child in folder.iterdir() if child.is_dir()]
    return bool(inside) and set(inside) <= set(classes)


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


def _read_files(
    paths: Sequence[Path], read: Callable[[Path], T], progress: bool, remedy: str = "mend or remove them"
) -> list[T]:
    """What `read` makes of each file, several at a time; those that it refuses are named together."""
    failed = list[str]()
    with bar("read", len(paths), progress) as advance:

        def one(path: Path) -> Any:
            try:
                return read(path)
            except (ValueError, OSError) as error:
                failed.append(str(error))
                return None
            finally:
                advance(1)

        found = in_threads(one, [(path,) for path in paths])
    if failed:
        words = "; ".join(sorted(failed)[:3]) + ("; ..." if len(failed) > 3 else "")
        raise ValueError(f"{len(failed)} of {len(paths)} files cannot be used, {remedy}: {words}")
    return found


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
        transform, seed: those of `Examples`.
        progress: show a bar while files are read.
        how: the arguments of `Preparation`: up, keep_scale, features, block, scales.

    `coords` (N, points, 3), `sizes`, `labels` (N) and `rows` hold everything; `listing` says which file is where.
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
        transform: Steps = (),
        progress: bool = False,
        seed: int | None = None,
        **how: Any,
    ) -> None:
        super().__init__(transform, seed)
        check_names(names, "CloudFolder: names")
        check_length("grid", grid)
        self.how, self.points, self.grid = Preparation(**how), points, grid
        self.ignore = [ignore] if isinstance(ignore, int) else list(ignore)
        if not all(type(value) is int for value in self.ignore):
            raise ValueError(f"CloudFolder: ignore must be labels, whole numbers such as [0, 255], not {ignore!r}")
        if (self.how.block or grid or self.ignore) and not label:
            raise ValueError(
                "CloudFolder: block, grid and ignore are for points with labels: give the row, label='auto'"
            )
        self.listing = listing(root, CLOUDS, label is None, held_out_list, None if label else class_names)
        chosen = self.listing.rows(split)
        # Keys are words where a recipe went through JSON.
        named = {int(value): name for value, name in (names or {}).items()}
        first: dict[str, int] = {}
        self._one = {value: first.setdefault(named[value], value) for value in sorted(named)}
        self._found: dict[int, str] = {}
        self._gaps: dict[str, int] = {}
        self._scales: dict[str, dict[int, str]] = {name: {} for name in self.how.features}
        # Labels are numbered through all files, whatever the split.
        rows = range(len(self.listing.files)) if label else chosen
        paths = [self.listing.root / self.listing.files[i] for i in rows]
        read = dict(zip(rows, _read_files(paths, lambda path: self._read(path, label), progress), strict=True))
        check_scales(self._scales)
        self.how = replace(self.how, scales={name: next(iter(files)) for name, files in self._scales.items()})
        if self._gaps:
            some = f"{sum(self._gaps.values())} points of {len(self._gaps)} files, such as {min(self._gaps)},"
            warnings.warn(f"{some} are not finite: they are left out", stacklevel=2)
        self.class_names, self.values = list(self.listing.class_names), list[int]()
        if label:
            self.values = sorted(self._found if values is None else values)
            if not self.values:
                raise ValueError(f"{root}: no point has a label: there are -1 and those that are ignored only")
            for value, file in self._found.items():
                if value not in self.values:
                    known = ", ".join(map(str, self.values))
                    raise ValueError(f"{file}: these weights know no points of the label {value}, only of {known}")
            every = torch.tensor(self.values, device="cpu")
            for part in (piece.rows["part"] for pieces in read.values() for piece in pieces):
                part.copy_(torch.where(part < 0, -1, torch.searchsorted(every, part)))
        self.part_names = [named.get(value, str(value)) for value in self.values]
        for value, name in named.items():
            if self._one[value] not in self.values:
                known = ", ".join(map(str, self.values)) or "none, as classes are folders"
                raise ValueError(f"CloudFolder: names: no point has the label {value} ({name}): there are {known}")
            if self.part_names.count(name) > 1:
                raise ValueError(f"CloudFolder: names: {name!r} is another label, too: give {value} another name")
        pieces = [(i, piece) for i in chosen for piece in read[i]]
        self.files = [self.listing.files[i] for i, _ in pieces]
        self.labels = torch.tensor([self.listing.labels[i] for i, _ in pieces], device="cpu")
        self.sizes = torch.tensor([len(piece) for _, piece in pieces], device="cpu")
        self.coords = padded([piece.coords for _, piece in pieces])
        self.rows = {name: padded([piece.rows[name] for _, piece in pieces]) for name in pieces[0][1].rows}

    def _read(self, file: Path, label: str | None) -> list[Cloud]:
        cloud = read_points(file, self.points, self.how, bool(label))
        if label:
            placed = there(cloud)
            if not placed.any():
                raise ValueError(f"{file}: holds no points that are finite")
            if not placed.all():
                self._gaps[str(file)] = int((~placed).sum())
                cloud = cloud[placed]
            part = _labels(cloud, file, label, self.ignore)
            for value, one in self._one.items():
                part[part == value] = one
            cloud = Cloud.of(cloud, part=part)
            # Before points are left out: with how many should not change which labels there are.
            seen = cloud.rows["part"].unique()
            self._found |= dict.fromkeys(seen[seen >= 0].tolist(), str(file))
            cloud = grid_sample(cloud, self.grid) if self.grid else cloud
        kept = (*self.how.features, "part") if label else self.how.features
        for name in self.how.features:
            self._scales[name].setdefault(scale(row(cloud, name, str(file)).dtype), str(file))
        return [prepare(cloud[piece], str(file), self.points, self.how, kept) for piece in blocks(cloud, self.how)]

    def example(self, i: int) -> Cloud:
        size = int(self.sizes[i])
        rows: dict[str, Any] = {name: values[i, :size] for name, values in self.rows.items()}
        turning = ("normal",) if "normal" in rows else ()
        return Cloud.of(self.coords[i, :size], directions=turning, **rows)

    def _seen(self, example: Any) -> Any:
        # What is augmented has its own names; what the network sees is one row.
        return joined(example, self.how.features) if isinstance(example, Cloud) else example


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


class EventFolder(Examples):
    """Recordings from FOLDER/CLASS/*: `data[i]` is (`Events`, class number), all on one sensor.

    `root`, `split`, `held_out_list`, `class_names`, `transform`, `progress` and `seed` are those of `CloudFolder`;
    `sensor` and `repair` those of `read_events`. Without `sensor` it is that of the largest, for which the files of all
    splits are read.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        held_out_list: str | Path | None = None,
        sensor: Sequence[int] | None = None,
        repair: str | Sequence[str] = (),
        class_names: Sequence[str] | None = None,
        transform: Steps = (),
        progress: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__(transform, seed)
        self.listing = listing(root, RECORDINGS, True, held_out_list, class_names)
        rows = self.listing.rows(split)
        self.files = [self.listing.files[i] for i in rows]
        self.labels = torch.tensor([self.listing.labels[i] for i in rows], device="cpu")
        self.class_names = list(self.listing.class_names)
        given = None if sensor is None else (int(sensor[0]), int(sensor[1]))
        wanted = {self.listing.root / file for file in self.files}

        def read(path: Path) -> tuple[tuple[int, int], Events | None]:
            events = recordings.read_events(path, sensor=given, repair=repair)
            if path in wanted and not len(events):
                raise ValueError(f"{path}: there is no event in it: remove it")
            return events.sensor, events if path in wanted else None

        every = self.listing.files if given is None else self.files
        remedy = "mend or remove them, or say how to repair them (repair=, in a recipe --set data_options.repair=sort)"
        found = _read_files([self.listing.root / file for file in every], read, progress, remedy)
        self.sensor = given or tuple(int(v) for v in np.max([size for size, _ in found], 0))
        self.recordings = [events._changed(sensor=self.sensor) for _, events in found if events is not None]

    def batch(self) -> Events:
        """All recordings as one ragged batch."""
        return collate(self.recordings)

    def example(self, i: int) -> Events:
        return self.recordings[i]
