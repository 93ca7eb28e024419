"""The files of a folder, and the class and the split of each.

Three layouts are known, each with or without folders for the splits:

    FOLDER/CLASS/FILE                 clouds or recordings, each of a class
    FOLDER/**/FILE                    clouds whose points have labels
    FOLDER/{train,val,test}/...       the same, with the splits as folders
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from gridless.data import splits
from gridless.data.readers import clouds
from gridless.data.readers import events as recordings
from gridless.data.readers.bags import SUFFIXES, is_bag
from gridless.data.sessions import held_out

CLOUDS = tuple(sorted({*clouds.READERS, *clouds.MESHES}))
RECORDINGS = tuple(sorted(recordings.SUFFIXES))
# Names of folders that are splits.
_SPLITS = {"fit": ("train", "training"), "validation": ("validation", "val", "valid"), "test": ("test", "testing")}
# Training writes these beside the recipe into the folder of a run.
_RUN_FILES = {"checkpoints", "metrics.csv", "split.txt", "weights.json"}


@dataclass(frozen=True)
class Listing:
    """The files of a folder: their names below it, the class and the part (`fit`, `validation`, `test`) of each."""

    root: Path
    files: tuple[str, ...]
    labels: tuple[int, ...]
    class_names: tuple[str, ...]
    parts: tuple[str, ...]
    rule: str
    """Says how validation was chosen."""
    others: tuple[str, ...] = ()
    """Suffixes, and names of notes, of files that were left out."""

    def rows(self, split: str) -> list[int]:
        """The numbers of the files of a split."""
        wanted = ("fit", "validation") if splits.check(split) == "train" else (split,)
        rows = [i for i, part in enumerate(self.parts) if part in wanted]
        if not rows and split == "test":
            raise FileNotFoundError(f"{self.root} has no test files. Put them into {self.root / 'test'}.")
        if not rows:
            raise ValueError(
                f"{self.root}: nothing is left for {split!r} of {len(self.files)} files. Give at least two of each "
                "class, or hold nothing out: split='train' (gridless train --all-data)."
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
    """List the files with one of the suffixes.

    - `by_class`: the folders are classes.
    - `held_out_list`: a file that lists those for validation.
    - `class_names`: numbers the classes; others are refused.
    """
    root = _checked_root(Path(root))
    places = _places(root, by_class)
    entries = [entry for part in places for entry in _entries(part, places, by_class)]
    readable = [entry for entry in entries if _is_readable(entry.path, suffixes)]
    others = [entry for entry in entries if not _is_readable(entry.path, suffixes)]
    if not readable:
        layout = "CLASS/FILE" if by_class else "file"
        raise FileNotFoundError(f"{root} holds no {layout} that can be read here. Readable: {', '.join(suffixes)}.")
    if by_class:
        # Only clouds may have labels of points instead.
        hint = " Where points have labels: label='auto' (gridless train own-scans)." if suffixes == CLOUDS else ""
        classes = _classes(root, places, readable, class_names, hint)
        _warn_of_empty_folders(places, classes, others)
    else:
        classes = [root.name]
    labels = [classes.index(entry.inside[0]) if by_class else 0 for entry in readable]
    files = [_checked_name(entry.path.relative_to(root)) for entry in readable]
    parts, rule = _parts(readable, files, labels, by_class, places, held_out_list)
    left_out = sorted({_kind(entry.path) for entry in others})
    return Listing(root, tuple(files), tuple(labels), tuple(classes), tuple(parts), rule, tuple(left_out))


def _checked_root(root: Path) -> Path:
    if root.is_file():
        raise NotADirectoryError(f"{root} is a file. Give the folder that holds your files.")
    if not root.is_dir():
        raise FileNotFoundError(f"there is no folder {root}")
    return root


def _places(root: Path, by_class: bool) -> dict[str, Path]:
    """The folder of each part. Without a folder `train`, `fit` is the root except for the folders of other parts."""
    folders = {child.name.lower(): child for child in sorted(root.iterdir()) if child.is_dir()}
    first = {part: next((folders[name] for name in names if name in folders), None) for part, names in _SPLITS.items()}
    places = {part: folder for part, folder in first.items() if folder is not None}
    if "fit" in places:
        return places
    classes = [folder.name for folder in folders.values() if folder not in places.values()]
    # A class may have the name of a part.
    return {"fit": root} | {k: v for k, v in places.items() if not by_class or _has_only(v, classes)}


def _has_only(folder: Path, classes: Sequence[str]) -> bool:
    """True if the folders in it all have the names of classes."""
    inside = [child.name for child in folder.iterdir() if child.is_dir()]
    return bool(inside) and set(inside) <= set(classes)


def _entries(part: str, places: dict[str, Path], by_class: bool) -> list[Entry]:
    """All files of a part, also behind links, in the order of their names. Folders of runs are left out."""
    folder = places[part]
    apart = [other for other in places.values() if other != folder and other.is_relative_to(folder)]
    return [Entry(path, path.relative_to(folder).parts, part) for path in _Walk(folder, apart, by_class).files()]


class _Walk:
    """A walk through a folder that reaches every file once, by its own path rather than through a link.

    A link is followed unless its target was reached already. If that is of another class, the walk warns where one of
    the two is no link, and raises where both are links, as either label may be meant.
    """

    def __init__(self, folder: Path, apart: Sequence[Path], by_class: bool) -> None:
        self.folder, self.apart, self.by_class = folder, set(apart), by_class
        self.real_folder = Path(os.path.realpath(folder))
        self.real_apart = [Path(os.path.realpath(other)) for other in apart]
        self.paths: list[Path] = []
        self.reached: dict[str, tuple[Path, bool]] = {}  # real path -> path, and True behind a link
        self.links: list[tuple[Path, bool]] = []  # links not yet followed, True for folders

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
        with os.scandir(folder) as scan:
            entries = sorted((entry for entry in scan if not entry.name.startswith(".")), key=lambda entry: entry.name)
        names = {entry.name for entry in entries}
        is_run = "recipe.yaml" in names and not _RUN_FILES.isdisjoint(names)
        if (is_run and folder != self.folder) or not self._claim(folder, behind_link):
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
        """True at the first visit of a path."""
        real = Path(os.path.realpath(path)) if behind_link else self.real_folder / path.relative_to(self.folder)
        if behind_link and any(map(real.is_relative_to, self.real_apart)):
            warnings.warn(f"{path} is a link to {real} in another split and is not followed", stacklevel=1)
            return False
        before, was_behind_link = self.reached.setdefault(str(real), (path, behind_link))
        if before == path:
            return True
        classes = {self._class(path), self._class(before)}
        if len(classes) == 2 and None not in classes:
            message = f"{path} is a link to {before}, which is in another class"
            if was_behind_link:
                raise ValueError(f"{message}. Remove one of the two links.")
            # One line for all callers: Python shows it once, though a run lists a folder several times.
            warnings.warn(f"{message}. It is not followed.", stacklevel=1)
        return False

    def _class(self, path: Path) -> str | None:
        inside = path.relative_to(self.folder).parts
        return inside[0] if self.by_class and inside else None


def _is_note(path: Path) -> bool:
    return path.name.lower() in clouds.NOTES


def _is_readable(path: Path, suffixes: Sequence[str]) -> bool:
    return path.suffix.lower() in suffixes and not _is_note(path)


def _kind(path: Path) -> str:
    """The suffix of a file that is left out, or its name if it is a note or has none."""
    return path.name if _is_note(path) or not path.suffix else path.suffix.lower()


def _classes(
    root: Path, places: dict[str, Path], entries: Sequence[Entry], known: Sequence[str] | None, hint: str
) -> list[str]:
    """The names of the classes, in the order of their numbers: those known, or the folders of `fit`."""
    classes = list(known or ())
    for entry in entries:
        if len(entry.inside) < 2:
            layout = f"{places[entry.part]}/CLASS/FILE"
            raise ValueError(f"{entry.path}: a file outside the folders of classes. The layout is {layout}.{hint}")
        name = entry.inside[0]
        if name in classes:
            continue
        if known is not None:
            raise ValueError(f"{entry.path}: these weights do not know the class {name!r}, only {', '.join(known)}")
        if entry.part != "fit":
            raise ValueError(f"{entry.path}: there is no class {name!r} in {places['fit']}")
        classes.append(name)
    if len(classes) < 2:
        raise ValueError(f"{root} has one class only, {classes[0]!r}. The layout is {root}/CLASS/FILE.{hint}")
    return classes


def _warn_of_empty_folders(places: dict[str, Path], classes: Sequence[str], others: Sequence[Entry]) -> None:
    """Warn of folders that are no classes because no file in them can be read. Folders of runs are passed over."""
    unreadable = {places[entry.part] / entry.inside[0] for entry in others if len(entry.inside) > 1}
    for child in sorted(child for folder in places.values() for child in folder.iterdir()):
        if child.name in classes or child.name.startswith(".") or not child.is_dir():
            continue
        if child in unreadable or not any(files for *_, files in os.walk(child)):
            # One line for all callers: Python shows it once, though a run lists a folder several times.
            warnings.warn(f"{child} holds no readable file, so it is not a class", stacklevel=1)


def _parts(
    entries: Sequence[Entry],
    files: Sequence[str],
    labels: Sequence[int],
    by_class: bool,
    places: dict[str, Path],
    held_out_list: str | Path | None,
) -> tuple[list[str], str]:
    """The part of each file, and how validation was chosen: by a list, a folder, or our rule."""
    parts = [entry.part for entry in entries]
    if held_out_list is not None:
        listed = set(Path(held_out_list).read_text("utf-8").split("\n"))
        parts = ["validation" if file in listed else "fit" if p == "validation" else p for p, file in zip(parts, files)]
        return parts, f"the files that {held_out_list} lists"
    if "validation" in places:
        return parts, f"the files in {places['validation']}"
    fit = [i for i, part in enumerate(parts) if part == "fit"]
    names = [_recording(entries[i], by_class) for i in fit]
    chosen, rule = held_out([labels[i] for i in fit], names)
    for i in chosen:
        parts[fit[i]] = "validation"
    return parts, rule


def _recording(entry: Entry, by_class: bool) -> str:
    """The path of a recording inside its class, which names its session. The folder of a ROS 2 bag is a recording."""
    inside, path = entry.inside[by_class:], entry.path
    if path.suffix.lower() in SUFFIXES and len(inside) > 1 and is_bag(path.parent):
        inside = (*inside[:-2], inside[-2] + path.suffix)
    return Path(*inside).as_posix()


def _checked_name(path: Path) -> str:
    """The name of a file, as lists of files have it."""
    try:
        path.as_posix().encode()
    except UnicodeEncodeError:
        raise ValueError(f"{path.as_posix()!r}: the name of this file is not UTF-8. Rename it.") from None
    return path.as_posix()
