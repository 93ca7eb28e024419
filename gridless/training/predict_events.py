"""Class probabilities of a user's own recording."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.structures import Events
from gridless.training.recipe import Recipe
from gridless.training.recordings import SETS, Recordings, chain


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
