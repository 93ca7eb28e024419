"""A network, its recipe and its data, as Lightning wants them: checkpoints, exact resume, logs, several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from gridless.data.precompute import Precomputed
from gridless.nn import synchronise
from gridless.structures import Geometry
from gridless.training.batch import Batch
from gridless.training.examples import TrainingSet
from gridless.training.loader import Loader
from gridless.training.recipe import Recipe
from gridless.training.step import Average, StepCounter, TrainStep, autocast, begin_step, make_step
from gridless.training.workers import WorkerLoader, precomputed, processes


class Classifier(lightning.LightningModule):
    """A network that is trained by a recipe on clouds or recordings, and judged on others.

    The data is moved to the device once, and batched, augmented and given geometry there. Where the recipe's geometry
    is not `online`, that of training is made on the CPU, by `workers` processes, from the files in `cache` if it is
    `offline`. `about` is kept in checkpoints: what the run was begun with.
    """

    def __init__(
        self,
        recipe: Recipe,
        task: Any,
        data: TrainingSet,
        valid: TrainingSet | None = None,
        workers: int | None = None,
        cache: Path = Path("cache"),
        about: dict[str, Any] | None = None,
        model: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()
        # The optimiser is stepped by `TrainStep`, which may be one captured graph.
        self.automatic_optimization = False
        self.recipe, self.task, self.data, self.valid, self.about = recipe, task, data, valid, about or {}
        self.workers, self.cache = processes(workers), cache
        self.model = recipe.make_model() if model is None else model
        self.plan: Any = self.model.plan
        self.average = Average(self.model, recipe.average) if recipe.average else None
        self.averaged = None if self.average is None else self.average.model
        self.schedule = recipe.make_schedule()
        self.files: Precomputed | None = None
        self.history: list[dict[str, float]] = []
        self.step: TrainStep
        self._restored: dict[str, Any] | None = None
        self._valid: list[Tensor] = []
        self._logged = 0.0

    @property
    def best(self) -> torch.nn.Module:
        """The network to evaluate and ship."""
        return self.model if self.averaged is None else self.averaged

    def forward(self, geometry: Geometry) -> Tensor:
        return self.best(geometry)

    # Lightning calls these before the first step, in this order.

    def prepare_data(self) -> None:
        # Once on each machine; its other processes wait, and then find the files.
        if self.recipe.geometry == "offline":
            self._files()

    def _files(self) -> Precomputed:
        if self.files is None:
            self.files = precomputed(self.recipe, self.task, self.data, self.plan, self.cache, self.workers)
        return self.files

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.trainer.world_size > 1:
            synchronise(self.model)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        self.optimiser = self.recipe.make_optimiser(self.model)
        return StepCounter(self.optimiser)

    def on_fit_start(self) -> None:
        capture = self.recipe.capture
        if self.trainer.world_size > 1:
            if capture:
                raise ValueError("capture: graphs are captured for one process only: leave it off with several devices")
            capture = False
        chosen = self.recipe if capture is None else self.recipe.changed(capture=capture)
        self.step = make_step(
            chosen, self.model, self.optimiser, self.average, backward=self.manual_backward, task=self.task
        )

    def train_dataloader(self) -> Loader:
        place: dict[str, Any] = {"rank": self.trainer.global_rank, "world": self.trainer.world_size}
        if self.recipe.geometry == "online":
            data = self.data.to(self.device)
            loader = self.task.loader(self.recipe, data, self.plan, epochs=self.recipe.epochs, **place)
        else:
            files = self._files() if self.recipe.geometry == "offline" else None
            own = self.task.loader(self.recipe, self.data, self.plan, **place)
            loader = WorkerLoader(own, self.device, self.workers, files)
        # Of a checkpoint at the end of an epoch Lightning restores the number of epochs, but not the loader's state.
        progress: Any = self.trainer.fit_loop.epoch_progress.current
        loader.epoch = progress.processed
        return loader

    def val_dataloader(self) -> Any:
        # Each process evaluates all of it: quick, and every process then logs the same.
        if self.valid is None:
            return []
        return self.task.loader(self.recipe, self.valid.to(self.device), self.plan, train=False)

    # Training.

    def on_train_start(self) -> None:
        if self._restored is not None:
            self.step.totals.copy_(share(self._restored["totals"], self.trainer.world_size)[self.global_rank])
            self.schedule.load_state_dict(self._restored["schedule"])
            self._restored = None
            # A checkpoint after the last step of an epoch is written before its validation.
            if self.history and not bool(self._totals().any()):
                self.complete(judge=False)

    def training_step(self, batch: Batch, number: int) -> None:
        steps = int(self.trainer.num_training_batches)
        begin_step(self.recipe, self.schedule, self.optimiser, self.current_epoch, number, steps)
        whole: Any = self.optimizers()
        whole.step(lambda: self.step(batch))
        if number + 1 == steps:
            # Here and not when the epoch has ended, so that a checkpoint after the last step already knows of it.
            self._end_epoch()

    def _end_epoch(self) -> None:
        totals = self._totals()
        self._check_finite(totals)
        loss, right, judged, count = totals.sum(0).tolist()
        self.step.totals.zero_()
        accuracy = right / max(judged, 1)
        self.schedule.epoch_ended(accuracy)
        values = {"train_loss": loss / count, "train_accuracy": accuracy}
        values["learning_rate"] = float(self.optimiser.param_groups[0]["lr"])
        self.history.append({"epoch": self.current_epoch + 1, **values})

    def _totals(self) -> Tensor:
        """The step's totals of this epoch until now, of every process (world, 4)."""
        totals: Any = self.step.totals.clone()
        return self.all_gather(totals) if self.trainer.world_size > 1 else totals[None]  # type: ignore[return-value]

    def _check_finite(self, totals: Tensor) -> None:
        """Refuse to go on, and to write over a checkpoint, where the loss or weights are no numbers."""
        whole = [t.isfinite().all() for t in (totals, *self.model.state_dict().values())]
        if not bool(torch.stack(whole).all()):
            rate = self.recipe.learning_rate
            remedy = f"give a smaller learning_rate (it is {rate:g}), or shorten gradients (clip=1)"
            raise FloatingPointError(f"training diverged in epoch {self.current_epoch + 1}: {remedy}")

    def on_train_epoch_end(self) -> None:
        self.log_dict(_trained(self.history[-1]), rank_zero_only=True)
        self._logged = self.history[-1]["epoch"]

    # Validation.

    def on_validation_epoch_start(self) -> None:
        self._valid = []

    def validation_step(self, batch: Batch, number: int) -> None:
        with autocast(self.device, self.recipe.precision):
            self._valid.append(self.task.score(self.best.eval(), batch))

    def on_validation_epoch_end(self) -> None:
        assert self.valid is not None
        made = self.task.figures(torch.cat(self._valid), self.valid)
        values = {f"valid_{name}": value for name, value in made.items() if isinstance(value, float)}
        self.log_dict(values, rank_zero_only=True)
        if self.history:
            self.history[-1] |= values

    def _judged(self) -> dict[str, Any]:
        assert self.valid is not None
        scores, model = [], self.best.eval()
        for batch in self.val_dataloader():
            with autocast(self.device, self.recipe.precision):
                scores.append(self.task.score(model, batch))
        return self.task.figures(torch.cat(scores), self.valid)

    def complete(self, judge: bool = True) -> None:
        """Judge the epoch that has just ended, where that is due (with `judge` anyway) and was not done; log what of it
        was not logged."""
        last = self.history[-1]
        due = last["epoch"] % self.recipe.validate_every == 0
        rows = [] if self._logged == last["epoch"] else [_trained(last)]
        if self.valid is not None and "valid_accuracy" not in last and (due or judge):
            found = self._judged()
            values = {f"valid_{name}": value for name, value in found.items() if isinstance(value, float)}
            last |= values
            rows.insert(0 if due else len(rows), values)
        for logger in self.trainer.loggers:
            for row in rows:
                # Lightning logs float32.
                logged = {name: torch.tensor(value).item() for name, value in row.items()}
                logger.log_metrics({"epoch": last["epoch"] - 1, **logged}, step=self.trainer.global_step - 1)
            logger.save()

    # Checkpoints.

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        totals = self._totals()
        self._check_finite(totals)
        checkpoint["gridless"] = {
            **self.about,
            "totals": totals.cpu(),
            "schedule": self.schedule.state_dict(),
            "history": [dict(entry) for entry in self.history],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._restored = checkpoint["gridless"]
        # Here and not when training starts, which it does not where the last step was made.
        self.history = checkpoint["gridless"]["history"]


def share(totals: Tensor, world: int) -> Tensor:
    """Totals of every process (before, 4) as those of `world` others: where there were more or fewer, the first takes
    all."""
    if len(totals) == world:
        return totals
    shares = totals.new_zeros(world, totals.shape[1])
    shares[0] = totals.sum(0)
    return shares


def _trained(entry: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in entry.items() if name != "epoch" and not name.startswith("valid_")}
