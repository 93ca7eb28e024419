"""Logs of the epochs of a run: metrics.csv, TensorBoard, and a line of progress."""

from __future__ import annotations

import csv
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gridless.kernels.progress import is_terminal, line

# Seconds between printed lines if stderr is not a terminal.
EVERY = 5.0

_SHOWN = (("train_loss", 3, "loss"), ("train_accuracy", 3, "train"), ("valid_accuracy", 4, "valid"))


class Log:
    """Writes one row per epoch to OUT/metrics.csv and, if it is installed, to TensorBoard.

    `done` is the number of steps before the run was resumed: TensorBoard entries of later steps are dropped.
    """

    def __init__(self, out: Path, done: int = 0) -> None:
        self.file, self.board = out / "metrics.csv", None
        if find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self.board = SummaryWriter(str(out / "tensorboard"), purge_step=done + 1 if done else None)
        else:
            message = "gridless: tensorboard is not installed: logs go to CSV only (pip install tensorboard)"
            print(message, file=sys.stderr)

    def epoch(self, history: list[dict[str, float]], step: int) -> None:
        """Log the last epoch of `history`, which ended after `step` steps."""
        names = list(dict.fromkeys(name for entry in history for name in entry))
        # Rewrite the file: there may be new columns, and an interrupted run may have left rows of later epochs.
        with self.file.open("w", newline="", encoding="utf-8") as file:
            rows = csv.DictWriter(file, names)
            rows.writeheader()
            rows.writerows(history)
        if self.board is not None:
            for name, value in history[-1].items():
                if name != "epoch":
                    self.board.add_scalar(name, value, step)
            self.board.flush()

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


class EpochBar:
    """Progress line: epochs done, time left, and the last epoch's loss, accuracies and examples per second.

    It never waits for the device. If stderr is not a terminal, it prints a line every few seconds instead.
    """

    def __init__(self, epochs: int, done: float = 0.0) -> None:
        self.epochs, self.seen, self.since, self.drawn = epochs, 0, time.perf_counter(), 0.0
        self.bar: Any = None
        if is_terminal(sys.stderr):
            self.bar = line("{task.fields[words]}")
            self.bar.start()
            self.task = self.bar.add_task("epoch", total=epochs, completed=done, words="")

    def step(self, examples: int, done: float) -> None:
        """Add `examples` that were seen; `done` is the position in epochs, with its fraction."""
        self.seen += examples
        now = time.perf_counter()
        if self.bar is not None and now - self.drawn > 0.25:
            self.drawn = now
            self.bar.update(self.task, completed=round(done, 2))

    def epoch(self, entry: dict[str, float]) -> None:
        """Show the figures `entry` of an epoch that ended."""
        now, done = time.perf_counter(), int(entry["epoch"])
        parts = [f"{entry[k]:.{n}f} {t}" for k, n, t in _SHOWN if k in entry]
        parts.append(f"{self.seen / (now - self.since):,.0f} examples/s")
        self.seen, self.since = 0, now
        if self.bar is not None:
            self.bar.update(self.task, completed=done, words=", ".join(parts))
        elif now - self.drawn > EVERY or done == self.epochs:
            self.drawn = now
            print(f"epoch {done}/{self.epochs}: {', '.join(parts)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
