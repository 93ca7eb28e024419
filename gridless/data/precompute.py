"""Geometry computed ahead of time: a data set whose plan has already run, for every example and several augmentations.

    data = gl.Precomputed(ModelNet40(root, transform=authors_recipe()), "cache/", model.plan, repeats=8)

The files lie in a folder of their own below the given one, named after what decided them: the plan, the augmentation,
the data and the seed. Another plan or augmentation is another folder; nothing outdated is ever read.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from gridless.data.files import sweep, whole_file
from gridless.data.formats.base import FormatError
from gridless.data.seeds import seed_of
from gridless.data.shards import Shard, flatten, write
from gridless.plan import Plan
from gridless.progress import bar

_ABOUT = "about.json"
# Files a process keeps open: each costs it a file descriptor.
_OPEN = 256
# A file, its repeat, and the examples in it.
_File = tuple[Path, int, range]


class Precomputed(Dataset):
    """A map-style data set of (geometry, label), read from disk.

    `dataset[i]` gives (example, label) or an example alone, augmented anew whenever it is asked; `plan` is run on the
    example, unless the data set's own transform ends with one. Each of the `repeats` augmentations is one epoch:
    `set_epoch(e)` reads number e modulo `repeats`. The random numbers of an entry depend on `seed`, its repeat and its
    place alone, not on workers.

    What is missing is made when the object is (by `num_workers` processes), in files of `shard` examples that appear
    only when they are whole: a run that is interrupted, killed or out of disk space loses at most the files it was
    making, and the next one goes on from there. A file that is truncated or foreign is refused by name.

    `version` distinguishes what the key cannot see, such as a change in a function that the transform calls.
    """

    def __init__(
        self,
        dataset: Any,
        folder: str | Path,
        plan: Plan | None = None,
        repeats: int = 1,
        seed: int = 0,
        shard: int = 256,
        num_workers: int = 0,
        version: str = "",
    ) -> None:
        if repeats < 1 or shard < 1:
            raise ValueError(f"Precomputed: repeats and shard must be at least 1, not {repeats} and {shard}")
        if not len(dataset):
            raise ValueError("Precomputed: the data set is empty")
        self.dataset, self.plan, self.repeats, self.seed, self.shard = dataset, plan, repeats, seed, shard
        self.about = describe(dataset, plan, seed, shard, version)
        self.key = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = Path(folder) / self.key
        self.epoch = 0
        self._shards: dict[Path, Shard] = {}
        self._make(num_workers)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        i = range(len(self))[i]
        number, inside = divmod(i, self.shard)
        path = self._path(self.epoch % self.repeats, number)
        if path not in self._shards:
            if len(self._shards) >= _OPEN:
                self._shards.pop(next(iter(self._shards)))
            self._shards[path] = Shard(path, self.key)
        return self._shards[path][inside]

    def set_epoch(self, epoch: int) -> None:
        """Read augmentation number `epoch` modulo `repeats`."""
        self.epoch = epoch

    def verify(self) -> None:
        """Open every file; a truncated or foreign one raises, by name."""
        for path, _, members in self._files():
            if (count := len(Shard(path, self.key))) != len(members):
                raise FormatError(path, f"holds {count} examples, not {len(members)}: remove it")

    def _path(self, repeat: int, number: int) -> Path:
        return self.folder / f"{repeat:03d}-{number:05d}.shard"

    def _files(self) -> Iterator[_File]:
        for repeat in range(self.repeats):
            for number, start in enumerate(range(0, len(self), self.shard)):
                yield self._path(repeat, number), repeat, range(start, min(start + self.shard, len(self)))

    def _make(self, num_workers: int) -> None:
        missing = [entry for entry in self._files() if not entry[0].exists()]
        work = _Work(self.dataset, self.plan, self.seed, self.key, missing)
        self._compare(work.probe())
        if missing:
            sweep(self.folder)
            # A generator of its own: the loader draws a seed for its workers, and torch's must stay as it is.
            generator = torch.Generator()
            loader = DataLoader(
                work, batch_size=None, num_workers=num_workers, collate_fn=_unchanged, generator=generator
            )
            sizes = [len(members) for *_, members in missing]
            total = self.repeats * len(self)
            with bar("geometry", total, done=total - sum(sizes)) as advance:
                for size, full in zip(sizes, loader, strict=True):
                    if full:
                        self._refuse_full_disk(full)
                    advance(size)
        self.verify()

    def _compare(self, probe: list[float]) -> None:
        """Refuse a folder whose key fits but whose examples were others: what changed is not part of the key."""
        about = self.folder / _ABOUT
        try:
            known = json.loads(about.read_bytes())["probe"]
        except (OSError, ValueError, KeyError, TypeError):
            with whole_file(about) as file:
                file.write(json.dumps({**self.about, "probe": probe}, indent=2).encode())
            return
        # Not to the last bit: another machine may round a sine differently.
        if len(known) != len(probe) or any(abs(a - b) > 1e-4 * max(1, abs(a)) for a, b in zip(known, probe)):
            raise ValueError(
                f"Precomputed: {self.folder} was made from other examples than those of {type(self.dataset).__name__}: "
                "something changed that its settings do not show; pass version='...', or remove the folder"
            )

    def _refuse_full_disk(self, number: int) -> None:
        total = sum(1 for _ in self._files())
        done = sum(path.exists() for path, _, _ in self._files())
        raise OSError(
            number,
            f"no space left while writing {self.folder}: {done} of {total} files are complete and stay; make room and "
            "start again, it goes on from there",
        )

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_shards": {}}


class _Work(Dataset):
    """File after file of examples with their geometry. An item is the error number of a full disk, or 0."""

    def __init__(self, dataset: Any, plan: Plan | None, seed: int, key: str, files: Sequence[_File]) -> None:
        self.dataset, self.plan, self.seed, self.key, self.files = dataset, plan, seed, key, files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, n: int) -> int:
        path, repeat, members = self.files[n]
        examples = [self._example(repeat, i) for i in members]
        try:
            write(path, self.key, examples)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return error.errno
        return 0

    def probe(self) -> list[float]:
        """Sums over the tensors of three examples, before the plan."""
        places = sorted({0, len(self.dataset) // 2, len(self.dataset) - 1})
        leaves = [leaf for i in places for leaf in flatten(self._raw(0, i))[1].values()]
        tensors = [leaf.double() for leaf in leaves if isinstance(leaf, Tensor)]
        return [float(x) for t in tensors for x in (t.numel(), t.sum(), t.abs().sum())]

    def _example(self, repeat: int, i: int) -> Any:
        example = self._raw(repeat, i)
        if self.plan is None:
            return example
        return (self.plan(example[0]), *example[1:]) if isinstance(example, tuple) else self.plan(example)

    def _raw(self, repeat: int, i: int) -> Any:
        before = getattr(self.dataset, "epoch", 0)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(repeat)
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed_of(self.seed, repeat, i))
                return self.dataset[i]
        finally:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(before)


def _unchanged(example: Any) -> Any:
    return example


def describe(dataset: Any, plan: Plan | None, seed: int, shard: int, version: str) -> dict[str, Any]:
    """What decides the contents of the files, in words."""
    return {
        **_data(dataset),
        "plan": None if plan is None else str(plan),
        "seed": seed,
        "shard": shard,
        "version": version,
    }


def _data(dataset: Any) -> dict[str, Any]:
    if isinstance(dataset, Subset):
        places = hashlib.sha256(" ".join(str(int(i)) for i in dataset.indices).encode()).hexdigest()[:16]
        return {**_data(dataset.dataset), "subset": f"{len(dataset)} {places}"}
    kind = type(dataset)
    data = getattr(dataset, "fingerprint", None) or f"{kind.__module__}.{kind.__qualname__}"
    steps = getattr(dataset, "transform", None) or ()
    steps = (steps,) if callable(steps) else tuple(steps)
    return {"data": f"{data} {len(dataset)}", "transform": [_words(step) for step in steps]}


def _words(step: Any) -> str:
    """A transform in words that are the same in every run."""
    if isinstance(step, Plan):
        return str(step)
    if dataclasses.is_dataclass(step) and " at 0x" not in repr(step):
        return repr(step)
    name = getattr(step, "__qualname__", "<")
    if "<" in name:
        raise ValueError(
            f"Precomputed: {step!r} cannot be told from another like it in the next run: use a frozen dataclass or a "
            "function of a module (and `version=` when it changes)"
        )
    return f"{step.__module__}.{name}"
