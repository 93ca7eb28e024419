"""A training set on disk: every batch is read from a pack, ahead of the step."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gridless.data.packing import Pack
from gridless.kernels.progress import bar
from gridless.structures import Events, Rows, collate
from gridless.training.examples import TrainingSet

# Maximum size of a training set in memory: bytes on the CPU, share of the free memory on a GPU.
MOST_ON_CPU, SHARE_OF_GPU = 1 << 29, 0.25
# Bytes in memory of an event, and of the coordinates of a point.
EVENT_BYTES, POINT_BYTES = 17, 12
# Points or events copied to a device at once.
PIECE = 1 << 22
# Maximum batches read ahead.
MOST_EXPECTED = 4
KEEP = ("auto", "disk", "memory")


@dataclass(frozen=True)
class PackedSet(TrainingSet):
    """Examples on disk. `PackedSet.of_pack` makes one; `examples` is empty and holds only kind, sensor and rows.

    Arguments but `pack`, `index`, `begin`, `keep` and `codes` are those of `TrainingSet`.
    """

    pack: Pack = field(kw_only=True)
    index: Tensor = field(kw_only=True)
    """(N), on the CPU: the number of each example in the pack."""
    begin: Tensor | None = None
    """(N), on the CPU: the first point or event that is read of each example; None: 0. `splits` has their number."""
    keep: str = "auto"
    """`disk`, `memory`, or `auto`: in device memory if the set is small compared to it."""
    codes: Tensor | None = None
    """Sorted labels of points in the pack; `part` is the index of a label in it. None: the pack has these indices."""
    on_disk = True
    expected: dict[bytes, Future] = field(default_factory=dict, init=False, compare=False, repr=False)
    """Batches being read; the key is the bytes of their indices."""

    @classmethod
    def of_pack(cls, pack: Pack, index: Tensor | None = None, keep: str = "auto", **more: Any) -> PackedSet:
        """The examples `index` of a pack, by default all. `keep` and `more` are fields of the set."""
        if keep not in KEEP:
            raise ValueError(f"PackedSet: keep is {keep!r}. Give 'auto', 'disk' or 'memory'.")
        index = torch.arange(len(pack)) if index is None else index.cpu()
        more = {"labels": pack.labels[index], **more}
        more["class_names"] = list(more.get("class_names", pack.class_names))
        return cls(
            pack.read(index[:0]), splits=_splits(pack.sizes_of(index)), pack=pack, index=index, keep=keep, **more
        )

    def __getstate__(self) -> dict[str, Any]:
        # Reads in progress cannot be pickled.
        return self.__dict__ | {"expected": {}}

    @property
    def is_labelled(self) -> bool:
        return self.codes is None or len(self.codes) > 0

    def take(self, index: Tensor) -> PackedSet:
        index = index.cpu()
        chosen, labels = self.index[index], self.labels[index.to(self.device)]
        files = None if self.files is None else self.files[index]
        begin = None if self.begin is None else self.begin[index]
        splits = _splits(self.sizes[index])
        return replace(self, labels=labels, splits=splits, index=chosen, begin=begin, files=files)

    def parts_of(self, index: Tensor, begin: Tensor, sizes: Tensor, labels: Tensor) -> PackedSet:
        """Parts that are read from disk; the arguments are those of `TrainingSet.parts_of`."""
        begin = begin if self.begin is None else begin + self.begin[index]
        return replace(self, labels=labels, splits=_splits(sizes), index=self.index[index], begin=begin, files=None)

    def first(self, points: int) -> PackedSet:
        if not len(self) or int(self.sizes.max()) <= points:
            return self
        return replace(self, splits=_splits(self.sizes.clamp(max=points)))

    def to(self, device: torch.device | str) -> TrainingSet:
        """The set for a device: in its memory if it is small (see `keep`), else read from disk batch by batch."""
        device = torch.device(device)
        size, room = self.size, _room(device)
        resident = self.keep == "memory" or (self.keep == "auto" and size <= room)
        place = f"in the memory of {device}" if resident else f"on disk, {self.pack.path}"
        print(f"{len(self):,} examples, {size / 2**20:,.0f} MiB: kept {place}", file=sys.stderr, flush=True)
        return self.resident(device) if resident else super().to(device)

    @property
    def size(self) -> int:
        """Size in bytes of all examples in memory."""
        rows = sum(values.element_size() * max(values.shape[1:].numel(), 1) for values in self.rows.values())
        one = EVENT_BYTES if isinstance(self.examples, Events) else POINT_BYTES
        return int(self.splits[-1]) * (one + rows)

    def resident(self, device: torch.device) -> TrainingSet:
        """All examples in the memory of a device, copied piece by piece."""
        ends = torch.searchsorted(self.splits, torch.arange(0, int(self.splits[-1]), PIECE), right=True)
        cuts = sorted({0, *ends[1:].tolist(), len(self)})
        pieces = []
        with bar("read", len(self)) as advance:
            for a, b in pairwise(cuts):
                pieces.append(self._numbered(self.pack.read(self.index[a:b], device, *self._rows(slice(a, b)))))
                advance(b - a)
        examples = pieces[0] if len(pieces) == 1 else collate(pieces)
        shared = {name: getattr(self, name) for name in ("features", "parts", "values", "files", "scales", "listing")}
        if isinstance(examples, Events):
            examples = examples.trusted()
        return TrainingSet(examples, self.labels.to(device), self.splits, self.class_names, **shared)

    def tensors(self) -> list[Tensor]:
        content = torch.frombuffer(bytearray(self.pack.digest.encode()), dtype=torch.uint8)
        return [self.labels, self.sizes, self.index, content, *([] if self.begin is None else [self.begin])]

    def expect(self, index: Sequence[Tensor]) -> None:
        if not index:
            return
        rows, pinned = torch.cat(list(index)), self.device.type == "cuda"
        key = _key(rows)
        if len(self.expected) >= MOST_EXPECTED:
            # These batches were never requested, because an epoch ended early.
            self.expected.clear()
        self.expected[key] = _reader().submit(self.pack.load, self.index[rows], pinned, *self._rows(rows))

    def cut(self, index: Tensor) -> Any:
        reading, chosen, pinned = self.expected.pop(_key(index), None), self.index[index], self.device.type == "cuda"
        columns = self.pack.load(chosen, pinned, *self._rows(index)) if reading is None else reading.result()
        return self._numbered(self.pack.batch(columns, self.device))

    def _rows(self, index: Tensor | slice) -> tuple[Tensor | None, Tensor]:
        """First row and number of rows of each of the examples `index`."""
        return None if self.begin is None else self.begin[index], self.sizes[index]

    def _numbered(self, examples: Any) -> Any:
        """The same examples, with labels of points as int64 indices into `codes` in the rows `part`."""
        if "part" not in self.rows:
            return examples
        part = examples.rows["part"].long()
        if self.codes is not None:
            part = torch.where(part < 0, -1, torch.searchsorted(self.codes.to(part.device), part))
        return examples._changed(rows=Rows({**examples.rows, "part": part}))


def _key(index: Tensor) -> bytes:
    return index.numpy().tobytes()


@cache
def _reader() -> ThreadPoolExecutor:
    """The thread that reads batches ahead; each read runs on the threads of the kernels."""
    return ThreadPoolExecutor(1, thread_name_prefix="gridless-read")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reader.cache_clear)


def _splits(sizes: Tensor) -> Tensor:
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])


def _room(device: torch.device) -> int:
    """Bytes that a training set may take on a device."""
    if device.type != "cuda":
        return MOST_ON_CPU
    return int(SHARE_OF_GPU * torch.cuda.mem_get_info(device)[0])
