"""Event files: one reader per format, chosen by what the file holds.

A reader has `sniff(head)`, which knows the format by its first bytes, and `read(file)`, which returns the columns. Bad
content raises `FormatError`, with the file and the byte, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch

from gridless.data.errors import check_file
from gridless.data.isolation import read_isolated
from gridless.data.limits import Limits
from gridless.data.readers.bags import SUFFIXES as BAGS
from gridless.data.readers.bags import is_bag
from gridless.data.readers.events.base import File, FormatError, Recording
from gridless.data.readers.events.write import write_events
from gridless.structures import Events, Rows
from gridless.structures.events import REPAIRS, as_repairs, unchecked

__all__ = ["FormatError", "read_events", "write_events"]

# Formats that can be told by their first bytes, the most certain first, text last.
READERS = ("es", "aedat4", "aedat3", "aedat2", "hdf5", "npy", "mat", "evt", "dat", "ros", "text")
SUFFIXES = {
    ".bin": "atis_bin",
    ".es": "es",
    ".aedat4": "aedat4",
    ".aedat": "aedat2",
    ".h5": "hdf5",
    ".hdf5": "hdf5",
    ".npy": "npy",
    ".npz": "npy",
    ".mat": "mat",
    ".raw": "evt",
    ".dat": "dat",
    ".csv": "text",
    ".txt": "text",
    ".bag": "ros",
    ".db3": "ros",
    ".mcap": "ros",
}


def read_events(
    path: str | Path,
    sensor: tuple[int, int] | None = None,
    repair: str | Sequence[str] = (),
    stream: int | None = None,
    max_bytes: int | None = None,
    isolated: bool = False,
    topic: str | None = None,
) -> Events:
    """Read the events of the file `path`: N-MNIST `.bin`, AEDAT 2, 3.1 and 4, Prophesee `.dat` and `.raw` (EVT 2 and
    3), Event Stream `.es`, MATLAB `.mat`, HDF5, CSV, NumPy `.npy` and `.npz`, ROS 1 `.bag`, ROS 2 `.db3` and `.mcap`.

    The content decides the format; the suffix matters only for `.bin`. Pixels, times and polarity are those of the
    file: nothing is mirrored or shifted, but counters that wrap are continued. `sensor` (width, height) overrides the
    file's. Without either, it is the smallest camera of the family that holds all events, or else the smallest
    rectangle. `stream` chooses between the cameras of a file, `topic` between those of a bag.

    Bad content raises `FormatError`, a `ValueError` with the file and the byte. So do times that step back, negative
    times and events outside the sensor, unless `repair` names a repair (see `Events.of`), and a file that was cut off,
    unless a repair is `"cut"`: it keeps the complete events before the end.

    A compressed file may unpack to `max_bytes`, by default the larger of 256 MiB and 100 times its own length. With
    `isolated` the file is read in a separate process, whose crash, timeout or lack of memory is a `FormatError`, too:
    see the page on untrusted files.
    """
    repairs = as_repairs(repair, ("cut", *REPAIRS))
    if not is_bag(Path(path)):
        check_file(Path(path), "EventFolder")
        if topic is not None:
            raise FormatError(path, f"has no topics. The option topic is for {', '.join(BAGS)}.")
    if isolated:
        return read_isolated(read_events, path, max_bytes, sensor=sensor, repair=repairs, stream=stream, topic=topic)
    file = File(Path(path), Limits(path, max_bytes), stream, sensor, "cut" in repairs, topic)
    return _events(file, reader_of(file).read(file), sensor, repairs)


def read_packets(
    path: str | Path, sensor: tuple[int, int] | None = None, repair: str | Sequence[str] = (), topic: str | None = None
) -> Iterator[Events]:
    """Read the same events in pieces, in order. The pieces of a bag are its messages; one is in memory at a time.

    Files of other formats, and bags with a repair, are one piece.
    """
    if not is_bag(Path(path)) or repair:
        yield read_events(path, sensor, repair, topic=topic)
        return
    file = File(Path(path), Limits(path), None, sensor, False, topic)
    for recording in import_module("gridless.data.readers.events.ros").packets(file):
        yield _events(file, recording, sensor, ())


def _events(file: File, recording: Recording, sensor: tuple[int, int] | None, repairs: Sequence[str]) -> Events:
    """The columns of a file as events, checked."""
    size = sensor or recording.sensor or recording.guess_sensor()
    try:
        rows = Rows.of(recording.rows, torch.from_numpy(recording.time), "rows")
    except (TypeError, ValueError) as error:
        raise file.error(str(error)) from None
    try:
        events = unchecked([(recording.pixel, recording.time, recording.polarity)], size, repairs, [rows])
    except OverflowError as error:
        raise file.error(str(error)) from None
    fault = events.fault()
    if fault is not None:
        row, reason = fault
        # Repairs move events: their rows no longer say where they were stored.
        offset = None if repairs or recording.locate is None else recording.locate(row)
        raise file.error(f"event {row} {reason}", offset)
    return events


def reader_of(file: File) -> ModuleType:
    """The module that reads this file."""
    if is_bag(file.path) and file.path.is_dir():
        return _reader("ros")
    head = file.head
    suffix = file.path.suffix.lower()
    name = SUFFIXES.get(suffix)
    for known in READERS:
        # Five-byte events may by chance look like text, so a suffix that no content can confirm is believed.
        if name == "atis_bin" and known == "text":
            break
        module = _reader(known)
        if module.sniff(head):
            return module
    if name == "atis_bin" or (name == "text" and not len(file)):
        return _reader(name)
    if not len(file):
        raise file.error("is empty", 0)
    if name is not None:
        raise file.error(f"not a {suffix} file: it begins with {head[:12]!r}", 0)
    raise file.error(f"unknown format: it begins with {head[:12]!r} and has {suffix or 'no suffix'}", 0)


def _reader(name: str) -> ModuleType:
    return import_module(f"gridless.data.readers.events.{name}")
