"""Segmentation: a label for each point, of parts of shapes (`parts`), or of whole scans and scenes (`scenes`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gridless.data.listing import CLOUDS
from gridless.data.prepare import Preparation, is_finite, turned
from gridless.data.readers.clouds.lidar import label_files
from gridless.kernels.threads import in_threads
from gridless.structures import Cloud, collate
from gridless.tasks.base import FilePrediction
from gridless.tasks.clouds import CloudTask
from gridless.tasks.folders import with_short_labels
from gridless.tasks.labelled import write_labels, write_parts
from gridless.tasks.loading import FOLDER, check_kind, check_labels, check_stems, chosen, folder_of, made
from gridless.tasks.scores import confusions, mean_ious, mean_overlap, overlaps, shape_ious
from gridless.tasks.storage import PackSource, source_of_set
from gridless.training.batch import Batch
from gridless.training.examples import TrainingSet, block
from gridless.training.recipe import Recipe
from gridless.training.step import Loss, network_loss


class LabelPoints(CloudTask):
    """A label for each point, in the rows `part`. Points with a negative `part` are left out of loss and scores."""

    data = ("semantickitti", "shapenetpart", FOLDER)
    folder_label = "auto"
    records = "labels"
    """Name of the counts per label in a record."""

    def check_recipe(self, recipe: Recipe) -> None:
        super().check_recipe(recipe)
        if recipe.votes > 1:
            raise ValueError(f"recipe: votes is {recipe.votes}, but {recipe.data} has no classes. Leave votes out.")

    def load_set(self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]) -> TrainingSet:
        import gridless.data as data

        root = folder_of(recipe, path)
        if recipe.data == "semantickitti":
            # About a megabyte each at 5 cm.
            scans = _Scans(root, split, recipe.points, options)
            clouds = in_threads(scans.cloud, [(i,) for i in range(len(scans))])
            return TrainingSet.of(collate(clouds), torch.zeros(len(clouds), dtype=torch.int64), **scans.facts)
        shapes = made(data.ShapeNetPart, options, root=root, split=split, points=recipe.points)
        cloud = block(shapes.coords, shapes.sizes, {"part": shapes.parts})
        return TrainingSet.of(cloud, shapes.labels, shapes.class_names)

    def source_of_set(
        self, recipe: Recipe, path: Path | None, split: str, options: dict[str, Any]
    ) -> PackSource | None:
        if recipe.data != "semantickitti":
            return None
        root, points = folder_of(recipe, path), recipe.points
        settings = ("semantickitti", options.get("grid"), options.get("scans", 1), _preparation(options), points)
        return source_of_set(lambda name: _Scans(root, name, points, options), root, split, settings, _label_files)

    def loss(self, model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
        return network_loss(model, batch, smoothing)

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        check_stems(files, _out(options))

    def prediction(self, file: Path, written: Path, counts: Mapping[str, int]) -> FilePrediction:
        """The number of points of a file with each label, and the path of the labelled file."""
        line = ", ".join(f"{name} {n}" for name, n in counts.items() if n or self.records == "parts")
        record = {"file": str(file), "written": str(written), self.records: dict(counts)}
        return FilePrediction(f"{file}: {line} points, in {written}", record)


class LabelParts(LabelPoints):
    """The part of each point of a shape of a known category, numbered through all categories."""

    name = "parts"
    network = "a network that finds parts of clouds"
    options = {
        "evaluate": ("--points",),
        "predict": ("--points", "--up", "--keep-scale", "--category", "--out", "--topic"),
    }
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
        """(B, 3): correctly labelled points, all points, and the mean intersection over union of the parts."""
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
        from gridless.scenes.label import OUTPUTS

        out = _out(options)
        if out.suffix.lower() in (*CLOUDS, *OUTPUTS) and not out.is_dir():
            raise ValueError(f"--out {out} is a file, but parts are written to OUT/NAME.ply. Give a folder.")
        super().check_files(files, options)

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        check_kind(file, recordings=False)
        settings = chosen(options, "category", "points", "up", "keep_scale", "topic")
        return self.prediction(file, *write_parts(model, file, _out(options), **settings))


class LabelScenes(LabelPoints):
    """The class of each point of a scan or a scene."""

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
        """(B, C * C): the confusion matrix of each example, rows of true classes one after the other."""
        cloud: Any = next(iter(batch.geometry.values()))
        judged = _judged(cloud)
        logits = model(batch.geometry)
        best, part, example = logits.argmax(1)[judged], cloud.rows["part"][judged], cloud.example[judged]
        return confusions(best, part, example, cloud.num_examples, logits.shape[1]).flatten(1)

    def figures(self, scores: Tensor, data: TrainingSet) -> dict[str, Any]:
        counts = scores.sum(0).cpu()
        counts = counts.view(math.isqrt(len(counts)), -1)
        common, union = overlaps(counts)
        each = mean_overlap(common, union, data.parts or data.class_names)
        accuracy = (common.sum() / counts.sum().clamp(min=1)).item()
        mean = sum(each.values()) / max(len(each), 1)
        # Blocks of one scan are several examples.
        scans = len(scores) if data.files is None else len(data.files.unique())
        figures = {"accuracy": accuracy, "mean_iou": mean, "scans": scans, "examples": len(scores), "by_class": each}
        return figures | {"confusion": counts.long().tolist()}

    def summary(self, figures: Mapping[str, Any], recipe: Recipe) -> str:
        points = f"{figures['accuracy']:.2%} of the points of {figures['scans']} scans"
        return f"{figures['mean_iou']:.2%} mIoU, {points}"

    def check_files(self, files: Sequence[Path], options: Mapping[str, Any]) -> None:
        from gridless.scenes.label import OUTPUTS

        out = _out(options)
        suffix, is_file = out.suffix.lower(), not out.is_dir()
        if is_file and suffix in OUTPUTS and len(files) > 1:
            raise ValueError(f"--out {out} is one file for {len(files)} scenes. Give a folder.")
        if is_file and suffix in CLOUDS and suffix not in OUTPUTS:
            raise ValueError(f"--out {out}: unsupported output format. Use {', '.join(OUTPUTS)}, or a folder.")
        super().check_files(files, options)

    def predict(self, model: Any, file: Path, options: Mapping[str, Any]) -> FilePrediction:
        names = {"tile": "size", "grid": "grid", "workers": "workers", "ray": "ray", "double": "double"}
        settings = {setting: options[name] for name, setting in names.items() if name in options}
        settings["device"] = str(options.get("device", "cpu"))
        weights, up = options.get("weights"), options.get("up")
        return self.prediction(file, *write_labels(model, file, _out(options), weights, up, **settings))


def _out(options: Mapping[str, Any]) -> Path:
    return Path(options.get("out") or "parts")


def _judged(cloud: Any) -> Tensor:
    """Mask of the points that have a label and are no padding."""
    return (cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)


class _Scans:
    """Scans of SemanticKITTI, turned y up, with their classes as `part`; a data set for `source_of_set`."""

    def __init__(self, root: Path, split: str, points: int, options: Mapping[str, Any]) -> None:
        from gridless.data import SemanticKITTI
        from gridless.data.sets.semantickitti import CLASSES

        own, self.how = {k: v for k, v in options.items() if k not in _TURNED}, _preparation(options)
        self.scans, self.points = made(SemanticKITTI, own, _TURNED, root=root, split=split), points
        if split != "test":
            self.scans.check_labels()
        self.files = [file for _, file in self.scans.files]
        self.class_names = list(self.scans.class_names)
        features, values = ("features",) if self.how.features else (), [raw[0] for raw in CLASSES.values()]
        # Fields of a training set of these scans.
        self.facts = {"class_names": self.class_names, "features": features, "values": values}

    def __len__(self) -> int:
        return len(self.scans)

    def cloud(self, i: int) -> Cloud:
        scan = self.scans.example(i)
        placed = Cloud.of(scan, part=scan.rows["label"])[is_finite(scan)]
        return turned(placed[: self.points], self.how, f"scan {i}", ("part",))

    def __getitem__(self, i: int) -> tuple[Cloud, int]:
        return with_short_labels(self.cloud(i)), 0


# Options of `Preparation` that scans have.
_TURNED = ("up", "features")


def _preparation(options: Mapping[str, Any]) -> Preparation:
    return Preparation(**{name: options[name] for name in _TURNED if name in options})


def _label_files(scan: Path) -> list[Path]:
    return [file for file in label_files(scan) if file.is_file()]
