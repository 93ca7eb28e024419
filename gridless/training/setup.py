"""Setup of a training run: options, processes, network, optimiser, step and batches."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gridless.nn import synchronise
from gridless.training.batch import Batch
from gridless.training.checkpoints import State
from gridless.training.examples import TrainingSet
from gridless.training.loader import Loader
from gridless.training.recipe import Recipe
from gridless.training.step import Average, make_step
from gridless.training.workers import WorkerLoader, precomputed, processes

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Options:
    """Options of a run that are not in its recipe. None of them changes the weights."""

    device: torch.device | str = "cpu"
    """cpu, cuda or cuda:N."""
    devices: int = 1
    """Processes on this machine, each with a device."""
    nodes: int = 1
    """Machines."""
    resume: bool = False
    """Resume from the last checkpoint in `out`, which must have the same recipe and examples."""
    checkpoint_steps: int | None = None
    """Steps between checkpoints; None: every ten epochs."""
    progress: bool = True
    """Print to standard error: the augmentation, a line per epoch, and an explanation of a large gap at the end."""
    workers: int | None = None
    """Processes that compute geometry, unless it is `online`; None: one per thread, at most 8."""
    cache: Path = Path("cache")
    """The folder of `offline` geometry."""
    held_out: Sequence[str] = ()
    """The files that were held out, for the list `out`/split.txt."""
    callbacks: Sequence[Any] = ()
    """Objects with any of `on_train_start(state)`, `on_step_start(state, batch)`, `on_step_end(state, batch)`,
    `on_validation_start(state)` and `on_epoch_end(state)`."""


class OneProcess:
    """What a run of one process needs of Lightning's Fabric, which takes seconds to import."""

    world_size, global_rank, is_global_zero = 1, 0, True

    def __init__(self, device: torch.device, callbacks: Sequence[Any]) -> None:
        self.device, self.callbacks = device, callbacks

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            if hasattr(callback, hook):
                getattr(callback, hook)(*arguments)

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def all_gather(self, x: Tensor) -> Tensor:
        return x

    def rank_zero_first(self, local: bool) -> AbstractContextManager:
        return nullcontext()


class Run:
    """A run in progress: network, optimiser, step, batches, and the network to evaluate."""

    def __init__(
        self,
        fabric: Fabric | OneProcess,
        recipe: Recipe,
        task: Any,
        model: Any,
        data: TrainingSet,
        valid: Any,
        options: Options,
    ) -> None:
        self.fabric, self.recipe, self.task, self.options = fabric, recipe, task, options
        loss, model = task.loss, model.to(fabric.device)
        if not isinstance(fabric, OneProcess):
            synchronise(model)
            loss = _spread(fabric, model, task)
        average = Average(model, recipe.average) if recipe.average else None
        self.state = State(model, recipe.make_optimiser(model), recipe.make_schedule(), average)
        chosen = recipe if fabric.world_size == 1 else recipe.changed(capture=False)
        self.step = make_step(chosen, model, self.state.optimiser, average, loss=loss, backward=fabric.backward)
        self.loader, self.examples = self._batches(data, model.plan), len(data)
        self.valid, self.about = None if valid is None else valid.to(fabric.device), task.about(data)
        # The network to evaluate and save: the weights of `state.best`, with re-estimated statistics.
        self.judged, self.judged_at = copy.deepcopy(self.state.best).eval(), -1
        # Confusion matrix and figures by category of the last validation, if the task has them.
        self.details: dict[str, Any] = {}

    @property
    def steps(self) -> int:
        """Number of steps per epoch."""
        return len(self.loader)

    @property
    def totals(self) -> Tensor:
        """The totals of the step in this epoch so far, one row per process (world, 4)."""
        return self.fabric.all_gather(self.step.totals.clone()).reshape(-1, 4)  # type: ignore[union-attr]

    def _batches(self, data: TrainingSet, plan: Any) -> Loader:
        place = {"rank": self.fabric.global_rank, "world": self.fabric.world_size}
        recipe, options = self.recipe, self.options
        if recipe.geometry == "online":
            return self.task.loader(recipe, data.to(self.fabric.device), plan, epochs=recipe.epochs, **place)
        workers, files = processes(options.workers), None
        if recipe.geometry == "offline":
            # One process per machine computes the files; the others wait, then read them.
            with self.fabric.rank_zero_first(local=True):
                files = precomputed(recipe, self.task, data, plan, options.cache, workers)
        return WorkerLoader(self.task.loader(recipe, data, plan, **place), self.fabric.device, workers, files)


class _LossOf(nn.Module):
    """The loss of a network as a module: DDP must see every forward pass, also those of other methods."""

    def __init__(self, model: nn.Module, task: Any) -> None:
        super().__init__()
        self.model, self.task = model, task

    def forward(self, batch: Batch, smoothing: float) -> Any:
        return tuple(self.task.loss(self.model, batch, smoothing))


def _spread(fabric: Fabric, model: nn.Module, task: Any) -> Callable[[Any, Batch, float], Any]:
    """The loss of the task, whose gradients are averaged over all processes."""
    module = fabric.setup_module(_LossOf(model, task))
    return lambda _, batch, smoothing: module(batch, smoothing)


def check_settings(recipe: Recipe, device: torch.device, alone: bool) -> None:
    """Reject settings of a recipe that the device, or a run of several processes, does not support."""
    if not alone:
        # A missing package is told before anything is written.
        import lightning.fabric  # noqa: F401
    if recipe.precision == "bf16" and device.type == "cpu":
        raise ValueError("recipe: precision bf16 needs a GPU. On the CPU add --set precision=32.")
    if recipe.capture and not alone:
        raise ValueError("recipe: capture needs a single process. With several devices add --set capture=false.")


@contextmanager
def make_fabric(device: torch.device, options: Options) -> Iterator[Fabric | OneProcess]:
    """Launch the processes of a run. If this one fails, it ends the processes that it launched."""
    if options.devices * options.nodes == 1:
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            # A tensor names its device with the number: cuda:0, not cuda.
            yield OneProcess(torch.empty(0, device=device).device, options.callbacks)
        return
    from lightning.fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    fabric = Fabric(
        accelerator="cuda" if device.type == "cuda" else "cpu",
        devices=options.devices,
        num_nodes=options.nodes,
        strategy="ddp",
        callbacks=list(options.callbacks),
    )
    fabric.launch()
    try:
        yield fabric
    except BaseException:
        for child in getattr(fabric.strategy.launcher, "procs", ()):
            child.terminate()
        raise


@contextmanager
def tf32(device: torch.device) -> Iterator[None]:
    """Context with TF32 for dense float32 products on a GPU. It restores the setting of torch at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if device.type == "cuda" else before)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
