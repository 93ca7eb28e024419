"""The trained event network, live: packet by packet through its own layers, or event by event in a compiled loop."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gridless.live.engine import Engine
from gridless.live.packets import Prediction, Stream
from gridless.live.program import Program
from gridless.live.session import Session

if TYPE_CHECKING:
    from gridless.live.compiled import Compiled

__all__ = ["Engine", "Prediction", "Program", "Session", "Stream", "stream"]


def stream(model: nn.Module, features: Iterable[str] = (), compiled: str | Path | None = None) -> Engine | Compiled:
    """A trained event network as a live engine.

    >>> engine = gl.stream(model.eval())
    >>> for packet in camera:                # one event, or thousands
    ...     logits = engine(packet)          # a new prediction, or None

    The engine equals `model` in its scan form at every event, to the rounding of float32. The weights are copied:
    training the model further changes neither the engine nor its copies (`copy`, `pickle`).

    The network is read with `torch.fx`, on a copy, and then compared with a `Session` on 200 generated events, which
    takes less than a second. A forward that depends on more than its values, such as `isinstance(x, Tensor)` or random
    numbers, is refused.

    Args:
        model: a module with a `plan` of events and a `forward(geometry, memory)`; see `Stream` for its predictions.
        features: names of modules whose values at the events of the last packet are kept, such as "blocks.0".
        compiled: a folder. The stream then runs the C that `gl.export` writes there, compiled by this machine's
            compiler: the same bits as on a board. Such a stream keeps no features.
    """
    if compiled is None:
        return Engine(model, features)
    if list(features):
        raise ValueError("stream: a compiled stream keeps no features. Leave out features= or compiled=.")
    from gridless.live.compiled import Compiled

    return Compiled(model, compiled)
