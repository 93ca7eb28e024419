"""The plan: what a network needs that coordinates alone decide, written once and run anywhere.

A plan is a straight-line program: each line names its result (`X0` a cloud, `N01` the edges from X0 to X1), and running
it is one loop. Layers keep the names; `forward` looks the results up in the geometry.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from gridless.structures import Cloud, Events, Geometry


class Name(str):
    """The name of a line of a plan, with what a layer may want to know of it before anything has run.

    Of a cloud: `dim`. Of edges: `source` and `target`, the names of the clouds they join, `dim`, and `radius`, the
    scale their vectors are divided by (None where a search has none). Of events: `sensor`. Of edges between events:
    `source`, `target`, `kernel`, `stride` and `window`.
    """

    dim: int
    source: Name
    target: Name
    radius: float | None
    sensor: tuple[int, int]
    kernel: int | str
    stride: int
    window: float | None

    def __new__(cls, text: str, **facts: Any) -> Name:
        name = super().__new__(cls, text)
        name.__dict__.update(facts)
        return name

    def __getnewargs_ex__(self) -> tuple[tuple, dict]:
        return (str(self),), self.__dict__


@dataclass(frozen=True)
class Step:
    """One line of a plan: the operation, the names it reads, and its settings."""

    op: str
    inputs: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        words = [*self.inputs, *(f"{k}={v}" for k, v in self.settings)]
        return f"{self.op}({', '.join(words)})"


class Plan:
    """The geometry a network needs. Its methods add lines; calling it runs them.

    >>> plan = gl.Plan()
    >>> cloud = plan.points(dim=3)
    >>> near = plan.ball(cloud, cloud, 0.1)
    >>> coarse = plan.rejection_sample(near)
    >>> geometry = plan(torch.rand(1024, 3))
    >>> geometry[coarse].coords

    `plan(x)` takes one example, an (S, D) tensor or array (or `Events`), or a whole ragged batch, a `Cloud`.
    Equal lines are one line, so searches that several layers share are run once.
    """

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    # Lines.

    def points(self, dim: int = 3) -> Name:
        """The cloud the plan is called with."""
        if not 1 <= dim <= 8:
            raise ValueError(f"points: dim must be 1 to 8, not {dim}")
        return self._cloud(Step("points", (), (("dim", int(dim)),)), dim)

    def ball(self, source: Name, target: Name, radius: float, limit: int | None = None) -> Name:
        """All sources within `radius` of each target."""
        if isinstance(radius, bool | str) or not hasattr(radius, "__float__"):
            raise TypeError(f"ball: radius must be a number, such as 0.1, in the units of the points, not {radius!r}")
        if not 0 < radius < math.inf:
            raise ValueError(f"ball: radius must be positive and finite, not {radius}")
        settings = (("radius", float(radius)),) + ((("limit", limit),) if limit is not None else ())
        return self._edges(Step("ball", (source, target), settings), source, target, float(radius))

    def nearest(self, source: Name, target: Name, k: int) -> Name:
        """The k sources nearest to each target."""
        if k < 1:
            raise ValueError(f"nearest: k must be at least 1, not {k}")
        return self._edges(Step("nearest", (source, target), (("k", k),)), source, target, None)

    def rejection_sample(self, near: Name) -> Name:
        """Points of the cloud of `near`, in index order, of which no two are neighbours."""
        if near.source != near.target:
            raise ValueError(f"rejection_sample: {near} must be a search of a cloud in itself, not {self.steps[near]}")
        return self._cloud(Step("rejection_sample", (near.target, near)), near.dim)

    def farthest_sample(
        self,
        cloud: Name,
        size: int | float | Sequence[int],
        start: int = 0,
        near: Name | None = None,
        reject: bool = False,
    ) -> Name:
        """Iterative farthest points; with `near`, the paper's approximation, after rejection sampling if `reject`."""
        if near is not None and not near.source == near.target == cloud:
            raise ValueError(f"farthest_sample: {near} must be a search of {cloud} in itself, not {self.steps[near]}")
        if reject and near is None:
            raise ValueError("farthest_sample: reject=True needs near, a search of the cloud in itself")
        inputs = (cloud,) if near is None else (cloud, near)
        size = size if isinstance(size, (int, float)) else tuple(map(int, size))
        settings: tuple[tuple[str, Any], ...] = (("size", size), ("start", start))
        return self._cloud(
            Step("farthest_sample", inputs, settings + ((("reject", True),) if reject else ())), cloud.dim
        )

    def transpose(self, edges: Name) -> Name:
        """The same edges from target to source, for up-sampling."""
        return self._edges(Step("transpose", (edges,)), edges.target, edges.source, edges.radius)

    # Lines on events.

    def events(self, sensor: tuple[int, int]) -> Name:
        """The events the plan is called with, of a sensor of (width, height)."""
        width, height = (int(v) for v in sensor)
        return self._stream(Step("events", (), (("sensor", (width, height)),)), (width, height))

    def lif(
        self, events: Name, kernel: int = 3, stride: int = 2, *, decay_time: float, threshold: float, reset: float
    ) -> Name:
        """The events that `events` fire on a grid `stride` times coarser."""
        from gridless.geometry.taps import coarser

        settings = (("kernel", kernel), ("stride", stride), ("decay_time", float(decay_time)))
        settings += (("threshold", float(threshold)), ("reset", float(reset)))
        return self._stream(Step("lif", (events,), settings), coarser(events.sensor, stride))

    def causal(
        self, source: Name, target: Name, kernel: int | str = 3, stride: int = 1, window: float | None = None
    ) -> Name:
        """The earlier events that each target sees through a kernel, at most `window` microseconds old.

        Without a window nothing is written out, and no line is added: convolutions walk the two streams themselves.
        """
        facts = {"source": source, "target": target, "kernel": kernel, "stride": stride, "window": window, "dim": 2}
        text = f"N{source[1:]}{target[1:]}"
        if window is None:
            return Name(text, **facts)
        settings = (("kernel", kernel), ("stride", stride), ("window", float(window)))
        return self._add(text, Step("causal", (source, target), settings), **facts)

    def latest(self, source: Name, target: Name, kernel: int | str = 3, stride: int = 1) -> Name:
        """For every target and tap the latest event that it sees there."""
        facts = {"source": source, "target": target, "kernel": kernel, "stride": stride, "dim": 2}
        step = Step("latest", (source, target), (("kernel", kernel), ("stride", stride)))
        return self._add(f"L{source[1:]}{target[1:]}", step, **facts)

    # Running.

    def __call__(self, x: Any) -> Geometry:
        values: dict[str, Any] = {}
        for name, step in self.steps.items():
            inputs = [values[i] for i in step.inputs]
            values[name] = _RUN[step.op](x, *inputs, **dict(step.settings))
        return Geometry(values)

    def step(self, x: Any, memory: dict[str, Any] | None = None) -> tuple[Geometry, dict[str, Any]]:
        """The geometry of the next packet of a stream: memory in (None before the first), memory out.

        Lines that remember (`lif`) continue from their memory, which has their names; causes are rows of the packet.
        """
        memory, after = memory or {}, {}
        values: dict[str, Any] = {}
        for name, step in self.steps.items():
            inputs = [values[i] for i in step.inputs]
            if step.op in _REMEMBERS:
                values[name], after[name] = _REMEMBERS[step.op](*inputs, memory.get(name), **dict(step.settings))
            else:
                values[name] = _RUN[step.op](x, *inputs, **dict(step.settings))
        return Geometry(values), after

    # Values.

    @property
    def digest(self) -> str:
        """A short stable fingerprint: equal for equal plans, on any machine."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return "\n".join(f"{name} = {step}" for name, step in self.steps.items())

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        return _rebuild, tuple((str(n), s.op, tuple(map(str, s.inputs)), s.settings) for n, s in self.steps.items())

    # Names.

    def _cloud(self, step: Step, dim: int) -> Name:
        count = sum(name.startswith("X") for name in self.steps)
        return self._add(f"X{count}", step, dim=dim)

    def _stream(self, step: Step, sensor: tuple[int, int]) -> Name:
        count = sum(name.startswith("X") for name in self.steps)
        return self._add(f"X{count}", step, dim=2, sensor=sensor)

    def _edges(self, step: Step, source: Name, target: Name, radius: float | None) -> Name:
        if source.dim != target.dim:
            raise ValueError(f"{step.op}: {source} has {source.dim} dimensions, {target} has {target.dim}")
        between = "" if len(source) == len(target) == 2 else "_"
        text = f"N{source[1:]}{between}{target[1:]}"
        return self._add(text, step, source=source, target=target, dim=source.dim, radius=radius)

    def _add(self, text: str, step: Step, **facts: Any) -> Name:
        for name in step.inputs:
            if name not in self.steps:
                raise ValueError(f"{step}: {name!r} is not a line of this plan")
        if not step.inputs and self.steps and next(iter(self.steps.values())) != step:
            raise ValueError(f"a plan has one input, and this one begins with {next(iter(self.steps.values()))}")
        for name, known in self.steps.items():
            # By their words: 1 sample and a fraction of 1.0 are not the same, though the numbers are equal.
            if str(known) == str(step):
                return Name(name, **facts)
        free, letters = text, itertools.chain("bcdefghijklmnopqrstuvwxyz", (f"_{n}" for n in itertools.count(27)))
        while free in self.steps:
            free = text + next(letters)
        self.steps[free] = step
        return Name(free, **facts)


def _rebuild(*lines: tuple) -> Plan:
    plan = Plan()
    plan.steps = {name: Step(op, inputs, settings) for name, op, inputs, settings in lines}
    return plan


def _points(x: Any, dim: int) -> Cloud:
    if isinstance(x, Events):
        raise TypeError("this plan begins with points, but it was called with Events")
    if x is None or isinstance(x, str | bytes | PurePath):
        raise TypeError(
            f"this plan begins with points: call it with an (S, {dim}) tensor or array, a list of them, or a Cloud, "
            f"not with {x!r}; a file is read with gl.read_cloud(path)"
        )
    cloud = Cloud.of(x)
    if cloud.dim != dim:
        raise ValueError(f"this plan is for points of {dim} dimensions, not {cloud.dim}")
    return cloud


def _events(x: Any, sensor: tuple[int, int]) -> Events:
    if isinstance(x, Cloud):
        raise TypeError("this plan begins with events, but it was called with a Cloud")
    if x is None or isinstance(x, str | bytes | PurePath):
        raise TypeError(
            f"this plan begins with events: call it with Events or an array of fields x, y, t and p, not with {x!r}; a "
            "file is read with gl.read_events(path)"
        )
    if isinstance(x, Events) and x.sensor != sensor:
        raise ValueError(f"this plan is for a sensor of {sensor}, but these events have one of {x.sensor}")
    return x if isinstance(x, Events) else Events.of(x, sensor=sensor)


def _lif_step(events: Any, state: Any, **settings: Any) -> Any:
    from gridless.geometry import lif_step

    return lif_step(events, state, **settings)


def _runner(name: str) -> Callable[..., Any]:
    def run(_: Any, *inputs: Any, **settings: Any) -> Any:
        import gridless.geometry as geometry

        return getattr(geometry, name)(*inputs, **settings)

    return run


def _farthest(_: Any, cloud: Any, near: Any = None, **settings: Any) -> Any:
    from gridless.geometry import farthest_sample

    return farthest_sample(cloud, near=near, **settings)


_RUN: dict[str, Callable[..., Any]] = {
    "points": _points,
    "ball": _runner("ball"),
    "nearest": _runner("nearest"),
    "rejection_sample": _runner("rejection_sample"),
    "farthest_sample": _farthest,
    "transpose": lambda _, edges: edges.transpose(),
    "events": _events,
    "lif": _runner("lif"),
    "causal": _runner("causal"),
    "latest": _runner("latest"),
}

# Steps that continue from where the last packet of a stream left them.
_REMEMBERS: dict[str, Callable[..., Any]] = {"lif": _lif_step}
