"""What tasks share when they load data: data sets that recipes name, and folders of the user's own files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.listing import Listing
from gridless.tasks import find
from gridless.tasks.storage import check_labelled, divided, load_splits  # noqa: F401
from gridless.training.examples import TrainingSet
from gridless.training.recipe import Recipe

# A folder of the user's: clouds or recordings, depending on the task.
FOLDER = "folder"
# Options of data sets that are generated.
SIZES = ("size", "held_out")


def load_data(
    recipe: Recipe,
    root: str | Path | None,
    split: str,
    held_out_list: Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> TrainingSet:
    """The `split` of the data set that a recipe names, in the folder `root`, by the recipe's task.

    It is read into memory, unless `root` is a pack.

    `root`, `split`, `held_out_list` and `about` are those of `Task.load`, whose `path` is `root`.
    """
    path = None if root is None else Path(root)
    return load_splits(find(recipe.task_name), recipe, path, [split], None, held_out_list, about)[0]


def folder_of(recipe: Recipe, path: Path | None) -> Path:
    """The folder of the data, which is needed."""
    if path is None:
        what = "your files" if recipe.data == FOLDER else recipe.data
        raise ValueError(f"the folder of {what} is needed: give it with --data")
    return path


def made(kind: type, options: Mapping[str, Any], also: Sequence[str] = (), **settings: Any) -> Any:
    """A data set with the data options of a recipe, and with `settings`, which the recipe has elsewhere.

    Options that the data set does not have are refused; `also` are further ones that are known.
    """
    arguments = [name for name in signature(kind).parameters if name not in {*settings, "transform", "seed", "how"}]
    known = [*arguments, *also]
    for name in options:
        if name not in known:
            problem = f"{name!r} is none of {kind.__name__} in a recipe: there are {', '.join(known)}"
            raise ValueError(f"recipe: data_options: {problem}")
    try:
        return kind(**options, **settings)
    except TypeError as error:
        raise ValueError(f"recipe: data_options: {error}") from None


def generated(split: str, options: dict[str, Any]) -> dict[str, int]:
    """How many examples a split of a generated data set has, and its seed; takes `size` and `held_out` out."""
    from gridless.data.splits import check

    counts = {"size": options.pop("size", 1000), "held_out": options.pop("held_out", 200)}
    seed = {"train": 0, "fit": 0, "validation": 1, "test": 2}[check(split)]
    name = "held_out" if seed else "size"
    if type(counts[name]) is not int or counts[name] < 1:
        raise ValueError(f"recipe: data_options.{name} must be a whole number of at least 1, not {counts[name]!r}")
    return {"size": counts[name], "seed": seed}


def folder_options(
    recipe: Recipe, held_out_list: Path | None = None, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a folder: what a run or weights say goes before what the recipe says."""
    known = {name: (about or {}).get(name) for name in ("class_names", "values")}
    options = recipe.data_options | {name: value for name, value in known.items() if value}
    return options | ({} if held_out_list is None else {"held_out_list": held_out_list})


def describe_folder(listing: Listing) -> list[str]:
    """Lines that say which files there are of each class, and which are held out."""
    lines = [f"{listing.root}: {len(listing.files)} files; held out: {listing.rule}"]
    if listing.others:
        lines.append(f"left out, being of other kinds: {', '.join(listing.others[:8])}")
    for k, name in enumerate(listing.class_names):
        counts = Counter(part for part, label in zip(listing.parts, listing.labels) if label == k)
        words = ", ".join(f"{counts[part]} {part}" for part in ("fit", "validation", "test") if counts[part])
        lines.append(f"  {name}: {words}")
    return lines


def some_of(data: TrainingSet) -> Tensor:
    """The examples whose geometry is looked at before training: 16, evenly spaced."""
    return torch.linspace(0, len(data) - 1, min(16, len(data))).long()


def range_of(values: Tensor) -> str:
    """The range of some values, and their median, in words."""
    values = values.double()
    return f"{values.min():,.0f} to {values.max():,.0f}, median {values.median():,.0f}"


def check_labels(numbers: Tensor | None, count: int | None, what: str, setting: str) -> None:
    """Refuse labels beyond what the network has: `count` of `what`, by the `setting` of its config."""
    if numbers is not None and count is not None and numbers.numel() and int(numbers.max()) >= count:
        last = int(numbers.max())
        words = f"the network has {count} {what}, and there is number {last}: at least {last + 1} are needed"
        raise ValueError(f"recipe: model.{setting}: {words}")


def check_kind(file: Path, recordings: bool) -> None:
    """Refuse a folder, a cloud if the weights are for `recordings`, and a recording if they are not."""
    from gridless.data.listing import CLOUDS, RECORDINGS

    if file.is_dir():
        raise ValueError(f"{file} is a folder, and these weights take files: give those in it, {file}/*")
    # Some suffixes are of both kinds.
    right, wrong = (RECORDINGS, CLOUDS) if recordings else (CLOUDS, RECORDINGS)
    if file.suffix.lower() in wrong and file.suffix.lower() not in right:
        raise wrong_kind(file, recordings)


def wrong_kind(file: Path, recordings: bool) -> ValueError:
    """The error of a file of the other kind."""
    actual, wanted = ("a cloud", "recordings") if recordings else ("a recording", "clouds")
    remedy = "give --weights that were trained on such"
    return ValueError(f"{file} is {actual}, and these weights are for {wanted}: {remedy}")
