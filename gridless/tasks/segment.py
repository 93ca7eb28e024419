"""Segmentation: a label for each point, of parts of shapes (`parts`), or of whole scans and scenes (`scenes`)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.prepare import Preparation, blocks, joined, prepare, read_points, there, turned
from gridless.geometry import grid_sample, nearest
from gridless.kernels.threads import in_threads
from gridless.structures import Cloud, collate
from gridless.tasks.base import Loss, Prediction
from gridless.tasks.clouds import CloudTask, check_scale, preparation
from gridless.tasks.loading import FOLDER, check_kind, check_labels, folder_of, made
from gridless.tasks.scores import mean_ious, mean_overlap, overlaps, shape_ious
from gridless.training.batch import Batch
from gridless.training.examples import TrainingSet, block
from gridless.training.recipe import Recipe
from gridless.weights import class_names

# Colours of parts, in turn.
COLOURS = (
    (31, 119, 180), (255, 127, 14), (44, 160, 44), (214, 39, 40), (148, 103, 189), (140, 86, 75),
)  # fmt: skip


class LabelPoints(CloudTask):
    """A label for each point, in the rows `part`; those of negative parts are neither learned nor judged."""

    data = ("semantickitti", "shapenetpart", FOLDER)
    folder_label = "auto"
    records = "labels"
    """What a record calls how many points there are of each."""

    def check_recipe(self, recipe: Recipe) -> None:
        super().check_recipe(recipe)
        if recipe.votes > 1:
            raise ValueError(f"recipe: votes are for classes, and of {recipe.data} the parts of points are learned")

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        import gridless.data as data

        root = folder_of(recipe, path)
        if recipe.data == "semantickitti":
            return _scans(root, split, recipe.points, options)
        shapes = made(data.ShapeNetPart, options, root=root, split=split, points=recipe.points)
        cloud = block(shapes.coords, shapes.sizes, {"part": shapes.parts})
        return TrainingSet.of(cloud, shapes.labels, shapes.class_names)

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        """The network's own loss, which also gives the share of points that are right, times the number of clouds."""
        cloud: Any = next(iter(batch.geometry.values()))
        value, right = model.loss(batch.geometry, batch.labels, smoothing)
        judged = _judged(cloud).sum().to(right.dtype)
        return Loss(value.float(), right.float() / len(batch.labels) * judged, judged)

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        out = Path(options.get("out") or "parts")
        if len({stem(file) for file in files}) < len(files):
            raise ValueError(f"two of the files have one name, and would be one file in {out}: give them in two calls")

    def prediction(self, file: Path, written: Path, counts: Mapping[str, int]) -> Prediction:
        """How many points of a file have each label, and where the labelled points are."""
        line = ", ".join(f"{name} {n}" for name, n in counts.items() if n or self.records == "parts")
        record = {"file": str(file), "written": str(written), self.records: dict(counts)}
        return Prediction(f"{file}: {line} points, in {written}", record)


class LabelParts(LabelPoints):
    """The part of each point of a shape of a known category, numbered through all categories."""

    name = "parts"
    network = "a network that finds parts of clouds"
    options = {"evaluate": ("--points",), "predict": ("--points", "--up", "--keep-scale", "--category", "--out")}
    records = "parts"

    def outputs(self, data: TrainingSet) -> dict[str, Any]:
        return {"parts": [len(data.parts)]}

    def classes(self, config: Mapping[str, Any]) -> int | None:
        return sum(config["parts"]) if "parts" in config else None

    def with_classes(self, config: dict[str, Any], count: int) -> dict[str, Any] | None:
        return {**config, "parts": [count]}

    def check_data(self, model: Any, data: TrainingSet) -> None:
        parts = model.config["parts"]
        check_labels(data.labels, len(parts), "categories", "parts")
        check_labels(data.rows.get("part"), sum(parts), "parts", "parts")

    @torch.no_grad()
    def score(self, model: Any, batch: Batch) -> Tensor:
        """(B, 3): points whose part is right, all points, and the mean over parts of intersection over union."""
        cloud: Any = next(iter(batch.geometry.values()))
        real = _judged(cloud)
        best = model(batch.geometry, batch.labels).argmax(1)[real]
        part, example = cloud.rows["part"][real], cloud.example[real]
        right, every = (torch.bincount(e, minlength=cloud.num_examples) for e in (example[best == part], example))
        ious = shape_ious(best, part, example, batch.labels, model.config["parts"])
        return torch.stack([right.double(), every.double(), ious], 1)

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        right, every = scores[:, :2].sum(0)
        accuracy = {"accuracy": (right / every.clamp(min=1)).item()}
        return accuracy | mean_ious(scores[:, 2], data.labels, data.class_names)

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        return (
            f"{figures['instance_iou']:.2%} instance mIoU, {figures['category_iou']:.2%} category mIoU; "
            f"{figures['accuracy']:.2%} of the points of {figures['examples']} shapes, "
            f"{recipe.points} points each at most"
        )

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        from gridless.data.folder import CLOUDS
        from gridless.scenes.label import OUTPUTS

        out = Path(options.get("out") or "parts")
        if out.suffix.lower() in (*CLOUDS, *OUTPUTS) and not out.is_dir():
            raise ValueError(f"--out {out}: parts go to OUT/NAME.ply: give a folder")
        super().check_files(files, options)

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> Prediction:
        check_kind(file, recordings=False)
        settings = {name: options[name] for name in ("category", "points", "up", "keep_scale") if name in options}
        return self.prediction(file, *write_parts(model, file, Path(options.get("out") or "parts"), **settings))


