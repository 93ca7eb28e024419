"""One step of training: forward, loss, backward, optimiser, running averages; eager, compiled or captured."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gridless.training import static
from gridless.training.batches import Batch, Sizes

# Real batches that run before the first capture: they settle autotuning, optimiser state and capacities.
WARM_UP = 6


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """`32` (TF32 products on the GPU where torch allows them), or `bf16` by autocast."""
    if precision not in ("32", "bf16"):
        raise ValueError(f"precision must be '32' or 'bf16', not {precision!r}")
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


class Average:
    """An exponential moving average of the weights and running statistics of a model."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        self.keep, self.source = keep, model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None

    @torch.no_grad()
    def update(self) -> None:
        if self._pairs is None:
            # Not before the first step: until then the model may be moved to another device.
            theirs, mine = self.source.state_dict(), self.model.state_dict()
            names = [name for name, tensor in theirs.items() if tensor.is_floating_point()]
            self._pairs = [mine[n] for n in names], [theirs[n] for n in names]
        torch._foreach_lerp_(*self._pairs, 1 - self.keep)


class TrainStep:
    """Calling it with a `Batch` makes one step; `totals` (loss sum, correct, examples) grows on the device.

    Nothing waits for the device. With `capture`, batches of one size are padded to common capacities and, after a few,
    the whole step is one captured graph; a batch that does not fit makes the capacities grow and the graph anew.
    `alone` is entered while a graph is captured: the lock of whoever else uses the device.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        smoothing: float = 0.0,
        precision: str = "32",
        clip: float | None = None,
        average: Average | None = None,
        compiled: bool = False,
        capture: bool = False,
        backward: Callable[[Tensor], Any] = Tensor.backward,
    ) -> None:
        self.model, self.optimiser, self.smoothing = model, optimiser, smoothing
        self.precision, self.clip, self.average, self.backward = precision, clip, average, backward
        self.device = next(model.parameters()).device
        self.totals = torch.zeros(3, dtype=torch.float64, device=self.device)
        self.frozen = [part for part in model.children() if not any(p.requires_grad for p in part.parameters())]
        if capture and self.device.type != "cuda":
            raise ValueError("capturing graphs needs a CUDA device: leave capture off")
        self.forward = torch.compile(model, dynamic=not capture) if compiled else model
        self.own_loss: Any = getattr(model, "loss", None)
        if self.own_loss is not None and compiled:
            self.own_loss = torch.compile(self.own_loss, dynamic=True)
        self.capture = capture
        self.alone: AbstractContextManager = nullcontext()
        self._graphs: dict[int, _Captured] = {}

    def __call__(self, batch: Batch) -> None:
        if not self.capture:
            self.run(batch)
            return
        examples = len(batch.labels)
        if examples not in self._graphs:
            self._graphs[examples] = _Captured(self, examples)
        self._graphs[examples](batch)

    def run(self, batch: Batch) -> None:
        """The step itself, launch by launch."""
        self.optimiser.zero_grad(set_to_none=True)
        loss, logits = self._loss(batch)
        self.backward(loss * batch.share)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            correct = (logits.argmax(1) == batch.labels).sum()
            count = torch.full_like(loss, len(batch.labels))
            self.totals += torch.stack([loss * count, correct, count])
            if self.average is not None:
                self.average.update()

    def _loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, the network's own where it has one, and what accuracy is counted on (B, classes).

        An ensemble's logits are (members, B, classes).
        """
        labels = batch.labels
        for part in self.frozen:
            part.eval()
        with autocast(self.device, self.precision):
            if self.own_loss is not None:
                loss, logits = self.own_loss(batch.geometry, labels, self.smoothing)
                return loss.float(), logits.float()
            logits = self.forward(batch.geometry).float()
        if logits.ndim == 2:
            return cross_entropy(logits, labels, label_smoothing=self.smoothing), logits
        every = cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits)), label_smoothing=self.smoothing)
        return every, logits.detach().softmax(2).mean(0)

    def read(self) -> tuple[float, float]:
        """Mean loss and accuracy since the last reading. Waits for the device."""
        loss, correct, count = self.totals.tolist()
        self.totals.zero_()
        return (loss / count, correct / count) if count else (float("nan"), float("nan"))


class _Captured:
    """The step for batches of one number of examples, as a graph."""

    def __init__(self, step: TrainStep, examples: int) -> None:
        self.step, self.examples = step, examples
        self.low: Sizes = {}
        self.high: Sizes = {}
        self.room: Sizes = {}
        self.slot: static.Slot | None = None
        self.graph: Any = None
        self.warm = 0

    def __call__(self, batch: Batch) -> None:
        needed = batch.sizes
        if self.slot is not None and static.holds(self.room, needed):
            self.slot.load(batch)
            self.graph.replay()
            return
        self._learn(needed)
        if self.warm < WARM_UP:
            # Unpadded, while the sizes of batches are being learned.
            self.warm += 1
            self.step.run(batch)
            return
        plan: Any = self.step.model.plan
        room = static.capacity(self.high, self.low)
        slot = static.Slot(static.padded(batch, plan, room), plan)
        graph = self._record(slot)
        self.room, self.slot, self.graph = room, slot, graph

    def _learn(self, needed: Sizes) -> None:
        known = next((other for other in self.step._graphs.values() if other.slot is not None), None)
        if not self.high and known is not None and self.examples < known.examples:
            # The last batch of an epoch comes once in each: its sizes are spread as those of the others are.
            self.warm, part = WARM_UP, math.sqrt(self.examples / known.examples)
            self.low = {name: size - int(part * (known.high[name] - known.low[name])) for name, size in needed.items()}
        self.low = {name: min(size, self.low.get(name, size)) for name, size in needed.items()}
        self.high = {name: max(size, self.high.get(name, 0)) for name, size in needed.items()}

    def _record(self, slot: static.Slot) -> Any:
        """One padded step outside the graph (it counts), then the capture (which runs nothing)."""
        step = self.step
        with step.alone:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                step.run(slot.batch)
            torch.cuda.current_stream().wait_stream(side)
            torch.cuda.synchronize()
            step.optimiser.zero_grad(set_to_none=True)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                step.run(slot.batch)
        return graph
