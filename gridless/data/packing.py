"""Data larger than memory: examples packed once on disk, read batch by batch.

A pack is a folder of safetensors files, its shards, and `pack.json`, which is written last.

- An event is one int64 word: microseconds since the recording began, then y, x and polarity, in as many bits as the
  sensor needs.
- A point is its float32 coordinates. Rows of points and events keep their types.
- An item of a data set, such as a file, may hold several examples. The name of a shard is the number of its first item
  and the number after its last item.

Shards are read by position instead of mapped: mapped pages would count as memory of the process, and grow with the
data set.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import types
from safetensors import SafetensorError
from safetensors.numpy import save_file
from torch import Tensor

from gridless.data.errors import FormatError
from gridless.data.files import locked, sweep, whole_file, write_whole
from gridless.kernels import pool
from gridless.kernels.compile import njit
from gridless.kernels.progress import bar
from gridless.kernels.threads import even_ranges, in_threads, num_threads
from gridless.structures import Cloud, Events, Rows

INDEX = "pack.json"
VERSION = 2
# A shard ends with the first item that makes it larger than this. Each process holds one shard, and a copy of its
# longest column.
SHARD_BYTES = 1 << 26
# Shards whose files stay open. Others are opened for each read, because a process may open only 1,024 files.
OPEN_SHARDS = 256
# Minimum examples of a batch that a thread reads.
MIN_READS = 32
# Bits of an event's word for the signed time since the recording began, in microseconds.
TIME_BITS = 38
ROW = "row/"
_AGAIN = "Remove the folder, and pack the data again."
# Arrays of a shard that have one entry per example.
_PER_EXAMPLE = ("size", "label", "start", "item")


class Item(NamedTuple):
    """Several examples from one item of a data set, such as the blocks of a scan."""

    examples: Sequence[tuple[Any, Any]]
    """(events, label) or (cloud, label) each."""
    facts: Mapping[str, Any] = {}
    """Metadata of the item for `Pack.facts`; JSON can hold it."""


def pack(
    dataset: Any,
    path: str | Path,
    class_names: Sequence[str] = (),
    workers: int = 1,
    progress: bool = True,
    about: Mapping[str, Any] | None = None,
    together: int = 16,
) -> Pack:
    """Write the examples of a map-style data set to a pack, in constant memory, and open it.

    Repeat an interrupted call to continue it. A complete pack is only opened. If another process is writing the pack,
    the call waits.

    Args:
        dataset: has `len(dataset)` and `dataset[i]`: (events, label), (cloud, label), or an `Item` of several. Arrays
            (points, dimensions) are clouds. Structured arrays of tonic (x, y, t, p) are events of
            `dataset.sensor_size`. Labels are numbers, or arrays of one shape.
        path: the folder of the pack.
        class_names: names of the classes; by default `dataset.class_names` or `dataset.classes`.
        workers: processes that read examples; above 1 the data set is pickled.
        progress: show a progress bar.
        about: further metadata for `Pack.about`, which JSON can hold.
        together: minimum items per task of a process; use 1 for large items.
    """
    path = Path(path)
    if (path / INDEX).is_file():
        return Pack(path)
    if not len(dataset):
        raise ValueError(f"pack: the data set of {path} is empty. Give one with examples.")
    path.mkdir(parents=True, exist_ok=True)
    names = list(class_names or getattr(dataset, "class_names", None) or getattr(dataset, "classes", None) or ())
    with ExitStack() as held:
        if not _wait_for_lock(path, held):
            return Pack(path)
        sweep(path)
        todo = list(_missing(path, len(dataset), together))
        done = len(dataset) - sum(end - first for first, end in todo)
        with bar("pack", len(dataset), progress, done) as advance:
            arguments = {"dataset": dataset, "folder": path}
            for (first, end), _ in pool.run(Packer, arguments, todo, max(min(workers, len(todo)), 1)):
                advance(end - first)
        facts = {"version": VERSION, "items": len(dataset), "class_names": list(map(str, names))}
        facts |= {"shards": [shard.name for shard in _shards(path)], "about": dict(about or {})}
        write_whole(path / INDEX, json.dumps(facts).encode())
    return Pack(path)


def _wait_for_lock(path: Path, held: ExitStack) -> bool:
    """Take the lock of a pack's writer; False if another process completes the pack while this one waits."""
    waits = False
    while True:
        try:
            held.enter_context(locked(path / ".lock", path))
        except ValueError:
            if not waits:
                print(f"waiting for another process, which writes {path}", file=sys.stderr, flush=True)
            waits = True
            time.sleep(0.2)
        else:
            return not (path / INDEX).is_file()


