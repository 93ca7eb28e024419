"""A progress bar over epochs that never makes the device wait."""

from __future__ import annotations

import sys
import time
from typing import Any

import lightning

from gridless.progress import line


class EpochBar(lightning.Callback):
    """One line: epochs done, time left, and the last epoch's loss, accuracies and examples per second.

    Where stderr is not a terminal, a line is printed every few seconds instead.
    """

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.seen, self.since, self.drawn = 0, 0.0, 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.since = time.perf_counter()
        if not trainer.is_global_zero or not sys.stderr.isatty():
            return
        self.bar = line("{task.fields[words]}")
        self.bar.start()
        self.task = self.bar.add_task("epoch", total=trainer.max_epochs, completed=trainer.current_epoch, words="")

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        self.seen += len(batch.labels) * trainer.world_size
        now = time.perf_counter()
        if self.bar is not None and now - self.drawn > 0.25:
            self.drawn = now
            done = trainer.current_epoch + (number + 1) / trainer.num_training_batches
            self.bar.update(self.task, completed=round(done, 2))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if not trainer.is_global_zero:
            return
        # Lightning's own metrics are those of the epoch before, until all callbacks have run.
        now, values = time.perf_counter(), {**trainer.callback_metrics, **module.history[-1]}
        words = [f"{values[k]:.{n}f} {t}" for k, n, t in _SHOWN if k in values]
        words.append(f"{self.seen / (now - self.since):,.0f} examples/s")
        self.seen, self.since = 0, now
        done = trainer.current_epoch + 1
        if self.bar is not None:
            self.bar.update(self.task, completed=done, words=", ".join(words))
        elif now - self.drawn > 5 or done == trainer.max_epochs:
            self.drawn = now
            print(f"epoch {done}/{trainer.max_epochs}: {', '.join(words)}", file=sys.stderr, flush=True)

    def on_train_end(self, trainer: Any, module: Any) -> None:
        self._stop()

    def on_exception(self, trainer: Any, module: Any, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


_SHOWN = (("train_loss", 3, "loss"), ("train_accuracy", 3, "train"), ("valid_accuracy", 4, "valid"))
