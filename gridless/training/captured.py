"""A training step as a captured graph: batches of any size are padded to common capacities, at fixed addresses.

Capacities are slightly larger than the sizes seen so far. The padding belongs to no example and no edge.
"""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Callable, Mapping, Set
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gridless.backends import backend_for, current
from gridless.plan import Plan
from gridless.structures import Edges, Geometry
from gridless.structures.batch import grown
from gridless.training.batch import EXAMPLES, Batch, Group, Sizes, with_fields
from gridless.training.prefetch import ALONE

# Warm-up batches, run eagerly before the first capture: they settle autotuning, optimiser state and capacities.
WARM_UP = 6
# Maximum graphs of one step: full batches, the last one of an epoch, and a few more.
MOST = 8


def capture(function: Callable[..., Any], plan: Plan | None = None) -> Captured:
    """A function that makes a whole training step (forward, loss, backward, optimiser) as CUDA graphs.

    >>> def step(geometry, labels):
    ...     loss = cross_entropy(model(geometry), labels)
    ...     optimiser.zero_grad()
    ...     loss.backward()
    ...     optimiser.step()
    ...     return loss.detach()
    >>> step = gl.capture(step, model.plan)
    >>> for clouds, labels in batches:
    ...     loss = step(model.plan(clouds), labels)

    Call the result like the function: with a `Geometry` of the plan and tensors, or with one `Batch` of a
    `gl.training.Loader`. The first few calls run eagerly. After that, each call pads the geometry to fixed capacities,
    copies tensors to fixed addresses and launches one graph, for any numbers of points, events and edges. A batch
    larger than the capacities causes a new capture. On the CPU every call runs eagerly.

    - Dropout draws new numbers in each launch, and learning rates follow their schedule.
    - Python code runs only during capture. It must not read from the device (`.item()`, `if loss > 1`), and Python
      numbers keep the values they had.
    - Optimisers stepped inside are made capturable: their learning rates become tensors.
    - Returned tensors have no gradients. Their rows of points end with padding, so a loss over points must count only
      points of an example (`cloud.example < cloud.num_examples`).
    """
    return Captured(function, plan)


class Captured:
    """See `capture`."""

    def __init__(self, function: Callable[..., Any], plan: Plan | None) -> None:
        self.function, self.plan = function, plan
        self._steps: dict[tuple, CapturedStep] = {}
        self._optimisers: dict[int, _Optimiser] = {}

    def __call__(self, *inputs: Any) -> Any:
        batch, tensors = self._batch(*inputs)
        if not _captures(batch.labels.device):
            return self.function(*inputs)
        for optimiser in self._optimisers.values():
            if optimiser.restored():
                if torch.cuda.is_available():
                    # A running graph must not be freed.
                    torch.cuda.synchronize(batch.labels.device)
                self._steps.clear()
        shapes = (len(batch.labels), *((t.shape, t.dtype, t.device) for t in tensors))
        key = (*shapes, batch.group.layout)
        if key not in self._steps:
            if len(self._steps) == MOST:
                raise ValueError(
                    f"gl.capture: all {MOST} graphs are in use, and {shapes} needs another one. "
                    "Keep the batch size and shapes fixed, and put data of points into the cloud: "
                    "gl.Cloud.of(xyz, label=label)."
                )
            if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
                raise ValueError("gl.capture: several processes are not supported. Call the step without gl.capture.")
            self._steps[key] = CapturedStep(len(batch.labels), self._steps, [t.clone() for t in tensors])
        step = self._steps[key]
        for mine, given in zip(step.tensors, tensors):
            mine.copy_(given, non_blocking=True)
        # CUDA uses the streams and graphs of the current device.
        with current(batch.labels.device):
            if isinstance(inputs[0], Batch):
                return step(batch, self._run)
            return step(batch, lambda now: self._run(now.geometry, *step.tensors))

    @property
    def graphs(self) -> int:
        """Number of captured graphs."""
        return sum(step.graph is not None for step in self._steps.values())

    def _batch(self, first: Any = None, *tensors: Any) -> tuple[Batch, tuple[Tensor, ...]]:
        """The geometry as a batch, and the tensors beside it."""
        if isinstance(first, Batch) and not tensors:
            return first, ()
        if not isinstance(first, Geometry) or not all(isinstance(t, Tensor) for t in tensors):
            types = ", ".join(type(x).__name__ for x in (first, *tensors))
            raise TypeError(f"gl.capture: the step got ({types}). Pass a Geometry and tensors, or one Batch.")
        if self.plan is None or set(self.plan.steps) != set(first):
            raise ValueError(
                "gl.capture: the geometry is from another plan. Pass its plan: gl.capture(step, model.plan)."
            )
        whole: Any = next(value for name, value in first.items() if not self.plan.steps[name].inputs)
        if any(getattr(value, "padding", 0) for value in first.values()):
            raise ValueError("gl.capture: the batch is padded already. Collate it without bucket=.")
        # The ends of the examples stand in for labels, which are among the tensors.
        return Batch(Group(self.plan, first, whole.splits[1:])), tensors

    def _run(self, *inputs: Any) -> Any:
        """Run the function eagerly, and make the optimisers that it steps capturable."""

        def prepare(optimiser: torch.optim.Optimizer, *_: Any) -> None:
            if id(optimiser) not in self._optimisers:
                self._optimisers[id(optimiser)] = _Optimiser(optimiser)

        hook = register_optimizer_step_pre_hook(prepare)
        try:
            with warnings.catch_warnings():
                # torch warns of capturable steps outside a graph, such as those of the warm-up.
                warnings.filterwarnings("ignore", message="(?s).*capturable=True")
                result = self.function(*inputs)
            # Without detach, a loss that the caller keeps would keep the autograd graph and its stream alive.
            return _each(result, Tensor.detach)
        finally:
            hook.remove()


