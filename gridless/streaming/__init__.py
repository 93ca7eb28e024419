"""The trained event network, live: packet by packet through its own layers, or event by event in a compiled loop."""

from __future__ import annotations

from torch import nn

from gridless.streaming.engine import Engine
from gridless.streaming.packets import Prediction, Stream
from gridless.streaming.session import Session

__all__ = ["Engine", "Prediction", "Session", "Stream", "stream"]


def stream(model: nn.Module, features: bool = True, order: str | None = None) -> Engine:
    """A trained event network as a live engine.

    >>> engine = gl.stream(model.eval())
    >>> for packet in camera:                # one event, or thousands
    ...     logits = engine(packet)          # a new prediction, or None

    What was trained is what runs: the engine equals `model` in its scan form at every event of every level, to the
    rounding of float32. The weights are copied: training the model further does not change the engine.

    `features`: keep the features of the events that the last packet fired. `order`: where strided convolutions apply
    their weights, at the "output" event or at the "input" event; by default whichever costs less.
    """
    return Engine(model, features, order)
