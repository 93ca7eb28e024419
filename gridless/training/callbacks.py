"""What happens beside the steps of a run: checkpoints are whole, Ctrl-C leaves one, and a line shows how far it is."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins.io import TorchCheckpointIO

from gridless.data.files import write_whole
from gridless.kernels.progress import is_terminal, line

# Seconds between lines where stderr is not a terminal.
EVERY = 5.0


class _Stop(BaseException):
    """Ends Lightning's loop: at a KeyboardInterrupt it would end the whole process."""


class WholeCheckpoints(TorchCheckpointIO):
    """Checkpoints that are whole or not there: Lightning's own way goes through TMPDIR, and from another file system it
    copies over the one that is there."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        # In memory first: what torch writes to a file itself says nothing of a full disk.
        made = io.BytesIO()
        torch.save(checkpoint, made)
        write_whole(path, made.getbuffer())


class Interrupt(Callback):
    """Between `with interrupt.caught():` a first Ctrl-C ends the run after the step at hand (in the
    last of an epoch or in a validation, after the next one), a second one at once.

    Either becomes a KeyboardInterrupt that says whether there is a checkpoint at `last`. With several processes, which
    would not all stop at the same step, and before the first step, a first Ctrl-C ends the run at once, too.
    """

    def __init__(self, last: Path, alone: bool) -> None:
        self.last, self.alone = last, alone
        self.stepping = self.asked = False
        self.process = os.getpid()

    @contextmanager
    def caught(self) -> Iterator[None]:
        main = threading.current_thread() is threading.main_thread()
        before = signal.signal(signal.SIGINT, self._pressed) if main else None
        try:
            yield
        except _Stop:
            words = "interrupted; go on with --resume" if self.last.is_file() else "interrupted before a checkpoint"
            raise KeyboardInterrupt(words) from None
        finally:
            if main:
                signal.signal(signal.SIGINT, before)

    def _pressed(self, number: int, frame: Any) -> None:
        # Processes that make geometry inherit this, and a terminal interrupts them too: they end with this one.
        if os.getpid() != self.process:
            return
        if self.asked or not self.stepping:
            raise _Stop
        self.asked = True

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, number: int) -> None:
        self.stepping = self.alone

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, number: int) -> None:
        # After the last step of an epoch comes its validation, which a run resumed there would leave out.
        steps = trainer.num_training_batches
        if self.asked and (number + 1 < steps or steps == 1):
            trainer.save_checkpoint(self.last)
            raise _Stop


class EpochBar(Callback):
    """One line: epochs done, time left, and the last epoch's loss, accuracies and examples per second.

    It never makes the device wait. Where stderr is not a terminal, a line is printed every few seconds instead.
    """

    def __init__(self) -> None:
        self.bar: Any = None
        self.task: Any = None
        self.seen, self.since, self.drawn = 0, 0.0, 0.0

    def on_train_start(self, trainer: Any, module: Any) -> None:
        self.since = time.perf_counter()
        if not trainer.is_global_zero or not is_terminal(sys.stderr):
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
        # A run that is resumed at the end of an epoch has seen nothing of it.
        if not trainer.is_global_zero or not self.seen:
            return
        # Lightning's own metrics may be those of an earlier epoch.
        now, values = time.perf_counter(), module.history[-1]
        words = [f"{values[k]:.{n}f} {t}" for k, n, t in _SHOWN if k in values]
        words.append(f"{self.seen / (now - self.since):,.0f} examples/s")
        self.seen, self.since = 0, now
        done = trainer.current_epoch + 1
        if self.bar is not None:
            self.bar.update(self.task, completed=done, words=", ".join(words))
        elif now - self.drawn > EVERY or done == trainer.max_epochs:
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
