"""Explanation of a gap between training and held-out accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# Smallest gap between training and held-out accuracy that is reported.
LARGE = 0.15
# Runs with fewer steps are advised to train longer.
FEW_STEPS = 100
# Drop of the held-out accuracy below its best that counts as overfitting.
FALL = 0.05


def gap(history: Sequence[dict[str, Any]], steps: int, sessions: bool = False) -> str | None:
    """Explain a large gap between training and held-out accuracy at the end; None if it is small or unknown.

    Args:
        history: the figures of each epoch.
        steps: number of steps made.
        sessions: True if the held-out files may be from other sessions than the training files.
    """
    train, valid = (history[-1].get(name) for name in ("train_accuracy", "valid_accuracy"))
    if train is None or valid is None or not train - valid > LARGE:
        return None
    summary = f"accuracy is {train:.1%} in training and {valid:.1%} on held-out examples"
    best = max((entry for entry in history if "valid_accuracy" in entry), key=lambda entry: entry["valid_accuracy"])
    if steps < FEW_STEPS:
        return f"{summary}: {steps} steps are few; train longer (--epochs)"
    if best["valid_accuracy"] - valid > FALL:
        peak = f"it was {best['valid_accuracy']:.1%} after epoch {best['epoch']}"
        return f"{summary}, where {peak}: the network overfits; train for fewer epochs, or augment more"
    if sessions:
        remedy = "learn from more sessions, and look at split.txt for what is held out"
        return f"{summary}: held-out files may be of another kind of session; {remedy}"
    return f"{summary}: the network overfits; give more examples, or augment more"
