"""`gridless stats`: how many points, events and neighbours a recipe's network finds at every level of its data."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from gridless.cli.options import Changes, Data, RecipeName, recipe_of
from gridless.kernels.progress import bar


def stats(
    recipe: RecipeName,
    data: Data = None,
    split: Annotated[str, typer.Option(help="train, fit, validation or test.")] = "train",
    limit: Annotated[int | None, typer.Option(min=1, help="So many examples only, evenly spread.")] = None,
    changes: Changes = None,
    out: Annotated[Path | None, typer.Option(help="Draw a chart: .png, .svg or .pdf.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Median, mean and maximum of what every line of a network's plan gives: the paper's Table 7 for any data.

    Rows are points or events of a cloud, or edges of a search, counted for each example. Neighbours are counted for
    each target. Examples are not augmented. Event networks are counted with the paper's window of 4 decay times.
    """
    result = collect(recipe, data, split, limit, changes)
    if out is not None:
        _draw(result, out)
    print(json.dumps(result) if as_json else as_text(result))


def collect(
    name: str,
    root: Path | None = None,
    split: str = "train",
    limit: int | None = None,
    changes: list[str] | None = None,
) -> dict[str, Any]:
    """The statistics of a recipe's data; the arguments are those of `stats`.

    `lines` has, for each line of the plan, what it is, its rows and its neighbours: median, mean and maximum.
    """
    recipe = recipe_of(name, changes)
    rows, neighbours = defaultdict[str, list[Tensor]](list), defaultdict[str, list[Tensor]](list)
    examples = 0
    for plan, batch in _examples(recipe, root, split, limit):
        geometry = plan(batch)
        examples += batch.num_examples
        for line, step in plan.steps.items():
            value = geometry[line]
            if line.startswith("X"):
                rows[f"{line} {step.op}"].append(value.sizes)
            else:
                target = geometry[_target(plan, line)]
                counts = value.counts.view(len(target), -1).sum(1)
                neighbours[f"{line} {step.op}"].append(counts)
                before = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
                rows[f"{line} {step.op}"].append(before[target.splits].diff())
    lines = {
        line: {"rows": _summary(parts)} | ({"neighbours": _summary(neighbours[line])} if line in neighbours else {})
        for line, parts in rows.items()
    }
    return {"recipe": name, "data": recipe.data, "split": split, "examples": examples, "lines": lines}


def as_text(result: dict[str, Any]) -> str:
    """The statistics as a table."""
    head = f"{result['recipe']}: {result['examples']:,} examples of {result['data']}, split {result['split']}"
    columns = ["", *(f"{what} {of}" for what in ("rows", "neighbours") for of in ("median", "mean", "max"))]
    table = [columns]
    for line, found in result["lines"].items():
        cells = [f"{found[what][of]:,.{1 if of == 'mean' else 0}f}" if what in found else ""
                 for what in ("rows", "neighbours") for of in ("median", "mean", "max")]  # fmt: skip
        table.append([line, *cells])
    widths = [max(len(row[k]) for row in table) for k in range(len(columns))]
    lines = [" ".join(cell.ljust(w) if k == 0 else cell.rjust(w) for k, (cell, w) in enumerate(zip(row, widths)))
             for row in table]  # fmt: skip
    return "\n".join([head, *lines])


def _examples(recipe: Any, root: Path | None, split: str, limit: int | None) -> Iterator[tuple[Any, Any]]:
    """The network's plan, and clouds or recordings as it is given them, a few at a time."""
    from gridless.tasks import load_task

    task = load_task(recipe.task_name)
    found = task.load(recipe, root, split)
    recipe = task.fit(recipe, found)
    model: Any = recipe.make_model()
    if model.config.get("form") == "scan":
        model = recipe.changed(model={**recipe.model, "form": "edges"}).make_model()
    plan: Any = model.plan
    count = min(limit or len(found), len(found))
    index = torch.linspace(0, len(found) - 1, count).long()
    prepare = task.augment(recipe, train=False)
    with bar("stats", count) as advance:
        for part in index.split(16):
            yield plan, found.draw(prepare, 0, 0, part)
            advance(len(part))


def _target(plan: Any, line: str) -> str:
    """The cloud or stream whose points have the neighbours of a line."""
    step = plan.steps[line]
    if step.op == "transpose":
        return _source(plan, step.inputs[0])
    return _target(plan, step.inputs[0]) if step.op == "without_self" else step.inputs[1]


def _source(plan: Any, line: str) -> str:
    step = plan.steps[line]
    if step.op == "transpose":
        return _target(plan, step.inputs[0])
    return _source(plan, step.inputs[0]) if step.op == "without_self" else step.inputs[0]


def _summary(parts: list[Tensor]) -> dict[str, float]:
    values = torch.cat(parts).double()
    if not len(values):
        return {"median": 0.0, "mean": 0.0, "max": 0.0}
    return {"median": values.quantile(0.5).item() if len(values) < 1 << 24 else values.median().item(),
            "mean": values.mean().item(), "max": values.max().item()}  # fmt: skip


def _draw(result: dict[str, Any], out: Path) -> None:
    from gridless.pictures.figures import levels

    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ValueError(f"--out {out}: a chart is .png, .svg or .pdf. Give one of these names.")
    title = f"{result['recipe']}, {result['examples']:,} examples"
    levels(result["lines"], title).savefig(out, dpi=150)
