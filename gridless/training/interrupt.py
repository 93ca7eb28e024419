"""Ctrl-C while training: steps are kept as a checkpoint, from which the run goes on exactly."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback


class _Stop(BaseException):
    """Ends Lightning's loop: at a KeyboardInterrupt it would end the whole process."""


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