class LabelScenes(LabelPoints):
    """The class of each point of a scan or a scene, by what is around it."""

    name = "scenes"
    network = "a network that labels all points of scenes"
    options = {
        "evaluate": ("--points",),
        "predict": ("--up", "--out", "--grid", "--tile", "--workers", "--ray", "--double"),
    }

    def check_data(self, model: Any, data: TrainingSet) -> None:
        check_labels(data.rows.get("part"), self.classes(model.config), "classes", "classes")

    @torch.no_grad()
    def score(self, model: Any, batch: Batch) -> Tensor:
        """(B, 2 + 2 C): points that are right, all points, then those in intersection and union of each class."""
        cloud: Any = next(iter(batch.geometry.values()))
        judged = _judged(cloud)
        logits = model(batch.geometry)
        best, part, example = logits.argmax(1)[judged], cloud.rows["part"][judged], cloud.example[judged]
        common, union = overlaps(best, part, example, cloud.num_examples, logits.shape[1])
        every = torch.bincount(example, minlength=cloud.num_examples)
        return torch.cat([common.sum(1, keepdim=True), every[:, None], common, union], 1)

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        right, every = scores[:, :2].sum(0)
        common, union = scores[:, 2:].sum(0).cpu().chunk(2)
        each = mean_overlap(common, union, data.parts or data.class_names)
        mean = sum(each.values()) / max(len(each), 1)
        # Blocks of one scan are several examples.
        scans = len(scores) if data.files is None else len(data.files.unique())
        accuracy = (right / every.clamp(min=1)).item()
        return {"accuracy": accuracy, "mean_iou": mean, "scans": scans, "examples": len(scores), "by_class": each}

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        points = f"{figures['accuracy']:.2%} of the points of {figures['scans']} scans"
        return f"{figures['mean_iou']:.2%} mIoU, {points}"

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        from gridless.data.folder import CLOUDS
        from gridless.scenes.label import OUTPUTS

        out = Path(options.get("out") or "parts")
        suffix = out.suffix.lower()
        if len(files) > 1 and suffix in OUTPUTS and not out.is_dir():
            raise ValueError(f"--out {out} is one file, and there are {len(files)} scenes: give a folder for them")
        if suffix in CLOUDS and suffix not in OUTPUTS and not out.is_dir():
            raise ValueError(f"--out {out}: scenes are written as {', '.join(OUTPUTS)}: give one of these, or a folder")
        super().check_files(files, options)

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> Prediction:
        names = {"tile": "size", "grid": "grid", "workers": "workers", "ray": "ray", "double": "double"}
        settings = {setting: options[name] for name, setting in names.items() if name in options}
        settings["device"] = str(options.get("device", "cpu"))
        out = Path(options.get("out") or "parts")
        return self.prediction(
            file, *write_labels(model, file, out, options.get("weights"), options.get("up"), **settings)
        )


def _judged(cloud: Any) -> Tensor:
    """Which points have a label: padding has none."""
    return (cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)


def _scans(root: Path, split: str, points: int, options: dict[str, Any]) -> TrainingSet:
    """Whole scans of SemanticKITTI, turned y up, all in memory: about a megabyte each at 5 cm."""
    import gridless.data as data
    from gridless.data.sets.semantickitti import CLASSES

    how = Preparation(**{name: options.pop(name) for name in ("up", "features") if name in options})
    scans = made(data.SemanticKITTI, options, ("up", "features"), root=root, split=split)
    if split != "test":
        scans.check_labels()
    whole = in_threads(scans.example, [(i,) for i in range(len(scans))])
    clouds = [
        turned(Cloud.of(cloud, part=cloud.rows["label"])[there(cloud)][:points], how, f"scan {i}", ("part",))
        for i, cloud in enumerate(whole)
    ]
    labels = torch.zeros(len(clouds), dtype=torch.int64)
    features, values = ("features",) if how.features else (), [raw[0] for raw in CLASSES.values()]
    return TrainingSet.of(collate(clouds), labels, list(scans.class_names), features=features, values=values)


def write_parts(
    model: Any,
    file: str | Path,
    out: Path,
    category: str | None = None,
    points: int | None = None,
    up: str | None = None,
    keep_scale: bool = False,
) -> tuple[Path, dict[str, int]]:
    """The cloud in a file with the part of every point as a row and as its colour, in OUT/NAME.ply; and their counts.

    The network labels as many points as in training, prepared as those were; every other has the part of the closest.
    If training thinned clouds by a grid, so is this one; if it cut them into blocks, each is labelled by itself.
    """
    from gridless.data.readers.clouds import ply

    parts = model.config["parts"]
    kind, category = _category(model, file, category)
    path = out / f"{stem(Path(file))}.ply"
    if path.resolve() == Path(file).resolve():
        raise ValueError(f"{path} is the file itself, which labelled points would replace: give another folder (--out)")
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


def _category(model: Any, file: str | Path, category: str | None) -> tuple[int, str]:
    """The number and the name of the category of a file's cloud."""
    categories = class_names(model, len(model.config["parts"]))
    if category is None and len(categories) == 1:
        category = categories[0]
    if category is None or category not in categories:
        asked = "say what it shows" if category is None else f"no category {category!r}"
        raise ValueError(f"{file}: {asked}: --category is one of {', '.join(categories)}")
    return categories.index(category), category


@torch.no_grad()
def _parts(model: Any, every: Cloud, how: Preparation, wanted: int, kind: int, file: str | Path) -> Tensor:
    """The part of each point, numbered through all categories: that of the closest of `wanted` that are labelled."""
    device = next(model.parameters()).device
    chosen = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))[:wanted]
    some = joined(every[chosen].to(device), how.features)
    geometry = model.plan(some)
    check_scale(geometry, str(file), how, stacklevel=5)
    best = model.eval()(geometry, torch.tensor([kind], device=device)).argmax(1)
    return best[nearest(some, Cloud.of(every.coords.to(device)), 1).source.long()].cpu()


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
