"""The plan: what a network needs that coordinates alone decide, written once and run anywhere.

A plan is a straight-line program: each line names its result (`X0` a cloud, `N01` the edges from X0 to X1), and running
it is one loop. Layers keep the names; `forward` looks the results up in the geometry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gridless.structures import Cloud, Events, Geometry


class Name(str):
    """The name of a line of a plan, with what a layer may want to know of it before anything has run.

    Of a cloud: `dim`. Of edges: `source` and `target`, the names of the clouds they join, `dim`, and `radius`, the scale
    their vectors are divided by (None where a search has none).
    """

    dim: int
    source: Name
    target: Name
    radius: float | None

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
        return self._cloud(Step("points", (), (("dim", dim),)), dim)

    def ball(self, source: Name, target: Name, radius: float, limit: int | None = None) -> Name:
        """All sources within `radius` of each target."""
        settings = (("radius", float(radius)),) + ((("limit", limit),) if limit is not None else ())
        return self._edges(Step("ball", (source, target), settings), source, target, float(radius))

    def nearest(self, source: Name, target: Name, k: int) -> Name:
        """The k sources nearest to each target."""
        return self._edges(Step("nearest", (source, target), (("k", k),)), source, target, None)

    def rejection_sample(self, near: Name) -> Name:
        """Points of the cloud of `near`, in index order, of which no two are neighbours."""
        return self._cloud(Step("rejection_sample", (near.target, near)), near.dim)

    def farthest_sample(
        self, cloud: Name, size: int | float, start: int = 0, near: Name | None = None, reject: bool = False
    ) -> Name:
        """Iterative farthest points; with `near`, the paper's approximation, after rejection sampling if `reject`."""
        inputs = (cloud,) if near is None else (cloud, near)
        settings: tuple[tuple[str, Any], ...] = (("size", size), ("start", start))
        return self._cloud(Step("farthest_sample", inputs, settings + ((("reject", True),) if reject else ())), cloud.dim)

    def transpose(self, edges: Name) -> Name:
        """The same edges from target to source, for up-sampling."""
        return self._edges(Step("transpose", (edges,)), edges.target, edges.source, edges.radius)

    # Running.

    def __call__(self, x: Any) -> Geometry:
        values: dict[str, Any] = {}
        for name, step in self.steps.items():
            inputs = [values[i] for i in step.inputs]
            values[name] = _RUN[step.op](x, *inputs, **dict(step.settings))
        return Geometry(values)

    # Values.

    @property
    def digest(self) -> str:
        """A short stable fingerprint: equal for equal plans, on any machine."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return "\n".join(f"{name} = {step}" for name, step in self.steps.items())

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and list(self.steps.items()) == list(other.steps.items())

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        return _rebuild, tuple((str(n), s.op, tuple(map(str, s.inputs)), s.settings) for n, s in self.steps.items())

    # Names.

    def _cloud(self, step: Step, dim: int) -> Name:
        count = sum(name.startswith("X") for name in self.steps)
        return self._add(f"X{count}", step, dim=dim)

    def _edges(self, step: Step, source: Name, target: Name, radius: float | None) -> Name:
        text = f"N{source[1:]}{target[1:]}"
        return self._add(text, step, source=source, target=target, dim=source.dim, radius=radius)

    def _add(self, text: str, step: Step, **facts: Any) -> Name:
        for name in step.inputs:
            if name not in self.steps:
                raise ValueError(f"{step}: {name!r} is not a line of this plan")
        if not step.inputs and self.steps and next(iter(self.steps.values())) != step:
            raise ValueError(f"a plan has one input, and this one begins with {next(iter(self.steps.values()))}")
        for name, known in self.steps.items():
            if known == step:
                return Name(name, **facts)
        free = text
        for letter in "bcdefghijklmnopqrstuvwxyz":
            if free not in self.steps:
                break
            free = text + letter
        self.steps[free] = step
        return Name(free, **facts)


def _rebuild(*lines: tuple) -> Plan:
    plan = Plan()
    plan.steps = {name: Step(op, inputs, settings) for name, op, inputs, settings in lines}
    return plan


def _points(x: Any, dim: int) -> Cloud:
    if isinstance(x, Events):
        raise TypeError("this plan begins with points, but it was called with Events")
    cloud = Cloud.of(x)
    if cloud.dim != dim:
        raise ValueError(f"this plan is for points of {dim} dimensions, not {cloud.dim}")
    return cloud


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
}
