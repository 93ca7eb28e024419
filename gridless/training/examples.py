"""The training set: the examples of a split as one ragged batch, on one device.

ModelNet40 is 121 MB; N-Cars has 60 million events in 15,422 recordings, 1 GB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from gridless.augment.points import EVEN
from gridless.augment.stateless import Keyed, keys
from gridless.data.prepare import joined
from gridless.structures import Cloud, Events, Rows
from gridless.training.batch import send

# Points per group of batches if 128 GiB of GPU memory are free, in proportion if less: 4,096 clouds of 1,024. With 20
# neighbours per point two groups, one in use and one in preparation, take 30 GiB.
GROUP = 1 << 22


@dataclass(frozen=True)
class TrainingSet:
    """Examples with labels, from which a loader draws batches. `TrainingSet.of` makes one.

    Only `cut` reads `examples`: a set whose examples are elsewhere, such as on disk, overrides it.
    """

    examples: Cloud | Events
    """All examples as one ragged batch; data of a point or an event is in the rows."""
    labels: Tensor
    """(N, ...): int64 for classes. If points have the rows `part`, these are learned, and the label is the category."""
    splits: Tensor
    """(N + 1): the offset of each example, and the end. On the CPU, so that cutting never waits for a device."""
    class_names: Sequence[str] = ()
    """Names of the classes, in the order of their numbers."""
    features: Sequence[str] = ()
    """Names of the rows that are concatenated to the input rows `features` of the network."""
    parts: Sequence[str] = ()
    """Names of the parts of points."""
    values: Sequence[int] = ()
    """Values of the parts in the files."""
    files: Tensor | None = None
    """(N), on the CPU: the number of each example's file in `listing`. A file may have several examples."""
    scales: Mapping[str, int] = field(default_factory=dict)
    """Divisors of the features, those of `Preparation`."""
    listing: Any = None
    """The `Listing` of a folder of the user's files."""
    on_disk: ClassVar[bool] = False
    """True if every batch is read from files; `expect` then prefetches."""

    @classmethod
    def of(cls, examples: Cloud | Events, labels: Tensor, class_names: Sequence[str] = (), **more: Any) -> TrainingSet:
        """A training set from a ragged batch of `examples`, `labels` and `class_names`; `more` are further fields.

        Recordings are checked here, once.
        """
        if examples.num_examples != len(labels):
            what = "recordings" if isinstance(examples, Events) else "clouds"
            raise ValueError(f"{examples.num_examples} {what} have {len(labels)} labels. Give one label for each.")
        if isinstance(examples, Events):
            if not examples.is_checked:
                examples.check("recordings")
            examples = examples.trusted()
        return cls(examples, labels, examples.splits.cpu(), list(class_names), **more)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def device(self) -> torch.device:
        return self.labels.device

    @property
    def sizes(self) -> Tensor:
        """(N) points or events of each example, on the CPU."""
        return self.splits.diff()

    @property
    def rows(self) -> Rows:
        return self.examples.rows

    @property
    def points(self) -> Tensor:
        """(N, P, D) coordinates of clouds that all have P points."""
        if self.even is None or isinstance(self.examples, Events):
            raise ValueError("TrainingSet.points: the examples are not clouds of one size. Use examples.coords.")
        return self.examples.coords.view(len(self), self.even, -1)

    @property
    def events(self) -> Events:
        assert isinstance(self.examples, Events)
        return self.examples

    @cached_property
    def even(self) -> int | None:
        """The number of points of every cloud, if all have the same."""
        sizes = self.sizes
        same = isinstance(self.examples, Cloud) and len(sizes) > 0 and bool((sizes == sizes[0]).all())
        return int(sizes[0]) if same else None

    @property
    def is_labelled(self) -> bool:
        """True if there are labels; for the rows `part`, if at least one is not negative."""
        return "part" not in self.rows or bool((self.rows["part"] >= 0).any())

    def take(self, index: Tensor) -> TrainingSet:
        """The examples `index`, in that order."""
        index = index.cpu()
        labels = self.labels[index.to(self.device)]
        return self._of(self.cut(index), labels, None if self.files is None else self.files[index])

    def first(self, points: int) -> TrainingSet:
        """At most the first `points` points of each example."""
        if not len(self) or int(self.sizes.max()) <= points:
            return self
        at, splits = ragged(self.splits[:-1], self.sizes.clamp(max=points), self.device)
        return self._of(self.examples._part(at, splits), self.labels, self.files)

    def parts_of(self, index: Tensor, begin: Tensor, sizes: Tensor, labels: Tensor) -> TrainingSet:
        """Parts of examples, with labels of their own.

        Args:
            index: (M), on the CPU: the example of each part.
            begin: (M) the number of its first point or event in the example.
            sizes: (M) its number of points or events.
            labels: (M, ...) the label of each part.
        """
        at, splits = ragged(self.splits[index] + begin, sizes, self.device)
        return TrainingSet.of(self.examples._part(at, splits), labels)

    def _of(self, examples: Cloud | Events, labels: Tensor, files: Tensor | None) -> TrainingSet:
        examples = examples.trusted() if isinstance(examples, Events) else examples
        return replace(self, examples=examples, labels=labels, splits=examples.splits.cpu(), files=files)

    def to(self, device: torch.device | str) -> TrainingSet:
        return replace(self, examples=self.examples.to(device), labels=self.labels.to(device))

    def tensors(self) -> list[Tensor]:
        """All tensors that training depends on."""
        parts = [tensor for kind, tensor in self.examples.parts() if kind != "splits" or self.even is None]
        return [self.labels, *parts]

    def expect(self, index: Sequence[Tensor]) -> None:
        """Begin to read the examples `index`, the next ones for `cut`. A no-op for examples in memory."""

    def cut(self, index: Tensor) -> Any:
        """The examples `index` (B, on the CPU), in that order, as one ragged batch on the device."""
        if self.even is not None:
            at, splits = send(index, self.device), torch.arange(len(index) + 1, device=self.device) * self.even
            return self._whole(at, splits)
        begin = self.splits[index]
        return self.examples._part(*ragged(begin, self.splits[index + 1] - begin, self.device))

    def _whole(self, at: Tensor, splits: Tensor) -> Cloud:
        """Clouds of one size: the gather copies whole clouds instead of points."""

        def taken(values: Tensor) -> Tensor:
            return values.view(len(self), self.even, *values.shape[1:])[at].flatten(0, 1)  # type: ignore[arg-type]

        cloud: Any = self.examples
        rows = Rows({name: taken(values) for name, values in cloud.rows.items()})
        return Cloud.made(coords=taken(cloud.coords), splits=splits, rows=rows, directions=cloud.directions)

    def draw(self, augment: Any, seed: int, epoch: int, index: Tensor) -> Any:
        """The examples `index` (B, on the CPU), augmented for an epoch, as one ragged batch on the device.

        Every random choice of `augment` is a function of the seed, the epoch and the example.
        """
        examples = self.cut(index)
        if isinstance(examples, Cloud):
            examples.cached(EVEN, lambda: self.even)
        if augment is not None and len(index):
            examples = augment(examples, Keyed(send(keys(seed, epoch, index), self.device)))
        return joined(examples, self.features) if isinstance(examples, Cloud) else examples.trusted()

    @property
    def ahead(self) -> int:
        """Number of groups of batches prepared ahead on a GPU."""
        return 2 if isinstance(self.examples, Events) else 1

    def at_once(self, batch_size: int) -> int:
        """Number of batches whose geometry is computed together."""
        if self.device.type != "cuda" or isinstance(self.examples, Events) or not len(self):
            return 1
        # Grouping saves launches: the searches of a small batch take less time than their launches.
        free, whole = torch.cuda.mem_get_info(self.device)
        # `torch.cuda.set_per_process_memory_fraction`: runs beside each other share a device.
        free = min(free, int(whole * torch.cuda.get_per_process_memory_fraction(self.device)))
        points = min(GROUP, GROUP * free // (1 << 37))
        return max(1, points // max(int(self.sizes.max()) * batch_size, 1))


def ragged(begin: Tensor, counts: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows begin[b] to begin[b] + counts[b] of every example b, one after the other, and their splits.

    begin and counts (B) are on the CPU, so that nothing waits for the device.
    """
    splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    total = int(splits[-1])
    offset = torch.repeat_interleave(send(begin - splits[:-1], device), send(counts, device), output_size=total)
    return torch.arange(total, device=device) + offset, send(splits, device)


def block(points: Tensor, sizes: Tensor | None = None, rows: Mapping[str, Tensor] | None = None, **more: Any) -> Cloud:
    """Clouds (N, P, D) with rows (N, P, ...) as one ragged `Cloud` of the first sizes[i] points of each."""
    splits = torch.arange(len(points) + 1, device=points.device) * points.shape[1]
    keep: Any = slice(None)
    if sizes is not None:
        keep = (torch.arange(points.shape[1]) < sizes.cpu()[:, None]).flatten().to(points.device)
        splits = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]).to(points.device)
    flat = Rows({name: values.flatten(0, 1)[keep] for name, values in (rows or {}).items()})
    return Cloud.made(coords=points.flatten(0, 1)[keep], splits=splits, rows=flat, **more)


def Clouds(
    points: Tensor,
    labels: Tensor,
    class_names: Sequence[str] = (),
    sizes: Tensor | None = None,
    rows: Mapping[str, Tensor] | None = None,
    features: Sequence[str] = (),
    **more: Any,
) -> TrainingSet:
    """A training set of clouds in one block.

    Args:
        points: (N, P, D) coordinates.
        labels: (N) class numbers.
        class_names: the names of the classes.
        sizes: (N) if given, only the first sizes[i] points of each cloud are used.
        rows: name -> (N, P, ...) data of each point.
        features: the rows that the network sees.
        more: further fields of `TrainingSet`.
    """
    if points.ndim != 3 or len(points) != len(labels):
        shapes = f"{tuple(points.shape)} and {tuple(labels.shape)}"
        raise ValueError(f"points and labels have the shapes {shapes}. Give points (N, P, D) and labels (N).")
    directions = ("normal",) if "normal" in features else ()
    cloud = block(points, sizes, rows, directions=directions)
    return TrainingSet.of(cloud, labels, class_names, features=features, **more)


Recordings = TrainingSet
