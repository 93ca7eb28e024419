"""Reading a network: its plan and its `forward` (with `torch.fx`, our layers as leaves) as a program."""

from __future__ import annotations

import inspect
import math
import operator
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._python_dispatch import TorchDispatchMode

from gridless.geometry.taps import coarser
from gridless.live.rows import ACTIVATIONS, Row, Stream, fed_pixels
from gridless.nn.events import (
    LEFT,
    EventConv,
    Last,
    LeakyCount,
    LeakyMean,
    PolarityConv,
    VoxelConv,
    VoxelMean,
    VoxelMerge,
    polarity_features,
)
from gridless.nn.norm import BatchNorm
from gridless.nn.pool import MaxPool, MeanPool
from gridless.plan import Plan

REMEDY = (
    "use gl.streaming.Session(model), which runs any forward that treats each row for itself outside the layers with a "
    "memory"
)
CUT = (
    "stream: this network cuts its history (form='edges'), which a live stream does not: build it with form='scan' and "
    "load the same weights"
)
ONE = "return the one that is to run live, or torch.cat of several"
WAITS = "stream: the voxel head waits for the end of the recording: build the network with duration=..."


def eager(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` was given, or the module itself."""
    return getattr(model, "_orig_mod", model)


def private_copy(model: nn.Module) -> nn.Module:
    """A copy of a network on the CPU, to read or run without a change to the user's own.

    Parts that `torch.compile` was given are in it as they were before. Attributes that cannot be copied, such as a lock
    or a camera, are shared.
    """
    # PyTorch copies no tensor that was computed with a gradient, such as a weight that a hook renews.
    memo: dict[int, Any] = {
        id(value): value.detach().clone()
        for module in model.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and value.grad_fn is not None
    }
    try:
        copied = deepcopy(model, dict(memo))
    except Exception:
        copied = deepcopy(model, memo | {id(value): value for value in _uncopyable(model)})
    for name, part in list(copied.named_modules()):
        if eager(part) is not part:
            parent, _, own = name.rpartition(".")
            setattr(copied.get_submodule(parent), own, eager(part))
    return copied.cpu()


def _uncopyable(model: nn.Module) -> list[Any]:
    values = [value for module in model.modules() for name, value in vars(module).items() if name not in _OWN]
    found = []
    for value in values:
        try:
            deepcopy(value)
        except Exception:
            found.append(value)
    return found


# Attributes with which PyTorch keeps the parts of a module.
_OWN = ("_modules", "_parameters", "_buffers")


class Untouched:
    """Refuses what a forward does to the parameters and buffers of a network."""

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
                    f"stream: the forward of {type(self.model).__name__} changes {name!r}, which a live program keeps "
                    f"as it is: change it outside of forward, or {REMEDY}"
                )


@contextmanager
def apart() -> Iterator[None]:
    """Run a forward without gradients and without the caller's autocast; the caller's random numbers stay."""
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
            f"stream: {type(model).__name__} is not an event network: only those run live (modules with a plan that "
            "begins with plan.events, such as gl.models.event_resnet)"
        )
    if len(inputs) > 1:
        raise ValueError(f"stream: a live network has one input, the plan of this one has {len(inputs)}")
    for name, step in plan.steps.items():
        if step.op not in ("events", "lif", "causal"):
            raise TypeError(
                f"stream: the line {name} = {step} of the plan would see one packet alone: a live plan has lines of "
                "events and lif, and convolutions of gl.nn between them"
            )
    ((name, step),) = inputs.items()
    return plan, name, dict(step.settings)["sensor"]


def packet_of(plan: Plan, events: Any) -> Any:
    """What a live plan is called with: events, by the name of its input where it has one."""
    (name,) = (dict(step.settings).get("name") for step in plan.steps.values() if not step.inputs)
    return events if name is None else {name: events}


def affine_of(norm: BatchNorm | nn.BatchNorm1d) -> tuple[np.ndarray, np.ndarray]:
    """Batch normalisation of a trained network: x * scale + shift."""
    mean, var = norm.running_mean, norm.running_var
    if mean is None or var is None:
        raise TypeError("without running statistics")
    scale = (var.double() + norm.eps).rsqrt()
    if norm.weight is not None:
        scale = scale * norm.weight.double()
    shift = -mean.double() * scale
    if norm.bias is not None:
        shift = shift + norm.bias.double()
    return array_of(scale), array_of(shift)


def array_of(tensor: Tensor) -> np.ndarray:
    return np.array(tensor.detach().cpu().float().numpy(), order="C")


# What a forward may hold that is no value: parts of the geometry, and constants.


@dataclass(frozen=True)
class _Geometry:
    pass


@dataclass(frozen=True)
class _Memory:
    pass


@dataclass(frozen=True)
class _Events:
    """`geometry[name]`, or its pixels or polarities."""

    stream: Stream
    part: str = ""


@dataclass(frozen=True)
class _Index:
    """x columns + y rows + constant, of the pixels of a stream."""

    stream: Stream
    columns: int
    rows: int
    constant: int = 0


@dataclass(frozen=True)
class _Cause:
    """For every event of the last stream, the row of the event of `source` that fired the one that ... fired it."""

    chain: tuple[str, ...]


class _Unknown(TypeError):
    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not known to the live program")


class _Proxy(fx.Proxy):
    """A value that says when it is changed in place."""

    def _changed(self, how: Callable[..., Any], other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", how, (self, other), {})

    def __iadd__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.iadd, other)

    def __isub__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.isub, other)

    def __imul__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.imul, other)

    def __itruediv__(self, other: Any) -> fx.Proxy:
        return self._changed(operator.itruediv, other)


class _NoRandom(TorchDispatchMode):
    """Refuses random numbers, which a program would keep as constants, before they are drawn."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise TypeError(f"it draws random numbers with {func.__name__.partition('.')[0]}")
        return func(*args, **(kwargs or {}))


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__(autowrap_functions=(polarity_features,))
        self.thread = threading.get_ident()
        self.outputs: dict[str, fx.Node] = {}

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return _reader_of(m) is not None or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **named: Any) -> fx.Node:
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise TypeError("it uses autocast, and a live program computes in float32")
        return super().create_node(*args, **named)

    # While a forward is traced, torch sends the calls and attributes of all modules here, those of other threads too.

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self.thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple, kwargs: dict) -> Any:
        """What every module returns is known by its name, also where it is read through."""
        if threading.get_ident() != self.thread:
            return forward(*args, **kwargs)
        # A part that torch.compile was given for itself is read as what it is made of.
        out = super().call_module(m, forward, args, kwargs) if eager(m) is m else eager(m)(*args, **kwargs)
        if isinstance(out, fx.Proxy):
            self.outputs[self.path_of_module(m)] = out.node
        return out


# One forward is traced at a time. No process forks meanwhile: torch's classes are changed while a forward is traced.
_TRACING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _TRACING.acquire(),
        after_in_parent=lambda: _TRACING.release(),
        after_in_child=lambda: _TRACING.release(),
    )

# What torch hangs before a layer's call to renew its weight.
_RENEWING = (BasePruningMethod, WeightNorm, SpectralNorm)


class Reader:
    """Walks the graph of a forward, with rows in place of tensors. The network is its own: tracing may change it."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        plan, _, sensor = input_stream(model)
        self.streams: dict[str, Stream] = {}
        for name, step in plan.steps.items():
            settings = dict(step.settings)
            if step.op == "events":
                self.streams[str(name)] = Stream(str(name), sensor)
            elif step.op == "lif":
                source = self.streams[str(step.inputs[0])]
                grid = coarser(source.sensor, settings["stride"])
                self.streams[str(name)] = Stream(str(name), grid, source.name, settings)
        self.rows: dict[str, Row] = {}
        self.durations: set[int] = set()

    def parts(self) -> tuple[tuple[Stream, ...], tuple[Row, ...], str, int | None, dict[str, str]]:
        """Streams, rows, output, duration and modules of the program."""
        out = self.read()
        if not isinstance(out, Row):
            raise TypeError(
                f"stream: forward must return one tensor of rows that events bring, not {_words(out)}: {ONE}"
            )
        if len(out.shape) > 1:
            raise TypeError(
                f"stream: forward must return rows of logits, not a grid ({out.name}): flatten or reduce it"
            )
        if len(self.durations) > 1:
            raise ValueError(f"stream: all voxels of a network share one duration, these have {sorted(self.durations)}")
        needed = {out.name}
        for row in reversed(self.rows.values()):
            if row.name in needed:
                needed.update(row.inputs)
        rows = tuple(row for row in self.rows.values() if row.name in needed)
        windows = any(row.operation in ("voxel", "leaky_count") for row in rows)
        duration = self.durations.pop() if windows and self.durations else None
        modules = {name: row.name for name, row in self.outputs.items() if row.name in needed}
        # Streams that no row is of, nor one that they fire, would be fired for nothing.
        used = {row.stream for row in rows}
        for stream in reversed(self.streams.values()):
            used |= {stream.source} if stream.name in used else set()
        streams = tuple(stream for stream in self.streams.values() if stream.name in used)
        return streams, rows, out.name, duration, modules

    def read(self) -> Any:
        tracer, untouched = _Tracer(), Untouched(self.model)
        try:
            with _TRACING, apart(), _NoRandom():
                graph = tracer.trace(self.model)
        except Exception as error:
            raise TypeError(
                f"stream: the forward of {type(self.model).__name__} cannot be read ({error}): {REMEDY}"
            ) from error
        untouched.check()
        self.modules = dict(self.model.named_modules())
        self.hooks("", self.model)
        found: dict[fx.Node, Any] = {}
        given = iter([_Geometry(), _Memory()])
        for node in graph.nodes:
            if node.op == "placeholder":
                found[node] = next(given, node.args[0] if node.args else None)
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: found[n])
            if node.op == "output":
                values = {name: found[at] for name, at in tracer.outputs.items()}
                self.outputs = {name: row for name, row in values.items() if isinstance(row, Row)}
                return args[0]
            try:
                found[node] = self.node(node, args, kwargs)
                if self.in_place(node) and isinstance(args[0], Row | _Index) and found[node] is not args[0]:
                    self.replace(found, args[0], found[node])
            except _Unknown as error:
                raise TypeError(f"stream: {error}: {REMEDY}") from None
        raise AssertionError("a graph ends with its output")

    def node(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        if node.op == "get_attr":
            value: Any = self.model
            for part in str(node.target).split("."):
                value = getattr(value, part)
            return value.detach()
        if node.op == "call_module":
            layer = self.modules[str(node.target)]
            reader = _reader_of(layer)
            if reader is None:
                raise _Unknown(_module(str(node.target), layer))
            self.name = str(node.target)
            for name, part in layer.named_modules(prefix=self.name):
                self.hooks(name, part)
            try:
                # Readers take arguments in the order in which the layer does.
                bound = inspect.signature(layer.forward).bind(*args, **kwargs)
            except TypeError as error:
                raise _Unknown(f"{_module(self.name, layer)} with these arguments ({error})") from None
            bound.apply_defaults()
            return reader(self, layer, *bound.args)
        target = node.target
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        # Under the module that calls it.
        stack = list(node.meta.get("nn_module_stack") or ())
        self.name = f"{stack[-1]}.{name}" if stack and stack[-1] else name
        reader = _FUNCTIONS.get(name)
        values = (Row, _Events, _Index, _Cause, _Geometry, _Memory)
        try:
            if not self.in_place(node) and not any(isinstance(a, values) for a in _flat((args, kwargs))):
                # Of constants alone.
                return (
                    getattr(args[0], target)(*args[1:], **kwargs)
                    if isinstance(target, str)
                    else target(*args, **kwargs)
                )
            if reader is not None:
                return reader(self, *args, **kwargs)
        except _Unknown:
            raise
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
            raise _Unknown(f"{self.name} with these arguments ({error})") from None
        raise _Unknown(f"{self.name}")

    @torch.no_grad()
    def hooks(self, name: str, layer: nn.Module) -> None:
        """Renew the weights of a layer as its call would; refuse what else would run with it."""
        for hook in (*layer._forward_pre_hooks.values(), *layer._forward_hooks.values()):
            if not isinstance(hook, _RENEWING):
                what = _module(name, layer) if name else "the network"
                raise TypeError(f"stream: {what} has a forward hook, which would not run: remove it, or {REMEDY}")
            hook(layer, ())

    def in_place(self, node: fx.Node) -> bool:
        """Whether a node changes its first argument itself."""
        if node.op == "call_module":
            return getattr(self.modules[str(node.target)], "inplace", False)
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return (
            name in ("iadd", "isub", "imul", "itruediv")
            or name.endswith("_")
            or node.kwargs.get("inplace", False) is True
        )

    def replace(self, found: dict[fx.Node, Any], old: Row | _Index, new: Any) -> None:
        """A value that was changed in place is the new one wherever it is used from now on."""
        parts = ("slice", "frame", "flatten", "polarity")
        rows = [row for row in self.rows.values() if row.operation in parts]
        if isinstance(old, Row) and any(old is row or old.name in row.inputs for row in rows):
            raise _Unknown(f"{self.name}, which changes a value and its parts in place,")
        found.update({node: new for node, value in found.items() if value is old})

    # Rows.

    def add(
        self, name: str, operation: str, stream: str | None, inputs: tuple[Row, ...], shape: tuple[int, ...],
        settings: dict[str, Any] | None = None, state: int = 0, **constants: Any,
    ) -> Row:  # fmt: skip
        free, number = name, 1
        while free in self.rows:
            number += 1
            free = f"{name}#{number}"
        names = tuple(row.name for row in inputs)
        row = Row(free, operation, stream, names, tuple(map(int, shape)), settings or {}, constants, state)
        self.rows[free] = row
        return row

    def value(self, x: Any, what: str = "") -> Row:
        if not isinstance(x, Row):
            raise _Unknown(f"{self.name} with {what or _words(x)}")
        return x

    def of(self, x: Any, stream: Any) -> Row:
        """The features of a layer that belongs to a stream."""
        x = self.value(x)
        if x.stream != str(stream):
            raise ValueError(f"stream: {self.name} is a layer of {stream}, but is given features of {x.stream}")
        return x

    def channels(self, x: Any, channels: int) -> Row:
        """The features of a layer with weights for so many channels."""
        x = self.value(x)
        if x.channels != channels:
            raise ValueError(f"stream: {self.name} has weights for {channels} channels, but is given {x.channels}")
        return x

    def same(self, x: Any, operation: str, settings: dict | None = None, **constants: Any) -> Row:
        """A row of the same shape."""
        x = self.value(x)
        return self.add(self.name, operation, x.stream, (x,), x.shape, settings, **constants)

    def dense(self, x: Any, weight: Tensor, bias: Tensor | None = None) -> Row:
        x = self.channels(x, weight.shape[1])
        added = np.zeros(len(weight), np.float32) if bias is None else array_of(bias)
        shape = (*x.shape[:-1], len(weight))
        return self.add(self.name, "dense", x.stream, (x,), shape, weight=array_of(weight.T), bias=added)

    def wide(self, x: Row, other: Row) -> Row:
        """A value of one channel, in as many as another one has."""
        return self.dense(x, torch.ones(other.channels, 1)) if x.channels == 1 < other.channels else x

    def affine(self, x: Any, scale: Any, shift: Any) -> Row:
        x = self.value(x)
        parts = [np.asarray(part, np.float32) for part in (scale, shift)]
        fits = [part.size == 1 or (part.size, part.shape[-1]) == (x.channels, x.channels) for part in parts]
        if not all(fits) or any(part.ndim > len(x.shape) + 1 for part in parts):
            raise _Unknown(f"{self.name} with a constant of this shape")
        values = [np.array(np.broadcast_to(part.reshape(-1), x.channels)) for part in parts]
        return self.same(x, "affine", scale=values[0], shift=values[1])

    def remembers(self, memory: Any) -> None:
        if not isinstance(memory, _Memory):
            raise _Unknown(f"{self.name} is called without the memory: call it as layer(..., geometry, memory). This")

    def joined(self, operation: str, rows: tuple[Row, ...], shape: tuple[int, ...], **settings: Any) -> Row:
        """Of rows that belong together."""
        streams = {row.stream for row in rows}
        if len(streams) > 1:
            raise _Unknown(f"{self.name} ({operation}) of different streams ({', '.join(map(str, streams))})")
        return self.add(self.name, operation, rows[0].stream, rows, shape, settings)

    def both(self, operation: str, a: Any, b: Any) -> Row:
        """add or multiply, of values, or of a value and constants."""
        if not isinstance(a, Row):
            a, b = b, a
        a = self.value(a)
        if isinstance(b, Row):
            # One channel goes with all of the other's.
            a, b = (self.wide(x, other) for x, other in ((a, b), (b, a)))
            if a.shape != b.shape:
                raise _Unknown(f"{self.name} ({operation}) of {a.shape} and {b.shape}")
            return self.joined(operation, (a, b), a.shape)
        constant = array_of(b) if isinstance(b, Tensor) else float(b)
        return self.affine(a, 1, constant) if operation == "add" else self.affine(a, constant, 0)

    def convolve(self, layer: EventConv, x: Row) -> Row:
        near = layer.near
        if near.window is not None:
            raise ValueError(CUT)
        source, target = self.streams[str(near.source)], self.streams[str(near.target)]
        if target is not source and target.source != source.name:
            raise ValueError(
                f"stream: {self.name} convolves {source.name} to {target.name}, but a stream sees only itself and what "
                "fired it: convolve from stream to stream"
            )
        if (grid := coarser(source.sensor, near.stride)) != target.sensor:
            raise ValueError(
                f"stream: {self.name} has a stride of {near.stride}, which makes {grid} of the pixels "
                f"{source.sensor} of {source.name}, but {target.name} has {target.sensor}"
            )
        _, decays, q, p = layer.weight.shape
        self.channels(x, q)
        settings = {"source": source.name, "kernel": near.kernel, "stride": near.stride}
        slots = sum(fed_pixels(near.kernel, near.stride, source.sensor, target.sensor))
        bias = np.zeros(p, np.float32) if layer.bias is None else array_of(layer.bias)
        # Not the exponential in 16 bits, which is 1e-3 away.
        log_rate = layer.log_rate.to(torch.promote_types(layer.log_rate.dtype, torch.float32))
        rate = array_of((log_rate.exp().double() / layer.decay_time).expand(len(layer.weight), -1))
        if np.isnan(rate).any():
            raise ValueError(f"stream: a rate of {self.name} is not a number")
        return self.add(
            self.name, "convolve", target.name, (x,), (p,), settings, 4 * slots * decays * q + 8 * source.pixels,
            rate=rate, weight=array_of(layer.weight), bias=bias,
        )  # fmt: skip

    def cells(self, x: Row, weight: Tensor, bias: Tensor | None, kernel: Any, stride: Any, padding: Any) -> Row:
        """A convolution over a grid (T, H, W, Q); weight (P, Q, t, h, w)."""
        sizes = zip(self.channels(x, weight.shape[1]).shape[:3], stride, strict=True)
        shape = *(-(-size // step) for size, step in sizes), weight.shape[0]
        added = np.zeros(weight.shape[0], np.float32) if bias is None else array_of(bias)
        matrix = array_of(weight.permute(2, 3, 4, 1, 0).flatten(0, 2))
        settings = {"kernel": kernel, "stride": stride, "padding": padding}
        return self.add(self.name, "convolve_cells", None, (x,), shape, settings, weight=matrix, bias=added)


def _flat(values: Any) -> list[Any]:
    if isinstance(values, dict):
        values = values.values()
    elif not isinstance(values, list | tuple):
        return [values]
    return [leaf for value in values for leaf in _flat(value)]


def _module(name: str, layer: nn.Module) -> str:
    return f"layer {name!r} ({type(layer).__name__})"


def _words(x: Any) -> str:
    kind = type(x).__name__.strip("_").lower()
    return (
        f"the value {x.name}" if isinstance(x, Row) else f"{kind} {x!r}" if isinstance(x, int | float | str) else kind
    )


# Layers. A layer is known by the `forward` it runs, so that a subclass with its own is not.


def _event_conv(r: Reader, layer: EventConv, x: Any, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    return r.convolve(layer, r.of(x, layer.near.source))


def _polarity_conv(r: Reader, layer: PolarityConv, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    return r.convolve(layer, _polarity(r, r.streams[str(layer.near.source)]))


def _polarity(r: Reader, stream: Stream) -> Row:
    if stream.source is not None:
        raise _Unknown(f"{r.name} sees the polarity of {stream.name}, which only the camera's events have; this")
    known = [row for row in r.rows.values() if row.operation == "polarity"]
    return known[0] if known else r.add("polarity", "polarity", stream.name, (), (2,))


def _batch_norm(r: Reader, layer: Any, x: Any, geometry: Any = None) -> Row:
    relu = getattr(layer, "relu", None)
    x = r.same(x, "relu") if relu == "before" else x
    try:
        x = r.affine(x, *affine_of(layer))
    except TypeError as error:
        if isinstance(error, _Unknown):
            raise
        raise _Unknown(f"layer {r.name!r} ({type(layer).__name__}) {error}") from None
    return r.same(x, "relu") if relu == "after" else x


def _layer_norm(r: Reader, layer: nn.LayerNorm, x: Any) -> Row:
    x = r.value(x)
    if tuple(layer.normalized_shape) != x.shape[-1:]:
        raise _Unknown(f"layer {r.name!r} (LayerNorm over {layer.normalized_shape})")
    one, zero = np.ones(x.channels, np.float32), np.zeros(x.channels, np.float32)
    scale = one if layer.weight is None else array_of(layer.weight)
    shift = zero if layer.bias is None else array_of(layer.bias)
    return r.same(x, "layer_norm", {"eps": layer.eps}, scale=scale, shift=shift)


def _leaky_mean(r: Reader, layer: LeakyMean, x: Any, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    x = r.of(x, layer.stream)
    rate = array_of(layer.log_rate.double().exp() / layer.decay_time).reshape(1)
    return r.add(r.name, "mean", x.stream, (x,), x.shape, state=8 * (x.channels + 2), rate=rate)


def _voxel_mean(r: Reader, layer: VoxelMean, x: Any, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    x = r.of(x, layer.stream)
    frames, duration = _window(r, layer)
    width, height = r.streams[str(layer.stream)].sensor
    cells = frames * height * width
    shape, settings = (frames, height, width, x.channels), {"frames": frames, "duration": duration}
    return r.add(r.name, "voxel", None, (x,), shape, settings, 4 * cells * (x.channels + 1))


def _leaky_count(r: Reader, layer: LeakyCount, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    (height, width), rate = layer.grid, (1 / np.array(layer.decay_times)).astype(np.float32)
    shape, events = (1, height, width, 2 * len(rate)), _polarity(r, r.streams[str(layer.stream)])
    state = 8 * height * width * (1 + 2 * len(rate))
    if layer.every is not None:
        r.durations.add(layer.every)
    counts = r.add(r.name, "leaky_count", None, (events,), shape, {"size": layer.size}, state, rate=rate)
    if layer.fit:
        counts = r.add(f"{r.name}.fit", "magnify", None, (counts,), shape, {"least": LEFT})
    return r.same(counts, "log1p")


def _window(r: Reader, layer: VoxelMean) -> tuple[int, int]:
    if layer.duration is None:
        raise ValueError(WAITS)
    r.durations.add(layer.duration)
    return layer.frames, layer.duration


def _last(r: Reader, layer: Last, x: Any, geometry: Any, memory: Any = None, before: Any = None) -> Row:
    r.remembers(memory)
    x = r.of(x, layer.stream)
    first = np.zeros(x.channels, np.float32) if before is None else array_of(before)
    return r.add(r.name, "last", None, (x,), x.shape, state=4 * x.channels, before=first)


def _pool(r: Reader, layer: MeanPool | MaxPool, x: Any, geometry: Any, memory: Any = None) -> Row:
    r.remembers(memory)
    x = r.of(x, layer.cloud)
    kind = "mean" if isinstance(layer, MeanPool) else "max"
    return r.add(r.name, "pool", None, (x,), x.shape, {"kind": kind}, 4 * x.channels + 8)


def _voxel_conv(r: Reader, layer: VoxelConv, x: Any) -> Row:
    return r.cells(r.value(x), layer.weight.detach()[:, :, None], layer.bias, (1, 3, 3), (1, *layer.stride), (0, 1, 1))


def _voxel_merge(r: Reader, layer: VoxelMerge, x: Any, mean: Any) -> Row:
    name = r.name
    r.name = f"{name}.conv"
    weight, bias = layer.conv.weight.detach(), layer.conv.bias
    y = r.cells(r.value(x), weight, bias, (2, 2, 2), (2, 2, 2), (0, 0, 0))
    r.name = name
    return r.both("add", _batch_norm(r, layer.norm, r.same(y, "relu")), _batch_norm(r, layer.mean_norm, mean))


def _linear(r: Reader, layer: nn.Linear, x: Any) -> Row:
    return r.dense(x, layer.weight, layer.bias)


def _table(r: Reader, layer: nn.Embedding, index: Any) -> Row:
    return _embedding(r, index, layer.weight, max_norm=layer.max_norm)


def _nothing(r: Reader, layer: Any, x: Any, *rest: Any) -> Any:
    return x


def _leaky_relu(r: Reader, layer: nn.LeakyReLU, x: Any) -> Row:
    return r.same(x, "leaky_relu", {"slope": layer.negative_slope})


def _softmax(r: Reader, layer: Any, x: Any) -> Row:
    return _over_channels("log_softmax" if isinstance(layer, nn.LogSoftmax) else "softmax")(r, x, layer.dim)


def _plain(kind: type, name: str, **expected: Any) -> tuple[type, Callable[..., Row]]:
    """An activation layer, with the settings it is known with."""

    def reader(r: Reader, layer: Any, x: Any) -> Row:
        if any(getattr(layer, key) != value for key, value in expected.items()):
            raise _Unknown(f"layer {r.name!r} ({layer})")
        return r.same(x, name)

    return kind, reader


_LAYERS: tuple[tuple[type, Callable[..., Any]], ...] = (
    (PolarityConv, _polarity_conv), (EventConv, _event_conv), (BatchNorm, _batch_norm), (nn.BatchNorm1d, _batch_norm),
    (nn.LayerNorm, _layer_norm), (LeakyMean, _leaky_mean), (VoxelMean, _voxel_mean),
    (LeakyCount, _leaky_count), (Last, _last), (MeanPool, _pool), (MaxPool, _pool), (VoxelConv, _voxel_conv),
    (VoxelMerge, _voxel_merge), (nn.Embedding, _table),
    (nn.Linear, _linear), (nn.Dropout, _nothing), (nn.Identity, _nothing), (nn.LeakyReLU, _leaky_relu),
    (nn.Softmax, _softmax), (nn.LogSoftmax, _softmax), _plain(nn.ReLU, "relu"), _plain(nn.ELU, "elu", alpha=1.0),
    _plain(nn.Sigmoid, "sigmoid"), _plain(nn.Tanh, "tanh"), _plain(nn.SiLU, "silu"),
    _plain(nn.GELU, "gelu", approximate="none"), _plain(nn.Softplus, "softplus", beta=1, threshold=20),
)  # fmt: skip


def _reader_of(layer: nn.Module) -> Callable[..., Any] | None:
    for kind, reader in _LAYERS:
        if isinstance(layer, kind) and getattr(layer.forward, "__func__", None) is kind.forward:
            return reader
    return None


# Functions and methods, by name.


def _getitem(r: Reader, x: Any, key: Any) -> Any:
    if isinstance(x, Tensor) and isinstance(key, _Index):
        return _embedding(r, key, x)
    if isinstance(x, Tensor | tuple | list):
        return x[key]
    if isinstance(x, _Geometry):
        return _Events(r.streams[str(key)])
    if isinstance(x, _Events) and x.part == "pixel" and key in [(slice(None), axis) for axis in (0, 1, -2, -1)]:
        return _Index(x.stream, int(key[1] % 2 == 0), key[1] % 2)
    if isinstance(x, _Cause) and isinstance(key, _Cause):
        return _Cause(x.chain + key.chain)
    x = r.value(x)
    if isinstance(key, _Cause):
        return _caused(r, x, key)
    # Channels of a value, or a frame of a grid (the first axis is that of the examples).
    keys = key if isinstance(key, tuple) else (key,)
    channels = keys[-1]
    whole = len(keys) == len(x.shape) + 1 and all(k == slice(None) for k in keys[:-1])
    if whole or (keys[0] is Ellipsis and len(keys) == 2):
        if isinstance(channels, slice):
            begin, end, step = channels.indices(x.channels)
            if step == 1:
                return _slice(r, x, begin, end)
    elif len(x.shape) == 4 and len(keys) == 2 and keys[0] == slice(None) and isinstance(channels, int):
        return r.add(r.name, "frame", None, (x,), x.shape[1:], {"index": channels % x.shape[0]})
    raise _Unknown(f"{r.name} (an index)")


def _slice(r: Reader, x: Row, begin: int, end: int) -> Row:
    return r.add(r.name, "slice", x.stream, (x,), (*x.shape[:-1], end - begin), {"begin": begin, "end": end})


def _caused(r: Reader, x: Any, cause: _Cause) -> Row:
    """The value of the event that fired each event: once for every stream on the way."""
    x = r.value(x)
    for name in cause.chain:
        if x.stream != r.streams[name].source:
            raise _Unknown(f"{r.name} takes rows of {x.stream} by the causes of {name}; this")
        x = r.add(r.name, "cause", name, (x,), x.shape)
    return x


def _getattr(r: Reader, x: Any, name: str) -> Any:
    if isinstance(x, _Events) and not x.part:
        if name in ("pixel", "polarity"):
            return _Events(x.stream, name)
        if name == "cause":
            if x.stream.source is None:
                raise _Unknown(f"{r.name}: {x.stream.name} is the input, which nothing fired; this")
            return _Cause((x.stream.name,))
        if name == "sensor":
            return x.stream.sensor
    if isinstance(x, Tensor):
        return getattr(x, name)
    if isinstance(x, Row) and name == "dtype":
        return torch.float32
    raise _Unknown(f"{r.name} (the attribute {name} of {_words(x)})")


def _unbind(r: Reader, x: Any, dim: int = 0) -> Any:
    if isinstance(x, _Events) and x.part == "pixel" and dim in (1, -1):
        return _Index(x.stream, 1, 0), _Index(x.stream, 0, 1)
    raise _Unknown(f"{r.name} (unbind)")


def _convert(r: Reader, x: Any, *args: Any, **kwargs: Any) -> Any:
    kinds = [kind for kind in (*args, *kwargs.values()) if isinstance(kind, torch.dtype)]
    if isinstance(x, Row) and (r.name.endswith(("long", "int")) or {*kinds} - {torch.float32, torch.float64}):
        raise _Unknown(f"{r.name} (a value rounded to {kinds[0] if kinds else 'whole numbers'})")
    # In torch a copy of float32, which later changes in place leave as it is.
    return _copy(r, x) if isinstance(x, Row) and (r.name.endswith("double") or torch.float64 in kinds) else x


def _copy(r: Reader, x: Any) -> Row:
    return r.affine(x, 1, 0)


def _whole(r: Reader, number: Any) -> int:
    if number != int(number):
        raise _Unknown(f"{r.name} (a pixel with the fraction {number})")
    return int(number)


def _add(r: Reader, a: Any, b: Any) -> Any:
    if isinstance(a, _Index) or isinstance(b, _Index):
        a, b = (a, b) if isinstance(a, _Index) else (b, a)
        if isinstance(b, _Index):
            return _Index(a.stream, a.columns + b.columns, a.rows + b.rows, a.constant + b.constant)
        return _Index(a.stream, a.columns, a.rows, a.constant + _whole(r, b))
    return r.both("add", a, b)


def _multiply(r: Reader, a: Any, b: Any) -> Any:
    if isinstance(a, _Index) or isinstance(b, _Index):
        a, b = (a, b) if isinstance(a, _Index) else (b, a)
        b = _whole(r, b)
        return _Index(a.stream, a.columns * b, a.rows * b, a.constant * b)
    return r.both("multiply", a, b)


def _subtract(r: Reader, a: Any, b: Any) -> Row:
    if isinstance(b, Row):
        return r.both("add", a, r.affine(b, -1, 0))
    return r.both("add", a, -b)


def _divide(r: Reader, a: Any, b: Any) -> Row:
    if isinstance(b, Row):
        raise _Unknown(f"{r.name} (a division by a value)")
    # Torch divides by 0, Python does not.
    return r.both("multiply", a, 1 / b if isinstance(b, Tensor) or b else math.copysign(math.inf, b))


def _product(r: Reader, x: Any, weight: Any) -> Row:
    if not isinstance(weight, Tensor) or weight.ndim != 2:
        raise _Unknown(f"{r.name} (a product that is not of a value and a constant matrix)")
    return r.dense(x, weight.T)


def _embedding(r: Reader, index: Any, weight: Any, padding_idx: Any = None, max_norm: Any = None, **rest: Any) -> Row:
    if max_norm is not None:
        raise _Unknown(f"{r.name} (embedding with max_norm)")
    if isinstance(index, _Cause):
        return _caused(r, weight, index)
    if isinstance(index, _Index) and isinstance(weight, Tensor):
        width, height = index.stream.sensor
        y, x = np.divmod(np.arange(width * height), width)
        at = index.columns * x + index.rows * y + index.constant
        if at.min() < 0 or at.max() >= len(weight):
            raise _Unknown(f"{r.name} (rows {at.min()} to {at.max()} of a table of {len(weight)})")
        table = array_of(weight)[at]
        return r.add(r.name, "place", index.stream.name, (), table.shape[1:], table=table)
    raise _Unknown(f"{r.name} (embedding)")


def _index_select(r: Reader, x: Any, dim: int, index: Any) -> Row:
    return _embedding(r, index, x) if dim == 0 else _getitem(r, x, None)


def _cat(r: Reader, values: Any, dim: int = 0) -> Row:
    rows = tuple(r.value(value) for value in values)
    if dim not in (-1, len(rows[0].shape)) or len({row.shape[:-1] for row in rows}) > 1:
        raise _Unknown(f"{r.name} (a concatenation along axis {dim}, not of channels)")
    return r.joined("concatenate", rows, (*rows[0].shape[:-1], sum(row.channels for row in rows)))


def _parts(r: Reader, x: Any, size: int | list[int], dim: int = 0) -> list[Row]:
    x = r.value(x)
    if dim not in (-1, len(x.shape)):
        raise _Unknown(f"{r.name} (a cut along axis {dim}, not of channels)")
    ends = [*range(size, x.channels, size), x.channels] if isinstance(size, int) else np.cumsum(size).tolist()
    if ends[-1] != x.channels:
        raise _Unknown(f"{r.name} (parts of {size}, of {x.channels} channels)")
    return [_slice(r, x, begin, end) for begin, end in zip([0, *ends], ends, strict=False)]


def _chunk(r: Reader, x: Any, chunks: int, dim: int = 0) -> list[Row]:
    return _parts(r, x, -(-r.value(x).channels // chunks), dim)


def _reduce(kind: str) -> Callable[..., Row]:
    def reader(r: Reader, x: Any, dim: Any = (), keepdim: bool = False) -> Row:
        x = r.value(x)
        axes = sorted(d % (len(x.shape) + 1) for d in (dim if isinstance(dim, tuple | list) else (dim,)))
        if x.stream is not None or keepdim or axes != list(range(1, len(x.shape))) or len(x.shape) < 2:
            raise _Unknown(f"{r.name} (the {kind} along axes {dim}, not over all cells)")
        return r.add(r.name, "reduce", None, (x,), x.shape[-1:], {"kind": kind})

    return reader


def _flatten(r: Reader, x: Any, start_dim: int = 0, end_dim: int = -1) -> Row:
    x = r.value(x)
    if start_dim != 1 or end_dim not in (-1, len(x.shape)):
        raise _Unknown(f"{r.name} (flatten)")
    return r.add(r.name, "flatten", None, (x,), (math.prod(x.shape),)) if len(x.shape) > 1 else x


def _over_channels(operation: str) -> Callable[..., Row]:
    def reader(r: Reader, x: Any, dim: Any = None, **rest: Any) -> Row:
        if dim not in (-1, len(r.value(x).shape)):
            raise _Unknown(f"{r.name} ({operation} along axis {dim}, not over channels)")
        return r.same(x, operation)

    return reader


def _dropout(r: Reader, x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if training:
        raise _Unknown(f"{r.name} that drops in evaluation, too (pass training=self.training),")
    return x


def _elu(r: Reader, x: Any, alpha: float = 1.0, inplace: bool = False) -> Row:
    if alpha != 1:
        raise _Unknown(f"{r.name} with alpha={alpha}")
    return r.same(x, "elu")


def _simple(name: str) -> Callable[..., Row]:
    def reader(r: Reader, x: Any, *args: Any, inplace: bool = False) -> Row:
        if args and args != (False,):
            raise _Unknown(f"{r.name} ({name} with settings: use the layer)")
        return r.same(x, name)

    return reader


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _simple(name) for name in ACTIVATIONS if name != "leaky_relu"},
    "relu_": _simple("relu"), "elu": _elu,
    "leaky_relu": lambda r, x, negative_slope=0.01, inplace=False: r.same(x, "leaky_relu", {"slope": negative_slope}),
    "getitem": _getitem, "getattr": _getattr, "unbind": _unbind, "add": _add, "iadd": _add, "add_": _add,
    "mul": _multiply, "imul": _multiply, "mul_": _multiply, "sub": _subtract, "isub": _subtract, "sub_": _subtract,
    "div": _divide, "truediv": _divide, "itruediv": _divide, "div_": _divide, "matmul": _product, "clone": _copy,
    "neg": lambda r, x: r.affine(x, -1, 0), "linear": lambda r, x, weight, bias=None: r.dense(x, weight, bias),
    "embedding": _embedding, "index_select": _index_select, "cat": _cat, "concat": _cat, "concatenate": _cat,
    "split": _parts, "chunk": _chunk, "amax": _reduce("max"), "mean": _reduce("mean"), "flatten": _flatten,
    "softmax": _over_channels("softmax"), "log_softmax": _over_channels("log_softmax"),
    "dropout": _dropout,
    "polarity_features": lambda r, events, *a, **k: _polarity(r, events.stream),
    **dict.fromkeys(("long", "int", "float", "double", "to", "contiguous", "detach"), _convert),
}  # fmt: skip
