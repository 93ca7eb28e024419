"""Lightning around the training step: checkpoints, exact resume, logs, several processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from torch import Tensor

from gridless.data.precompute import Precomputed
from gridless.structures import Geometry
from gridless.training.ahead import Ahead, precomputed, processes
from gridless.training.batches import Batch
from gridless.training.loop import begin_step, make_step
from gridless.training.recipe import RECORDINGS, Recipe
from gridless.training.recordings import Recordings
from gridless.training.resident import Resident
from gridless.training.sources import Clouds
from gridless.training.step import Average, TrainStep, autocast
from gridless.training.synchronise import synchronise


class Classifier(lightning.LightningModule):
    """A network and its recipe. The optimiser is stepped by `TrainStep`, which may be one captured graph."""

    def __init__(self, recipe: Recipe, examples: str = "") -> None:
        """`examples` is kept in checkpoints: what the run was begun with."""
        super().__init__()
        self.automatic_optimization = False
        self.recipe, self.examples = recipe, examples
        self.model = recipe.make_model()
        self.average = Average(self.model, recipe.average) if recipe.average else None
        self.averaged = None if self.average is None else self.average.model
        self.schedule = recipe.make_schedule()
        self.step: TrainStep | None = None
        self._restored: dict[str, Any] | None = None
        self._values: dict[str, float] = {}
        self.history: list[dict[str, float]] = []
        self._valid: list[Any] = [0, 0]

    @property
    def best(self) -> torch.nn.Module:
        """The network to evaluate and ship."""
        return self.model if self.averaged is None else self.averaged

    def forward(self, geometry: Geometry) -> Tensor:
        return self.best(geometry)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return self.recipe.make_optimiser(self.model)

    def setup(self, stage: str) -> None:
        if stage == "fit" and self.trainer.world_size > 1:
            synchronise(self.model)

    def on_fit_start(self) -> None:
        wrapped: Any = self.optimizers()
        alone = self.trainer.world_size == 1
        capture = self.recipe.capture
        if capture is None:
            capture = self.device.type == "cuda" and alone and self.recipe.data not in RECORDINGS
        elif capture and not alone:
            raise ValueError("capture: graphs are captured for one process only: leave it off with several devices")
        self.step = make_step(
            self.recipe, self.model, wrapped.optimizer, self.average, capture, backward=self.manual_backward
        )

    def on_train_start(self) -> None:
        if self._restored is not None:
            assert self.step is not None
            self.step.totals.copy_(self._restored["totals"][self.global_rank])
            self.schedule.load_state_dict(self._restored["schedule"])
            self._restored = None

    def training_step(self, batch: Batch, number: int) -> None:
        assert self.step is not None
        wrapped: Any = self.optimizers()
        steps = int(self.trainer.num_training_batches)
        begin_step(self.recipe, self.schedule, wrapped.optimizer, self.current_epoch, number, steps)
        # Lightning counts steps by these two; the optimiser itself is stepped inside, perhaps by a graph.
        wrapped._on_before_step()
        self.step(batch)
        wrapped._on_after_step()
        if number + 1 == steps:
            # Here and not when the epoch has ended, so that a checkpoint after the last step already knows of it.
            self._end_epoch()

    def _end_epoch(self) -> None:
        assert self.step is not None
        totals: Any = self.step.totals.clone()
        if self.trainer.world_size > 1:
            gathered: Any = self.all_gather(totals)
            totals = gathered.sum(0)
        loss, correct, count = totals.tolist()
        self.step.totals.zero_()
        self.schedule.epoch_ended(correct / count)
        rate = float(self.optimizers().optimizer.param_groups[0]["lr"])  # type: ignore[union-attr]
        self._values = {"train_loss": loss / count, "train_accuracy": correct / count, "learning_rate": rate}
        self.history.append({"epoch": self.current_epoch + 1, **self._values})

    def on_train_epoch_end(self) -> None:
        self.log_dict(self._values, rank_zero_only=True)

    def on_validation_epoch_start(self) -> None:
        self._valid = [torch.zeros((), dtype=torch.int64, device=self.device), 0]

    def validation_step(self, batch: Batch, number: int) -> None:
        with autocast(self.device, self.recipe.precision):
            logits = self.best.eval()(batch.geometry)
        self._valid[0] += (logits.argmax(1) == batch.labels).sum()
        self._valid[1] += len(batch.labels)

    def on_validation_epoch_end(self) -> None:
        accuracy = float(self._valid[0]) / max(self._valid[1], 1)
        self.log("valid_accuracy", accuracy, rank_zero_only=True)
        if self.history:
            self.history[-1]["valid_accuracy"] = accuracy

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert self.step is not None
        totals: Any = self.step.totals.clone()[None]
        if self.trainer.world_size > 1:
            totals = self.all_gather(totals[0])
        checkpoint["gridless"] = {
            "recipe": self.recipe.to_dict(),
            "examples": self.examples,
            "totals": totals.cpu(),
            "schedule": self.schedule.state_dict(),
            "history": [dict(entry) for entry in self.history],
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self._restored = checkpoint["gridless"]
        # Here and not when training starts, which it does not where the last step was made.
        self.history = checkpoint["gridless"]["history"]

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        return batch if batch.labels.device == device else batch.to(device)


class ResidentData(lightning.LightningDataModule):
    """Clouds or recordings that are moved to the device once, and batched, augmented and given geometry there.

    Where the recipe's geometry is not `online`, that of training is made on the CPU, by `workers` processes, from the
    files in `cache` if it is `offline`.
    """

    def __init__(
        self,
        recipe: Recipe,
        train: Clouds | Recordings,
        valid: Clouds | Recordings | None = None,
        workers: int | None = None,
        cache: Path = Path("cache"),
    ) -> None:
        super().__init__()
        self.recipe, self.train, self.valid, self.workers, self.cache = recipe, train, valid, workers, cache
        self.files: Precomputed | None = None
        self.loader: Resident | None = None
        self._state: dict[str, Any] | None = None

    def _module(self) -> Classifier:
        assert self.trainer is not None
        return self.trainer.lightning_module  # type: ignore[return-value]

    def prepare_data(self) -> None:
        # Once on each machine; its other processes wait, and then find the files.
        if self.recipe.geometry == "offline":
            self._files()

    def _files(self) -> Precomputed:
        if self.files is None:
            plan = self._module().model.plan
            self.files = precomputed(self.recipe, self.train, plan, self.cache, processes(self.workers))
        return self.files

    def train_dataloader(self) -> Resident:
        module = self._module()
        assert module.step is not None
        assert self.trainer is not None
        plan: Any = module.model.plan
        place: dict[str, Any] = {"rank": self.trainer.global_rank, "world": self.trainer.world_size}
        if self.recipe.geometry == "online":
            data = self.train.to(module.device)
            self.loader = data.loader(self.recipe, plan, epochs=self.recipe.epochs, **place)
        else:
            files = self._files() if self.recipe.geometry == "offline" else None
            near = self.train.loader(self.recipe, plan, **place)
            self.loader = Ahead(near, module.device, processes(self.workers), files)
        # Of a checkpoint at the end of an epoch Lightning restores the number of epochs, but not the loader's state.
        progress: Any = self.trainer.fit_loop.epoch_progress.current
        self.loader.epoch = progress.processed
        module.step.alone = self.loader.busy
        return self.loader

    def val_dataloader(self) -> Any:
        if self.valid is None:
            return []
        module = self._module()
        plan: Any = module.model.plan
        # Each process evaluates all of it: quick, and every process then logs the same.
        return self.valid.to(module.device).loader(self.recipe, plan, train=False)
