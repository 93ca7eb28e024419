"""`gridless precompute`: the geometry of a recipe's examples, ahead of time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gridless.cli.options import (
    AllData,
    Changes,
    Data,
    Json,
    Limit,
    Packs,
    RecipeName,
    Repeats,
    Seed,
    Workers,
    limited,
    recipe_of,
)
from gridless.kernels.progress import shown


def precompute(
    recipe: RecipeName,
    data: Data = None,
    cache: Packs = None,
    all_data: AllData = False,
    seed: Seed = None,
    changes: Changes = None,
    repeats: Repeats = None,
    workers: Workers = None,
    ray: Annotated[
        str | None,
        typer.Option(
            help="The address of a Ray cluster that makes it, auto for a running one, local for this machine."
        ),
    ] = None,
    limit: Limit = None,
    as_json: Json = False,
) -> None:
    """Make the geometry of a recipe's training examples, for `gridless train RECIPE --geometry offline`.

    Give both commands the same data and settings. After an interruption the same command continues where it ended.
    """
    from gridless.data.files import check_writable
    from gridless.tasks.own import task_for
    from gridless.tasks.storage import Storage, load_splits
    from gridless.training.workers import precomputed, processes

    chosen = recipe_of(recipe, changes, seed=seed, repeats=repeats)
    folder = cache or Path("cache")
    check_writable(folder, "--cache")
    task = task_for(chosen)
    splits = ["train"] if all_data else ["fit"]
    learn = limited(load_splits(task, chosen, data, splits, Storage(folder=cache))[0], limit)
    chosen = task.fit(chosen, learn)
    files = precomputed(chosen, task, learn, chosen.make_model().plan, folder, processes(workers), ray)
    size = sum(path.stat().st_size for path in files.folder.iterdir())
    if as_json:
        facts = {"folder": str(files.folder), "examples": len(files), "repeats": files.repeats, "bytes": size}
        print(json.dumps(facts))
    else:
        print(f"{len(files)} examples, {files.repeats} times each, {size / 1e6:,.1f} MB in {shown(files.folder)}")
