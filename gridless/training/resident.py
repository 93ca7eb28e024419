"""Training data that lives where the training runs: batches are cut, augmented and given their geometry there.

ModelNet40's 9,843 clouds of 1,024 points are 121 MB; on a GPU nothing but indices crosses the bus, and a second stream
prepares the next batches while the network works on this one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor

from gridless.plan import Plan
from gridless.structures import Cloud
from gridless.training import stateless
from gridless.training.batches import Batch, Group, transposed
from gridless.training.policy import Policy, send
from gridless.training.prefetch import Prefetch

# Points whose geometry is made at once on a GPU: 4,096 clouds of 1,024.
GROUP = 1 << 22

# The examples of a batch (on the CPU) and its share.
Job = tuple[Tensor, float]


class Resident:
    """Examples with labels (N), all on one device, as an iterable of `Batch`es.

    Subclasses write `draw` and `prepare`, and set `contents`, what is drawn from, and `policy`, what is done to it.
    Every random choice is a function of the seed, the epoch and the examples. `epoch` and `start` say what the next
    iteration yields, so that a run can begin again anywhere. With several processes each global batch of `batch_size`
    examples is divided among them. On a GPU up to `prefetch` groups are prepared ahead, and, up to epoch `epochs`, the
    first of the next epoch while one ends.
    """

    # Batches that are prepared at once.
    group = 1
    contents: Any
    policy: Any

    def __init__(
        self,
        labels: Tensor,
        plan: Plan,
        batch_size: int,
        seed: int = 0,
        shuffle: bool = True,
        rank: int = 0,
        world: int = 1,
        prefetch: int = 2,
        epochs: int = 0,
    ) -> None:
        if batch_size < world:
            raise ValueError(f"a batch of {batch_size} cannot be divided among {world} processes")
        self.labels, self.plan, self.batch_size, self.seed, self.shuffle = labels, plan, batch_size, seed, shuffle
        self.rank, self.world, self.prefetch, self.epochs = rank, world, prefetch, epochs
        self.epoch = self.start = 0
        # Held while a batch is prepared; whoever must have the device to itself (graph capture) takes it.
        self.busy = threading.Lock()
        # What is being prepared for an epoch that has not begun.
        self._next: tuple[int, Prefetch] | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Locks and threads stay in their process.
        return {k: v for k, v in self.__dict__.items() if k not in ("busy", "_next")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, busy=threading.Lock(), _next=None)

    def draw(self, epoch: int, index: Tensor) -> Any:
        """The examples `index` (on the CPU) as they are in an epoch, augmented: what the plan is called with."""
        raise NotImplementedError

    def prepare(self, epoch: int, jobs: list[Job]) -> Sequence[Batch]:
        """Batches of an epoch."""
        raise NotImplementedError

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        """The batches of `epoch` from `start` on; then the epoch after it is next."""
        epoch, start = self.epoch, self.start
        for step, batch in enumerate(self._made(epoch, start), start):
            self.epoch, self.start = (epoch, step + 1) if step + 1 < len(self) else (epoch + 1, 0)
            yield batch

    def _made(self, epoch: int, start: int) -> Iterator[Batch]:
        firsts = range(start, len(self), self.group)
        if self.labels.device.type != "cuda" or not self.prefetch:
            for first in firsts:
                yield from self._group(epoch, first)
        elif firsts:
            yield from self._ahead(epoch, firsts)

    def _ahead(self, epoch: int, firsts: range) -> Iterator[Batch]:
        """The batches of an epoch, made by a thread, which then goes on with those of the next."""
        known, self._next = self._next, None
        if known is not None and (known[0] != epoch or firsts.start):
            known[1].close()
            known = None
        if known is not None:
            running = known[1]
        else:
            later = product(range(epoch + 1, self.epochs), range(0, len(self), self.group))
            jobs = chain(((epoch, i) for i in firsts), later)
            settings = self.prefetch, self.labels.device, self.busy
            running = Prefetch(self, type(self)._group, jobs, max(epoch, self.epochs - 1), *settings)
        goes_on = False
        try:
            for first in firsts:
                group = running.take()
                if first == firsts[-1] and running.last > epoch:
                    self._next, goes_on = (epoch + 1, running), True
                yield from group
        finally:
            if not goes_on:
                running.close()

    def _group(self, epoch: int, first: int) -> Sequence[Batch]:
        """The batches from `first` on that are prepared at once."""
        return self.prepare(epoch, self.jobs(epoch, first, first + self.group))

    def state_dict(self) -> dict[str, int]:
        """Where the next iteration begins."""
        return {"epoch": self.epoch, "start": self.start}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.start = state["epoch"], state["start"]

    def order(self, epoch: int) -> Tensor:
        """The order of the examples in an epoch (N)."""
        if not self.shuffle:
            return torch.arange(len(self.labels))
        return stateless.permutation(self.seed, epoch, len(self.labels))

    def jobs(self, epoch: int, first: int = 0, last: int | None = None) -> list[Job]:
        """The examples and shares of batches first to last of an epoch."""
        order, size, found = self.order(epoch), self.batch_size, []
        for i in range(len(self))[first:last]:
            whole = order[i * size : (i + 1) * size]
            mine = whole.tensor_split(self.world)[self.rank] if self.world > 1 else whole
            found.append((mine, len(mine) * self.world / len(whole)))
        return found


class ResidentClouds(Resident):
    """Clouds (N, P, 3) and labels (N): every random choice is a function of (seed, epoch, example)."""

    def __init__(
        self,
        points: Tensor,
        labels: Tensor,
        plan: Plan,
        batch_size: int,
        policy: Policy | None = None,
        seed: int = 0,
        group: int | None = None,
        **settings: Any,
    ) -> None:
        if points.ndim != 3 or len(points) != len(labels):
            raise ValueError(
                f"points must be (N, P, D) and labels (N), not {tuple(points.shape)} and {tuple(labels.shape)}"
            )
        super().__init__(labels, plan, batch_size, seed, **{"prefetch": 1, **settings})
        self.points = self.contents = points.contiguous()
        self.policy = policy or Policy()
        # On a GPU small batches would each wait for the launches of their searches.
        several = max(1, GROUP // max(points.shape[1] * batch_size, 1))
        self.group = group or (several if points.device.type == "cuda" else 1)

    def draw(self, epoch: int, index: Tensor) -> Cloud:
        return self.policy(self.points, index, self.seed, epoch)

    def prepare(self, epoch: int, jobs: list[Job]) -> Sequence[Batch]:
        """Batches of an epoch, with what a backward pass will want of them."""
        whole = torch.cat([index for index, _ in jobs])
        geometry = transposed(self.plan(self.draw(epoch, whole)))
        labels = self.labels[send(whole, self.labels.device)]
        group = Group(geometry, labels, self.plan, [len(index) for index, _ in jobs], [share for _, share in jobs])
        # Here, where nobody waits for what is read back.
        _ = group.where
        return group
