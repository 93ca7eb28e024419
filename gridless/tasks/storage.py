"""Storage of the examples of a run: read into memory, or packed once on disk and read batch by batch."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data import splits
from gridless.data.files import BESIDE, check_writable, full
from gridless.data.packing import INDEX, Pack, digest_of_files, pack
from gridless.data.sessions import held_out
from gridless.kernels.threads import num_threads
from gridless.training.checkpoints import digest_of
from gridless.training.examples import TrainingSet
from gridless.training.packed import KEEP, PackedSet
from gridless.training.recipe import Recipe

# Larger files (bytes) are packed instead of read into memory, where an event takes up to 40 bytes (2 to 8 on disk).
PACKED_ABOVE = 1 << 27
# Memory limit of all packing processes, and estimated bytes in memory per byte of a file.
PACKING_BYTES, EXPANSION = 1 << 30, 12


@dataclass(frozen=True)
class Storage:
    """Storage options for the examples of a run."""

    keep: str = "auto"
    """`disk`, `memory`, or `auto`: by size."""
    folder: Path | None = None
    """The folder of packs; None for `.gridless` beside the data."""

    def __post_init__(self) -> None:
        if self.keep not in KEEP:
            raise ValueError(f"keep is {self.keep!r}. Give one of {', '.join(KEEP)}.")


@dataclass(frozen=True)
class PackSource:
    """Files of a data set that can be packed without reading them all into memory."""

    dataset: Any
    """The data set for `gl.data.pack`; it can be pickled."""
    root: Path
    """The folder of the data."""
    files: Sequence[Path]
    """All files that are read; a digest of their content is part of the name of the pack."""
    settings: tuple
    """Settings of the reader, which are part of that digest."""
    names: Sequence[str]
    """The name of each item of the data set."""
    view: Callable[[Pack, str, str], TrainingSet]
    """view(pack, split, keep): the examples of a split of the pack; `keep` is that of `PackedSet`."""

    @property
    def sizes(self) -> list[int]:
        """The size of each file in bytes."""
        return [path.stat().st_size for path in self.files]

    def pack(self, storage: Storage) -> Pack:
        """The pack of these files, which is written if it does not exist."""
        sizes = self.sizes
        place = _place(self.root, storage)
        digest = digest_of_files([*self.files], self.root, place / "files.json", progress=True)
        path = place / f"pack-{_digest(f'{digest} {self.settings!r}')}"
        if not (path / INDEX).is_file():
            size = f"{sum(sizes) / 2**20:,.0f} MiB in {len(sizes):,} files"
            print(f"{self.root}: {size}, packed once in {path}", file=sys.stderr, flush=True)
        workers = max(1, min(num_threads(), sum(sizes) >> 25, PACKING_BYTES // (EXPANSION * max(sizes, default=1) + 1)))
        large = sum(sizes) / max(len(sizes), 1) > 1 << 22
        about = {"source": str(self.root), "items": list(self.names)}
        return _pack(self.dataset, path, workers, about, together=1 if large else 16)


def examples_of(packed: Pack, names: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Indices of the examples of the items `names` in a pack, in that order, and the index in `names` of each."""
    numbers = {name: number for number, name in enumerate(packed.about["items"])}
    items = torch.tensor([numbers[name] for name in names], dtype=torch.int64)
    first, end = (torch.searchsorted(packed.items, items, right=right) for right in (False, True))
    owner = torch.repeat_interleave(torch.arange(len(names)), end - first)
    before = (end - first).cumsum(0) - (end - first)
    return torch.arange(len(owner)) + (first - before)[owner], owner


def source_of_set(
    read: Callable[[str], Any],
    root: Path,
    split: str,
    settings: tuple,
    beside: Callable[[Path], Sequence[Path]] = lambda file: (),
) -> PackSource | None:
    """The files of a published data set. Its parts `fit` and `validation` are views of the pack of `train`.

    Args:
        read: read(split) is the data set, with its `files`; it reads none of them.
        root: the folder of the data.
        split: of which examples are wanted.
        settings: of the reader.
        beside: beside(file) are further files that are read with a file.
    """
    whole = read("test" if split == "test" else "train")
    if not whole.files:
        # An archive is in memory already.
        return None

    def names(dataset: Any) -> list[str]:
        return [str(file.relative_to(root)) for file in dataset.files]

    def view(packed: Pack, name: str, keep: str) -> PackedSet:
        part = read(name)
        index, _ = examples_of(packed, names(part))
        return PackedSet.of_pack(packed, index, keep, **getattr(part, "facts", {}))

    files = [*whole.files, *(more for file in whole.files for more in beside(file))]
    return PackSource(whole, root, files, settings, names(whole), view)


