"""Training data that lives where the training runs: batches are cut, augmented and given their geometry there.

ModelNet40's 9,843 clouds of 1,024 points are 121 MB; on a GPU nothing but indices crosses the bus, and a second stream
prepares the next batches while the network works on this one.
"""

from __future__ import annotations

import contextvars
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gridless.plan import Plan
from gridless.structures import Cloud, Edges, Events, Geometry
from gridless.training import stateless
from gridless.training.cutting import cut
from gridless.training.policy import Policy, send

# Examples whose geometry is made at once on a GPU.
GROUP = 1024


@dataclass(frozen=True)
class Batch:
    """A batch with its geometry: labels (B) int64, and `share`, this process's part of the loss (1 when alone)."""

    geometry: Geometry
    labels: Tensor
    share: float = 1.0

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        labels = self.labels.to(device, non_blocking=non_blocking)
        return Batch(self.geometry.to(device, non_blocking), labels, self.share)

    def pin_memory(self) -> Batch:
        return Batch(self.geometry.pin_memory(), self.labels.pin_memory(), self.share)


class Resident:
    """Examples with labels (N), all on one device, as an iterable of `Batch`es.

    Subclasses write `draw` and `prepare`, and set `contents`, what is drawn from, and `policy`, what is done to it.
    Every random choice is a function of the seed, the epoch and the examples. `epoch` and `start` say what the next
    iteration yields, so that a run can begin again anywhere. With several processes each global batch of `batch_size`
    examples is divided among them.
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
        finish: Callable[[Batch], Any] | None = None,
    ) -> None:
        if batch_size < world:
            raise ValueError(f"a batch of {batch_size} cannot be divided among {world} processes")
        self.labels, self.plan, self.batch_size, self.seed, self.shuffle = labels, plan, batch_size, seed, shuffle
        self.rank, self.world, self.prefetch, self.finish = rank, world, prefetch, finish
        self.epoch = self.start = 0
        # Held while a batch is prepared; whoever must have the device to itself (graph capture) takes it.
        self.busy = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        # What the next step wants of a batch, and the device it is alone on, stay in their process.
        return {**self.__dict__, "busy": None, "finish": None}

    def draw(self, epoch: int, index: Tensor) -> Any:
        """The examples `index` (on the CPU) as they are in an epoch, augmented: what the plan is called with."""
        raise NotImplementedError

    def prepare(self, epoch: int, jobs: list[tuple[Tensor, float]]) -> list[Any]:
        """Batches of an epoch, each given by its examples (on the CPU) and share."""
        raise NotImplementedError

    def __len__(self) -> int:
        return -(-len(self.labels) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        """The batches of `epoch` from `start` on; then the epoch after it is next."""
        epoch, start = self.epoch, self.start
        for step, batch in enumerate(self._made(epoch, self._jobs(epoch, start)), start):
            self.epoch, self.start = (epoch, step + 1) if step + 1 < len(self) else (epoch + 1, 0)
            yield batch

    def _made(self, epoch: int, jobs: list[tuple[Tensor, float]]) -> Iterator[Any]:
        """The batch of every job."""
        groups = [jobs[i : i + self.group] for i in range(0, len(jobs), self.group)]
        device = self.labels.device
        if device.type != "cuda" or not self.prefetch:
            made: Iterator[list[Any]] = (self.prepare(epoch, group) for group in groups)
        else:
            made = _ahead(lambda group: self.prepare(epoch, group), groups, self.prefetch, device, self.busy)
        return (batch for batches in made for batch in batches)

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

    def _jobs(self, epoch: int, start: int) -> list[tuple[Tensor, float]]:
        jobs = []
        for whole in self.order(epoch).split(self.batch_size)[start:]:
            mine = whole.tensor_split(self.world)[self.rank]
            jobs.append((mine, len(mine) * self.world / len(whole)))
        return jobs


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
        super().__init__(labels, plan, batch_size, seed, **settings)
        self.points = self.contents = points.contiguous()
        self.policy = policy or Policy()
        # On a GPU small batches would each wait for the launches of their searches.
        self.group = group or (max(1, GROUP // batch_size) if points.device.type == "cuda" else 1)

    def draw(self, epoch: int, index: Tensor) -> Cloud:
        return self.policy(self.points, index, self.seed, epoch)

    def prepare(self, epoch: int, jobs: list[tuple[Tensor, float]]) -> list[Any]:
        """Batches of an epoch, each given by its examples and share, with what a backward pass will want of them."""
        whole = torch.cat([index for index, _ in jobs])
        geometry = transposed(self.plan(self.draw(epoch, whole)))
        labels = self.labels[send(whole, self.labels.device)]
        examples = [len(index) for index, _ in jobs]
        pieces = [geometry] if len(jobs) == 1 else cut(geometry, self.plan, examples)
        parts = zip(pieces, labels.split(examples), jobs, strict=True)
        batches = [Batch(piece, part, share) for piece, part, (_, share) in parts]
        return batches if self.finish is None else [self.finish(batch) for batch in batches]


def transposed(geometry: Geometry) -> Geometry:
    """The same geometry, with the transposes that a backward pass will want beside the edges."""
    for value in geometry.values():
        if isinstance(value, Edges):
            value.transpose()
    return geometry


def _ahead(
    make: Callable[[Any], Any], jobs: list, depth: int, device: torch.device, busy: threading.Lock
) -> Iterator[Any]:
    """make(job) for every job, up to `depth` ahead, in a thread with a stream of its own."""
    ready: queue.Queue = queue.Queue(depth)
    stop = threading.Event()
    stream = _side_stream(device)

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            with torch.cuda.device(device), torch.cuda.stream(stream), torch.no_grad():
                for job in jobs:
                    with busy:
                        item = make(job)
                        done = stream.record_event()
                    if not put((item, done, None)):
                        return
        except BaseException as error:
            put((None, None, error))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,), daemon=True, name="gridless-prepare")
    thread.start()
    try:
        for _ in jobs:
            item, done, error = ready.get()
            if error is not None:
                raise error
            current = torch.cuda.current_stream(device)
            current.wait_event(done)
            for tensor in tensors_of(item):
                tensor.record_stream(current)
            yield item
    finally:
        stop.set()
        thread.join()


_STREAMS: dict[torch.device, Any] = {}


def _side_stream(device: torch.device) -> Any:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device, priority=-1)
    return _STREAMS[device]


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor of a batch, the transposed edges included."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Batch):
        yield value.labels
        yield from tensors_of(value.geometry)
    elif isinstance(value, Geometry):
        for part in value.values():
            yield from tensors_of(part)
    elif isinstance(value, Edges):
        yield from (value.splits, value.source)
        back = value.__dict__.get("_kept", {}).get("transpose")
        if back is not None:
            yield from (back.splits, back.source)
    elif isinstance(value, Cloud):
        yield from (t for t in (value.coords, value.splits, value.parent_index, value.distance) if t is not None)
    elif isinstance(value, Events):
        yield from (t for t in (value.pixel, value.time, value.polarity, value.splits, value.cause) if t is not None)
        # What was derived on the way, such as the order by pixel, is used again by the network.
        yield from tensors_of(list(value.__dict__.get("_kept", {}).values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors_of(part)
