"""Reading a network: its plan and its `forward` (with `torch.fx`, our layers as leaves) as a program."""

from __future__ import annotations

import inspect
import operator
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from types import CellType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode

from gridless.geometry.taps import coarser
from gridless.live.operations import function_readers, layer_reader, of
from gridless.live.rows import EventStream, Row
from gridless.live.values import (
    VALUES,
    CauseIndex,
    EventsValue,
    GeometryValue,
    MemoryValue,
    PixelIndex,
    RowBuilder,
    Unknown,
    describe,
)
from gridless.nn.events import polarity_features
from gridless.plan import Plan

REMEDY = "use gl.streaming.Session(model), which runs any forward that treats rows alone outside layers with a memory"
ONE = "Return the one that is to run live, or torch.cat of several."


def eager(model: nn.Module) -> nn.Module:
    """The module before `torch.compile`."""
    return getattr(model, "_orig_mod", model)


def private_copy(model: nn.Module) -> nn.Module:
    """A copy of a network on the CPU, so that the user's own does not change.

    Parts that were compiled with `torch.compile` are eager in the copy. Attributes that cannot be copied, such as a
    lock or a camera, are shared.
    """
    # deepcopy refuses tensors that were computed with a gradient, such as a weight that a hook renews.
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    copies = dict(memo)
    try:
        copied = deepcopy(model, copies)
    except Exception:
        copies = memo | {id(value): value for value in _uncopyable(model)}
        copied = deepcopy(model, copies)
    for module in copied.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType):
                vars(module)[name] = _rebound(value, copies)
    for name, part in list(copied.named_modules()):
        if eager(part) is not part:
            parent, _, own = name.rpartition(".")
            setattr(copied.get_submodule(parent), own, eager(part))
    return copied.cpu()


def _rebound(function: FunctionType, copies: dict[int, Any]) -> FunctionType:
    """A function of the user that refers to copies. `copies`: by the `id` of the original."""

    def copy_of(value: Any) -> Any:
        return _rebound(value, copies) if isinstance(value, FunctionType) else copies.get(id(value), value)

    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(CellType(copy_of(cell.cell_contents)))
        except ValueError:  # empty
            cells.append(cell)
    defaults = tuple(copy_of(value) for value in function.__defaults__ or ())
    new = FunctionType(function.__code__, function.__globals__, function.__name__, defaults, tuple(cells))
    new.__kwdefaults__ = function.__kwdefaults__
    return new


def _uncopyable(model: nn.Module) -> list[Any]:
    values = [value for module in model.modules() for name, value in vars(module).items() if name not in _OWN]
    uncopyable = []
    for value in values:
        try:
            deepcopy(value)
        except Exception:
            uncopyable.append(value)
    return uncopyable


# Attributes that hold the parts of a module in PyTorch.
_OWN = ("_modules", "_parameters", "_buffers")


class Untouched:
    """Refuses a forward that changes parameters or buffers."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.before = model, self._tensors(model)

    @staticmethod
    def _tensors(model: nn.Module) -> dict[str, tuple[Tensor, int]]:
        named = [*model.named_parameters(), *model.named_buffers()]
        return {name: (tensor, tensor._version) for name, tensor in named}

    def check(self) -> None:
        after = self._tensors(self.model)
        for name, (tensor, version) in self.before.items():
            if name not in after or after[name][0] is not tensor or after[name][1] != version:
                raise TypeError(
                    f"stream: the forward of {type(self.model).__name__} changes {name!r}, but a live program cannot. "
                    f"Change it outside of forward, or {REMEDY}."
                )


@contextmanager
def apart() -> Iterator[None]:
    """Run a forward without gradients and autocast. The caller's random numbers do not change."""
    python, numpy = random.getstate(), np.random.get_state()
    off = [torch.autocast(device, enabled=False) for device in ("cpu", "cuda")]
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), off[0], off[1]:
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def input_stream(model: nn.Module) -> tuple[Plan, str, tuple[int, int]]:
    """The plan of an event network, the name of its input and its sensor."""
    plan = getattr(model, "plan", None)
    inputs = {n: s for n, s in plan.steps.items() if not s.inputs} if isinstance(plan, Plan) else {}
    if not isinstance(plan, Plan) or not any(step.op == "events" for step in inputs.values()):
        raise TypeError(
            f"stream: {type(model).__name__} is not an event network. A live network has a plan that begins with "
            "plan.events, as gl.models.event_resnet has."
        )
    if len(inputs) > 1:
        raise ValueError(f"stream: the plan has {len(inputs)} inputs. Keep one, of plan.events.")
    for name, step in plan.steps.items():
        if step.op not in ("events", "lif", "causal"):
            raise TypeError(
                f"stream: the plan line {name} = {step} is not supported live. Use only lines of events and lif, with "
                "convolutions of gl.nn between them."
            )
    ((name, step),) = inputs.items()
    return plan, name, dict(step.settings)["sensor"]


