"""Put the weights of a run among those that come with the package: gridless/pretrained/NAME.*, with facts for its card.

    python benchmarks/ship.py runs/plus/weights modelnet40-plus --data DIR --fact 'test={"accuracy": 0.92}' ...

Kernels are stored with 16 bits, unless that changes predictions for some training examples (`--examples`). The cost of
one example is counted on them, too. Facts for the card (`held_out`, `test`) are JSON, and are added to those saved with
the weights. The log of the run is copied. Then run page.py and readme.py here.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gridless.models.events import EventCounts, VoxelHead  # noqa: E402
from gridless.nn.conv import FeaturelessConv, PointConv  # noqa: E402
from gridless.nn.events import VoxelMerge  # noqa: E402
from gridless.tasks import find  # noqa: E402
from gridless.training.recipe import Recipe  # noqa: E402
from gridless.weights import SHIPPED, load, save  # noqa: E402


@torch.no_grad()
def multiply_adds(model: nn.Module, geometry: Any, *more: Tensor) -> dict[str, float]:
    """Multiply-adds of a forward pass: per example (clouds), or per input event and prediction (events)."""
    counts = {"total": 0.0}

    def count(layer: nn.Module, inputs: tuple, output: Tensor) -> None:
        if isinstance(layer, nn.Linear):
            counts["total"] += output.numel() * layer.in_features
        elif isinstance(layer, FeaturelessConv):
            counts["total"] += layer.basis.size * (len(geometry[layer.edges]) + output.numel())
        elif isinstance(layer, PointConv):
            edges, m, q, p = len(geometry[layer.edges]), *layer.weight.shape
            counts["total"] += min(m * q * (edges + len(output) * p), m * p * (edges + len(inputs[0]) * q))
        elif isinstance(layer, VoxelMerge | nn.Conv2d):
            kernel: Any = layer.conv.weight if isinstance(layer, VoxelMerge) else layer.weight
            counts["total"] += output.numel() * kernel[0].numel()

    events = hasattr(model, "cost")
    asked = [layer for layer in model.modules() if isinstance(layer, VoxelHead | EventCounts)]
    counted = asked[0] if asked else model
    hooks = [layer.register_forward_hook(count) for layer in counted.modules()]
    try:
        model.eval()(geometry, *more)
    finally:
        for hook in hooks:
            hook.remove()
    examples = next(iter(geometry.values())).num_examples
    if not events:
        return {"multiply-adds per example": counts["total"] / examples}
    cost: Any = model.cost(geometry)  # type: ignore[operator]
    facts = {"multiply-adds per event": cost["total"] - cost.get("prediction", 0.0)}
    if asked:
        facts["multiply-adds of a prediction"] = counts["total"] / examples
    return facts


def tried(model: nn.Module, recipe: Recipe, data: Path, examples: int) -> tuple[Tensor, dict[str, float]]:
    """The classes predicted for some training examples, and the cost of one example.

    Part networks return instance and category mIoU instead of classes, to a tenth of a percent.
    """
    task = find(recipe.task_name)
    whole = task.load(recipe, data, "train")
    # Spread over the whole, as examples of a class follow each other.
    some, few = (whole.take(torch.linspace(0, len(whole) - 1, min(n, len(whole))).long()) for n in (examples, 64))
    batch = next(iter(task.loader(recipe, few, model.plan, train=False)))  # type: ignore
    if hasattr(task, "probabilities"):
        facts = multiply_adds(model, batch.geometry)
        if "multiply-adds of a prediction" in facts:
            share = facts["multiply-adds of a prediction"] * len(whole) / len(whole.events)  # type: ignore[union-attr]
            facts["multiply-adds per event, one prediction for each recording"] = (
                facts["multiply-adds per event"] + share
            )
        return task.probabilities(model, some, recipe).argmax(1), facts
    scores = task.evaluate(model, some, recipe)
    figures = torch.tensor([scores["instance_iou"], scores["category_iou"]]).mul(1e3).round()
    return figures, multiply_adds(model, batch.geometry, batch.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", help="weights of a run, or the name of shipped ones")
    parser.add_argument("name")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--examples", type=int, default=985)
    parser.add_argument("--fact", action="append", default=[], help="NAME=JSON")
    options = parser.parse_args()
    model: Any = load(options.source)
    about = dict(model.about)
    recipe = Recipe.from_dict({"model": model.config, **about["recipe"]})
    for fact in options.fact:
        name, _, value = fact.partition("=")
        about[name] = json.loads(value)
    before, about["cost"] = tried(model, recipe, options.data, options.examples)
    about["cost"] |= {"parameters": sum(p.numel() for p in model.parameters())}
    config = about.pop("model")
    path = save(model, SHIPPED / options.name, bits=16, **about)
    changed = int((tried(load(path), recipe, options.data, options.examples)[0] != before).sum())
    if changed:
        print(f"{changed} of {len(before)} predictions or figures change with 16 bits: stored with 32")
        save(model, SHIPPED / options.name, **about)
    log = Path(options.source).with_name("metrics.csv")
    if log.is_file():
        shutil.copyfile(log, SHIPPED / f"{options.name}.csv")
    print(json.dumps({"model": config["model"], "bytes": path.stat().st_size, **about["cost"]}))


if __name__ == "__main__":
    main()
