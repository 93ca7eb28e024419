"""What a folder of one's own files holds, and whether the network's radii fit it: said before training begins."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from gridless.data.folder import Listing
from gridless.geometry import nearest
from gridless.structures import Cloud, Edges
from gridless.training.examples import Clouds, Recordings, chain
from gridless.training.recipe import Recipe

# Examples whose geometry is looked at.
SOME = 16
# Neighbours in the first ball: fewer say little of the surface, more are slow and blur it.
FEW, GOOD, MANY = 4, 12, 60


def statistics(recipe: Recipe, listing: Listing, data: Clouds | Recordings, model: nn.Module) -> list[str]:
    """Lines that say how many files, points or events there are, and what the plan makes of some; warnings last."""
    lines = [f"{listing.root}: {len(listing.files)} files; held out: {listing.rule}"]
    if listing.others:
        lines.append(f"left out, being of other kinds: {', '.join(listing.others[:8])}")
    for k, name in enumerate(listing.class_names):
        found = Counter(part for part, label in zip(listing.parts, listing.labels) if label == k)
        counts = ", ".join(f"{found[part]} {part}" for part in ("fit", "validation", "test") if found[part])
        lines.append(f"  {name}: {counts}")
    some = torch.linspace(0, len(data) - 1, min(SOME, len(data))).long()
    if isinstance(data, Recordings):
        return lines + _of_recordings(recipe, data, some, model)
    return lines + _of_clouds(data, some, model)


def _of_clouds(data: Clouds, some: Tensor, model: Any) -> list[str]:
    sizes = torch.full((len(data),), data.points.shape[1]) if data.sizes is None else data.sizes
    lines = [f"{len(data)} examples to learn from, points each: {_range(sizes)}"]
    real = torch.arange(data.points.shape[1]) < sizes[:, None]
    if data.parts:
        # Those without a label, -1, are the last.
        share = data.rows["part"][real].remainder(len(data.parts) + 1).bincount(minlength=len(data.parts) + 1)
        named = zip([*data.parts, "without a label"], (share / sizes.sum()).tolist())
        lines.append("points: " + ", ".join(f"{name} {s:.1%}" for name, s in named if name in data.parts or s))
    for name in data.features:
        values = data.rows[name][some][real[some]]
        lines.append(f"feature {name}: mean {values.mean():.3g}, standard deviation {values.std(correction=0):.3g}")
    cloud = data.draw(None, 0, 0, some)
    geometry = model.plan(cloud)
    balls = [(name, step) for name, step in model.plan.steps.items() if step.op == "ball"]
    for name, step in balls:
        edges: Edges = geometry[name]
        radius = float(dict(step.settings)["radius"])
        words = f"  {name} ball({', '.join(step.inputs)}, radius={radius:.4g})"
        lines.append(f"{words}: {edges.counts.double().mean():.1f} neighbours on average")
    name, step = balls[0]
    mean, radius = geometry[name].counts.double().mean().item(), float(dict(step.settings)["radius"])
    if FEW <= mean <= MANY:
        return lines
    words = "few" if mean < FEW else "many"
    lines.append(f"warning: {mean:.1f} neighbours within the first radius, {radius:g}, are {words}")
    count, wanted = _radius(cloud)
    if wanted:
        sized = {k: v for k, v in model.config.items() if k in ("radius", "stem_radius", "spacing")}
        change = " ".join(f"--set model.{k}={v * wanted / radius:.3g}" for k, v in sized.items())
        lines[-1] += f": about {count} are within {wanted:.3g}: {change}"
    else:
        lines[-1] += ": most clouds have a single point" if count < 2 else ": most points are at one place"
    return lines


def _radius(cloud: Cloud) -> tuple[int, float]:
    """How many neighbours a good ball has in a typical example, and the median distance to the last of them, or 0."""
    count = min(GOOD, int(cloud.sizes.median()))
    apart = []
    for one in cloud.examples:
        if len(one) >= count:
            near = one.coords[nearest(one, one, count).source.long()].view(-1, count, one.dim)
            apart.append((near - one.coords[:, None]).norm(dim=2).max(1).values)
    distance = torch.cat(apart)
    distance = distance[distance > 0]
    return count, distance.median().item() if len(distance) else 0.0


def _of_recordings(recipe: Recipe, data: Recordings, some: Tensor, model: Any) -> list[str]:
    events = data.events
    # A folder refuses recordings without events.
    length = events.time[data.splits[1:] - 1] - events.time[data.splits[:-1]]
    lines = [
        f"{len(data)} recordings to learn from, {events.sensor[0]} x {events.sensor[1]} pixels",
        f"events each: {_range(data.splits.diff())}; milliseconds each: {_range(length / 1000)}",
    ]
    geometry = model.plan(data.draw(chain(recipe, train=False), 0, 0, some))
    streams = [(name, step) for name, step in model.plan.steps.items() if step.op in ("events", "lif")]
    for name, step in streams:
        lines.append(f"  {name} {step.op}: {_range(geometry[name].sizes)} events")
    if geometry[streams[-1][0]].sizes.median() < 1:
        change = f"--set model.threshold={model.config['threshold'] / 2:g}, or --set model.levels=..."
        lines.append(f"warning: most recordings leave no event for the last level: {change}")
    return lines


def _range(values: Tensor) -> str:
    values = values.double()
    return f"{values.min():,.0f} to {values.max():,.0f}, median {values.median():,.0f}"
