"""Learning rates over the course of a run."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


class Cosine:
    """Linear warm-up for `warm_up` epochs, then half a cosine from the full rate down to `floor` of it.

    The rate depends only on `position`, in epochs: 3.5 is the middle of the fourth epoch.
    """

    def __init__(self, rate: float, epochs: int, warm_up: float = 0.0, floor: float = 0.0) -> None:
        self.rate, self.epochs, self.warm_up, self.floor = rate, epochs, warm_up, floor

    def __call__(self, position: float) -> float:
        if position < self.warm_up:
            return self.rate * (position + 0.01) / (self.warm_up + 0.01)
        along = (position - self.warm_up) / max(self.epochs - self.warm_up, 1e-9)
        return self.rate * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * min(along, 1.0))))

    def epoch_ended(self, accuracy: float) -> None:
        """No-op: the rate does not depend on the accuracy."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """No-op: there is no state."""


class Plateau:
    """The paper's rule: multiply the rate by `factor` if the accuracy has not risen by 1e-4 for `patience` epochs."""

    def __init__(self, rate: float, factor: float = 0.2, patience: int = 20) -> None:
        self.rate, self.factor, self.patience = rate, factor, patience
        self.best, self.waited = -math.inf, 0

    def __call__(self, position: float) -> float:
        return self.rate

    def epoch_ended(self, accuracy: float) -> None:
        if accuracy > self.best + 1e-4:
            self.best, self.waited = accuracy, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.rate, self.waited = self.rate * self.factor, 0

    def state_dict(self) -> dict[str, Any]:
        return {"rate": self.rate, "best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rate, self.best, self.waited = state["rate"], state["best"], state["waited"]


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of every group. A tensor is filled in place, because captured graphs read its address."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
