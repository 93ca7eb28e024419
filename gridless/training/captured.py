"""The training step as a captured graph: batches of any size are padded to common capacities, at fixed addresses.

Capacities are a little above what was seen; the padding belongs to no example and no edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch

from gridless.backends import backend_for
from gridless.training.batch import EXAMPLES, Batch, Group, Sizes, with_fields

# Real batches that run before the first capture: they settle autotuning, optimiser state and capacities.
WARM_UP = 6


class CapturedStep:
    """A step, `run`, for batches of one number of examples, as a graph.

    A batch that does not fit makes the capacities grow and the graph anew. `alone` is entered while a graph is
    captured. `others` are the captured steps of other numbers of examples, from whose sizes this one begins.
    """

    def __init__(self, examples: int, others: Mapping[int, CapturedStep]) -> None:
        self.examples, self.others = examples, others
        self.low: Sizes = {}
        self.high: Sizes = {}
        self.slot: Slot | None = None
        self.graph: Any = None
        self.warm = 0

    def __call__(
        self,
        batch: Batch,
        run: Callable[[Batch], None],
        optimiser: torch.optim.Optimizer,
        alone: AbstractContextManager,
    ) -> None:
        needed = batch.sizes
        if self.slot is not None and self.slot.holds(needed):
            self.slot.load(batch)
            self.graph.replay()
            return
        self._learn(needed)
        if self.warm < WARM_UP:
            # Unpadded, while the sizes of batches are being learned.
            self.warm += 1
            run(batch)
            return
        slot = Slot(batch, capacity(self.high, self.low))
        self.graph = _record(slot, run, optimiser, alone)
        self.slot = slot

    def _learn(self, needed: Sizes) -> None:
        known = next((other for other in self.others.values() if other.slot is not None), None)
        if not self.high and known is not None and self.examples < known.examples:
            # The last batch of an epoch comes once in each: its sizes are spread as those of the others are.
            self.warm, part = WARM_UP, math.sqrt(self.examples / known.examples)
            self.low = {name: size - int(part * (known.high[name] - known.low[name])) for name, size in needed.items()}
        self.low = {name: min(size, self.low.get(name, size)) for name, size in needed.items()}
        self.high = {name: max(size, self.high.get(name, 0)) for name, size in needed.items()}


def _record(slot: Slot, run: Callable[[Batch], None], optimiser: Any, alone: AbstractContextManager) -> Any:
    """One padded step outside the graph (it counts), then the capture (which runs nothing)."""
    with alone:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            run(slot.batch)
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        optimiser.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            run(slot.batch)
    return graph


def capacity(high: Mapping[str, int], low: Mapping[str, int] | None = None, slack: float = 0.02) -> Sizes:
    """Sizes that hold the largest seen and more: twice as far again as they were spread, and a little.

    Multiples of 64, so that rows stay aligned. The number of examples stays as it is.
    """
    low = high if low is None else low
    room = {n: -(-int(size * (1 + slack) + 2 * (size - low[n]) + 64) // 64) * 64 for n, size in high.items()}
    return room | {EXAMPLES: high[EXAMPLES]}


class Slot:
    """One padded batch, of the sizes `room`, at fixed addresses: `load` overwrites it, and a step is given `batch`."""

    def __init__(self, batch: Batch, room: Sizes) -> None:
        group = batch.group
        self.room, self._plan, self._share = room, group.plan, batch.share
        self._padding = {name: room[name] - size for name, size in batch.sizes.items()}
        self._tensors = [f.tensor.new_zeros(room[f.of] + f.splits, *f.tensor.shape[1:]) for f in group.fields]
        self._geometry = with_fields(self._plan, group.geometry, self._tensors, room, self._padding)
        self._fill = None
        if backend_for(batch.labels.device) == "gpu":
            from gridless.training.fill import Fill

            self._fill = Fill(self._tensors)
        self.load(batch)

    def holds(self, needed: Sizes) -> bool:
        # One row of padding at least, so that every layer knows it must look at the splits.
        return all(needed[name] < room for name, room in self.room.items() if name != EXAMPLES)

    def load(self, batch: Batch) -> None:
        """Copy another batch, which fits, over this one, and the padding after it."""
        group, k = batch.group, batch.number
        if len(group.fields) != len(self._tensors):
            raise ValueError(f"a batch of {len(group.fields)} tensors does not fill a slot of {len(self._tensors)}")
        if self._fill is not None:
            return self._fill(group, k)
        for mine, (part, fill) in zip(self._tensors, group.parts(k), strict=True):
            mine[: len(part)] = part
            mine[len(part) :] = fill

    @property
    def batch(self) -> Batch:
        """The same tensors in fresh structures, so that nothing derived from an earlier batch is found beside them."""
        geometry = with_fields(self._plan, self._geometry, self._tensors, self.room, self._padding)
        return Batch(Group(self._plan, geometry, self._tensors[0], [self._share]))