def packet_of(plan: Plan, events: Any) -> Any:
    """The argument of a live plan: the events, in a dict if the input has a name."""
    (name,) = (dict(step.settings).get("name") for step in plan.steps.values() if not step.inputs)
    return events if name is None else {name: events}


class _Proxy(fx.Proxy):
    """A value whose changes in place become nodes of the graph."""

    def _changed(self, operation: Callable[..., Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", operation, (self, other), {})

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.itruediv, other)


class _NoRandom(TorchDispatchMode):
    """Refuses random numbers before they are drawn: a program would keep them as constants."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise TypeError(f"it draws random numbers with {func.__name__.partition('.')[0]}")
        return func(*args, **(kwargs or {}))


class _ForwardTracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__(autowrap_functions=(polarity_features,))
        self.thread = threading.get_ident()
        self.outputs: dict[str, fx.Node] = {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return layer_reader(m) is not None or isinstance(m, _PASSED) or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **named: Any) -> fx.Node:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise TypeError("it uses autocast, but a live program computes in float32")
        return super().create_node(*args, **named)

    # While a forward is traced, torch calls these methods for modules of other threads, too.

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """Note the output of every module by its name."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        # A part that was compiled on its own is read as its eager module.
        out = super().call_module(m, forward, args, kwargs) if eager(m) is m else eager(m)(*args, **kwargs)
        if isinstance(out, fx.Proxy):
            self.outputs[self.path_of_module(m)] = out.node
        return out


# One forward is traced at a time, and no process forks meanwhile: tracing changes classes of torch.
TRACING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: TRACING.acquire(),
        after_in_parent=lambda: TRACING.release(),
        after_in_child=lambda: TRACING.release(),
    )

# Hooks of torch that renew the weight of a layer before its call.
_RENEWING = (BasePruningMethod, WeightNorm, SpectralNorm)