def load_splits(
    task: Any,
    recipe: Recipe,
    path: Path | None,
    names: Sequence[str],
    storage: Storage | None = None,
    held_out_list: Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> list[TrainingSet]:
    """The examples of some splits of a recipe's data: from a pack, or in memory.

    Args:
        task: the task of the recipe.
        recipe: names the data set and its options.
        path: the folder of the data; a pack of `gl.data.pack`; or None for data that is generated.
        names: the splits, all of the training part, or `test` alone.
        storage: storage options; None reads everything but packs into memory.
        held_out_list: a file that lists the files for validation, instead of the data's own rule.
        about: metadata of saved weights, such as their class names, which number the classes.
    """
    storage = storage or Storage("memory" if path is None or not (path / INDEX).is_file() else "auto")
    if path is not None and (path / INDEX).is_file():
        return [_part_of(Pack(path), name, recipe, storage) for name in names]
    source = None if storage.keep == "memory" else task.source(recipe, path, names[0], held_out_list, about)
    if source is not None and (storage.keep == "disk" or sum(source.sizes) > PACKED_ABOVE):
        packed = source.pack(storage)
        return [source.view(packed, name, storage.keep) for name in names]
    # A folder is read once for both.
    both = list(names) == ["fit", "validation"] and recipe.data == "folder"
    whole = task.load(recipe, path, "train", held_out_list, about) if both else None
    if whole is not None and whole.listing is not None:
        sets = list(divided(whole).values())
    else:
        sets = [task.load(recipe, path, name, held_out_list, about) for name in names]
    return [_on_disk(each, path, storage) for each in sets] if storage.keep == "disk" else sets


def _place(root: Path, storage: Storage) -> Path:
    """The folder of packs of the data in `root`."""
    place = storage.folder or (root if root.is_dir() else root.parent) / BESIDE
    check_writable(place, "--cache")
    place.mkdir(parents=True, exist_ok=True)
    return place


def _pack(dataset: Any, path: Path, workers: int, about: dict[str, Any], **settings: Any) -> Pack:
    try:
        return pack(dataset, path, workers=workers, about=about, **settings)
    except OSError as error:
        if full(error) is None:
            raise
        remedy = "Free some space, or give another folder (--cache DIR). The same command continues."
        raise OSError(error.errno, f"{full(error)} while packing {path}. {remedy}") from error


def _part_of(packed: Pack, split: str, recipe: Recipe, storage: Storage) -> TrainingSet:
    """A split of a user's pack. The last fifth of each class is held out, because a pack does not record sessions."""
    is_test = packed.about.get("split") == "test"
    if (splits.check(split) == "test") != is_test:
        remedy = "Test packs are made with gl.data.pack(..., about={'split': 'test'})."
        raise ValueError(f"{packed.path}: the pack has no part {split!r}. {remedy}")
    rows = range(len(packed))
    if split in ("fit", "validation"):
        numbers = packed.labels.tolist() if packed.labels.ndim == 1 and not packed.labels.is_floating_point() else []
        chosen = set(held_out(numbers or [0] * len(packed), [f"{i}" for i in rows])[0])
        rows = [i for i in rows if (i in chosen) == (split == "validation")]
    features = recipe.data_options.get("features", ())
    parts = packed.class_names if "part" in packed.row_names else ()
    return PackedSet.of_pack(packed, torch.tensor(rows), storage.keep, features=features, parts=parts)


class _SetItems:
    """The examples of a set in memory, one by one."""

    def __init__(self, data: TrainingSet) -> None:
        self.data, self.class_names = data, data.class_names

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, i: int) -> tuple[Any, Any]:
        return self.data.cut(torch.tensor([i])), self.data.labels[i]


def _on_disk(data: TrainingSet, root: Path | None, storage: Storage) -> TrainingSet:
    """A set that was read into memory, as a pack."""
    place = _place(Path() if root is None else root, storage)
    packed = _pack(_SetItems(data), place / f"pack-{_digest(digest_of(data))}", 1, {"source": str(root)})
    names = ("class_names", "features", "parts", "values", "files", "scales", "listing")
    return PackedSet.of_pack(packed, keep="disk", **{name: getattr(data, name) for name in names})


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def divided(whole: TrainingSet) -> dict[str, TrainingSet]:
    """The parts `fit` and `validation` of a folder's `train`, so that a run reads each file once."""
    listing, files, parts = whole.listing, whole.files, {}
    assert files is not None
    for split in ("fit", "validation"):
        rows = torch.tensor(listing.rows(split))
        parts[split] = check_labelled(whole.take(torch.isin(files, rows).nonzero()[:, 0]), split)
    return parts


def check_labelled(data: TrainingSet, split: str) -> TrainingSet:
    """The same examples; refused if points should have labels, and none has."""
    if not data.is_labelled:
        remedy = "Give files with labels, or evaluate with --split validation."
        raise ValueError(f"the points of {split!r} have no labels. {remedy}")
    return data
