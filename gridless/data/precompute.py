"""Geometry computed ahead of time: a data set whose plan has already run, for every example and several augmentations.

    data = gl.Precomputed(ModelNet40(root, transform=gl.augment.Jitter()), "cache/", model.plan, repeats=8)

The files (`shards.py`) lie in a folder of their own below the given one. Its name is a key: the plan, the settings of
the augmentation, the data set's kind and length, the seed and the version. Other changes, such as another label or
point, or another line in a function that the data set calls, are found by comparing the examples: see `check`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset

from gridless.data.errors import FormatError
from gridless.data.files import full, sweep, write_whole
from gridless.data.seeds import seed_of
from gridless.data.shards import FORMAT, SUFFIX, Shard, flatten, write
from gridless.kernels.pool import run
from gridless.kernels.progress import bar
from gridless.plan import Plan
from gridless.structures import Cloud

# Files that a process keeps mapped.
_OPEN = 256
# A file, its repeat, and the examples in it.
_File = tuple[Path, int, range]


class Precomputed(Dataset):
    """A map-style data set of (geometry, label), read from disk.

    `dataset[i]` gives (example, label) or an example alone, with new augmentation at each call. `plan` runs on the
    example, unless the data set's own transform ends with a plan. Each of the `repeats` augmentations is one epoch:
    `set_epoch(e)` reads number e modulo `repeats`. The random numbers of an entry depend on `seed`, its repeat and its
    index, not on workers.

    The constructor computes missing entries (in `num_workers` processes) and writes files of `shard` examples. A file
    appears when it is complete: a run that is interrupted, killed or out of disk space loses at most the files in
    progress, and the next run continues. Truncated, foreign and damaged files are refused by name: headers when a file
    is opened, and each example when it is read (`verify` reads all).

    Args:
        dataset: gives (example, label), or an example alone. Its attribute `fingerprint`, if it has one, identifies
            the contents and is part of the key. If it has a method `several`, that is asked for the list of all
            examples of a file by their numbers; the random numbers of these examples must not be torch's.
        folder: the parent of the folder of this key.
        plan: runs on each example; None if the data set's transform ends with a plan.
        repeats: augmentations of each example.
        seed: of the augmentations.
        shard: examples in a file.
        num_workers: processes that compute missing entries; 0 computes them in this one.
        version: any words that become part of the key; change them to begin anew.
        check: draw every example once more (without running the plan), in its first augmentation, and refuse a folder
            that was made from others: another label or whole number, or real numbers whose sum, plain or weighted by
            place, differs by more than 2e-7 of the sum of their sizes. That is rounding, or one coordinate of 1,000
            points in a unit cube moved by less than 3e-4. Without it the key alone decides, and `verify` is the way to
            ask later.
        ray: the address of a Ray cluster that makes what is missing instead; all its machines see the folder.
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
        check: bool = True,
        ray: str | None = None,
    ) -> None:
        if repeats < 1 or shard < 1:
            raise ValueError(f"Precomputed: repeats and shard must be at least 1, not {repeats} and {shard}")
        if not len(dataset):
            raise ValueError("Precomputed: the data set is empty")
        self.dataset, self.plan, self.repeats, self.seed, self.shard = dataset, plan, repeats, seed, shard
        self.about = describe(dataset, plan, seed, shard, version)
        self.key = hashlib.sha256(json.dumps(self.about, sort_keys=True).encode()).hexdigest()[:16]
        self.folder = Path(folder) / self.key
        # One for all processes: persistent workers of a DataLoader see another epoch, too.
        self._epoch = _shared(torch.zeros((), dtype=torch.int64, device="cpu"))
        self._shards: dict[Path, Shard] = {}
        self._make(num_workers, check, ray)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.entry(self.epoch, i)

    def entry(self, epoch: int, i: int, copy: bool = True) -> Any:
        """Example i as `set_epoch(epoch)` would give it. Without `copy` nobody may write to it."""
        i = range(len(self))[i]
        number, inside = divmod(i, self.shard)
        path = self._path(epoch % self.repeats, number)
        if path not in self._shards:
            if len(self._shards) >= _OPEN:
                self._shards.pop(next(iter(self._shards)))
            self._shards[path] = Shard(path, self.key)
        return self._shards[path].read(inside, copy)

    @property
    def epoch(self) -> int:
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Read augmentation number `epoch` modulo `repeats`, in the workers of a DataLoader, too."""
        self._epoch.fill_(epoch)

    def verify(self) -> None:
        """Read every file, and compare every example with what the data set gives now.

        A file that is truncated, damaged, foreign or made from another example raises, by name.
        """
        self._open(self._files(), verify=True)
        self._compare(self._files())

    def _path(self, repeat: int, number: int) -> Path:
        return self.folder / f"{repeat:03d}-{number:05d}{SUFFIX}"

    def _files(self) -> Iterator[_File]:
        for repeat in range(self.repeats):
            for number, start in enumerate(range(0, len(self), self.shard)):
                yield self._path(repeat, number), repeat, range(start, min(start + self.shard, len(self)))

    def _make(self, num_workers: int, check: bool, ray: str | None) -> None:
        there, missing = [], []
        for entry in self._files():
            (there if entry[0].exists() else missing).append(entry)
        if check:
            self._compare(there)
        if missing:
            write_whole(self.folder / "about.json", json.dumps(self.about, indent=2).encode())
            sweep(self.folder)
            sizes = [len(members) for *_, members in missing]
            total = self.repeats * len(self)
            with bar("geometry", total, done=total - sum(sizes)) as advance:
                for n, full in self._made(missing, num_workers, ray):
                    if full:
                        self._refuse_full_disk(full)
                    advance(sizes[n])
        # Those that were made just now are whole.
        self._open(there)

    def _made(self, missing: list[_File], num_workers: int, ray: str | None) -> Iterator[tuple[int, int]]:
        """Make each of the files; gives its number, and the error number of a full disk or 0."""
        work = ShardWriter(self.dataset, self.plan, self.seed, self.key, missing)
        if ray is not None:
            here = [(path.resolve(), repeat, members) for path, repeat, members in missing]
            arguments = {"dataset": self.dataset, "plan": self.plan, "seed": self.seed, "key": self.key, "files": here}
            yield from run(ShardWriter, arguments, range(len(missing)), ray=ray)
            return
        if num_workers:
            _load_kernels(self.plan or next(reversed(_steps(self.dataset)), None))
        # A generator of its own: the loader draws a seed for its workers, and torch's must stay as it is.
        generator = torch.Generator()
        # In any order: a process does not wait for another that is slower.
        loader = DataLoader(work, batch_size=None, num_workers=num_workers, generator=generator, in_order=False)
        try:
            yield from loader
        except RuntimeError as error:
            # Errors of the data set begin otherwise.
            if not str(error).startswith("DataLoader worker (pid"):
                raise
            remedy = "Memory probably ran out: start again with a smaller num_workers. Complete files are kept."
            raise RuntimeError(f"one of {num_workers} processes was killed. {remedy}") from error

    def _open(self, files: Iterable[_File], verify: bool = False) -> None:
        for path, _, members in files:
            shard = Shard(path, self.key)
            if len(shard) != len(members):
                raise FormatError(path, f"holds {len(shard)} examples, not {len(members)}. Remove it.")
            if verify:
                shard.verify()

    def _compare(self, files: Iterable[_File]) -> None:
        """Refuse files whose examples are not those of the data set; the first augmentation that is kept is asked."""
        first: dict[range, tuple[Path, int]] = {}
        for path, repeat, members in files:
            first.setdefault(members, (path, repeat))
        work = ShardWriter(self.dataset, self.plan, self.seed, self.key, ())
        with bar("compare", sum(map(len, first))) as advance:
            for members, (path, repeat) in first.items():
                for i, known, raw in zip(members, Shard(path, self.key).origin, work.raw(repeat, members)):
                    if not _alike(known, _trace(raw)):
                        raise ValueError(
                            f"Precomputed: {path} was made from another example {i} than {type(self.dataset).__name__} "
                            f"has now. Remove {self.folder}, or pass version='...'."
                        )
                advance(len(members))

    def _refuse_full_disk(self, number: int) -> None:
        total = sum(1 for _ in self._files())
        done = sum(path.exists() for path, _, _ in self._files())
        raise OSError(
            number,
            f"{full(OSError(number, ''))} while writing {self.folder}: {done} of {total} files are complete. "
            "Make room and start again: it continues from there.",
        )

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_shards": {}}

    def __setstate__(self, state: dict) -> None:
        self.__dict__ = state
        _shared(self._epoch)


class ShardWriter(Dataset):
    """File after file of examples with their geometry; called, it gives the error number of a full disk, or 0."""

    def __init__(self, dataset: Any, plan: Plan | None, seed: int, key: str, files: Sequence[_File]) -> None:
        self.dataset, self.plan, self.seed, self.key, self.files = dataset, plan, seed, key, files
        self.wholes = [whole for whole in _wholes(dataset) if hasattr(whole, "set_epoch")]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, n: int) -> tuple[int, int]:
        return n, self(n)

    def __call__(self, n: int) -> int:
        path, repeat, members = self.files[n]
        raw = self.raw(repeat, members)
        try:
            write(path, self.key, [self._planned(example) for example in raw], [_trace(example) for example in raw])
        except OSError as error:
            if full(error) is None:
                raise
            return error.errno or 0
        return 0

    def _planned(self, example: Any) -> Any:
        if self.plan is None:
            return example
        return (self.plan(example[0]), *example[1:]) if isinstance(example, tuple | list) else self.plan(example)

    def raw(self, repeat: int, members: range) -> list[Any]:
        """Examples as they are before the plan."""
        before = [getattr(whole, "epoch", 0) for whole in self.wholes]
        for whole in self.wholes:
            whole.set_epoch(repeat)
        try:
            if hasattr(self.dataset, "several"):
                return self.dataset.several(members)
            with torch.random.fork_rng(devices=[]):
                return [self._drawn(repeat, i) for i in members]
        finally:
            for whole, epoch in zip(self.wholes, before, strict=True):
                whole.set_epoch(epoch)

    def _drawn(self, repeat: int, i: int) -> Any:
        torch.default_generator.manual_seed(seed_of(self.seed, repeat, i))
        return self.dataset[i]


def _wholes(dataset: Any) -> list[Any]:
    """The data sets that it is a part of, or is made of."""
    if isinstance(dataset, Subset):
        return _wholes(dataset.dataset)
    if isinstance(dataset, ConcatDataset):
        return [whole for part in dataset.datasets for whole in _wholes(part)]
    return [dataset]


def _shared(tensor: Tensor) -> Tensor:
    """The same tensor, in memory that processes share, where there is such memory."""
    with suppress(RuntimeError):
        tensor.share_memory_()
    return tensor


def _load_kernels(plan: Any) -> None:
    """Run a plan on points drawn at random: processes that are forked then have its kernels, compiled and loaded once.

    Not on an example of the data set: files that it opens late would be shared by all processes.
    """
    if not isinstance(plan, Plan) or [step.op for step in plan.steps.values() if not step.inputs] != ["points"]:
        return
    settings = [dict(step.settings) for step in plan.steps.values()]
    radius = min((float(known["radius"]) for known in settings if "radius" in known), default=0.1)
    generator, threads = torch.Generator().manual_seed(0), torch.get_num_threads()
    # A process with threads is not forked safely.
    torch.set_num_threads(1)
    # Best effort: these points may lack rows or be too few, and then each process compiles by itself.
    with suppress(Exception):
        plan(Cloud.of(10 * radius * torch.rand(2000, settings[0]["dim"], generator=generator, device="cpu")))
    torch.set_num_threads(threads)


def _trace(example: Any) -> tuple[str, list[float]]:
    """Identifies an example: a digest of all that is compared to the bit, and three sums of each real tensor."""
    shape, leaves = flatten(example)
    exact, sums = hashlib.sha256(json.dumps(shape).encode()), []
    for leaf in leaves.values():
        if not isinstance(leaf, Tensor):
            exact.update(repr(leaf).encode())
            continue
        leaf = leaf.detach().cpu().contiguous()
        if leaf.is_floating_point():
            finite, x = leaf.isfinite(), leaf.double().flatten()
            exact.update(finite.numpy().tobytes())
            if not finite.all():
                x = x.nan_to_num(0, 0, 0)
            place = torch.arange(1, len(x) + 1, dtype=torch.float64, device="cpu").mul_(0.6180339887498949).frac_()
            sums += [float(x.sum()), float(x @ place), float(x.abs().sum())]
        else:
            exact.update(leaf.numpy().tobytes())
        exact.update(f"{leaf.dtype} {tuple(leaf.shape)}".encode())
    return exact.hexdigest()[:16], sums


def _alike(known: Any, now: tuple[str, list[float]]) -> bool:
    """True if two traces are of the same example. Sums may differ by rounding: machines round a sine differently."""
    try:
        if known[0] != now[0] or len(known[1]) != len(now[1]):
            return False
        off = [abs(a - b) for a, b in zip(known[1], now[1])]
        return all(max(off[i : i + 3]) <= 2e-7 * now[1][i + 2] for i in range(0, len(off), 3))
    except (LookupError, TypeError):
        return False


def describe(dataset: Any, plan: Plan | None, seed: int, shard: int, version: str) -> dict[str, Any]:
    """The settings that decide the contents of the files, in words."""
    return {
        **_data(dataset),
        "plan": None if plan is None else plan.text,
        "seed": seed,
        "shard": shard,
        "version": version,
        "files": FORMAT,
    }


def _data(dataset: Any) -> dict[str, Any]:
    if isinstance(dataset, Subset):
        places = hashlib.sha256(" ".join(str(int(i)) for i in dataset.indices).encode()).hexdigest()[:16]
        whole = _data(dataset.dataset)
        # A part of a part names both.
        return {**whole, "subset": " of ".join([f"{len(dataset)} {places}", *filter(None, [whole.get("subset")])])}
    if isinstance(dataset, ConcatDataset):
        return {"parts": [_data(part) for part in dataset.datasets]}
    kind = type(dataset)
    data = getattr(dataset, "fingerprint", None) or f"{kind.__module__}.{kind.__qualname__}"
    return {"data": f"{data} {len(dataset)}", "transform": [_words(step) for step in _steps(dataset)]}


def _steps(dataset: Any) -> tuple:
    """The augmentations of a data set, and its plan, if it has one."""
    steps = getattr(dataset, "transform", None) or ()
    return (steps,) if callable(steps) else tuple(steps)


def _words(step: Any) -> str:
    """A transform in words that are the same in every run."""
    if isinstance(step, Plan):
        return str(step)
    if dataclasses.is_dataclass(step) and " at 0x" not in repr(step):
        return repr(step)
    name = getattr(step, "__qualname__", "<")
    if "<" in name:
        raise ValueError(
            f"Precomputed: {step!r} cannot be recognised in the next run. "
            "Use a frozen dataclass or a function of a module (and `version=` when it changes)."
        )
    return f"{step.__module__}.{name}"
