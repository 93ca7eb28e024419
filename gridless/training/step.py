"""One step of training: forward, loss, backward, optimiser, running averages; eager or captured."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gridless.augment.stateless import keys
from gridless.training.batch import Batch
from gridless.training.captured import capture as captured
from gridless.training.recipe import Recipe
from gridless.training.schedule import set_rate


def autocast(device: torch.device, precision: str) -> AbstractContextManager:
    """`32` (TF32 products on the GPU where torch allows them), or `bf16` by autocast.

    On the CPU both are float32, because a CPU without bfloat16 instructions takes 40 times as long with bfloat16.
    """
    if precision not in ("32", "bf16"):
        raise ValueError(f"precision is {precision!r}. Give '32' or 'bf16'.")
    rounded = precision == "bf16" and device.type != "cpu"
    return torch.autocast(device.type, torch.bfloat16) if rounded else nullcontext()


class Loss(NamedTuple):
    """Loss and counts of one batch: scalars on its device, of fixed shape, so that a step can be captured.

    `right` of `judged` items (examples, points, events) are correct. Their quotient over an epoch is logged as
    `train_accuracy`, and drives the plateau schedule. Without counts the loss drives it.
    """

    value: Tensor
    right: Tensor | None = None
    judged: Tensor | None = None


def network_loss(model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
    """The network's own loss if it has one, else the cross entropy; `smoothing` is the label smoothing."""
    own = getattr(model, "loss", None)
    if own is None:
        logits = model(batch.geometry).float()
        loss = cross_entropy(logits, batch.labels, label_smoothing=smoothing)
    else:
        loss, logits = own(batch.geometry, batch.labels, smoothing)
    loss, logits = loss.float(), logits.detach().float()
    count = torch.full_like(loss.detach(), len(batch.labels))
    if logits.ndim:
        return Loss(loss, (logits.argmax(1) == batch.labels).sum(), count)
    # A network that labels points returns the accuracy summed over examples, instead of logits.
    judged = _judged_points(batch, count)
    return Loss(loss, logits / count * judged, judged)


def _judged_points(batch: Batch, count: Tensor) -> Tensor:
    """Number of points that have a label; `count` if the cloud has no rows `part`."""
    cloud: Any = next(iter(batch.geometry.values()))
    if "part" not in cloud.rows:
        return count
    return ((cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)).sum().to(count.dtype)


class Average:
    """An exponential moving average of the weights and running statistics of a model."""

    def __init__(self, model: nn.Module, keep: float) -> None:
        self.keep, self.source = keep, model
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._pairs: tuple[list[Tensor], list[Tensor]] | None = None

    @torch.no_grad()
    def update(self) -> None:
        if self._pairs is None:
            # Collect the tensors at the first step: before it, the model may still move to another device.
            source, average = self.source.state_dict(), self.model.state_dict()
            names = [name for name, tensor in source.items() if tensor.is_floating_point()]
            self._pairs = [average[n] for n in names], [source[n] for n in names]
        torch._foreach_lerp_(*self._pairs, 1 - self.keep)


class TrainStep:
    """A training step: call it with a `Batch`.

    `totals` on the device sums up loss, correct items, judged items and examples; items are examples or points. A step
    never waits for the device. With `capture`, batches with the same number of examples are padded to common
    capacities, and after a warm-up the whole step is one CUDA graph. A batch that does not fit increases the capacities
    and causes a new capture.

    Args:
        model: the network.
        optimiser: optimiser of the network's parameters.
        smoothing: label smoothing.
        precision: `32`, or `bf16` by autocast (GPU only).
        clip: maximum norm of the gradient; longer gradients are clipped to it.
        average: moving average, updated after every step.
        capture: capture the step as a graph; needs a CUDA device.
        backward: called with the loss, in place of its own `backward`.
        loss: loss(model, batch, smoothing) returns a `Loss`; by default `network_loss`.
    """

    def __init__(
        self,
        model: nn.Module,
        optimiser: torch.optim.Optimizer,
        smoothing: float = 0.0,
        precision: str = "32",
        clip: float | None = None,
        average: Average | None = None,
        capture: bool = False,
        backward: Callable[[Tensor], Any] = Tensor.backward,
        loss: Callable[[Any, Batch, float], Loss] | None = None,
    ) -> None:
        self.model, self.optimiser, self.smoothing, self.loss = model, optimiser, smoothing, loss or network_loss
        self.precision, self.clip, self.average, self.backward = precision, clip, average, backward
        self.device = next(model.parameters()).device
        self.totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        self.frozen = [part for part in model.children() if not any(p.requires_grad for p in part.parameters())]
        if capture and self.device.type != "cuda":
            raise ValueError(f"capture needs a CUDA device, not {self.device}. Leave capture off.")
        self.captured = captured(self.run) if capture else None

    def __call__(self, batch: Batch) -> None:
        (self.captured or self.run)(batch)

    def run(self, batch: Batch) -> None:
        """Make a step eagerly."""
        self.optimiser.zero_grad(set_to_none=True)
        for part in self.frozen:
            part.eval()
        with autocast(self.device, self.precision):
            loss, right, judged = self.loss(self.model, batch, self.smoothing)
        self.backward(loss * batch.share)
        if self.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip, foreach=True)
        self.optimiser.step()
        with torch.no_grad():
            count = torch.full_like(loss, len(batch.labels))
            counts = [torch.zeros_like(loss) if value is None else value for value in (right, judged)]
            self.totals += torch.stack([loss * count, *counts, count])
            if self.average is not None:
                self.average.update()

    def read(self) -> tuple[float, float]:
        """Return mean loss and accuracy since the last call, and reset them. Waits for the device."""
        loss, right, judged, count = self.totals.tolist()
        self.totals.zero_()
        return (loss / count, right / max(judged, 1)) if count else (float("nan"), float("nan"))


def make_step(
    recipe: Recipe, model: nn.Module, optimiser: torch.optim.Optimizer, average: Average | None, **more: Any
) -> TrainStep:
    """The step of a recipe. By default it is captured if there is a GPU and the plan has no edges of events."""
    device, capture = next(model.parameters()).device, recipe.capture
    if capture is None:
        plan: Any = model.plan
        capture = device.type == "cuda" and not any(line.op == "causal" for line in plan.steps.values())
    settings = {"average": average, "capture": capture, **more}
    return TrainStep(model, optimiser, recipe.smoothing, recipe.precision, recipe.clip, **settings)


def begin_step(
    recipe: Recipe, schedule: Any, optimiser: torch.optim.Optimizer, epoch: int, number: int, steps: int
) -> None:
    """Set the learning rate and the random state (for dropout) of a step. Both depend only on its position."""
    set_rate(optimiser, schedule(epoch + number / steps))
    torch.manual_seed(int(keys(recipe.seed, epoch, torch.tensor([-2 - number]))[0]))


class StepCounter(torch.optim.Optimizer):
    """Wrapper of an optimiser for Lightning, whose closure is a whole training step, eager or captured.

    >>> self.optimizers().step(lambda: self.captured(geometry, labels))

    The closure calls the optimiser. Lightning only counts the steps, to save checkpoints and to stop.
    """

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        super().__init__(optimiser.param_groups, {})

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        with torch.enable_grad():
            return closure()

    def state_dict(self) -> dict[str, Any]:
        return self.optimiser.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.optimiser.load_state_dict(state_dict)
