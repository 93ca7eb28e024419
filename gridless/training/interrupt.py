"""Ctrl-C ends a run after the current step, with a checkpoint."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any


class _Stop(BaseException):
    """Exception that leaves the training loop."""


class Interrupt:
    """Handler of Ctrl-C: the first sets `asked`, the second ends the run at once.

    Use it as `with Interrupt(...) as interrupt:`. It raises a KeyboardInterrupt that says whether the checkpoint `last`
    exists. Unless `stepping` is set, the first Ctrl-C ends the run at once, too: before the first
    step, and with several processes, which would stop at different steps.
    """

    def __init__(self, last: Path) -> None:
        self.last = last
        self.stepping = self.asked = False
        self._process, self._before = os.getpid(), None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before: Any = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if isinstance(error, _Stop):
            message = (
                "interrupted. Continue with --resume." if self.last.is_file() else "interrupted before a checkpoint."
            )
            raise KeyboardInterrupt(message) from None

    def stop(self) -> None:
        raise _Stop

    def _pressed(self, number: int, frame: Any) -> None:
        # Worker processes inherit this handler and receive Ctrl-C from the terminal, too; they end with their parent.
        if os.getpid() != self._process:
            return
        if self.asked or not self.stepping:
            raise _Stop
        self.asked = True
