"""Recordings of one object whose position is known: `Spots`, and folders of your own recordings with CSV files.

`data[i]` is (`Events`, positions (K, 3) float64): rows of time in microseconds, on the clock of the events, and of x
and y in pixels, (0, 0) being the middle of the first pixel. Recordings are held out whole.
"""

from __future__ import annotations

import csv
import io
import lzma
import math
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from gridless.data import splits
from gridless.data.archives import read_archives
from gridless.data.base import Examples, Steps
from gridless.data.errors import FormatError
from gridless.data.limits import Limits
from gridless.data.listing import RECORDINGS, Listing, listing
from gridless.data.numpy_files import array_of
from gridless.data.readers.bags import is_bag
from gridless.data.readers.events import read_events
from gridless.kernels.progress import track
from gridless.structures import Events, collate

# Required columns of a CSV file of positions.
COLUMNS = ("time_us", "x", "y")
# Suffixes of recordings, without those of text files: positions are text, too.
SUFFIXES = tuple(suffix for suffix in RECORDINGS if suffix not in (".csv", ".txt"))


class Tracks(Examples):
    """Base class of data sets with positions. Subclasses set `recordings`, `positions`, `sensor` and `names`.

    Args:
        transform, seed: those of `Examples`.
    """

    sensor: tuple[int, int]
    listing: Listing | None = None

    def __init__(self, transform: Steps = (), seed: int | None = None) -> None:
        super().__init__(transform, seed)
        self.recordings: list[Events] = []
        self.positions: list[Tensor] = []
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self.recordings)

    def __getitem__(self, i: int) -> Any:
        if not -len(self) <= i < len(self):
            raise IndexError(f"{type(self).__name__} has no recording {i}, only {len(self)} recordings")
        i = int(i) % len(self)
        return self._transformed(self.recordings[i], i), self.positions[i]

    def example(self, i: int) -> Events:
        return self.recordings[i]

    def batch(self) -> Events:
        """All recordings as one ragged batch."""
        return collate(self.recordings)


class Spots(Tracks):
    """EBWFNet: a laser spot behind a lens, moved by turbulence, as a Prophesee camera sees it; 50 x 50 pixels.

    A packed file, `spots_train.npz.xz`: 29 streams of about 25 s, of 23 recordings; the position of the spot every
    10 ms, from a frame camera (Applied Optics 63(16), E35, 2024). `split`: "train", its parts "fit" and "validation",
    or "test" (`spots_test.npz.xz`). Streams of one recording stay together: every fifth recording in the order of
    their numbers, from place `fold` on, is for validation. No licence is stated for the data.

    `filtered[i]` (K, 2) are the positions by the published first-order filter, at the times of `positions[i]`. `names`
    are RECORDING-LENS.

    Args:
        root: the file, or the folder that holds it.
        split: which recordings.
        fold: 0 to 4, for cross-validation.
        transform, seed: those of `Examples`.
    """

    sensor = (50, 50)
    # Origin of the published positions: the middle of this pixel.
    centre: ClassVar[float] = 25.0
    folds: ClassVar[int] = 5

    def __init__(
        self, root: str | Path, split: str = "train", fold: int = 0, transform: Steps = (), seed: int | None = None
    ) -> None:
        super().__init__(transform, seed)
        if fold not in range(self.folds):
            raise ValueError(f"Spots: fold is {fold!r}. Give 0 to {self.folds - 1}.")
        name = "spots_test.npz.xz" if splits.check(split) == "test" else "spots_train.npz.xz"
        path = Path(root) if Path(root).is_file() else Path(root) / name
        if not path.is_file():
            raise FileNotFoundError(f"Spots: there is no {path}. Give the folder of {name}, or the file.")
        archive = read_archives([path])
        parts = _positions(path)
        numbers = parts["recording"][:, 0]
        held_out = np.isin(numbers, np.unique(numbers)[fold :: self.folds])
        wanted = {"fit": ~held_out, "validation": held_out}.get(split, np.ones(len(numbers), bool))
        self.filtered: list[Tensor] = []
        ends = parts["truth_offsets"].astype(np.int64)
        for i in np.flatnonzero(wanted):
            rows = slice(ends[i], ends[i + 1])
            xy = parts["truth"][rows].astype(np.float64) / 256 + self.centre
            time = parts["truth_time"][rows].astype(np.float64)
            self.recordings.append(archive.events([int(i)]))
            self.positions.append(torch.from_numpy(np.column_stack([time, xy])))
            self.filtered.append(torch.from_numpy(parts["baseline"][rows].astype(np.float64) / 256 + self.centre))
            self.names.append("{}-{}".format(*parts["recording"][i]))


