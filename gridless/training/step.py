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

    On the CPU both are float32: one without instructions for bfloat16 takes 40 times as long with it.
    """
    if precision not in ("32", "bf16"):
        raise ValueError(f"precision must be '32' or 'bf16', not {precision!r}")
    rounded = precision == "bf16" and device.type != "cpu"
    return torch.autocast(device.type, torch.bfloat16) if rounded else nullcontext()


class Loss(NamedTuple):
    """What one batch taught: scalars on the device of the batch, of fixed shape, so that a step can be captured.

    `right` of `judged` items (examples, points, events) were right. Over an epoch their quotient is logged as
    `train_accuracy`, and the plateau schedule watches it. Without them it watches the loss.
    """

    value: Tensor
    right: Tensor | None = None
    judged: Tensor | None = None


def network_loss(model: Any, batch: Batch, smoothing: float = 0.0) -> Loss:
    """The network's own loss if it has one, else the cross entropy; `smoothing` is that of labels."""
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
    # A network that labels points counts itself: the share of points that are right, summed over examples.
    judged = _judged_points(batch, count)
    return Loss(loss, logits / count * judged, judged)


def _judged_points(batch: Batch, count: Tensor) -> Tensor:
    """How many points have a label; `count` where points have none."""
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
            # Not before the first step: until then the model may be moved to another device.
            source, average = self.source.state_dict(), self.model.state_dict()
            names = [name for name, tensor in source.items() if tensor.is_floating_point()]
            self._pairs = [average[n] for n in names], [source[n] for n in names]
        torch._foreach_lerp_(*self._pairs, 1 - self.keep)


class TrainStep:
    """Calling it with a `Batch` makes one step; `totals` (loss sum, right ones, judged ones, examples) grows on
    the device; what is judged are examples, or points.

    Nothing waits for the device. With `capture`, batches of one size are padded to common capacities and, after a few,
    the whole step is one captured graph; a batch that does not fit makes the capacities grow and the graph anew.

    Args:
        model: the network.
        optimiser: of the network's parameters.
        smoothing: of labels.
        precision: `32`, or on a GPU `bf16` by autocast.
        clip: the longest gradient; longer ones are shortened to it.
        average: kept up to date after every step.
        capture: capture the step as a graph; needs a CUDA device.
        backward: called with the loss, in place of its own `backward`.
        loss: (model, batch, smoothing) to a `Loss`; None: that of labels, or the network's own.
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
            raise ValueError("capturing graphs needs a CUDA device: leave capture off")
        self.captured = captured(self.run) if capture else None

    def __call__(self, batch: Batch) -> None:
        (self.captured or self.run)(batch)

    def run(self, batch: Batch) -> None:
        """The step itself, launch by launch."""
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
        """Mean loss and accuracy since the last reading. Waits for the device."""
        loss, right, judged, count = self.totals.tolist()
        self.totals.zero_()
        return (loss / count, right / max(judged, 1)) if count else (float("nan"), float("nan"))


def make_step(
    recipe: Recipe, model: nn.Module, optimiser: torch.optim.Optimizer, average: Average | None, **more: Any
) -> TrainStep:
    """The step that a recipe says; captured, unless it says otherwise, where there is a GPU and no edges of events."""
    device, capture = next(model.parameters()).device, recipe.capture
    if capture is None:
        plan: Any = model.plan
        capture = device.type == "cuda" and not any(line.op == "causal" for line in plan.steps.values())
    settings = {"average": average, "capture": capture, **more}
    return TrainStep(model, optimiser, recipe.smoothing, recipe.precision, recipe.clip, **settings)


def begin_step(
    recipe: Recipe, schedule: Any, optimiser: torch.optim.Optimizer, epoch: int, number: int, steps: int
) -> None:
    """The learning rate and the random numbers (of dropout) of a step, by its position alone."""
    set_rate(optimiser, schedule(epoch + number / steps))
    torch.manual_seed(int(keys(recipe.seed, epoch, torch.tensor([-2 - number]))[0]))


class StepCounter(torch.optim.Optimizer):
    """An optimiser as Lightning sees it, where the closure is a whole training step, perhaps a captured one.

    >>> self.optimizers().step(lambda: self.captured(geometry, labels))

    The closure steps the optimiser itself; Lightning counts the steps, by which it saves checkpoints and stops.
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
