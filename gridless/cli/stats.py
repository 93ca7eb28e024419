"""`gridless stats`: how many points, events and neighbours a recipe's network sees at every level of its data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from gridless.cli.options import Changes, Data, Json, RecipeName, recipe_of
from gridless.kernels.progress import bar

# Examples whose geometry is made together.
BATCH = 16
# The columns of the table, and the kinds of charts.
COUNTS, FIGURES = ("rows", "neighbours"), ("median", "mean", "max")
CHARTS = (".png", ".svg", ".pdf")


def stats(
    recipe: RecipeName,
    data: Data = None,
    split: Annotated[str, typer.Option(help="train, fit, validation or test.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="Use only so many examples, evenly spread.")] = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Draw a chart: .png, .svg or .pdf.")] = None,
    as_json: Json = False,
) -> None:
    """Median, mean and maximum of what every line of a network's plan gives: the paper's Table 7 for any data.

    Rows are points or events of a cloud, or edges of a search, counted for each example. Neighbours are counted for
    each target. Examples are not augmented. Only the order of points is random where it is so in training, as samples
    depend on it. Event networks are counted with the paper's window of 4 decay times.
    """
    if out is not None and out.suffix not in CHARTS:
        raise ValueError(f"--out {out}: unsupported chart format. Use {', '.join(CHARTS)}.")
    result = collect(recipe, data, split, limit, changes)
    if out is not None:
        from gridless.pictures.figures import levels

        title = f"{result['recipe']}, {result['examples']:,} examples"
        levels(result["lines"], title).savefig(out, dpi=150)
    print(json.dumps(result) if as_json else as_text(result))


def collect(
    name: str,
    root: Path | None = None,
    split: str = "train",
    limit: int | None = None,
    changes: list[str] | None = None,
) -> dict[str, Any]:
    """The statistics of a recipe's data.

    `lines` has, for each line of the plan, its rows and its neighbours: median, mean and maximum.

    Args:
        name: a shipped recipe, or a YAML file.
        root: the folder of the data; None for data that is generated.
        split: train, fit, validation or test.
        limit: use only so many examples, evenly spread.
        changes: settings of the recipe, each NAME=VALUE.
    """
    recipe = recipe_of(name, changes)
    rows, neighbours = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    examples = 0
    for plan, batch in _examples(recipe, root, split, limit):
        geometry = plan(batch)
        examples += batch.num_examples
        for line, step in plan.steps.items():
            label, value = f"{line} {step.op}", geometry[line]
            if line.startswith("X"):
                rows[label].append(value.sizes)
            else:
                target = geometry[plan.ends(line)[1]]
                counts = value.counts.view(len(target), -1).sum(1)
                neighbours[label].append(counts)
                before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
                rows[label].append(before[target.splits].diff())
    lines = {
        label: {"rows": _summary(parts)} | ({"neighbours": _summary(neighbours[label])} if label in neighbours else {})
        for label, parts in rows.items()
    }
    return {"recipe": name, "data": recipe.data, "split": split, "examples": examples, "lines": lines}


def as_text(result: dict[str, Any]) -> str:
    """The statistics as a table."""
    title = f"{result['recipe']}: {result['examples']:,} examples of {result['data']}, split {result['split']}"
    columns = [(count, figure) for count in COUNTS for figure in FIGURES]
    table = [["", *(" ".join(column) for column in columns)]]
    for label, counts in result["lines"].items():
        cells = [(counts.get(count, {}).get(figure), 1 if figure == "mean" else 0) for count, figure in columns]
        table.append([label, *("" if value is None else f"{value:,.{digits}f}" for value, digits in cells)])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = [
        " ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))])
        for row in table
    ]
    return "\n".join([title, *lines])


def _examples(recipe: Any, root: Path | None, split: str, limit: int | None) -> Iterator[tuple[Any, Any]]:
    """The network's plan, and batches of its clouds or recordings."""
    from gridless.augment.policy import Policy
    from gridless.tasks.loading import some_of
    from gridless.tasks.own import task_for

    task = task_for(recipe)
    data = task.load(recipe, root, split)
    recipe = task.fit(recipe, data)
    model: Any = task.with_edges(recipe, recipe.make_model())
    index = some_of(data, limit)
    prepare = Policy(shuffle=True) if recipe.augment.shuffle else task.augment(recipe, train=False)
    with bar("stats", len(index)) as advance:
        for part in index.split(BATCH):
            yield model.plan, data.draw(prepare, 0, 0, part)
            advance(len(part))


def _summary(parts: list[Tensor]) -> dict[str, float]:
    """Median, mean and maximum of all values."""
    values = torch.cat(parts).double()
    if not len(values):
        return dict.fromkeys(FIGURES, 0.0)
    # torch.quantile takes at most 2^24 values.
    median = values.quantile(0.5) if len(values) < 1 << 24 else values.median()
    return {"median": median.item(), "mean": values.mean().item(), "max": values.max().item()}
