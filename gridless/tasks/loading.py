"""Loading of data, shared by all tasks: data sets named by recipes, and folders of the user's own files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.listing import Listing
from gridless.tasks.registry import find
from gridless.tasks.storage import load_splits
from gridless.training.examples import TrainingSet
from gridless.training.recipe import Recipe

# Data set name of a folder of the user: clouds or recordings, depending on the task.
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
    """Load the `split` of the data set named by a recipe from the folder `root`.

    The examples are read into memory, unless `root` is a pack.

    `root`, `split`, `held_out_list` and `about` are those of `Task.load`, whose `path` is `root`.
    """
    path = None if root is None else Path(root)
    return load_splits(find(recipe.task_name), recipe, path, [split], None, held_out_list, about)[0]


def folder_of(recipe: Recipe, path: Path | None) -> Path:
    """The folder of the data; an error if it is missing."""
    if path is None:
        what = "your files" if recipe.data == FOLDER else recipe.data
        raise ValueError(f"the folder of {what} is missing. Give it with --data.")
    return path


def made(kind: type, options: Mapping[str, Any], also: Sequence[str] = (), **settings: Any) -> Any:
    """Construct a data set with the data options of a recipe, and with `settings` from elsewhere in the recipe.

    Options that the data set does not have are rejected; `also` are further valid names.
    """
    arguments = [name for name in signature(kind).parameters if name not in {*settings, "transform", "seed", "how"}]
    known = [*arguments, *also]
    for name in options:
        if name not in known:
            problem = f"{name!r} is no option of {kind.__name__}. Choose from {', '.join(known)}."
            raise ValueError(f"recipe: data_options: {problem}")
    try:
        return kind(**options, **settings)
    except TypeError as error:
        raise ValueError(f"recipe: data_options: {error}") from None


def generated(split: str, options: dict[str, Any]) -> dict[str, int]:
    """The size and seed of a split of a generated data set. Removes `size` and `held_out` from `options`."""
    from gridless.data.splits import check

    counts = {"size": options.pop("size", 1000), "held_out": options.pop("held_out", 200)}
    seed = {"train": 0, "fit": 0, "validation": 1, "test": 2}[check(split)]
    name = "held_out" if seed else "size"
    if type(counts[name]) is not int or counts[name] < 1:
        raise ValueError(f"recipe: data_options.{name} must be a whole number of at least 1, not {counts[name]!r}.")
    return {"size": counts[name], "seed": seed}


def folder_options(
    recipe: Recipe, held_out_list: Path | None = None, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The options of a folder: those of a run or of weights override those of the recipe."""
    known = {name: (about or {}).get(name) for name in ("class_names", "values")}
    options = recipe.data_options | {name: value for name, value in known.items() if value}
    return options | ({} if held_out_list is None else {"held_out_list": held_out_list})


def describe_folder(listing: Listing) -> list[str]:
    """Lines with the number of files of each class, and the rule that holds files out."""
    lines = [f"{listing.root}: {len(listing.files)} files; held out: {listing.rule}"]
    if listing.others:
        lines.append(f"left out, being of other kinds: {', '.join(listing.others[:8])}")
    for k, name in enumerate(listing.class_names):
        counts = Counter(part for part, label in zip(listing.parts, listing.labels) if label == k)
        sizes = ", ".join(f"{counts[part]} {part}" for part in ("fit", "validation", "test") if counts[part])
        lines.append(f"  {name}: {sizes}")
    return lines


def some_of(data: TrainingSet, most: int | None = 16) -> Tensor:
    """Indices of at most so many examples, evenly spaced; None for all. 16 are described before training."""
    return torch.linspace(0, len(data) - 1, min(most or len(data), len(data))).long()


def range_of(values: Tensor) -> str:
    """The range and the median of `values` as text."""
    values = values.double()
    return f"{values.min():,.0f} to {values.max():,.0f}, median {values.median():,.0f}"


def check_labels(numbers: Tensor | None, count: int | None, what: str, setting: str) -> None:
    """Reject labels beyond the `count` of `what` that the network has, set by `setting` in its config."""
    if numbers is not None and count is not None and numbers.numel() and int(numbers.max()) >= count:
        last = int(numbers.max())
        problem = f"the network has {count} {what}, but the data has number {last}. Give at least {last + 1}."
        raise ValueError(f"recipe: model.{setting}: {problem}")


def chosen(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Those of the options that have one of the names."""
    return {name: options[name] for name in names if name in options}


def stem(file: Path) -> str:
    """The name of an output file without suffix. `a.copc.laz` gives `a`, because the output is not COPC."""
    return re.sub(r"\.copc$", "", file.stem, flags=re.IGNORECASE)


def check_stems(files: Sequence[Path], out: Path) -> None:
    """Reject files that would be written to one file in the folder `out`."""
    if len({stem(file) for file in files}) < len(files):
        raise ValueError(f"two of the files have the same name and would share one file in {out}. Use two calls.")


def check_kind(file: Path, recordings: bool) -> None:
    """Reject a folder, a cloud if the weights are for `recordings`, and a recording if they are not."""
    from gridless.data.listing import CLOUDS, RECORDINGS
    from gridless.data.readers.bags import is_bag

    if file.is_dir() and not is_bag(file):
        raise ValueError(f"{file} is a folder. Give the files in it: {file}/*")
    # Some suffixes are valid for both.
    right, wrong = (RECORDINGS, CLOUDS) if recordings else (CLOUDS, RECORDINGS)
    if file.suffix.lower() in wrong and file.suffix.lower() not in right:
        raise wrong_kind(file, recordings)


def topic_of(recipe: Recipe | Mapping[str, Any], file: str | Path, topic: str | None) -> str | None:
    """The topic to read from a ROS bag: `topic`, or else the one of training. For other files `topic` itself."""
    from gridless.data.readers.bags import is_bag

    if topic is not None or not is_bag(Path(file)):
        return topic
    options = recipe.data_options if isinstance(recipe, Recipe) else recipe.get("data_options", {})
    return options.get("topic")


def wrong_kind(file: Path, recordings: bool) -> ValueError:
    """The error for a cloud where a recording is needed, or the reverse."""
    actual, wanted = ("a cloud", "recordings") if recordings else ("a recording", "clouds")
    return ValueError(f"{file} is {actual}, but the weights are for {wanted}. Give other --weights.")
