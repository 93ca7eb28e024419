"""`gridless train`: train a network by a recipe."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from gridless.cli.options import (
    AllData,
    Changes,
    Data,
    Device,
    Keep,
    Limit,
    Packs,
    RecipeName,
    Repeats,
    Seed,
    Workers,
    held_out_list,
    limited,
    pick_device,
    recipe_of,
)


def train(
    recipe: RecipeName,
    data: Data = None,
    out: Annotated[Path, typer.Option(help="The folder for logs, checkpoints and weights.")] = Path("runs/latest"),
    all_data: AllData = False,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs; default: the recipe's.")] = None,
    seed: Seed = None,
    changes: Changes = None,
    task: Annotated[
        str | None,
        typer.Option(help="A task of gridless, or FILE.py:CLASS, which runs that file; default: the recipe's."),
    ] = None,
    geometry: Annotated[
        str | None, typer.Option(help="Where geometry is made: online, workers or offline; default: the recipe's.")
    ] = None,
    repeats: Repeats = None,
    cache: Packs = None,
    keep: Keep = "auto",
    workers: Workers = None,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(min=1, help="Processes, each with a device, on this machine.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the last checkpoint in OUT.")] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(min=1, help="Steps between checkpoints; default: every 10 epochs.")
    ] = None,
    limit: Limit = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Train from so many seeds, one after the other, into OUT/seed-N.")
    ] = None,
) -> None:
    """Train a network by a recipe; the weights end in OUT/weights.safetensors and OUT/weights.json.

    Without --all-data a part of the training examples is held out and evaluated during training. For named data sets
    it is a fixed list; for your own folder (recipes own-*) it is whole sessions, see OUT/split.txt.
    The result is one JSON object on standard output; progress goes to standard error.
    Ctrl-C leaves a checkpoint, from which --resume continues as if there had been no interruption.
    With --seeds, mean, deviation and best of all figures are printed, and written to OUT/seeds.json.
    """
    given = {name: value for name, value in locals().items() if name not in ("seeds", "out")}
    from gridless.data.files import check_writable
    from gridless.tasks.own import task_for
    from gridless.tasks.storage import Storage, load_splits
    from gridless.training.checkpoints import check_folder

    chosen = recipe_of(recipe, changes, epochs=epochs, seed=seed, geometry=geometry, repeats=repeats, task=task)
    if seeds is not None:
        from gridless.training.seeds import run_seeds

        print(json.dumps(run_seeds(train, chosen, given, out, seeds)))
        return
    check_folder(out, resume)
    place, folder = pick_device(device), cache or Path("cache")
    if chosen.geometry == "offline":
        check_writable(folder, "--cache")
    # This takes seconds to import: wrong options are refused first.
    from gridless.training.loop import train as train_by
    from gridless.training.setup import Options

    kind = task_for(chosen)
    listed = held_out_list(out, chosen, data, "Remove the list, or choose another folder (--out).")
    splits = ["train"] if all_data else ["fit", "validation"]
    learn, *held = load_splits(kind, chosen, data, splits, Storage(keep, cache), listed)
    learn, valid = limited(learn, limit), held[0] if held else None
    chosen = kind.fit(chosen, learn)
    model = chosen.make_model()
    tell(kind.describe(chosen, learn, model))
    held_out = [] if all_data or learn.listing is None else learn.listing.held_out
    with naming(out):
        options = Options(
            place, devices, nodes, resume, checkpoint_steps, workers=workers, cache=folder, held_out=held_out
        )
        result = train_by(chosen, kind, learn, valid, out, options, model)
    if result is not None:
        print(json.dumps({k: v for k, v in result.items() if k not in ("history", "confusion")}))


def tell(lines: list[str]) -> None:
    """Print lines about the data on standard error."""
    from gridless.kernels.progress import shown

    if lines:
        print("\n".join(map(shown, lines)), file=sys.stderr, flush=True)


@contextmanager
def naming(out: Path) -> Iterator[None]:
    """Add the folder of a run and the remedy to errors of a full disk that name no file."""
    from gridless.data.files import full

    try:
        yield
    except OSError as error:
        if full(error) is None or error.strerror != os.strerror(error.errno or 0):
            raise
        has_checkpoint = (out / "checkpoints" / "last.ckpt").is_file()
        remedy = "continue with --resume" if has_checkpoint else "start again"
        raise OSError(error.errno, f"{full(error)} while writing {out}. Free some space and {remedy}.") from error
