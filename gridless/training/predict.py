"""Class probabilities of a user's own files: clouds, meshes and recordings."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.prepare import Preparation, blocks, joined, prepare, read_points
from gridless.geometry import grid_sample, nearest
from gridless.structures import Cloud, Edges, Events, Geometry
from gridless.training.evaluate import probabilities
from gridless.training.examples import FOLDER, SETS, Clouds, Recordings, prepared_sensor, views_of_cloud
from gridless.training.recipe import Recipe
from gridless.weights import class_names


def classify(
    model: Any,
    file: str | Path,
    points: int | None = None,
    up: str | None = None,
    keep_scale: bool = False,
    votes: int | None = None,
) -> Tensor:
    """Probabilities (classes) of the cloud in a file, prepared as the training clouds were: y up, unit sphere.

    Args:
        model: a network from `gl.load`.
        file: a cloud, or a mesh, from which points are drawn.
        points: how many points are used; None: as many as in training.
        up: the axis that points up in the file: x, y or z; None: as in training, or y.
        keep_scale: do not centre and scale to the unit sphere.
        votes: views whose probabilities are averaged; None: as the weights were saved with.
    """
    if not isinstance(file, str | Path):
        words = "it takes the path of a file; points at hand are asked by model(model.plan(points))"
        raise TypeError(f"classify: {words}, not {type(file).__name__}")
    recipe = getattr(model, "about", {}).get("recipe", {})
    points, how = points or int(recipe.get("points", 1024)), preparation(recipe, up, keep_scale)
    device = next(model.parameters()).device
    cloud = prepare(read_points(file, points, how), str(file), points, how, how.features).to(device)
    check_scale(model.plan(cloud), str(file), how, stacklevel=3)
    rows = {name: values[None] for name, values in cloud.rows.items()}
    label = torch.zeros(1, dtype=torch.int64, device=device)
    one = Clouds(cloud.coords[None], label, rows=rows, features=how.features)
    return probabilities(model, one, views_of_cloud(votes or recipe.get("votes", 1)))[0].cpu()


def preparation(recipe: dict[str, Any], up: str | None = None, keep_scale: bool = False) -> Preparation:
    """How files are prepared for weights of a recipe: as its data was, else y up, on the unit sphere."""
    names = [entry.name for entry in fields(Preparation)]
    known: dict[str, Any] = {k: v for k, v in recipe.get("data_options", {}).items() if k in names}
    known |= {"up": up} if up else {}
    known |= {"keep_scale": True} if keep_scale else {}
    return Preparation(**known)


# Colours of parts, in turn.
COLOURS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
)  # fmt: skip


def write_parts(
    model: Any,
    file: str | Path,
    out: Path,
    category: str | None = None,
    points: int | None = None,
    up: str | None = None,
    keep_scale: bool = False,
) -> tuple[Path, dict[str, int]]:
    """The cloud in a file with the part of every point as a row and as its colour, in OUT/NAME.ply; and what was found.

    The network labels as many points as in training, prepared as those were; every other has the part of the closest.
    Where training thinned clouds by a grid, so is this one; where it cut them into blocks, each is labelled by itself.
    """
    from gridless.data.readers.clouds import ply

    parts = model.config["parts"]
    categories = class_names(model, len(parts))
    if category is None and len(parts) == 1:
        category = categories[0]
    if category not in categories:
        asked = "say what it shows" if category is None else f"no category {category!r}"
        raise ValueError(f"{file}: {asked}: --category is one of {', '.join(categories)}")
    path = out / f"{stem(Path(file))}.ply"
    if path.resolve() == Path(file).resolve():
        raise ValueError(f"{path} is the file itself, which labelled points would replace: give another folder (--out)")
    kind = categories.index(category)
    names = model.about.get("parts") or [f"{category} {i}" for i in range(parts[kind])]
    recipe = model.about.get("recipe", {})
    wanted, how = points or int(recipe.get("points", 2048)), preparation(recipe, up, keep_scale)
    # Training on labels of a user's files saw the vertices of a PLY with faces.
    cloud = read_points(file, wanted, how, label=recipe.get("data") == FOLDER)
    grid = recipe.get("data_options", {}).get("grid")
    seen = grid_sample(cloud, grid) if grid else cloud
    part = torch.empty(len(seen), dtype=torch.int64)
    for piece in blocks(seen, how):
        part[piece] = _parts(model, prepare(seen[piece], str(file), None, how, how.features), how, wanted, kind, file)
    part = part[nearest(seen, cloud, 1).source.long()] if grid else part
    part -= sum(parts[:kind])
    rgb = torch.tensor(COLOURS, dtype=torch.uint8)[part % len(COLOURS)]
    out.mkdir(parents=True, exist_ok=True)
    values = torch.tensor(model.about.get("values") or range(parts[kind]))
    ply.write(path, Cloud.of(cloud.coords, part=values[part], rgb=rgb))
    return path, dict(zip(names, torch.bincount(part, minlength=parts[kind]).tolist()))


@torch.no_grad()
def _parts(model: Any, every: Cloud, how: Preparation, wanted: int, kind: int, file: str | Path) -> Tensor:
    """The part of each point, numbered through all categories: that of the closest of `wanted` that are labelled."""
    device = next(model.parameters()).device
    chosen = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:wanted]
    some = joined(every[chosen].to(device), how.features)
    geometry = model.plan(some)
    check_scale(geometry, str(file), how, stacklevel=5)
    found = model.eval()(geometry, torch.tensor([kind], device=device)).argmax(1)
    return found[nearest(some, Cloud.of(every.coords.to(device)), 1).source.long()].cpu()


def stem(file: Path) -> str:
    """The name of what is made of a file, without its suffix; that of `a.copc.laz`, too, which is COPC no more."""
    return re.sub(r"\.copc$", "", file.stem, flags=re.IGNORECASE)


def write_labels(
    model: Any, source: Path, out: Path, weights: Any = None, up: str | None = None, **settings: Any
) -> tuple[Path, dict[str, int]]:
    """A scene with the label of every point, in the file OUT, or in the folder OUT; and how many have each label.

    `settings` are those of `gridless.scenes.label.label_scene`; `weights` say where the network came from.
    """
    from gridless.scenes.label import OUTPUTS, label_scene

    recipe = model.about.get("recipe", {})
    how = preparation(recipe, up)
    if recipe.get("data") == FOLDER and not (how.keep_scale or how.block):
        raise ValueError(f"{source}: these weights are for clouds on the unit sphere: train with keep_scale, or blocks")
    if settings.get("grid") is None:
        settings["grid"] = recipe.get("data_options", {}).get("grid")
    if out.suffix.lower() not in OUTPUTS:
        out = out / f"{stem(source)}{source.suffix.lower() if source.suffix.lower() in ('.las', '.laz') else '.ply'}"
    counts = label_scene(source, model if weights is None else weights, out, how=how, **settings)
    names = list(model.about.get("parts") or model.about.get("class_names") or [])
    return out, {names[k] if k < len(names) else str(k): n for k, n in counts.items()}


def check_scale(geometry: Geometry, what: str, how: Preparation, stacklevel: int = 2) -> None:
    """Warn where the first search finds no neighbour for most points: too sparse, or on another scale than the radius.

    `how` says how the cloud was prepared, `stacklevel` whose line the warning names, as of `warnings.warn`.
    """
    first = next(value for value in geometry.values() if isinstance(value, Edges))
    lonely = (first.counts <= 1).double().mean().item()
    if lonely > 0.5:
        scaled = not (how.keep_scale or how.block)
        hint = "is too sparse: use more points" if scaled else "is too sparse, or in other units than those of training"
        words = f"{lonely:.0%} of the points have no neighbour within the network's first radius: the cloud {hint}"
        warnings.warn(f"{what}: {words}", stacklevel=stacklevel)


def is_event_network(model: Any) -> bool:
    return next(iter(model.plan.steps.values())).op == "events"


def classify_events(model: Any, file: str | Path, repair: str | Sequence[str] = (), votes: int | None = None) -> Tensor:
    """Probabilities (classes) of the recording in a file, prepared as those of the training set were.

    `model` and `votes` are as of `classify`, `repair` is that of `read_events`; where none is given, that of training.
    """
    from gridless.data import read_events

    recipe = Recipe.from_dict(getattr(model, "about", {}).get("recipe") or {"model": model.config, "data": "glyphs"})
    repair, sensor = repair or recipe.data_options.get("repair", ()), recorded_sensor(model, recipe)
    events = read_events(file, sensor if "drop" in repair else None, repair)
    events = fitted(events, sensor, str(file))
    if not len(events):
        raise ValueError(f"{file}: there is no event in it")
    data = Recordings.of(events, torch.zeros(1, dtype=torch.int64), [])
    return data.to(next(model.parameters()).device).probabilities(model, recipe, 1, votes)[0].cpu()


def recorded_sensor(model: Any, recipe: Recipe) -> tuple[int, int]:
    """The camera whose recordings the network was trained on, before they were prepared."""
    import gridless.data as data

    sensor = tuple(model.config["sensor"])
    if recipe.data == FOLDER:
        known = tuple(recipe.data_options.get("sensor") or sensor)
    else:
        known = getattr(getattr(data, SETS[recipe.data][0]), "sensor", sensor)
    # Where preparation pools pixels, the network's own sensor is smaller than the camera.
    return known if prepared_sensor(recipe, known) == sensor else sensor


def fitted(events: Events, sensor: tuple[int, int], what: str) -> Events:
    """The same events on the network's camera, where all of them lie on it."""
    if len(events) and not bool((events.pixel < torch.tensor(sensor)).all()):
        raise ValueError(
            f"{what}: recorded with {events.sensor[0]} x {events.sensor[1]} pixels, but the network is for "
            f"{sensor[0]} x {sensor[1]}: cut out or pool pixels first (gridless.augment), or train a network for it"
        )
    return events._changed(sensor=sensor)
