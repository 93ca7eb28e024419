"""A place for clouds that are slow to read: one array that the next start maps into memory."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gridless.data.files import BESIDE, sweep, whole_file, write_whole


class Clouds(NamedTuple):
    """coords (N, points, 3) float32, label (N) int64, and the name of each shape, '' where a release has none.

    Parts of points are a fourth column.
    """

    coords: np.ndarray
    label: np.ndarray
    names: list[str]


def cached(
    folder: Path, cache: str | Path | bool, name: str, sources: Sequence[Path], make: Callable[[], Clouds]
) -> Clouds:
    """Return `make()`, from the cache if it has an entry that is not outdated.

    It is outdated when one of the `sources` (list files, folders with their files) has changed. A cache that cannot be
    read is made again; one that cannot be written is done without, with a warning.
    """
    if cache is False:
        return make()
    place = folder / BESIDE if cache is True else Path(cache)
    state = [_state(path) for path in sources]
    about, array = place / f"{name}.json", place / f"{name}.npy"
    entry = _load(about, array, state)
    if entry is not None:
        return entry
    clouds = make()
    try:
        sweep(place)
        with whole_file(array) as file:
            np.save(file, clouds.coords)
        entry = {"state": state, "bytes": array.stat().st_size, "label": clouds.label.tolist(), "names": clouds.names}
        write_whole(about, json.dumps(entry).encode())
    except OSError as error:
        warnings.warn(
            f"{place} cannot be written ({error.strerror}): the next start will be slow, too. Pass cache=FOLDER.",
            stacklevel=4,
        )
    return clouds


def _state(path: Path) -> list:
    """Identifies a file, or a folder and its files: names, sizes and times of the last change."""
    known = path.stat()
    state = [path.name, known.st_size, known.st_mtime_ns]
    if path.is_dir():
        with os.scandir(path) as entries:
            inside = [entry.stat() for entry in entries if entry.is_file()]
        state += [len(inside), sum(s.st_size for s in inside), max((s.st_mtime_ns for s in inside), default=0)]
    return state


def _load(about: Path, array: Path, state: list) -> Clouds | None:
    try:
        entry = json.loads(about.read_bytes())
        if entry["state"] != state or entry["bytes"] != os.path.getsize(array):
            return None
        # Private pages: tensors made of it may be written to, the file never is.
        coords = np.load(array, mmap_mode="c", allow_pickle=False)
        label, names = np.array(entry["label"], np.int64), entry["names"]
        whole = (
            coords.dtype == np.float32
            and coords.ndim == 3
            and coords.shape[2] in (3, 4)
            and len(coords) == len(label) == len(names)
        )
        return Clouds(coords, label, names) if whole else None
    except Exception:  # whatever a damaged file leads to, it is made again
        return None
