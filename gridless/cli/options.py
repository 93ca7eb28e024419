"""Options that several commands share, and functions that turn them into recipes, weights and devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gridless.backends import existing

RecipeName = Annotated[str, typer.Argument(help="A shipped recipe's name, such as modelnet40-large, or a YAML file.")]
_WEIGHTS = "Shipped weights by name, or the path of a .safetensors file."
WeightsName = Annotated[str, typer.Argument(help=_WEIGHTS)]
Weights = Annotated[str, typer.Option(help=_WEIGHTS)]
Data = Annotated[Path | None, typer.Option(help="The folder of the data set, unless it is generated.")]
AllData = Annotated[bool, typer.Option("--all-data", help="Train on every example, none held out.")]
Seed = Annotated[int | None, typer.Option(help="Random seed; default: the recipe's.")]
Changes = Annotated[list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe; may be repeated.")]
Repeats = Annotated[
    int | None,
    typer.Option(min=1, help="Augmentations of each example, which epochs cycle through; default: the recipe's."),
]
Keep = Annotated[
    str, typer.Option(help="Where examples are: disk (packed once), memory, or auto, which decides by size.")
]
Packs = Annotated[
    Path | None,
    typer.Option(
        "--cache", help="The folder for packs (default: DATA/.gridless) and offline geometry (default: cache)."
    ),
]
Workers = Annotated[int | None, typer.Option(min=0, help="Processes that make geometry; default: one per thread.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Use only so many training examples, for a trial.")]
Device = Annotated[str, typer.Option(help="cuda, cpu, or auto for a GPU where there is one.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Votes = Annotated[
    int | None, typer.Option(min=1, help="Views averaged per example; default: as saved with the weights.")
]
OwnTask = Annotated[
    str | None,
    typer.Option("--task", help="A task of your own, FILE.py:CLASS, which runs that file; default: as saved."),
]


def given(**options: Any) -> dict[str, Any]:
    """The options that the user gave: those that are not None, False or empty."""
    return {k: v for k, v in options.items() if v is not None and v is not False and v != []}


def recipe_of(name: str, changes: list[str] | None, **more: Any) -> Any:
    """A recipe with the changes of the command line (`--set`, and options such as `epochs=`), validated once."""
    from gridless.training.recipe import load_recipe

    settings = dict(assignment(change) for change in changes or [])
    return load_recipe(name, settings | {k: v for k, v in more.items() if v is not None})


def assignment(text: str) -> tuple[str, Any]:
    """The name and the value of `--set NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text!r} has no value. Give NAME=VALUE, such as epochs=10 or augment.shift=0.1.")
    from gridless.training.recipe import read_yaml

    return name.strip().replace(".", "__"), read_yaml(value, f"--set {text}")


def weights_of(name: str, device: str, task: str | None) -> tuple[Any, Any]:
    """The network of saved weights, and its task: one of gridless, or the one that the user gives."""
    from gridless.tasks import find, load_task, task_name
    from gridless.weights import load

    model = load(name, pick_device(device))
    if task is not None:
        return model, load_task(task)
    saved = task_name(model.config, task=model.about.get("task"))
    return model, find(saved)


def limited(data: Any, limit: int | None) -> Any:
    """The whole training set, or `limit` examples of it, evenly spaced."""
    from gridless.tasks.loading import some_of

    return data if limit is None else data.take(some_of(data, limit))


def in_options(message: object, command: str) -> str:
    """A message of the library with options of a command instead of arguments: `--topic NAME`, not `topic=...`."""
    if command in ("train", "precompute", "stats"):
        repair, topic = r"--set data_options.repair=\1", "--set data_options.topic=NAME"
    elif command in ("predict", "stream", "show"):
        repair, topic = r"--repair \1", "--topic NAME"
    else:
        return str(message)
    text = re.sub(r"\brepair='(\w+)'", repair, str(message))
    return re.sub(r"\btopic=\.\.\.", topic, text)


def held_out_list(run: Path, recipe: Any, data: Path | None, remedy: str) -> Path | None:
    """The file that lists what a run on a folder held out, if there is one.

    An error if `data` is another folder, or has lost files of the list; None checks nothing.
    """
    listed = run / "split.txt"
    if recipe.data != "folder" or not listed.is_file():
        return None
    names = [name for name in listed.read_text("utf-8").split("\n") if name]
    missing = [name for name in names if data is not None and not (data / name).is_file()]
    if data is not None and data.is_dir() and (missing or not names):
        problem = f"{data} lacks {len(missing)} of its {len(names)} files"
        problem += f", such as {missing[0]}" if missing else ""
        raise ValueError(f"{listed} (held-out files): {problem}. {remedy}")
    return listed


def pick_device(name: str) -> torch.device:
    """The device of `--device`: auto is a GPU where there is one; an explicit choice never falls back."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, colon, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (colon and not number.isdecimal()):
        raise ValueError(f"--device is {name!r}. Give cuda, cpu or auto.")
    return existing(name)