class _Optimiser:
    """An optimiser whose learning rates and step counts are tensors on the device, where a graph reads them."""

    def __init__(self, optimiser: torch.optim.Optimizer) -> None:
        self.optimiser = optimiser
        for group in optimiser.param_groups:
            device = group["params"][0].device
            # SGD reads a tensor learning rate back to the CPU, except in its fused kernel.
            if "capturable" in group or isinstance(optimiser, torch.optim.SGD):
                group |= {"capturable": True} if "capturable" in group else {"fused": True, "foreach": False}
                group["lr"] = torch.as_tensor(group["lr"], dtype=torch.float32).to(device)
        for parameter, values in optimiser.state.items():
            if isinstance(values.get("step"), Tensor):
                values["step"] = values["step"].to(parameter.device)
        self._known()

    def _known(self) -> None:
        self.state = self.optimiser.state
        self.settings = [{k: v for k, v in g.items() if k != "params"} for g in self.optimiser.param_groups]

    def restored(self) -> bool:
        """True if new state was loaded, which makes graphs stale. Changed learning rates are copied to the device."""
        if self.optimiser.state is not self.state:
            self.__init__(self.optimiser)
            return True
        for group, known in zip(self.optimiser.param_groups, self.settings, strict=True):
            for name, value in known.items():
                now = group[name]
                if now is value:
                    continue
                if name == "lr" and isinstance(value, Tensor):
                    group[name] = value.fill_(now)
                elif now != value:
                    raise ValueError(
                        f"gl.capture: {name} of an optimiser changed from {value} to {now}, but a captured step keeps "
                        "the first value. Change only learning rates (OneCycleLR: cycle_momentum=False)."
                    )
        return False


def _captures(device: torch.device) -> bool:
    return device.type == "cuda"


class CapturedStep:
    """The graph of a step for batches of `examples` examples; `tensors` are its other inputs.

    A batch that does not fit increases the capacities and causes a new capture. `others` are the captured steps of
    other numbers of examples; the first capacities are derived from theirs.
    """

    def __init__(self, examples: int, others: Mapping[Any, CapturedStep], tensors: list[Tensor]) -> None:
        self.examples, self.others, self.tensors = examples, others, tensors
        self.low: Sizes = {}
        self.high: Sizes = {}
        self.slot: Slot | None = None
        self.graph: Any = None
        self.result: Any = None
        self.warm = 0

    def __call__(self, batch: Batch, run: Callable[[Batch], Any]) -> Any:
        needed = batch.sizes
        if self.slot is not None and self.slot.holds(needed):
            self.slot.load(batch)
            self.graph.replay()
            return _each(self.result, Tensor.clone)
        self._learn(needed)
        if self.warm < WARM_UP:
            # Warm-up runs without padding, to learn the sizes of batches.
            self.warm += 1
            return run(batch)
        edges = {name for name, value in batch.group.geometry.items() if isinstance(value, Edges)}
        slot = Slot(batch, capacity(self.high, self.low, edges))
        first, self.graph, self.result = _record(lambda: run(slot.batch))
        self.slot = slot
        return first

    def _learn(self, needed: Sizes) -> None:
        known = next((other for other in self.others.values() if other.slot is not None), None)
        if not self.high and known is not None and self.examples < known.examples:
            # The last batch of an epoch is too rare for a warm-up: its sizes are estimated from those of full batches.
            self.warm, part = WARM_UP, math.sqrt(self.examples / known.examples)
            self.low = {name: size - int(part * (known.high[name] - known.low[name])) for name, size in needed.items()}
        self.low = {name: min(size, self.low.get(name, size)) for name, size in needed.items()}
        self.high = {name: max(size, self.high.get(name, 0)) for name, size in needed.items()}