def _missing(folder: Path, count: int, together: int) -> Iterator[tuple[int, int]]:
    """Ranges (first, end) of items that are in no shard yet, independent of the number of processes."""
    step = min(max(count // 64, together), 4096)
    ends = dict(map(_range, _shards(folder)))
    for first in range(0, count, step):
        end = min(first + step, count)
        while first in ends:
            first = ends[first]
        if first < end:
            yield first, end


def _shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-*.safetensors"))


def _range(shard: Path) -> tuple[int, int]:
    """The number of a shard's first item and the number after its last item, from its name."""
    first, _, end = shard.stem.partition("-")
    if not (first.isdigit() and end.isdigit()):
        raise FormatError(shard, f"not a shard of a pack. {_AGAIN}")
    return int(first), int(end)


class Packer:
    """Writes the shards of a range of items."""

    def __init__(self, dataset: Any, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder

    def __call__(self, job: tuple[int, int]) -> None:
        first, end = job
        shard = _ShardWriter()
        for i in range(first, end):
            shard.add(self.dataset, i)
            if shard.bytes > SHARD_BYTES or i + 1 == end:
                shard.write(self.folder / f"{first:010d}-{i + 1:010d}.safetensors")
                first, shard = i + 1, _ShardWriter(shard.meta)


class _ShardWriter:
    """One shard in memory until it is written; `meta` is the metadata of the shards before it."""

    def __init__(self, meta: dict[str, str] | None = None) -> None:
        self.columns: dict[str, list[np.ndarray]] = {}
        self.meta, self.facts, self.bytes = meta, dict[int, Any](), 0

    def add(self, dataset: Any, i: int) -> None:
        item = dataset[i]
        if not isinstance(item, Item):
            item = Item([item])
        if item.facts:
            self.facts[i] = dict(item.facts)
        for example, label in item.examples:
            arrays, meta = _arrays(dataset, i, example, label)
            if self.meta is not None and meta != self.meta:
                raise ValueError(
                    f"pack: example {i} is {meta}, the examples before are {self.meta}. Give examples of one kind."
                )
            self.meta = meta
            for name, array in arrays.items():
                self.columns.setdefault(name, []).append(array)
            self.bytes += sum(array.nbytes for array in arrays.values())

    def write(self, path: Path) -> None:
        arrays, digest = {}, hashlib.blake2b(digest_size=16)
        for name in list(self.columns):
            arrays[name] = np.ascontiguousarray(np.concatenate(self.columns.pop(name)))
            digest.update(name.encode())
            digest.update(arrays[name].reshape(-1).view(np.uint8).data)
        meta = {**(self.meta or {}), "digest": digest.hexdigest(), "facts": json.dumps(self.facts)}
        with whole_file(path) as file:
            try:
                save_file(arrays, file.name, meta)
            except SafetensorError as error:
                # safetensors gives the errno only in the text of its error.
                number = re.search(r"os error (\d+)", str(error))
                raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from None
            file.seek(0, os.SEEK_END)


def _arrays(dataset: Any, i: int, example: Any, label: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """An example of item i as arrays of a shard, and the metadata that all examples of a pack share."""
    if isinstance(example, np.ndarray) and example.dtype.names:
        example = Events.of(example, dataset.sensor_size)
    elif isinstance(example, Tensor | np.ndarray) and example.ndim == 2:
        example = Cloud.of(example)
    labels = np.asarray(label.cpu() if isinstance(label, Tensor) else label)
    start = np.zeros(1, np.int64)
    if isinstance(example, Events) and example.polarity is not None:
        words, start = _words(example, i)
        arrays, facts = {"word": words}, {"kind": "events", "sensor": json.dumps(list(example.sensor))}
    elif isinstance(example, Cloud):
        coords = example.coords.float().cpu().numpy()
        directions = json.dumps(list(example.directions))
        arrays, facts = {"coords": coords}, {"kind": "clouds", "directions": directions}
    else:
        raise TypeError(f"pack: example {i} is {type(example).__name__}. Give gl.Events with polarity, or gl.Cloud.")
    arrays |= {f"{ROW}{name}": np.ascontiguousarray(values.cpu().numpy()) for name, values in example.rows.items()}
    numbers = {"size": len(example), "item": i}
    arrays |= {name: np.array([number], np.int64) for name, number in numbers.items()}
    arrays |= {"label": labels[None], "start": start}
    types = {name: f"{values.dtype} {tuple(values.shape[1:])}" for name, values in example.rows.items()}
    return arrays, facts | {"rows": json.dumps(types), "label": f"{labels.dtype} {labels.shape}"}


def bits_of(sensor: Sequence[int]) -> tuple[int, int]:
    """The bits of x and of y in an event's word."""
    width, height = sensor
    bits = (width - 1).bit_length(), (height - 1).bit_length()
    if sum(bits) + 1 + TIME_BITS > 64:
        raise ValueError(f"pack: a sensor of {width} x {height} pixels is too large for 64-bit words")
    return bits


def _words(events: Events, i: int) -> tuple[np.ndarray, np.ndarray]:
    """The words (S) of one recording, and the time (1) of its first event."""
    across, down = bits_of(events.sensor)
    time, pixel = events.time.cpu(), events.pixel.cpu().long()
    start = time[:1] if len(time) else time.new_zeros(1)
    age = time - start
    if len(age) and max(int(age.max()), -int(age.min())) >= 1 << (TIME_BITS - 1):
        hours = (1 << (TIME_BITS - 1)) / 3.6e9
        raise ValueError(f"pack: recording {i} is longer than {hours:.0f} hours. Cut it into parts.")
    assert events.polarity is not None
    word = ((age << down | pixel[:, 1]) << across | pixel[:, 0]) << 1 | events.polarity.cpu().long()
    return word.numpy(), start.numpy()


def events_of(
    word: Tensor, start: Tensor, splits: Tensor, bits: tuple[int, int], sensor: tuple[int, int], rows: Rows
) -> Events:
    """The recordings of `word` (S), on its device.

    `start` (B) has the time of the first event of each recording; `bits` are the bits of x and of y in a word.
    """
    across, down = bits
    x = word >> 1 & (1 << across) - 1
    y = word >> 1 + across & (1 << down) - 1
    begin = torch.repeat_interleave(start, splits.diff(), output_size=len(word))
    time = (word >> 1 + across + down) + begin
    pixel = torch.stack([x, y], 1).int()
    return Events(pixel, time, (word & 1).bool(), splits, sensor, rows=rows)


@dataclass(frozen=True)
class PackFile:
    """A shard on disk and the positions of its arrays. Its file stays open if it has a `handle`."""

    path: Path
    handle: int | None
    arrays: dict[str, tuple[np.dtype, tuple[int, ...], int]]  # name -> type, shape, position
    meta: dict[str, str]

    @classmethod
    def open(cls, path: Path, stays_open: bool = True) -> PackFile:
        try:
            size = path.stat().st_size
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 2 <= length <= min(size - 8, 1 << 24):
                    raise ValueError(f"its header has {length} bytes")
                header = json.loads(file.read(length))
                meta = header.pop("__metadata__", {})
                arrays = {name: _place(entry, 8 + length, size) for name, entry in header.items()}
                return cls(path, os.dup(file.fileno()) if stays_open else None, arrays, meta)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(path, f"not a whole shard of a pack: {error}. {_AGAIN}") from None

    def __del__(self) -> None:
        if self.handle is not None:
            os.close(self.handle)

    def read(self, name: str, first: int, out: np.ndarray) -> None:
        """Fill `out` with rows of an array, from row `first` on."""
        dtype, shape, at = self.arrays[name]
        position = at + first * dtype.itemsize * math.prod(shape[1:])
        view = memoryview(out.reshape(-1).view(np.uint8).data)
        handle = os.open(self.path, os.O_RDONLY) if self.handle is None else self.handle
        try:
            while len(view):
                count = os.preadv(handle, [view], position)
                if not count:
                    raise FormatError(self.path, f"it has become shorter. {_AGAIN}")
                view, position = view[count:], position + count
        finally:
            if self.handle is None:
                os.close(handle)

    def whole(self, name: str) -> np.ndarray:
        dtype, shape, _ = self.arrays[name]
        out = np.empty(shape, dtype)
        self.read(name, 0, out)
        return out


_DTYPES = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "U32": "<u4", "I32": "<i4", "U64": "<u8",
    "I64": "<i8", "F16": "<f2", "F32": "<f4", "F64": "<f8",
}  # fmt: skip


def _place(entry: Mapping[str, Any], data: int, size: int) -> tuple[np.dtype, tuple[int, ...], int]:
    """Type, shape and file position of an array by its header entry; an error if it is not inside the file."""
    dtype, shape = np.dtype(_DTYPES[entry["dtype"]]), tuple(map(int, entry["shape"]))
    first, end = map(int, entry["data_offsets"])
    if (
        min(shape, default=0) < 0
        or end - first != dtype.itemsize * math.prod(shape)
        or not 0 <= first <= end <= size - data
    ):
        raise ValueError(f"an array of {entry['dtype']} {list(shape)} at {first} to {end} does not fit {size} bytes")
    return dtype, shape, data + first


class Pack:
    """An open pack: labels and sizes in memory, examples on disk.

    Attributes:
        labels: (N, ...) the label of each example.
        splits: (N + 1) where each example begins, counted in points or events over the whole pack.
        items: (N) the item of the data set that each example came from.
        facts: metadata of each item, by its number.
        class_names: names of the classes.
        sensor: (width, height) of recordings, the largest in the metadata of the items, else that of the shards; None
            for clouds.
        about: further metadata, from the argument of `pack`.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            index = json.loads((self.path / INDEX).read_bytes())
            names, count, self.about = index["shards"], int(index["items"]), dict(index["about"])
            self.class_names = [str(name) for name in index["class_names"]]
            if index["version"] != VERSION or any(Path(name).name != name for name in names) or not names:
                raise ValueError("it has another version, or was changed")
        except FileNotFoundError:
            raise FileNotFoundError(
                f"Pack: there is no complete pack in {self.path}. Make one with gl.data.pack."
            ) from None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FormatError(self.path / INDEX, f"not the index of a pack: {error}. {_AGAIN}") from None
        self.shards = [PackFile.open(self.path / name, k < OPEN_SHARDS) for k, name in enumerate(names)]
        self._check(count)
        columns = {name: np.concatenate([s.whole(name) for s in self.shards]) for name in _PER_EXAMPLE}
        self.labels, self.starts = torch.from_numpy(columns["label"]), torch.from_numpy(columns["start"])
        if np.issubdtype(columns["label"].dtype, np.integer):
            self.labels = self.labels.long()
        self.items = torch.from_numpy(columns["item"])
        self.splits = torch.from_numpy(np.concatenate([[0], np.cumsum(columns["size"])]))
        # The first example and the first row of each shard.
        self.first = np.cumsum([0, *(shard.arrays["size"][1][0] for shard in self.shards)])
        self._rows = self.splits.numpy()[self.first]
        # The handle of each shard, or -1, and the position of its columns.
        self._handles = np.array([-1 if s.handle is None else s.handle for s in self.shards], np.int32)
        self._positions = {name: np.array([s.arrays[name][2] for s in self.shards]) for name in self.columns}
        for k, shard in enumerate(self.shards):
            if any(shard.arrays[name][1][0] != self._rows[k + 1] - self._rows[k] for name in self.columns):
                raise FormatError(shard.path, f"its arrays do not fit its sizes. {_AGAIN}")

    def _check(self, count: int) -> None:
        """Reject a pack with missing or overlapping shards, or with shards of different metadata."""
        meta, names, end = _common(self.shards[0]), self.shards[0].arrays.keys(), 0
        for shard in self.shards:
            first, last = _range(shard.path)
            alike = _common(shard) == meta and shard.arrays.keys() == names and {*_PER_EXAMPLE} < names
            if first != end or not alike or len({shard.arrays[name][1][:1] for name in _PER_EXAMPLE}) > 1:
                raise FormatError(shard.path, f"it does not belong to the other shards. {_AGAIN}")
            end = last
        if end != count:
            raise FormatError(self.path / INDEX, f"there are {end} of {count} items. {_AGAIN}")
        try:
            self.facts = {int(i): dict(f) for s in self.shards for i, f in json.loads(s.meta["facts"]).items()}
            self.is_events = meta["kind"] == "events"
            self.sensor: Any = tuple(map(int, json.loads(meta["sensor"]))) if self.is_events else None
            self.bits = bits_of(self.sensor) if self.is_events else (0, 0)
            if sensors := [facts["sensor"] for facts in self.facts.values() if "sensor" in facts]:
                self.sensor = max(int(width) for width, _ in sensors), max(int(height) for _, height in sensors)
            self.directions = () if self.is_events else tuple(json.loads(meta["directions"]))
            self.row_names = list(json.loads(meta["rows"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FormatError(self.shards[0].path, f"its metadata is damaged: {error}. {_AGAIN}") from None
        self.columns = ["word" if self.is_events else "coords", *(f"{ROW}{name}" for name in self.row_names)]
        if {*self.columns, *_PER_EXAMPLE} != names:
            raise FormatError(self.shards[0].path, f"its arrays are {', '.join(names)}. {_AGAIN}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def digest(self) -> str:
        """Digest of the content: packs of the same examples have the same digest."""
        return hashlib.blake2b("".join(s.meta["digest"] for s in self.shards).encode(), digest_size=16).hexdigest()

    def __repr__(self) -> str:
        what = "events" if self.is_events else "points"
        return f"Pack({str(self.path)!r}: {len(self):,} examples, {int(self.splits[-1]):,} {what})"

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the files itself.
        return {"path": self.path, "sensor": self.sensor}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["path"])
        self.sensor = state["sensor"]

    def __getitem__(self, i: int) -> tuple[Events | Cloud, Any]:
        """Example i and its label: a pack is a map-style data set."""
        if not -len(self) <= i < len(self):
            raise IndexError(f"Pack: there is no example {i}, only {len(self)} examples")
        i %= len(self)
        return self.read(torch.tensor([i])), self.labels[i]

    def read(
        self,
        index: Tensor,
        device: torch.device | str = "cpu",
        begin: Tensor | None = None,
        sizes: Tensor | None = None,
    ) -> Any:
        """The examples `index`, in that order, as one ragged batch on `device`.

        Args:
            index: (B), on the CPU: the numbers of the examples.
            device: of the batch.
            begin: (B) the first point or event that is read of each example; None: 0.
            sizes: (B) how many are read of each example; None: all.
        """
        device = torch.device(device)
        return self.batch(self.load(index, device.type == "cuda", begin, sizes), device)

    def load(
        self, index: Tensor, pinned: bool = False, begin: Tensor | None = None, sizes: Tensor | None = None
    ) -> dict[str, Tensor]:
        """The columns of examples on the CPU, for `batch`.

        Args:
            index: (B) the numbers of the examples.
            pinned: in page-locked memory.
            begin: (B) the first point or event that is read of each example; None: 0.
            sizes: (B) how many are read of each example; None: all.
        """
        sizes = self.sizes_of(index) if sizes is None else sizes
        begin = torch.zeros_like(sizes) if begin is None else begin
        splits = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        columns = {name: self._column(name, int(splits[-1]), pinned) for name in self.columns}
        if len(index):
            self._fill(columns, *(values.numpy() for values in (index, begin, sizes, splits[:-1])))
        columns |= {"splits": splits, "start": self.starts[index]}
        return {name: column.pin_memory() if pinned else column for name, column in columns.items()}

    def batch(self, columns: Mapping[str, Tensor], device: torch.device) -> Any:
        """The ragged batch on `device` of the columns that `load` read."""
        moved = {name: column.to(device, non_blocking=True) for name, column in columns.items()}
        splits = moved["splits"]
        rows = Rows({name: moved[f"{ROW}{name}"] for name in self.row_names})
        if not self.is_events:
            return Cloud.made(coords=moved["coords"], splits=splits, rows=rows, directions=self.directions)
        return events_of(moved["word"], moved["start"], splits, self.bits, self.sensor, rows).trusted()

    def sizes_of(self, index: Tensor) -> Tensor:
        """(B) the number of points or events of the examples `index`."""
        return self.splits[index + 1] - self.splits[index]

    def _column(self, name: str, count: int, pinned: bool) -> Tensor:
        """An empty tensor for `count` rows of an array."""
        dtype, shape, _ = self.shards[0].arrays[name]
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        return torch.empty((count, *shape[1:]), dtype=kind, pin_memory=pinned)

    def _fill(
        self, columns: Mapping[str, Tensor], index: np.ndarray, begin: np.ndarray, sizes: np.ndarray, to: np.ndarray
    ) -> None:
        """Read `sizes` rows of the examples `index`, from their rows `begin` on, to the rows `to` of the columns."""
        # In the order of the disk.
        order = np.argsort(index, kind="stable")
        index, begin, sizes, to = (values[order] for values in (index, begin, sizes, to))
        shards = np.searchsorted(self.first, index, side="right") - 1
        rows, handles = self.splits.numpy()[index] + begin - self._rows[shards], self._handles[shards]
        ranges = even_ranges(len(index), max(min(len(index) // MIN_READS, num_threads()), 1))
        opened = {int(k): os.open(self.shards[k].path, os.O_RDONLY) for k in np.unique(shards[handles < 0])}
        try:
            for k, handle in opened.items():
                handles[shards == k] = handle
            for name, column in columns.items():
                width = column.element_size() * math.prod(column.shape[1:])
                addresses = column.data_ptr() + to * width
                reads = handles, self._positions[name][shards] + rows * width, sizes * width, addresses
                done = in_threads(_read_all, [tuple(values[a:b] for values in reads) for a, b in ranges])
                for (a, b), count in zip(ranges, done, strict=True):
                    # From a read that failed on, Python reads: it raises the error, or resumes after a signal.
                    for k in range(a + count, b):
                        out = column.numpy()[to[k] : to[k] + sizes[k]]
                        self.shards[shards[k]].read(name, int(rows[k]), out)
        finally:
            for handle in opened.values():
                os.close(handle)


# ssize_t pread(int, void *, size_t, off_t)
_pread = types.ExternalFunction("pread", types.intp(types.int32, types.uintp, types.uintp, types.int64))


@njit(nogil=True, cache=True)
def _read_all(handles: Any, positions: Any, counts: Any, addresses: Any) -> Any:
    """Read `counts` bytes at `positions` of files to memory: one call for many small reads, in which Python may run.

    The number of reads before the first that failed.
    """
    for k in range(len(handles)):
        done = 0
        while done < counts[k]:
            count = _pread(handles[k], np.uint64(addresses[k] + done), np.uint64(counts[k] - done), positions[k] + done)
            if count <= 0:
                return k
            done += count
    return len(handles)


def _common(shard: PackFile) -> dict[str, str]:
    """Metadata that all shards of a pack share."""
    return {name: value for name, value in shard.meta.items() if name not in ("digest", "facts")}


def digest_of_files(files: Sequence[Path], root: Path, record: Path | None = None, progress: bool = False) -> str:
    """Digest of the content of files and of their paths below `root`.

    The file `record` caches the digest of each file. A file is read again only if its size or modification time
    changed.
    """
    known = {} if record is None else _recorded(record)
    with bar("check", len(files), progress) as advance:

        def state_of(path: Path) -> tuple[str, tuple[int, int, str]]:
            name, stat = os.path.relpath(path, root), path.stat()
            state = known.get(name)
            if state is None or state[:2] != (stat.st_size, stat.st_mtime_ns):
                with path.open("rb") as file:
                    state = stat.st_size, stat.st_mtime_ns, hashlib.file_digest(file, "blake2b").hexdigest()[:32]
            advance(1)
            return name, state

        states = dict(in_threads(state_of, [(path,) for path in files]))
    if record is not None and any(known.get(name) != state for name, state in states.items()):
        write_whole(record, json.dumps(known | states).encode())
    content = sorted((name, size, digest) for name, (size, _, digest) in states.items())
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=10).hexdigest()


def _recorded(record: Path) -> dict[str, tuple[int, int, str]]:
    """Size, modification time and digest of files, by name, as `digest_of_files` wrote them; empty if unreadable."""
    try:
        return {str(name): (int(a), int(b), str(c)) for name, (a, b, c) in json.loads(record.read_bytes()).items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}
