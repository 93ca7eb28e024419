"""Base of the tasks on point clouds: fitting to the data, preparation of files, and checks of the radii."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from gridless.augment.policy import Policy
from gridless.data.prepare import Preparation
from gridless.geometry import nearest
from gridless.structures import Cloud, Edges, Geometry
from gridless.tasks.folders import HOW, CloudFiles, FileTask
from gridless.tasks.loading import FOLDER, describe_folder, range_of, some_of
from gridless.training.examples import TrainingSet
from gridless.training.recipe import Recipe

# Points per evaluation batch: 256 clouds of 1,024.
EVALUATED = 1 << 18
# Neighbours in the first ball: fewer describe the surface poorly, more are slow and blur it.
FEW, GOOD, MANY = 4, 12, 60


class CloudTask(FileTask):
    """A task on point clouds. Subclasses define what is learned."""

    folder_label: str | None = None
    """Default of the option `label` of a folder; None means one label per cloud."""

    def check_recipe(self, recipe: Recipe) -> None:
        for name in ("transforms", "prepare"):
            if getattr(recipe, name):
                raise ValueError(f"recipe: {name} is only for recordings. For clouds use augment.")

    def folder(self, recipe: Recipe, options: dict[str, Any], **settings: Any) -> CloudFiles:
        default = {"label": self.folder_label} if self.folder_label else {}
        return CloudFiles(default | options, points=recipe.points, **settings)

    def fit(self, recipe: Recipe, data: TrainingSet) -> Recipe:
        if recipe.data != FOLDER:
            return recipe
        channels = sum(data.rows[name].shape[1] for name in data.features)
        facts = {"in_channels": channels} if channels or "in_channels" in recipe.model else {}
        model = {**recipe.model, **self.outputs(data), **facts}
        options = recipe.data_options | ({"scales": dict(data.scales)} if data.scales else {})
        return recipe.fitted(model=model, data_options=options)

    def outputs(self, data: TrainingSet) -> dict[str, Any]:
        """The setting of the network that gives it one output per class or part of the data."""
        return {"classes": len(data.parts or data.class_names)}

    def about(self, data: TrainingSet) -> dict[str, Any]:
        facts = {"parts": data.parts, "values": data.values}
        return super().about(data) | {name: list(values) for name, values in facts.items() if values}

    def selected(self, recipe: Recipe, data: TrainingSet, train: bool) -> TrainingSet:
        return data.first(recipe.points)

    def batch_size(self, recipe: Recipe, data: TrainingSet, train: bool) -> int:
        if train:
            return recipe.batch_size
        longest = int(data.sizes.max()) if len(data) else 1
        return max(EVALUATED // max(longest, 1), recipe.batch_size)

    def describe(self, recipe: Recipe, data: TrainingSet, model: Any) -> list[str]:
        return [] if data.listing is None else [*describe_folder(data.listing), *describe_clouds(data, model)]


def views_of_cloud(votes: int) -> list[Policy | None]:
    """The policy of each view: None for the cloud as it is, then random orders of points and random scales."""
    return [None, *[Policy(shuffle=True, scale=(0.9, 1.1))] * (votes - 1)]


def preparation(recipe: Mapping[str, Any], up: str | None = None, keep_scale: bool = False) -> Preparation:
    """The preparation of files for weights of a recipe: that of its data; the default is y up, on the unit sphere."""
    known: dict[str, Any] = {k: v for k, v in recipe.get("data_options", {}).items() if k in HOW}
    known |= {"up": up} if up else {}
    known |= {"keep_scale": True} if keep_scale else {}
    return Preparation(**known)


def check_scale(geometry: Geometry, what: str, how: Preparation, stacklevel: int = 2) -> None:
    """Warn if the first search finds no neighbour for most points: the cloud is too sparse, or has another scale.

    `what` names the cloud, `how` is its preparation, and `stacklevel` is that of `warnings.warn`.
    """
    first = next(value for value in geometry.values() if isinstance(value, Edges))
    lonely = (first.counts <= 1).double().mean().item()
    if lonely > 0.5:
        scaled = not (how.keep_scale or how.block)
        remedy = "Use more points." if scaled else "Use more points, or the units of training."
        problem = f"{lonely:.0%} of the points have no neighbour within the network's first radius"
        warnings.warn(f"{what}: {problem}. {remedy}", stacklevel=stacklevel)


def describe_clouds(data: TrainingSet, model: Any) -> list[str]:
    """Lines with the number of points, and the sizes that the plan gives for some clouds; warnings last."""
    lines = [f"{len(data)} examples to learn from, points each: {range_of(data.sizes)}"]
    if data.parts:
        # Points without a label, -1, index the last entry.
        part = (data.cut(some_of(data)) if data.on_disk else data).rows["part"]
        share = part.remainder(len(data.parts) + 1).bincount(minlength=len(data.parts) + 1)
        named = zip([*data.parts, "without a label"], (share / len(part)).tolist())
        lines.append("points: " + ", ".join(f"{name} {s:.1%}" for name, s in named if name in data.parts or s))
    some = some_of(data)
    drawn = data.cut(some)
    for name in data.features:
        values = drawn.rows[name]
        lines.append(f"feature {name}: mean {values.mean():.3g}, standard deviation {values.std(correction=0):.3g}")
    cloud = data.draw(None, 0, 0, some)
    return lines + _describe_balls(cloud, model)


def _describe_balls(cloud: Cloud, model: Any) -> list[str]:
    """Lines with the mean number of neighbours of each ball, and a warning if the first has too few or too many."""
    geometry, lines = model.plan(cloud), []
    balls = [(name, step) for name, step in model.plan.steps.items() if step.op == "ball"]
    for name, step in balls:
        edges: Edges = geometry[name]
        radius = float(dict(step.settings)["radius"])
        search = f"  {name} ball({', '.join(step.inputs)}, radius={radius:.4g})"
        lines.append(f"{search}: {edges.counts.double().mean():.1f} neighbours on average")
    name, step = balls[0]
    mean, radius = geometry[name].counts.double().mean().item(), float(dict(step.settings)["radius"])
    if FEW <= mean <= MANY:
        return lines
    number = "few" if mean < FEW else "many"
    warning = f"warning: {mean:.1f} neighbours within the first radius, {radius:g}, are {number}"
    count, wanted = _radius(cloud)
    if wanted:
        sized = {k: v for k, v in model.config.items() if k in ("radius", "stem_radius", "spacing")}
        change = " ".join(f"--set model.{k}={v * wanted / radius:.3g}" for k, v in sized.items())
        return [*lines, f"{warning}: about {count} are within {wanted:.3g}: {change}"]
    return [*lines, f"{warning}: most {'clouds have a single point' if count < 2 else 'points are at one place'}"]


def _radius(cloud: Cloud) -> tuple[int, float]:
    """The recommended number of neighbours of the first ball, and the median distance to the last of them, or 0."""
    count = min(GOOD, int(cloud.sizes.median()))
    apart = []
    for one in cloud.examples:
        if len(one) >= count:
            near = one.coords[nearest(one, one, count).source.long()].view(-1, count, one.dim)
            apart.append((near - one.coords[:, None]).norm(dim=2).max(1).values)
    distance = torch.cat(apart)
    distance = distance[distance > 0]
    return count, distance.median().item() if len(distance) else 0.0
