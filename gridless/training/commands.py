"""`gridless train`, `gridless evaluate` and `gridless predict`."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import yaml

Device = Annotated[str, typer.Option(help="cuda, cpu, or auto for a GPU where there is one.")]


def train(
    recipe: Annotated[str, typer.Argument(help="A shipped recipe's name, such as modelnet40-large, or a YAML file.")],
    data: Annotated[Path, typer.Option(help="The folder of the data set.")],
    out: Annotated[Path, typer.Option(help="Where logs, checkpoints and weights go.")] = Path("runs/latest"),
    all_data: Annotated[bool, typer.Option("--all-data", help="Train on every training cloud, none held out.")] = False,
    epochs: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Instead of the recipe's.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE of the recipe; may be repeated.")
    ] = None,
    device: Device = "auto",
    devices: Annotated[int, typer.Option(help="Processes, each with a device, on this machine.")] = 1,
    nodes: Annotated[int, typer.Option(help="Machines.")] = 1,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in OUT.")] = False,
    checkpoint_steps: Annotated[
        int | None, typer.Option(help="Steps between checkpoints; else every 10 epochs.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Use only so many training clouds, for a trial.")] = None,
) -> None:
    """Train a network by a recipe; the weights end in OUT/weights.safetensors and OUT/weights.json.

    Without --all-data a tenth of the training clouds, a fixed list, is held out and evaluated as training goes on.
    """
    from gridless.training.recipe import load_recipe
    from gridless.training.run import run
    from gridless.training.sources import load_clouds

    chosen = load_recipe(recipe)
    more = dict(_assignment(c) for c in changes or [])
    more |= {k: v for k, v in {"epochs": epochs, "seed": seed}.items() if v is not None}
    chosen = chosen.changed(**more)
    clouds = load_clouds(chosen.data, data, "train" if all_data else "fit", chosen.points)
    valid = None if all_data else load_clouds(chosen.data, data, "validation", chosen.points)
    if limit is not None:
        clouds = clouds.take(torch.linspace(0, len(clouds) - 1, min(limit, len(clouds))).long())
    result = run(
        chosen, clouds, valid, out, device=pick_device(device), devices=devices, nodes=nodes, resume=resume,
        checkpoint_steps=checkpoint_steps,
    )  # fmt: skip
    if result is not None:
        print(json.dumps(result))


def evaluate(
    weights: Annotated[str, typer.Argument(help="Shipped weights by name, or the path of a .safetensors file.")],
    data: Annotated[Path, typer.Option(help="The folder of the data set.")],
    split: Annotated[str, typer.Option(help="test, train, fit or validation.")] = "test",
    points: Annotated[list[int] | None, typer.Option(help="Use so many points; may be repeated, for a curve.")] = None,
    votes: Annotated[
        int | None, typer.Option(help="Views averaged per cloud; else as the weights were saved with.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Clouds at a time.")] = 256,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Accuracy of saved weights on a split of their data set."""
    from gridless.training.evaluate import probabilities, report
    from gridless.training.sources import load_clouds
    from gridless.weights import load

    model: Any = load(weights, pick_device(device))
    recipe = model.about.get("recipe", {})
    views = recipe.get("votes", 1) if votes is None else votes
    clouds = load_clouds(recipe.get("data", "modelnet40"), data, split, max(points or [recipe.get("points", 1024)]))
    clouds = clouds.to(pick_device(device))
    results = {}
    for count in points or [clouds.points.shape[1]]:
        p = probabilities(model, clouds.points[:, :count], batch_size, views)
        results[count] = report(p, clouds.labels, clouds.classes)
    if as_json:
        print(json.dumps(results if points else next(iter(results.values()))))
        return
    for count, result in results.items():
        print(
            f"{result['accuracy']:.2%} of {result['clouds']} clouds of {count} points, "
            f"{result['mean_class_accuracy']:.2%} as the mean over classes"
        )


def predict(
    files: Annotated[list[Path], typer.Argument(help="Clouds: PLY, PCD, LAS, OFF, NPY, XYZ...")],
    weights: Annotated[str, typer.Option(help="Shipped weights by name, or a path.")] = "modelnet40-plus",
    points: Annotated[int | None, typer.Option(help="Points of each cloud that are used; else as in training.")] = None,
    up: Annotated[str, typer.Option(help="The axis that points up in the files: x, y or z.")] = "y",
    keep_scale: Annotated[
        bool, typer.Option("--keep-scale", help="Do not centre and scale to the unit sphere.")
    ] = False,
    votes: Annotated[
        int | None, typer.Option(help="Views averaged per cloud; else as the weights were saved with.")
    ] = None,
    top: Annotated[int, typer.Option(help="Classes to name per file.")] = 3,
    device: Device = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line, with all probabilities.")] = False,
) -> None:
    """Class and probabilities of your own files."""
    from gridless.training.predict import classify
    from gridless.weights import load

    model: Any = load(weights, pick_device(device))
    names = model.about.get("classes") or [str(i) for i in range(model.config["classes"])]
    for file in files:
        p = classify(model, file, points=points, up=up, keep_scale=keep_scale, votes=votes)
        if as_json:
            best = names[int(p.argmax())]
            print(json.dumps({"file": str(file), "class": best, "probabilities": dict(zip(names, p.tolist()))}))
        else:
            order = p.argsort(descending=True)[:top].tolist()
            print(f"{file}: " + ", ".join(f"{names[i]} {p[i]:.1%}" for i in order))


def pick_device(name: str) -> torch.device:
    """auto is a GPU where there is one; an explicit choice never falls back."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {name!r} was asked for, but torch sees no GPU: use --device cpu")
    return torch.device(name)


def _assignment(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set takes NAME=VALUE, such as epochs=10 or augment.shift=0.1, not {text!r}")
    value = yaml.safe_load(value)
    # YAML 1.1 reads 1e-3 as a word.
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    return name.strip().replace(".", "__"), value
