"""Event recordings as training data: every recording of a split at once, cut, augmented and given geometry on a device.

N-Cars has 60 million events in 15,422 recordings: 1 GB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gridless.augment import events as augment
from gridless.augment.events import Chain, EventTransform, StartAtZero
from gridless.backends import in_threads
from gridless.plan import Plan
from gridless.progress import bar
from gridless.structures import Events, collate
from gridless.training import stateless
from gridless.training.batches import Batch
from gridless.training.policy import send
from gridless.training.resident import Job, Resident
from gridless.training.step import autocast

# Recordings that are read from files at a time, by one thread.
CHUNK = 64


@dataclass(frozen=True)
class Recordings:
    """All recordings as one ragged `Events`, labels (N) int64, and the names of the classes.

    `splits`, where each recording begins, is also kept on the CPU, so that cutting never waits for a device.
    """

    events: Events
    labels: Tensor
    classes: list[str]
    splits: Tensor

    @classmethod
    def of(cls, events: Events, labels: Tensor, classes: Any) -> Recordings:
        """From events that are checked here, once."""
        if events.num_examples != len(labels):
            raise ValueError(f"there are {events.num_examples} recordings but {len(labels)} labels")
        if not events.is_checked:
            events.check("recordings")
        return cls(events.trusted(), labels, list(classes), events.splits.cpu())

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
        return Recordings.of(self.cut(index), self.labels[index.to(self.labels.device)], self.classes)

    def to(self, device: torch.device | str) -> Recordings:
        return Recordings(self.events.to(device), self.labels.to(device), self.classes, self.splits)

    def cut(self, index: Tensor) -> Events:
        """The recordings `index` (B, on the CPU), in that order, as one ragged batch on the device."""
        device = self.events.device
        begin, counts = self.splits[index], self.splits[index + 1] - self.splits[index]
        splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        total = int(splits[-1])
        offset = torch.repeat_interleave(send(begin - splits[:-1], device), send(counts, device), output_size=total)
        at = torch.arange(total, device=device) + offset
        events = self.events
        polarity = None if events.polarity is None else events.polarity[at]
        return events._changed(
            pixel=events.pixel[at], time=events.time[at], polarity=polarity, splits=send(splits, device)
        )

    def loader(self, recipe: Any, plan: Plan, train: bool = True, **more: Any) -> ResidentRecordings:
        """The batches of training, or those of an evaluation: in order and not augmented."""
        size = recipe.batch_size if train else evaluation_size(recipe.batch_size)
        return ResidentRecordings(self, plan, size, chain(recipe, train), recipe.seed, shuffle=train, **more)

    def probabilities(
        self,
        model: nn.Module,
        recipe: Any,
        batch_size: int | None = None,
        votes: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Class probabilities (N, classes), the mean over `votes` views: the recording, then augmented ones."""
        return probabilities(model, self, recipe, batch_size, votes, progress=progress)


class ResidentRecordings(Resident):
    """Recordings on one device as batches.

    What is drawn for a batch is a function of the seed, the epoch and the batch's first example.
    """

    def __init__(
        self,
        data: Recordings,
        plan: Plan,
        batch_size: int,
        transform: Callable[..., Events],
        seed: int = 0,
        **settings: Any,
    ) -> None:
        super().__init__(data.labels, plan, batch_size, seed, **settings)
        self.data, self.contents, self.policy = data, data.events, transform

    def draw(self, epoch: int, index: Tensor) -> Events:
        events = self.data.cut(index)
        if len(index):
            events = self.policy(events, self._generator(epoch, int(index[0])))
        return events.trusted()

    def prepare(self, epoch: int, jobs: list[Job]) -> list[Batch]:
        return [self._batch(epoch, index, share) for index, share in jobs]

    def _batch(self, epoch: int, index: Tensor, share: float) -> Batch:
        return Batch(self.plan(self.draw(epoch, index)), self.labels[send(index, self.labels.device)], share)

    def _generator(self, epoch: int, first: int) -> torch.Generator:
        key = int(stateless.keys(self.seed, epoch, torch.tensor([first]))[0]) & 0xFFFFFFFF
        return torch.Generator(self.labels.device).manual_seed(key)


# name -> (class in gridless.data, what the paper does to its recordings; N-Cars and glyphs: what we do)
SETS: dict[str, tuple[str, Callable[[bool], Chain]]] = {
    "nmnist": ("NMNIST", augment.n_mnist),
    "mnist_dvs": ("MNISTDVS", augment.mnist_dvs),
    "cifar10_dvs": ("CIFAR10DVS", augment.cifar10_dvs),
    "ncaltech101": ("NCaltech101", augment.n_caltech101),
    "asl_dvs": ("ASLDVS", augment.asl_dvs),
    "ncars": ("NCars", augment.n_cars),
    "glyphs": ("MovingGlyphs", lambda train: Chain((StartAtZero(),))),
}


def chain(recipe: Any, train: bool) -> Chain:
    """What is done to a recording: augmentation (the recipe's, or else the data set's), then its preparation."""
    whole = SETS[recipe.data][1]
    if not train:
        return whole(False)
    if recipe.transforms is None:
        return whole(True)
    return Chain((*map(transform_of, recipe.transforms), *whole(False).steps))


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


def load_recordings(
    name: str, root: str | Path | None, split: str, options: dict[str, Any] | None = None
) -> Recordings:
    """The recordings of a split (`train`, `test`, `fit` or `validation`) of a data set that recipes name."""
    import gridless.data as data

    options = dict(options or {})
    if name == "glyphs":
        size, seed = generated(split, options)
        glyphs = data.MovingGlyphs(size, seed=seed, **options)
        events = Events(glyphs.pixel, glyphs.time, glyphs.polarity, glyphs.splits, glyphs.sensor)
        return Recordings.of(events, glyphs.labels, glyphs.class_names)
    return Recordings.read(getattr(data, SETS[name][0])(root, split, **options))


def generated(split: str, options: dict[str, Any]) -> tuple[int, int]:
    """How many examples a split of a generated data set has, and its seed; takes `size` and `held_out` out."""
    from gridless.data.splits import check

    size, held_out = options.pop("size", 1000), options.pop("held_out", 200)
    seed = {"train": 0, "fit": 0, "validation": 1, "test": 2}[check(split)]
    return (held_out if seed else size), seed


def evaluation_size(batch_size: int) -> int:
    return 2 * batch_size


@torch.no_grad()
def probabilities(
    model: nn.Module,
    data: Recordings,
    recipe: Any,
    batch_size: int | None = None,
    votes: int | None = None,
    precision: str | None = None,
    progress: bool = False,
) -> Tensor:
    """Class probabilities (N, classes) of recordings on their device, the mean over `votes` views of each.

    The first view is the recording as it is, the others are augmented as in training; all are fixed by the seed.
    `progress` shows a bar.
    """
    was_training = model.training
    model.eval()
    total: Any = None
    views_each: int = votes or recipe.votes
    with bar("evaluate", views_each * len(data), progress) as advance:
        for vote in range(views_each):
            views = ResidentRecordings(
                data,
                model.plan,  # type: ignore[arg-type]
                batch_size or evaluation_size(recipe.batch_size),
                chain(recipe, train=vote > 0),
                recipe.seed,
                shuffle=False,
            )
            views.epoch = vote
            parts = []
            for batch in views:
                with autocast(data.labels.device, precision or recipe.precision):
                    parts.append(model(batch.geometry).float().softmax(1))
                advance(len(batch.labels))
            total = torch.cat(parts) if total is None else total + torch.cat(parts)
    model.train(was_training)
    return total / views_each