def _positions(path: Path) -> dict[str, np.ndarray]:
    names = ("recording", "truth_offsets", "truth_time", "truth", "baseline")
    try:
        with zipfile.ZipFile(io.BytesIO(lzma.decompress(path.read_bytes()))) as archive:
            return {name: array_of(Limits(path), archive.read(f"{name}.npy")) for name in names}
    except KeyError as error:
        raise FormatError(path, f"a pack of recordings without positions: {error}") from None


class TrackFolder(Tracks):
    """A folder of your own recordings, each with a CSV file of positions beside it: `01.aedat4` and `01.csv`.

    The CSV file has a header with `time_us`, `x` and `y`, in any order; other columns are left out. Times are whole
    microseconds on the clock of the recording, and rise. Folders `train`, `validation` and `test` are the splits;
    without `validation` a fifth of the recordings is held out, whole sessions where file names tell them.

    Args:
        root: the folder.
        split: "train", its parts "fit" and "validation", or "test".
        held_out_list: a file that lists the recordings for validation, instead of the rule.
        sensor: (width, height); by default that of the largest recording.
        repair: what to do with faults in recordings, as of `gl.read_events`.
        topic: of recordings of ROS, where several topics have events.
        transform, seed: those of `Examples`.
        progress: show a bar.
        read: read the recordings; without, there are only positions, and `read_file` reads one recording.
    """

    def __init__(
        self,
        root: str | Path,
        split: str = "train",
        held_out_list: str | Path | None = None,
        sensor: Sequence[int] | None = None,
        repair: str | Sequence[str] = (),
        topic: str | None = None,
        transform: Steps = (),
        seed: int | None = None,
        progress: bool = False,
        read: bool = True,
    ) -> None:
        super().__init__(transform, seed)
        self.repair, self.topic = repair, topic
        self.asked = None if sensor is None else (int(sensor[0]), int(sensor[1]))
        self.listing = listing(root, SUFFIXES, by_class=False, held_out_list=held_out_list)
        self.files = [self.listing.files[i] for i in self.listing.rows(split)]
        self.names = list(self.files)
        self.paths = [self.listing.root / file for file in self.files]
        # Errors in the CSV files are reported before long recordings are read.
        self.positions = [read_positions(path.with_suffix(".csv"), path) for path in self.paths]
        if read:
            self.recordings = [self.read_file(path) for path in track(self.paths, "read", shown=progress)]
            sizes = np.max([events.sensor for events in self.recordings], 0)
            self.sensor = self.asked or (int(sizes[0]), int(sizes[1]))
            self.recordings = [events._changed(sensor=self.sensor) for events in self.recordings]

    def read_file(self, path: Path) -> Events:
        """The recording in one file, on the sensor that was asked for, else on its own."""
        topic = self.topic if is_bag(path) else None
        events = read_events(path, sensor=self.asked, repair=self.repair, topic=topic)
        if not len(events):
            raise ValueError(f"{path}: the recording has no events. Remove it.")
        return events


def read_positions(path: Path, recording: Path) -> Tensor:
    """The positions (K, 3) float64 of a CSV file: time in microseconds, x and y. Errors name the line."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file. {recording.name} needs one with {','.join(COLUMNS)}.")
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = csv.reader(file)
        try:
            header = [name.strip() for name in next(lines, [])]
            missing = [name for name in COLUMNS if name not in header]
            if missing:
                raise ValueError(f"{path}: there is no column {', '.join(missing)}. Give {','.join(COLUMNS)}.")
            at = [header.index(name) for name in COLUMNS]
            rows = [_numbers(path, lines.line_num, line, at) for line in lines if any(map(str.strip, line))]
        except (csv.Error, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: line {lines.line_num + 1} is not CSV ({error}). Write the file again.") from None
    positions = torch.tensor(rows, dtype=torch.float64).view(-1, 3)
    if not len(positions):
        raise ValueError(f"{path}: there are no positions. Give one or more.")
    back = (positions[1:, 0] <= positions[:-1, 0]).nonzero()
    if len(back):
        row = int(back[0])
        a, b = (int(positions[row + k, 0]) for k in (0, 1))
        raise ValueError(f"{path}: time_us {b} of position {row + 2} follows {a}. Times must rise: sort the lines.")
    return positions


def _numbers(path: Path, line: int, cells: Sequence[str], at: Sequence[int]) -> list[float]:
    """Time, x and y of a line."""
    numbers = []
    for name, k in zip(COLUMNS, at, strict=True):
        text = cells[k].strip() if k < len(cells) else ""
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number) or (name == "time_us" and not (number.is_integer() and 0 <= number < 2**53)):
            kind = "whole microseconds" if name == "time_us" else "a number"
            raise ValueError(f"{path}: line {line} has {name} = {text!r}. Give {kind}.")
        numbers.append(number)
    return numbers
