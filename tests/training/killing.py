"""A run that is killed, and the weights that a run leaves."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file


class Killed(Exception):
    """What ends a run in these tests."""


class KillAfter:
    """Ends the run without warning after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_start(self, state, batch):
        if state.step == self.steps:
            raise Killed


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")
