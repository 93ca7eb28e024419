"""Writes files with a label for each point, predicted by a network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.prepare import Preparation, blocks, joined, prepare, read_points
from gridless.geometry import grid_sample, nearest
from gridless.structures import Cloud
from gridless.tasks.clouds import check_scale, preparation
from gridless.tasks.loading import FOLDER, stem, topic_of
from gridless.weights import class_names

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
    topic: str | None = None,
) -> tuple[Path, dict[str, int]]:
    """Write the cloud of a file with the part and a colour of every point to OUT/NAME.ply; return path and counts.

    The network labels as many points as in training, prepared in the same way. Every other point gets the part of the
    closest labelled one. A grid or blocks of the training data are applied here, too; each block is labelled alone.
    """
    from gridless.data.readers.clouds import ply

    parts = model.config["parts"]
    kind, category = _category(model, file, category)
    path = out / f"{stem(Path(file))}.ply"
    if path.resolve() == Path(file).resolve():
        raise ValueError(f"{path} is the input, and the result would replace it. Give another folder (--out).")
    names = model.about.get("parts") or [f"{category} {i}" for i in range(parts[kind])]
    recipe = model.about.get("recipe", {})
    wanted, how = points or int(recipe.get("points", 2048)), preparation(recipe, up, keep_scale)
    # Training on labels of a user's folder reads the vertices of a PLY with faces, not points drawn from the faces.
    topic = topic_of(recipe, file, topic)
    cloud = read_points(file, wanted, how, label=recipe.get("data") == FOLDER, topic=topic)
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


def _category(model: Any, file: str | Path, category: str | None) -> tuple[int, str]:
    """The number and the name of the category of a file's cloud."""
    categories = class_names(model, len(model.config["parts"]))
    if category is None and len(categories) == 1:
        category = categories[0]
    if category is None or category not in categories:
        problem = "the category is needed" if category is None else f"unknown category {category!r}"
        raise ValueError(f"{file}: {problem}. Give --category, one of {', '.join(categories)}.")
    return categories.index(category), category


@torch.no_grad()
def _parts(model: Any, every: Cloud, how: Preparation, wanted: int, kind: int, file: str | Path) -> Tensor:
    """The part of each point, numbered through all categories. It labels `wanted` points; others copy the closest."""
    device = next(model.parameters()).device
    chosen = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:wanted]
    some = joined(every[chosen].to(device), how.features)
    geometry = model.plan(some)
    check_scale(geometry, str(file), how, stacklevel=5)
    best = model.eval()(geometry, torch.tensor([kind], device=device)).argmax(1)
    return best[nearest(some, Cloud.of(every.coords.to(device)), 1).source.long()].cpu()


def write_labels(
    model: Any, source: Path, out: Path, weights: Any = None, up: str | None = None, **settings: Any
) -> tuple[Path, dict[str, int]]:
    """Write a scene with the label of every point to the file or folder OUT; return path and points per label.

    `settings` are passed to `gridless.scenes.label.label_scene`; `weights` is the name or path of the weights.
    """
    from gridless.scenes.label import OUTPUTS, label_scene

    recipe = model.about.get("recipe", {})
    how = preparation(recipe, up)
    if recipe.get("data") == FOLDER and not (how.keep_scale or how.block):
        raise ValueError(
            f"{source}: the weights need clouds on the unit sphere. Train with keep_scale, or with blocks."
        )
    if settings.get("grid") is None:
        settings["grid"] = recipe.get("data_options", {}).get("grid")
    if out.suffix.lower() not in OUTPUTS:
        out = out / f"{stem(source)}{source.suffix.lower() if source.suffix.lower() in ('.las', '.laz') else '.ply'}"
    counts = label_scene(source, model if weights is None else weights, out, how=how, **settings)
    names = list(model.about.get("parts") or model.about.get("class_names") or [])
    return out, {names[k] if k < len(names) else str(k): n for k, n in counts.items()}
