"""Batches prepared ahead of the step: in worker processes, or once, in files.

Both give the same batches as the loader they wrap, in the same order. Files hold a fixed number of augmentations of
each example (`repeats` of the recipe), which epochs cycle through.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gridless.data.precompute import Precomputed
from gridless.kernels.threads import num_threads
from gridless.structures import collate
from gridless.training.batch import Batch, Group, transposed
from gridless.training.loader import Loader
from gridless.training.recipe import Recipe

# Augmentations of each example in files, if the recipe gives no number.
REPEATS = 8


class WorkerLoader(Loader):
    """The batches of a loader on the CPU, computed by `workers` processes (0: this one) and moved to `device`.

    With `cache`, geometry is read from it instead of computed.
    """

    def __init__(
        self,
        loader: Loader,
        device: torch.device | str,
        workers: int = 0,
        cache: Precomputed | None = None,
    ) -> None:
        self.__dict__.update(loader.__getstate__())
        self._jobs: list[tuple[int, Tensor, float]] = []
        self._batches = DataLoader(
            _Batches(loader, cache),
            batch_size=None,
            sampler=self._jobs,
            num_workers=workers,
            worker_init_fn=_leave_interrupts,
            pin_memory=torch.device(device).type == "cuda",
            persistent_workers=workers > 0,
            # DataLoader draws a seed for its workers; its own generator keeps the random state of torch unchanged.
            generator=torch.Generator(),
        )
        self.device = torch.device(device)

    def first(self, epoch: int, count: int) -> Iterator[Batch]:
        yield from self._made(epoch, 0, count)

    def _made(self, epoch: int, start: int, end: int | None = None) -> Iterator[Batch]:
        self._jobs[:] = [(epoch, *job) for job in self.jobs(epoch, start, end)]
        for cpu_batch in self._batches:
            batch = cpu_batch.to(self.device, non_blocking=True)
            # Flags of checked structures are lost between processes, so mark them as trusted again.
            for value in batch.geometry.values():
                value.trusted()
            transposed(batch.geometry)
            yield batch


class _Batches(Dataset):
    """Batches by (epoch, examples, share)."""

    def __init__(self, loader: Loader, cache: Precomputed | None) -> None:
        self.loader, self.cache = loader, cache

    def __getitem__(self, job: tuple[int, Tensor, float]) -> Batch:
        epoch, index, share = job
        if self.cache is None or not len(index):
            return self.loader.prepare(epoch, [(index, share)])[0]
        geometry, labels = collate([self.cache.entry(epoch, i, copy=False) for i in index.tolist()])
        return Batch(Group(self.loader.plan, geometry, labels, [share]))


class _Drawn(Dataset):
    """The augmented examples of a loader with their labels."""

    def __init__(self, loader: Loader, contents: list[Tensor]) -> None:
        self.loader, self.epoch, self.transform = loader, 0, loader.augment
        digest = hashlib.sha256()
        for tensor in contents:
            digest.update(tensor.contiguous().numpy().data)
        self.fingerprint = digest.hexdigest()[:16]

    def __len__(self) -> int:
        return len(self.loader.data.labels)

    def several(self, numbers: Sequence[int]) -> list[tuple[Any, Any]]:
        """Examples of this epoch by their numbers: drawn together, they take a tenth of the time."""
        loader, index = self.loader, torch.tensor(numbers)
        drawn = loader.data.draw(loader.augment, loader.seed, self.epoch, index)
        return list(zip(drawn.examples, loader.data.labels[index].tolist()))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def precomputed(
    recipe: Recipe, task: Any, data: Any, plan: Any, folder: Path, workers: int = 0, ray: str | None = None
) -> Precomputed:
    """Files with the geometry of a recipe's training examples (on the CPU), augmented as in `repeats` epochs."""
    loader = task.loader(recipe, data, plan)
    drawn = _Drawn(loader, loader.data.tensors())
    # The cache key covers all examples and labels, so no example must be drawn for a check.
    repeats = recipe.repeats or REPEATS
    return Precomputed(drawn, folder, plan, repeats, recipe.seed, num_workers=workers, check=False, ray=ray)


def processes(workers: int | None) -> int:
    """The number of worker processes: `workers`, by default one per thread of this process, at most 8."""
    return min(8, num_threads()) if workers is None else workers


def _leave_interrupts(worker: int) -> None:
    """Ignore Ctrl-C in workers: the terminal sends it to all processes, and the training process ends its workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