class Reader(RowBuilder):
    """Walks the graph of a forward, with rows in place of tensors. Tracing may change the network: pass a copy."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        plan, _, sensor = input_stream(model)
        streams: dict[str, EventStream] = {}
        for name, step in plan.steps.items():
            settings = dict(step.settings)
            if step.op == "events":
                streams[str(name)] = EventStream(str(name), sensor)
            elif step.op == "lif":
                source = streams[str(step.inputs[0])]
                grid = coarser(source.sensor, settings["stride"])
                streams[str(name)] = EventStream(str(name), grid, source.name, settings)
        super().__init__(streams)

    def parts(self) -> tuple[tuple[EventStream, ...], tuple[Row, ...], str, int | None, dict[str, str]]:
        """Streams, rows, output, duration and modules of the program."""
        out = self.read()
        if not isinstance(out, Row):
            raise TypeError(
                f"stream: forward must return one tensor of rows that events bring, not {describe(out)}. {ONE}"
            )
        if len(out.shape) > 1:
            raise TypeError(
                f"stream: forward must return rows of logits, not the grid {out.name}. Flatten or reduce it."
            )
        if len(self.durations) > 1:
            raise ValueError(
                f"stream: the voxels have the durations {sorted(self.durations)}. Give all of them the same duration."
            )
        needed = {out.name}
        for row in reversed(self.rows.values()):
            if row.name in needed:
                needed.update(row.inputs)
        rows = tuple(row for row in self.rows.values() if row.name in needed)
        windows = any(of(row).has_window for row in rows)
        duration = self.durations.pop() if windows and self.durations else None
        modules = {name: row.name for name, row in self.outputs.items() if row.name in needed}
        # Leave out streams that have no rows, and fire no stream with rows.
        used = {row.stream for row in rows}
        for stream in reversed(self.streams.values()):
            used |= {stream.source} if stream.name in used else set()
        streams = tuple(stream for stream in self.streams.values() if stream.name in used)
        return streams, rows, out.name, duration, modules

    def read(self) -> Any:
        tracer, untouched = _ForwardTracer(), Untouched(self.model)
        try:
            with TRACING, apart(), _NoRandom():
                graph = tracer.trace(self.model)
        except Exception as error:
            raise TypeError(
                f"stream: the forward of {type(self.model).__name__} cannot be read ({error}). Change it, or {REMEDY}."
            ) from error
        untouched.check()
        self.modules = dict(self.model.named_modules())
        self.hooks("", self.model)
        values: dict[fx.Node, Any] = {}
        arguments = iter([GeometryValue(), MemoryValue()])
        for node in graph.nodes:
            if node.op == "placeholder":
                values[node] = next(arguments, node.args[0] if node.args else None)
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
            if node.op == "output":
                outputs = {name: values[at] for name, at in tracer.outputs.items()}
                self.outputs = {name: row for name, row in outputs.items() if isinstance(row, Row)}
                return args[0]
            try:
                values[node] = self.node(node, args, kwargs)
                if self.in_place(node) and isinstance(args[0], Row | PixelIndex) and values[node] is not args[0]:
                    self.replace(values, args[0], values[node])
            except Unknown as error:
                raise TypeError(f"stream: {error}. Change it, or {REMEDY}.") from None
        raise AssertionError("a graph ends with its output")

    def node(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            value: Any = self.model
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value.detach()
        if node.op == "call_module":
            return self.layer(str(node.target), args, kwargs)
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        # The row is named after the module that calls the function.
        stack = list(node.meta.get("nn_module_stack") or ())
        self.name = f"{stack[-1]}.{name}" if stack and stack[-1] else name
        try:
            if not self.in_place(node) and not any(isinstance(a, VALUES) for a in _flat((args, kwargs))):
                # All arguments are constants.
                if isinstance(target, str):
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
            readers = [*([_GENERAL[name]] if name in _GENERAL else []), *function_readers(name)]
            for reader in readers:
                if (value := reader(self, *args, **kwargs)) is not NotImplemented:
                    return value
        except Unknown:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
            raise Unknown(f"{self.name} with these arguments ({error})") from None
        raise Unknown(f"{self.name} (an index)" if name == "getitem" else self.name)

    def layer(self, name: str, args: Any, kwargs: Any) -> Any:
        """Read the call of a layer."""
        layer, self.name = self.modules[name], name
        reader = layer_reader(layer)
        if reader is None and not isinstance(layer, _PASSED):
            raise Unknown(_module(name, layer))
        for part_name, part in layer.named_modules(prefix=name):
            self.hooks(part_name, part)
        if reader is None:
            return args[0]
        try:
            # Readers take arguments in the layer's order.
            bound = inspect.signature(layer.forward).bind(*args, **kwargs)
        except TypeError as error:
            raise Unknown(f"{_module(name, layer)} with these arguments ({error})") from None
        bound.apply_defaults()
        return reader(self, layer, *bound.args)

    @torch.no_grad()
    def hooks(self, name: str, layer: nn.Module) -> None:
        """Renew the weights of a layer as its call would; refuse other hooks."""
        for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()):
            if not isinstance(hook, _RENEWING):
                part = _module(name, layer) if name else "the network"
                raise TypeError(f"stream: {part} has a forward hook, which would not run. Remove it, or {REMEDY}.")
            hook(layer, ())

    def in_place(self, node: fx.Node) -> bool:
        """True if a node changes its first argument in place."""
        if node.op == "call_module":
            return getattr(self.modules[str(node.target)], "inplace", False)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return (
            name in ("iadd", "isub", "imul", "itruediv")
            or name.endswith("_")
            or node.kwargs.get("inplace", False) is True
        )

    def replace(self, values: dict[fx.Node, Any], old: Row | PixelIndex, new: Any) -> None:
        """Replace a value that was changed in place wherever it is used from now on."""
        rows = [row for row in self.rows.values() if of(row).is_part]
        if isinstance(old, Row) and any(old is row or old.name in row.inputs for row in rows):
            raise Unknown(f"{self.name}, which changes a value and its parts in place,")
        values.update({node: new for node, value in values.items() if value is old})


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return [values]
    return [leaf for value in values for leaf in _flat(value)]


def _module(name: str, layer: nn.Module) -> str:
    return f"layer {name!r} ({type(layer).__name__})"


# Functions that are no operation: parts of the geometry, other types, layers that do nothing in evaluation.

_PASSED = (nn.Dropout, nn.Identity)


def _getitem(r: RowBuilder, x: Any, key: Any) -> Any:
    if isinstance(x, GeometryValue):
        return EventsValue(r.streams[str(key)])
    if isinstance(x, EventsValue) and x.part == "pixel" and key in [(slice(None), axis) for axis in (0, 1, -2, -1)]:
        return PixelIndex(x.stream, int(key[1] % 2 == 0), key[1] % 2)
    if isinstance(x, tuple | list) or (isinstance(x, Tensor) and not isinstance(key, VALUES)):
        return x[key]
    return NotImplemented


def _getattr(r: RowBuilder, x: Any, name: str) -> Any:
    if isinstance(x, EventsValue) and not x.part:
        if name in ("pixel", "polarity"):
            return EventsValue(x.stream, name)
        if name == "cause":
            if x.stream.source is None:
                raise Unknown(f"{r.name} (the cause of {x.stream.name}, which is the input)")
            return CauseIndex((x.stream.name,))
        if name == "sensor":
            return x.stream.sensor
    if isinstance(x, Tensor):
        return getattr(x, name)
    if isinstance(x, Row) and name == "dtype":
        return torch.float32
    raise Unknown(f"{r.name} (the attribute {name} of {describe(x)})")


def _unbind(r: RowBuilder, x: Any, dim: int = 0) -> Any:
    if isinstance(x, EventsValue) and x.part == "pixel" and dim in (1, -1):
        return PixelIndex(x.stream, 1, 0), PixelIndex(x.stream, 0, 1)
    raise Unknown(f"{r.name} (unbind)")


def _convert(r: RowBuilder, x: Any, *args: Any, **kwargs: Any) -> Any:
    kinds = [kind for kind in (*args, *kwargs.values()) if isinstance(kind, torch.dtype)]
    if isinstance(x, Row) and (r.name.endswith(("long", "int")) or {*kinds} - {torch.float32, torch.float64}):
        raise Unknown(f"{r.name} (a value rounded to {kinds[0] if kinds else 'whole numbers'})")
    # In torch this copies float32, and later changes in place do not change the copy.
    is_copy = isinstance(x, Row) and (r.name.endswith("double") or torch.float64 in kinds)
    return function_readers("clone")[0](r, x) if is_copy else x


def _dropout(r: RowBuilder, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if training:
        raise Unknown(f"{r.name} that drops in evaluation, too (pass training=self.training),")
    return x


_GENERAL: dict[str, Callable[..., Any]] = {
    "getitem": _getitem, "getattr": _getattr, "unbind": _unbind, "dropout": _dropout,
    **dict.fromkeys(("long", "int", "float", "double", "to", "contiguous", "detach"), _convert),
}  # fmt: skip