def _record(run: Callable[[], Any]) -> tuple[Any, Any, Any]:
    """Run one padded step eagerly (it counts), then capture it (which runs nothing).

    Returns the result of the step, the graph, and the tensors that hold the result of each launch.
    """
    with ALONE:
        # High priority: kernels of the step run before kernels that prepare later batches.
        side = torch.cuda.Stream(priority=-1)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first = run()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Collect garbage now: freeing another graph during the capture can invalidate it.
        gc.collect()
        collects = gc.isenabled()
        gc.disable()
        try:
            # Pass a stream: torch's default capture stream is on the device of the first graph of the process.
            with torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"):
                result = run()
        except RuntimeError as error:
            raise RuntimeError(
                f"gl.capture: the step cannot be captured as a graph ({error}). Inside it, do not read tensors back "
                "(.item(), .cpu(), print, a condition on a tensor), and do not make tensors from Python numbers."
            ) from error
        finally:
            if collects:
                gc.enable()
    return _each(first, Tensor.clone), graph, result


def _each(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Apply a function to every tensor in the result of a step."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        parts = [_each(part, function) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return {name: _each(part, function) for name, part in value.items()} if isinstance(value, Mapping) else value


def capacity(high: Mapping[str, int], low: Mapping[str, int] | None = None, edges: Set[str] = frozenset()) -> Sizes:
    """Capacities: the largest sizes seen, plus 2 % and 64, plus twice the difference to the smallest sizes seen.

    Twice the difference is limited to an eighth of the size, because padding costs time at every step. For `edges` the
    limit is half: no row walks their padding, and their number varies most. Capacities are multiples of 64, which keeps
    rows aligned. The number of examples stays.
    """
    low = high if low is None else low
    more = {n: 0.02 * size + min(2 * (size - low[n]), size // (2 if n in edges else 8)) for n, size in high.items()}
    room = {n: -(-int(size + more[n] + 64) // 64) * 64 for n, size in high.items()}
    return room | {EXAMPLES: high[EXAMPLES]}


class Slot:
    """A padded batch of the sizes `room` at fixed addresses. `load` overwrites it; the step reads `batch`."""

    def __init__(self, batch: Batch, room: Sizes) -> None:
        group = batch.group
        self.room, self._plan, self._share, self._layout = room, group.plan, batch.share, group.layout
        self._padding = {name: room[name] - size for name, size in batch.sizes.items()}
        self._tensors = [f.tensor.new_zeros(room[f.of] + f.splits, *f.tensor.shape[1:]) for f in group.fields]
        self._geometry = with_fields(self._plan, group.geometry, self._tensors, room, self._padding)
        # Number of rows that an index field refers to; None for other fields.
        self._into = [None if f.splits or f.taps or f.into is None else room[f.into] for f in group.fields]
        self._fill = None
        if backend_for(batch.labels.device) == "gpu":
            from gridless.training.fill import Fill

            self._fill = Fill(self._tensors, self._into)
        self.load(batch)

    def holds(self, needed: Sizes) -> bool:
        # At least one row of padding, which tells every layer to use the splits.
        return all(needed[name] < room for name, room in self.room.items() if name != EXAMPLES)

    def load(self, batch: Batch) -> None:
        """Overwrite this batch with another one that fits, and pad it."""
        group, k = batch.group, batch.number
        if group.layout != self._layout:
            raise ValueError("Slot: the batch has other rows or types than the first batch. Use another slot for it.")
        if self._fill is not None:
            return self._fill(group, k)
        for mine, part, field, into in zip(self._tensors, group.parts(k), group.fields, self._into, strict=True):
            mine.copy_(grown(part, len(mine), field.kind, into))

    @property
    def batch(self) -> Batch:
        """The same tensors in new structures, without cached values derived from an earlier batch."""
        geometry = with_fields(self._plan, self._geometry, self._tensors, self.room, self._padding)
        return Batch(Group(self._plan, geometry, self._tensors[0], [self._share]))
