"""A run that is killed, and the weights that a run leaves."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class Killed(Exception):
    """Ends a run in these tests."""


class KillAfter:
    """Ends the run without warning after so many steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def on_step_start(self, state, batch):
        if state.step == self.steps:
            raise Killed


class KillAt:
    """Ends the run at a place of the loop, such as `on_validation_start`, once so many steps were made."""

    def __init__(self, place: str, steps: int) -> None:
        self.steps = steps
        setattr(self, place, self.reached)

    def reached(self, state, *_) -> None:
        if state.step >= self.steps:
            raise Killed


def step_of(checkpoint: Path) -> int:
    """The step at which a checkpoint was written. Python's own unpickler is several times as fast as torch's."""
    return torch.load(checkpoint, weights_only=False)["step"]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "weights.safetensors")


def assert_same(whole: Path, cut: Path) -> None:
    """Two runs left the same weights, to the bit, the same results but for the time, and the same log."""
    for (name, a), b in zip(weights(whole).items(), weights(cut).values(), strict=True):
        assert torch.equal(a, b), name
    results = [json.loads((path / "results.json").read_text()) | {"seconds": 0} for path in (whole, cut)]
    assert results[0] == results[1]
    assert (whole / "metrics.csv").read_text() == (cut / "metrics.csv").read_text()
