"""`gridless evaluate`: the figures of saved weights on a split of their data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gridless.cli.options import (
    Data,
    Device,
    Json,
    Keep,
    OwnTask,
    Packs,
    Votes,
    WeightsName,
    given,
    held_out_list,
    pick_device,
    weights_of,
)
from gridless.kernels.progress import shown


def evaluate(
    weights: WeightsName,
    data: Data = None,
    split: Annotated[str, typer.Option(help="test, train, fit or validation.")] = "test",
    points: Annotated[
        list[int] | None, typer.Option(help="Use so many points of each cloud; may be repeated, for a curve.")
    ] = None,
    votes: Votes = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples at a time.")] = None,
    task: OwnTask = None,
    device: Device = "auto",
    keep: Keep = "auto",
    cache: Packs = None,
    as_json: Json = False,
) -> None:
    """Accuracy of saved weights on a split of their data set.

    If the weights were trained on examples of that split, the first line says so (in JSON, `seen_in_training`).
    """
    from gridless.tasks.storage import Storage, load_splits
    from gridless.training.evaluate import seen
    from gridless.training.recipe import Recipe

    model, kind = weights_of(weights, device, task)
    kind.refuse("evaluate", given(points=points, votes=votes if (votes or 1) > 1 else None), weights)
    recipe = Recipe.from_dict({"model": model.config, **model.about.get("recipe", {})})
    listing = data if split in ("fit", "validation") else None
    remedy = "Restore them, or give the folder of the run (--data)."
    listed = held_out_list(Path(weights).parent, recipe, listing, remedy)
    counts = points or [recipe.points]
    largest = recipe.changed(points=max(counts)) if points else recipe
    (loaded,) = load_splits(kind, largest, data, [split], Storage(keep, cache), listed, model.about)
    examples = loaded.to(pick_device(device))
    results, known = {}, seen(model.about, split)
    for count in counts:
        chosen = recipe.changed(points=count) if points else recipe
        figures = kind.evaluate(model, examples, chosen, batch_size, votes, progress=True)
        figures.pop("confusion", None)
        results[count] = figures | {"seen_in_training": known}
    if as_json:
        print(json.dumps(results if points else results[recipe.points]))
        return
    if known in ("all", "some"):
        many = "these" if known == "all" else "most of these"
        print(f"{shown(weights)} was trained on {many} examples: on unseen ones expect less")
    for count, figures in results.items():
        print(shown(kind.summary(figures, recipe.fitted(points=count))))
