"""Class probabilities of a user's own files: clouds, meshes and recordings."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.structures import Cloud, Edges, Events, Geometry
from gridless.training.evaluate import probabilities
from gridless.training.examples import SETS, Clouds, Recordings, chain, views_of_cloud
from gridless.training.recipe import Recipe

UP = {"x": (1, 0, 2), "y": (0, 1, 2), "z": (0, 2, 1)}


def classify(
    model: Any,
    file: str | Path,
    points: int | None = None,
    up: str = "y",
    keep_scale: bool = False,
    votes: int | None = None,
) -> Tensor:
    """Probabilities (classes) of the cloud in a file, prepared as the training clouds were: y up, unit sphere.

    Args:
        model: a network from `gl.load`.
        file: a cloud, or a mesh, from which points are drawn.
        points: how many points are used; None: as many as in training.
        up: the axis that points up in the file: x, y or z.
        keep_scale: do not centre and scale to the unit sphere.
        votes: views whose probabilities are averaged; None: as the weights were saved with.
    """
    from gridless.data import read_cloud, sample_mesh
    from gridless.data.clouds import MESHES

    recipe = getattr(model, "about", {}).get("recipe", {})
    points = points or int(recipe.get("points", 1024))
    mesh = Path(file).suffix.lower() in MESHES
    cloud = sample_mesh(file, points, normalise=False) if mesh else read_cloud(file)
    coords = prepare(cloud.coords, str(file), points, up, keep_scale)
    coords = coords.to(next(model.parameters()).device)
    check_scale(model.plan(Cloud.of(coords)), str(file))
    one = Clouds(coords[None], torch.zeros(1, dtype=torch.int64, device=coords.device))
    return probabilities(model, one, views_of_cloud(votes or recipe.get("votes", 1)))[0].cpu()


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
    up: str = "y",
    keep_scale: bool = False,
) -> tuple[Path, dict[str, int]]:
    """The cloud in a file with the part of every point as a row and as its colour, in OUT/NAME.ply; and what was found.

    The network labels as many points as in training, prepared as those were; every other has the part of the closest.
    """
    from gridless.data import read_cloud, sample_mesh
    from gridless.data.clouds import MESHES, ply
    from gridless.geometry import nearest

    names, parts = list(model.about.get("classes") or []), model.config["parts"]
    names += [str(i) for i in range(len(names), len(parts))]
    if category is None and len(parts) == 1:
        category = names[0]
    if category not in names:
        asked = "say what it shows" if category is None else f"no category {category!r}"
        raise ValueError(f"{file}: {asked}: --category is one of {', '.join(names)}")
    kind = names.index(category)
    wanted = points or int(model.about.get("recipe", {}).get("points", 2048))
    mesh = Path(file).suffix.lower() in MESHES
    cloud = sample_mesh(file, wanted, normalise=False) if mesh else read_cloud(file)
    every = prepare(cloud.coords, str(file), len(cloud), up, keep_scale)
    chosen = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:wanted]
    device = next(model.parameters()).device
    some = Cloud.of(every[chosen].to(device))
    geometry = model.plan(some)
    check_scale(geometry, str(file))
    with torch.no_grad():
        found = model.eval()(geometry, torch.tensor([kind], device=device)).argmax(1)
    part = found[nearest(some, Cloud.of(every.to(device)), 1).source.long()].cpu() - sum(parts[:kind])
    rgb = torch.tensor(COLOURS, dtype=torch.uint8)[part % len(COLOURS)]
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{Path(file).stem}.ply"
    ply.write(path, Cloud.of(cloud.coords, part=part, rgb=rgb))
    counts = torch.bincount(part, minlength=parts[kind]).tolist()
    return path, {f"{category} {i}": n for i, n in enumerate(counts)}


def prepare(coords: Tensor, what: str, points: int, up: str = "y", keep_scale: bool = False) -> Tensor:
    """Coordinates (S, 3) of a file to those the network expects: at most `points`, centred and scaled."""
    if up not in UP:
        raise ValueError(f"up must be x, y or z, not {up!r}")
    if coords.ndim != 2 or coords.shape[1] < 3 or not len(coords):
        raise ValueError(f"{what}: expected points with three coordinates, found an array of {tuple(coords.shape)}")
    Cloud.of(coords[:, :3]).check(what)
    coords = coords[:, list(UP[up])]
    if up != "y":
        # Two axes changed places; one is turned round, so that left stays left.
        coords = coords * torch.tensor([-1.0, 1.0, 1.0] if up == "x" else [1.0, 1.0, -1.0])
    if len(coords) > points:
        coords = coords[torch.randperm(len(coords), generator=torch.Generator().manual_seed(0))[:points]]
    if not keep_scale:
        coords = coords - coords.mean(0)
        size = coords.norm(dim=1).max()
        if size == 0:
            raise ValueError(f"{what}: all {len(coords)} points are the same")
        coords = coords / size
    return coords.float().contiguous()


def check_scale(geometry: Geometry, what: str) -> None:
    """Warn where the first search finds no neighbour for most points: the cloud is on another scale than the radius."""
    first = next(value for value in geometry.values() if isinstance(value, Edges))
    lonely = (first.counts <= 1).double().mean().item()
    if lonely > 0.5:
        warnings.warn(
            f"{what}: {lonely:.0%} of the points have no neighbour within the network's first radius: the cloud is too "
            "sparse or on another scale; scale it to the unit sphere, or use more points",
            stacklevel=2,
        )


def is_event_network(model: Any) -> bool:
    return next(iter(model.plan.steps.values())).op == "events"


def classify_events(model: Any, file: str | Path, repair: str | Sequence[str] = (), votes: int | None = None) -> Tensor:
    """Probabilities (classes) of the recording in a file, prepared as those of the training set were."""
    from gridless.data import read_events

    recipe = Recipe.from_dict(getattr(model, "about", {}).get("recipe") or {"model": model.config, "data": "glyphs"})
    events = read_events(file, repair=repair)
    events = fitted(events, recorded_sensor(model, recipe), str(file))
    if not len(events):
        raise ValueError(f"{file}: there is no event in it")
    data = Recordings.of(events, torch.zeros(1, dtype=torch.int64), [])
    return data.to(next(model.parameters()).device).probabilities(model, recipe, 1, votes)[0].cpu()


def recorded_sensor(model: Any, recipe: Recipe) -> tuple[int, int]:
    """The camera whose recordings the network was trained on, before they were prepared."""
    import gridless.data as data

    sensor = tuple(model.config["sensor"])
    known = getattr(getattr(data, SETS[recipe.data][0]), "sensor", sensor)
    # Where preparation pools pixels, the network's own sensor is smaller than the camera.
    empty = Events(
        torch.empty(0, 2, dtype=torch.int32),
        torch.empty(0, dtype=torch.int64),
        torch.empty(0, dtype=torch.bool),
        torch.zeros(2, dtype=torch.int64),
        known,
    )
    return known if chain(recipe, train=False)(empty).sensor == sensor else sensor


def fitted(events: Events, sensor: tuple[int, int], what: str) -> Events:
    """The same events on the network's camera, where all of them lie on it."""
    if len(events) and not bool((events.pixel < torch.tensor(sensor)).all()):
        raise ValueError(
            f"{what}: recorded with {events.sensor[0]} x {events.sensor[1]} pixels, but the network is for "
            f"{sensor[0]} x {sensor[1]}: cut out or pool pixels first (gridless.augment), or train a network for it"
        )
    return events._changed(sensor=sensor)
