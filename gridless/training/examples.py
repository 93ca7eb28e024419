"""The training sets that recipes name: every example of a split at once, as tensors on one device.

ModelNet40 is 121 MB; N-Cars has 60 million events in 15,422 recordings, 1 GB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from gridless.augment import events as augment
from gridless.augment.events import Chain, EventTransform, StartAtZero
from gridless.augment.points import EVEN
from gridless.augment.policy import Policy
from gridless.augment.stateless import Keyed, keys
from gridless.data.prepare import Preparation, joined, padded, there, turned, y_up
from gridless.kernels.threads import in_threads
from gridless.plan import Plan
from gridless.structures import Cloud, Events, Rows, collate
from gridless.training.batch import send
from gridless.training.evaluate import probabilities
from gridless.training.loader import Loader

if TYPE_CHECKING:
    from gridless.training.recipe import Recipe

# Points whose geometry is made at once where 128 GiB of a GPU are free, and in proportion where there is less: 4,096
# clouds of 1,024. With 20 neighbours a point they take 30 GiB, as one group is used while the next is made.
GROUP = 1 << 22

# Points of the clouds that are evaluated at once: 256 clouds of 1,024.
EVALUATED = 1 << 18

# Recordings that are read from files at a time, by one thread.
CHUNK = 64


@dataclass(frozen=True)
class Clouds:
    """points (N, P, 3) float32, labels (N) int64, and the names of the classes, `class_names`.

    Where clouds are of several sizes, the first sizes[i] (N, on the CPU) points of each count. `rows` (N, P, ...) are
    those of points, by name: with `part`, what is learned is the part of every point, and the label is the category.
    Those named in `features` are what the network sees, side by side; `parts` are the names of parts, and `values` what
    they are in the files. Where several examples may be of one file, `files` (N, on the CPU) are their numbers.
    `scales` are those of `Preparation`.
    """

    points: Tensor
    labels: Tensor
    class_names: Sequence[str] = ()
    sizes: Tensor | None = None
    rows: Mapping[str, Tensor] = field(default_factory=dict)
    features: Sequence[str] = ()
    parts: Sequence[str] = ()
    values: Sequence[int] = ()
    files: Tensor | None = None
    scales: Mapping[str, int] = field(default_factory=dict)

    ahead: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if self.points.ndim != 3 or len(self.points) != len(self.labels):
            shapes = f"{tuple(self.points.shape)} and {tuple(self.labels.shape)}"
            raise ValueError(f"points must be (N, P, D) and labels (N), not {shapes}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Clouds:
        sizes, files = (None if t is None else t[index.cpu()] for t in (self.sizes, self.files))
        return replace(self._with(lambda t: t[index], self.labels[index], sizes), files=files)

    def first(self, points: int) -> Clouds:
        """Each cloud's first so many points."""
        sizes = None if self.sizes is None else self.sizes.clamp(max=points)
        return self._with(lambda t: t[:, :points].contiguous(), self.labels, sizes)

    def to(self, device: torch.device | str) -> Clouds:
        return self._with(lambda t: t.to(device), self.labels.to(device), self.sizes)

    def _with(self, function: Callable[[Tensor], Tensor], labels: Tensor, sizes: Tensor | None) -> Clouds:
        rows = {name: function(values) for name, values in self.rows.items()}
        return replace(self, points=function(self.points), labels=labels, sizes=sizes, rows=rows)

    @property
    def labelled(self) -> bool:
        """Whether there is something to learn or to judge: where points have parts, one that is not negative."""
        part = self.rows.get("part")
        if part is None or self.sizes is None:
            return part is None or bool((part >= 0).any())
        return any(bool((row[:size] >= 0).any()) for row, size in zip(part, self.sizes.tolist()))

    def tensors(self) -> list[Tensor]:
        return [self.labels, self.points, *([] if self.sizes is None else [self.sizes]), *self.rows.values()]

    def draw(self, augment: Policy | None, seed: int, epoch: int, index: Tensor) -> Cloud:
        """The clouds `index` (B, on the CPU), as one ragged batch; `augment` draws by `seed` and `epoch`."""
        size, device = self.points.shape[1], self.points.device
        even = size if self.sizes is None else None
        if self.sizes is None:
            at, splits = send(index, device), torch.arange(len(index) + 1, device=device) * size
        else:
            at, splits = _ragged(index * size, self.sizes[index], device)

        def drawn(values: Tensor) -> Tensor:
            return values.flatten(0, 1)[at] if even is None else values[at].flatten(0, 1)

        rows = Rows({name: drawn(values) for name, values in self.rows.items()})
        turning = ("normal",) if "normal" in self.features else ()
        cloud = Cloud.made(coords=drawn(self.points), splits=splits, rows=rows, directions=turning)
        cloud.cached(EVEN, lambda: even)
        if augment is not None:
            cloud = augment(cloud, Keyed(send(keys(seed, epoch, index), device)))
        return joined(cloud, self.features)

    def at_once(self, batch_size: int) -> int:
        if self.points.device.type != "cuda":
            return 1
        # Small batches would each wait for the launches of their searches.
        free, _ = torch.cuda.mem_get_info(self.points.device)
        points = min(GROUP, GROUP * free // (1 << 37))
        return max(1, points // max(self.points.shape[1] * batch_size, 1))

    def loader(
        self, recipe: Recipe, plan: Plan, train: bool = True, batch_size: int | None = None, **more: Any
    ) -> Loader:
        """The batches of training, or without `train` those of an evaluation: in order and not augmented.

        `plan` makes their geometry; `batch_size` is the recipe's unless given; `more` goes to `Loader`.
        """
        data = self.first(recipe.points)
        if not train:
            size = batch_size or max(EVALUATED // data.points.shape[1], recipe.batch_size)
            return Loader(data, plan, size, shuffle=False, **more)
        return Loader(data, plan, batch_size or recipe.batch_size, recipe.augment, recipe.seed, **more)

    def probabilities(
        self,
        model: nn.Module,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Class probabilities (N, classes) that `model` gives, the mean over `votes` views of each cloud.

        `votes` is the recipe's unless given; `batch_size` clouds are looked at together; `progress` shows a bar.
        """
        views, data = views_of_cloud(votes or recipe.votes), self.first(recipe.points)
        return probabilities(model, data, views, batch_size or 256, 0, recipe.precision, progress)


def views_of_cloud(votes: int) -> list[Policy | None]:
    """The cloud as it is, and then with another order of points and another size."""
    return [None, *[Policy(shuffle=True, scale=(0.9, 1.1))] * (votes - 1)]


@dataclass(frozen=True)
class Recordings:
    """All recordings as one ragged `events`, labels (N) int64, and the names of the classes, `class_names`.

    `splits`, where each recording begins, is also kept on the CPU, so that cutting never waits for a device.
    """

    events: Events
    labels: Tensor
    class_names: list[str]
    splits: Tensor

    ahead: ClassVar[int] = 2

    @classmethod
    def of(cls, events: Events, labels: Tensor, class_names: Any) -> Recordings:
        """From events that are checked here, once."""
        if events.num_examples != len(labels):
            raise ValueError(f"there are {events.num_examples} recordings but {len(labels)} labels")
        if not events.is_checked:
            events.check("recordings")
        return cls(events.trusted(), labels, list(class_names), events.splits.cpu())

    @classmethod
    def read(cls, data: Any) -> Recordings:
        """Every recording of a data set with `batch(rows)`, `labels` and `class_names`; its transform is not used."""
        rows = np.arange(len(data))
        # Packs are in memory already.
        pieces = 1 if data.pack is not None else max(1, -(-len(data) // CHUNK))
        parts = in_threads(data.batch, [(part,) for part in np.array_split(rows, pieces)])
        return cls.of(parts[0] if len(parts) == 1 else collate(parts), data.labels, data.class_names)

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: Tensor) -> Recordings:
        return Recordings.of(self.cut(index), self.labels[index.to(self.labels.device)], self.class_names)

    def to(self, device: torch.device | str) -> Recordings:
        return Recordings(self.events.to(device), self.labels.to(device), self.class_names, self.splits)

    def tensors(self) -> list[Tensor]:
        return [self.labels, *(tensor for _, tensor in self.events.parts())]

    def cut(self, index: Tensor) -> Events:
        """The recordings `index` (B, on the CPU), in that order, as one ragged batch on the device."""
        begin = self.splits[index]
        at, splits = _ragged(begin, self.splits[index + 1] - begin, self.events.device)
        return self.events._part(at, splits)

    def draw(self, augment: Callable[..., Events] | None, seed: int, epoch: int, index: Tensor) -> Events:
        """The recordings `index` (B, on the CPU), as one ragged batch; `augment` draws by `seed` and `epoch`."""
        events = self.cut(index)
        if augment is not None and len(index):
            events = augment(events, Keyed(send(keys(seed, epoch, index), events.device)))
        return events.trusted()

    def at_once(self, batch_size: int) -> int:
        return 1

    def loader(
        self, recipe: Recipe, plan: Plan, train: bool = True, batch_size: int | None = None, **more: Any
    ) -> Loader:
        """The batches of training, or without `train` those of an evaluation: in order and not augmented.

        `plan` makes their geometry; `batch_size` is the recipe's unless given; `more` goes to `Loader`.
        """
        size = batch_size or (recipe.batch_size if train else 2 * recipe.batch_size)
        return Loader(self, plan, size, chain(recipe, train), recipe.seed, shuffle=train, **more)

    def probabilities(
        self,
        model: nn.Module,
        recipe: Recipe,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Class probabilities (N, classes) that `model` gives, the mean over `votes` views, all but one augmented.

        `votes` is the recipe's unless given; `batch_size` recordings are looked at together; `progress` shows a bar.
        """
        views = [chain(recipe, train=vote > 0) for vote in range(votes or recipe.votes)]
        size = batch_size or 2 * recipe.batch_size
        return probabilities(model, self, views, size, recipe.seed, recipe.precision, progress)


def _ragged(begin: Tensor, counts: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows begin[b] to begin[b] + counts[b] of every example b, one after the other, and their splits.

    begin and counts (B) are on the CPU, so that nothing waits for the device.
    """
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    total = int(splits[-1])
    offset = torch.repeat_interleave(send(begin - splits[:-1], device), send(counts, device), output_size=total)
    return torch.arange(total, device=device) + offset, send(splits, device)


def _begun(train: bool) -> Chain:
    return Chain((StartAtZero(),))


# name -> (class in gridless.data, what the paper does to its recordings)
SETS: dict[str, tuple[str, Callable[[bool], Chain]]] = {
    "n_mnist": ("NMNIST", augment.n_mnist),
    "mnist_dvs": ("MNISTDVS", augment.mnist_dvs),
    "cifar10_dvs": ("CIFAR10DVS", augment.cifar10_dvs),
    "n_caltech101": ("NCaltech101", augment.n_caltech101),
    "asl_dvs": ("ASLDVS", augment.asl_dvs),
    "n_cars": ("NCars", _begun),
    "glyphs": ("MovingGlyphs", _begun),
}
# A folder of the user's: clouds or recordings, as the network is for.
FOLDER = "folder"
CLOUDS = ("modelnet40", "semantickitti", "shapenetpart", "shapes")
RECORDINGS = tuple(SETS)
# Data sets that are made, not read.
GENERATED = ("glyphs", "shapes")


def chain(recipe: Recipe, train: bool) -> Chain:
    """What is done to a recording: augmentation (the recipe's, or else the data set's), then preparation (both's)."""
    whole = SETS["glyphs" if recipe.data == FOLDER else recipe.data][1]
    own = whole(False).steps
    altered: Iterable[EventTransform] = ()
    if train and recipe.transforms is None:
        steps = whole(True).steps
        altered = steps[: len(steps) - len(own)]
    elif train:
        altered = map(transform_of, recipe.transforms or ())
    return Chain((*altered, *map(transform_of, recipe.prepare), *own))


_ANY_SENSOR = (1 << 20, 1 << 20)


def prepared_sensor(recipe: Recipe, sensor: Sequence[int]) -> tuple[int, int]:
    """The sensor (width, height) that recordings of the given one have once they are prepared."""
    return chain(recipe, train=False)(Events.of([], tuple(sensor))).sensor  # type: ignore[arg-type]


def transform_of(entry: Any) -> EventTransform:
    """An event transform from a recipe: `ReverseTime`, or `{Zoom: [0.85, 1.2]}` with its arguments in order."""
    name, arguments = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, [])
    known = {k: v for k, v in vars(augment).items() if isinstance(v, type) and issubclass(v, EventTransform)}
    known = {k: v for k, v in known.items() if k not in ("EventTransform", "Chain")}
    if not isinstance(name, str) or name not in known:
        raise ValueError(f"recipe: transforms: no event transform {name!r}: there are {', '.join(sorted(known))}")
    try:
        return known[name](*(arguments if isinstance(arguments, list) else [arguments]))
    except TypeError as error:
        raise ValueError(f"recipe: transforms: {name}: {error}") from None


def load_data(
    recipe: Recipe,
    root: str | Path | None,
    split: str,
    held_out_list: Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> Clouds | Recordings:
    """The `split` ("train", "fit", "validation" or "test") of the data set that a recipe names, in the folder `root`.

    Data that is generated needs no folder. Of a folder of the user's, `held_out_list` is a file that says what is held
    out, instead of the folder's own rule; classes and labels are numbered as weights do of which `about` is said.
    """
    if root is None and recipe.data not in GENERATED:
        what = "your files" if recipe.data == FOLDER else recipe.data
        raise ValueError(f"the folder of {what} is needed: give it with --data")
    if recipe.data == FOLDER:
        found = load_folder(recipe, root, split, held_out_list, about)  # type: ignore[arg-type]
    elif recipe.data in SETS:
        found = load_recordings(recipe.data, root, split, recipe.data_options)
    else:
        found = load_clouds(recipe.data, root, split, recipe.points, recipe.data_options)
    if isinstance(found, Clouds) and not found.labelled:
        words = "nothing can be learned or judged: give files with labels, or evaluate with --split validation"
        raise ValueError(f"the points of {split!r} have no labels: {words}")
    return found


def load_folder(
    recipe: Recipe,
    root: str | Path,
    split: str,
    held_out_list: Path | None = None,
    about: Mapping[str, Any] | None = None,
) -> Clouds | Recordings:
    """A split of a folder of the user's own files: `gridless.data.folder`, whose arguments are the data options."""
    from gridless.data.folder import CloudFolder, EventFolder

    known = {name: (about or {}).get(name) for name in ("class_names", "values")}
    # What a run or weights say goes before what the recipe says of the folder as it was.
    options = recipe.data_options | {name: value for name, value in known.items() if value}
    options |= {} if held_out_list is None else {"held_out_list": held_out_list}
    said: dict[str, Any] = {"root": root, "split": split, "progress": True}
    if recipe.recordings:
        # Where preparation makes another sensor, the network's is not that of the files.
        same = prepared_sensor(recipe, _ANY_SENSOR) == _ANY_SENSOR
        found = made(EventFolder, {"sensor": recipe.model.get("sensor") if same else None, **options}, **said)
        return Recordings.of(found.batch(), found.labels, found.class_names)
    if recipe.of_points:
        options.setdefault("label", "auto")
    found = made(CloudFolder, options, [entry.name for entry in fields(Preparation)], **said, points=recipe.points)
    data = (found.coords, found.labels, found.class_names, found.sizes, found.rows)
    numbers = {file: i for i, file in enumerate(found.listing.files)}
    files = torch.tensor([numbers[file] for file in found.files])
    return Clouds(*data, found.how.features, found.part_names, found.values, files, found.how.scales)


def load_clouds(
    name: str, root: str | Path | None, split: str, points: int = 1024, options: dict[str, Any] | None = None
) -> Clouds:
    """The clouds of a split, each its first `points` points.

    `split` is `train` (all of the official training clouds), `test`, or `fit` and `validation`, the parts into which a
    shipped list divides `train`.
    """
    import gridless.data as data

    options = dict(options or {})
    if name == "shapes":
        up = options.pop("up", "y")
        found = made(data.Shapes, options, (*_SIZES, "up"), points=points, **_generated(split, options))
        return Clouds(y_up(found.coords, Preparation(up=up)), found.labels, list(found.class_names))
    if name == "modelnet40":
        found = made(data.ModelNet40, options, root=root, split=split, points=points)
        return Clouds(found.coords, found.labels, list(found.class_names))
    if name == "shapenetpart":
        found = made(data.ShapeNetPart, options, root=root, split=split, points=points)
        return Clouds(found.coords, found.labels, found.class_names, found.sizes, {"part": found.parts})
    if name == "semantickitti":
        return _scans(root, split, points, options)  # type: ignore[arg-type]
    raise ValueError(f"unknown data set {name!r}: there are {', '.join(CLOUDS)}")


def _scans(root: str | Path, split: str, points: int, options: dict[str, Any]) -> Clouds:
    """Whole scans of SemanticKITTI, turned y up, all in memory: about a megabyte each at 5 cm."""
    import gridless.data as data
    from gridless.data.sets.semantickitti import CLASSES

    how = Preparation(**{name: options.pop(name) for name in ("up", "features") if name in options})
    found = made(data.SemanticKITTI, options, ("up", "features"), root=root, split=split)
    if split != "test":
        found.check_labels()
    whole = in_threads(found.example, [(i,) for i in range(len(found))])
    clouds = [
        turned(Cloud.of(cloud, part=cloud.rows["label"])[there(cloud)][:points], how, f"scan {i}", ("part",))
        for i, cloud in enumerate(whole)
    ]
    rows = {name: padded([cloud.rows[name] for cloud in clouds]) for name in clouds[0].rows}
    labels, sizes = torch.zeros(len(clouds), dtype=torch.int64), torch.tensor([len(cloud) for cloud in clouds])
    coords = padded([cloud.coords for cloud in clouds])
    features, values = ("features",) if how.features else (), [raw[0] for raw in CLASSES.values()]
    return Clouds(coords, labels, list(found.class_names), sizes, rows, features, values=values)


def load_recordings(
    name: str, root: str | Path | None, split: str, options: dict[str, Any] | None = None
) -> Recordings:
    """The recordings of a split (`train`, `test`, `fit` or `validation`) of a data set that recipes name."""
    import gridless.data as data

    options = dict(options or {})
    if name == "glyphs":
        glyphs = made(data.MovingGlyphs, options, _SIZES, **_generated(split, options))
        events = Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
        return Recordings.of(events, glyphs.labels, glyphs.class_names)
    return Recordings.read(made(getattr(data, SETS[name][0]), options, root=root, split=split))


def made(kind: type, options: dict[str, Any], also: Sequence[str] = (), **said: Any) -> Any:
    """A data set with a recipe's data options, refused where it does not have them, or where they are `said` elsewhere:
    the recipe itself augments and draws. `also` are further ones that are known."""
    arguments = [name for name in signature(kind).parameters if name not in {*said, "transform", "seed", "how"}]
    known = [*arguments, *also]
    for name in options:
        if name not in known:
            words = f"{name!r} is none of {kind.__name__} in a recipe: there are {', '.join(known)}"
            raise ValueError(f"recipe: data_options: {words}")
    try:
        return kind(**options, **said)
    except TypeError as error:
        raise ValueError(f"recipe: data_options: {error}") from None


_SIZES = ("size", "held_out")


def _generated(split: str, options: dict[str, Any]) -> dict[str, int]:
    """How many examples a split of a generated data set has, and its seed; takes `size` and `held_out` out."""
    from gridless.data.splits import check

    counts = {"size": options.pop("size", 1000), "held_out": options.pop("held_out", 200)}
    seed = {"train": 0, "fit": 0, "validation": 1, "test": 2}[check(split)]
    name = "held_out" if seed else "size"
    if type(counts[name]) is not int or counts[name] < 1:
        raise ValueError(f"recipe: data_options.{name} must be a whole number of at least 1, not {counts[name]!r}")
    return {"size": counts[name], "seed": seed}
