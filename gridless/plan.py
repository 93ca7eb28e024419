"""The plan: what a network needs that coordinates alone decide, written once and run anywhere.

A plan is a straight-line program: each line names its result (`X0` a cloud, `N01` the edges from X0 to X1), and running
it is one loop. Layers keep the names; `forward` looks the results up in the geometry.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import secrets
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gridless import geometry
from gridless.backends import backend_for, current, is_forced, load, uncompiled
from gridless.geometry.checks import check_whole
from gridless.geometry.farthest import Size, check_size, check_start
from gridless.geometry.grid import check_cell
from gridless.geometry.rejection import ball_of_samples
from gridless.geometry.taps import check_stride, coarser, reach_of
from gridless.geometry.voxels.window import Axes
from gridless.structures import Cloud, Edges, Events, Geometry, TapEdges, Voxels, collate, fixed
from gridless.structures.events import as_sensor
from gridless.structures.interchange import narrowest
from gridless.structures.rows import tensor_of

if TYPE_CHECKING:
    from gridless.geometry.chain.cpu import PointChain
    from gridless.geometry.chain.gpu import GpuChain


class Name(str):
    """The name of a line of a plan, with what a layer may want to know of it before anything has run.

    `kind` is "cloud", "edges", "taps", "events" or "event edges", `plan` says which plan it is of, and `line` what is
    found there, by a fingerprint; `plain` is the bare text. Of a cloud: `dim`, and of voxels `side`. Of taps: `source`,
    `target`, `dim` and `num_taps`. Of edges: `source` and `target`, the names of
    the clouds they join, `dim`, and `radius`, the scale their vectors are divided by (None where a search has none). Of
    events: `sensor`. Of edges between events: `source`, `target`, `kernel`, `stride` and `window`.
    """

    plain: str
    kind: str
    plan: str
    line: str
    dim: int
    source: Name
    target: Name
    radius: float | None
    sensor: tuple[int, int]
    kernel: int | str
    stride: int
    window: float | None
    side: float | None
    num_taps: int

    def __new__(cls, text: str, **facts: Any) -> Name:
        name = super().__new__(cls, text)
        name.__dict__.update(facts, plain=str(text))
        return name

    def __getnewargs__(self) -> tuple[str]:
        return (self.plain,)


@dataclass(frozen=True)
class Step:
    """One line of a plan: the operation, the names it reads, and its settings."""

    op: str
    inputs: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        parts = [*self.inputs, *(f"{k}={v}" for k, v in self.settings)]
        return f"{self.op}({', '.join(parts)})"


class Plan:
    """The geometry a network needs. Its methods add lines; calling it runs them.

    >>> plan = gl.Plan()
    >>> cloud = plan.points(dim=3)
    >>> near = plan.ball(cloud, cloud, 0.1)
    >>> coarse = plan.rejection_sample(near)
    >>> geometry = plan(torch.rand(1024, 3))
    >>> geometry[coarse].coords

    `plan(x)` takes one example, an (S, D) tensor or array (or `Events`), or a whole ragged batch, a `Cloud`. A plan
    with several inputs has names for them, and is called with all of them:

    >>> scan, queries = plan.points(dim=3, name="scan"), plan.points(dim=3, name="queries")
    >>> geometry = plan({"scan": a, "queries": b})

    Equal lines are one line, so searches that several layers share are run once.
    """

    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}
        # Names belong to the plan that wrote them, and to its copies.
        self._key = secrets.token_hex(4)
        # Fingerprint of each line and all that it reads.
        self._lines: dict[str, str] = {}
        self._chain: PointChain | None = None
        self._gpu_chain: GpuChain | None = None
        self._rows_of: dict[str, str] = {}
        self._chained = 0

    # Lines.

    def points(self, dim: int = 3, name: str | None = None) -> Name:
        """The cloud the plan is called with; `name` tells several apart."""
        if not 1 <= dim <= 8:
            raise ValueError(f"points: dim is {dim}. Give 1 to 8.")
        return self._cloud(self._input("points", ("dim", int(dim)), name), dim)

    def ball(self, source: Name, target: Name, radius: float, limit: int | None = None) -> Name:
        """All sources within `radius` of each target.

        Args:
            source: the cloud that is searched.
            target: the cloud whose points have neighbours.
            radius: in the units of the coordinates; a source at this distance is a neighbour.
            limit: the most neighbours to keep for each target; all of them when left out.
        """
        self._expect("ball", "cloud", source=source, target=target)
        if isinstance(radius, bool | str) or not hasattr(radius, "__float__"):
            raise TypeError(f"ball: radius must be a number, such as 0.1, in the units of the points, not {radius!r}")
        if not 0 < radius < math.inf:
            raise ValueError(f"ball: radius must be positive and finite, not {radius}")
        if limit is not None:
            limit = check_whole("ball", "limit", limit)
        settings = (("radius", float(radius)),) + ((("limit", limit),) if limit is not None else ())
        return self._edges(Step("ball", (source, target), settings), source, target, float(radius))

    def nearest(self, source: Name, target: Name, k: int) -> Name:
        """The k sources nearest to each target."""
        self._expect("nearest", "cloud", source=source, target=target)
        k = check_whole("nearest", "k", k)
        return self._edges(Step("nearest", (source, target), (("k", k),)), source, target, None)

    def rejection_sample(self, near: Name) -> Name:
        """Points of the cloud of `near`, in index order, of which no two are neighbours.

        With the edges of `nearest`, which may go one way only, a sample may have an earlier one as its neighbour.
        """
        self._expect("rejection_sample", "edges", near=near)
        if near.source != near.target:
            raise ValueError(f"rejection_sample: {near} is {self.steps[near]}. Give a search of a cloud in itself.")
        return self._cloud(Step("rejection_sample", (near.target, near)), near.dim)

    def farthest_sample(
        self,
        cloud: Name,
        size: Size,
        start: int = 0,
        near: Name | None = None,
        reject: bool = False,
    ) -> Name:
        """Iterative farthest points.

        Args:
            cloud: the cloud that is sampled.
            size: samples of each example: a number, a fraction up to 1.0, or one number for each example.
            start: the row of every example to begin with.
            near: a search of the cloud in itself, for the paper's approximation.
            reject: rejection sampling over `near` first.
        """
        self._expect("farthest_sample", "cloud", cloud=cloud)
        size = check_size(size, "farthest_sample")
        if near is not None:
            self._expect("farthest_sample", "edges", near=near)
        if near is not None and not near.source == near.target == cloud:
            raise ValueError(f"farthest_sample: {near} is {self.steps[near]}. Give a search of {cloud} in itself.")
        if reject and near is None:
            raise ValueError("farthest_sample: reject=True needs near. Give a search of the cloud in itself.")
        inputs = (cloud,) if near is None else (cloud, near)
        size = size if isinstance(size, (int, float)) else tuple(map(int, size))
        settings: tuple[tuple[str, Any], ...] = (("size", size), ("start", check_start(start)))
        return self._cloud(
            Step("farthest_sample", inputs, settings + ((("reject", True),) if reject else ())), cloud.dim
        )

    def random_sample(self, cloud: Name, size: Size, seed: int = 0) -> Name:
        """Points drawn by `seed` and their coordinates, the same in a batch as alone: `gl.random_sample(seed=...)`."""
        self._expect("random_sample", "cloud", cloud=cloud)
        size = check_size(size, "random_sample")
        size = size if isinstance(size, (int, float)) else tuple(map(int, size))
        settings = (("size", size), ("seed", check_whole("random_sample", "seed", seed, least=0)))
        return self._cloud(Step("random_sample", (cloud,), settings), cloud.dim)

    def grid_sample(self, cloud: Name, cell: float, keep: str = "first", rows: Mapping[str, str] | None = None) -> Name:
        """One point for each cell of a grid; the arguments are those of `gl.grid_sample`."""
        self._expect("grid_sample", "cloud", cloud=cloud)
        settings: tuple[tuple[str, Any], ...] = (("cell", check_cell(cell, keep)), ("keep", keep))
        settings += (("rows", tuple(sorted(rows.items()))),) if rows else ()
        return self._cloud(Step("grid_sample", (cloud,), settings), cloud.dim)

    def voxels(self, cloud: Name, side: float, keep: str = "first", rows: Mapping[str, str] | None = None) -> Name:
        """One point for each occupied cell of a grid, which knows the number of its cell: `gl.geometry.voxelise`.

        Args:
            cloud: the points.
            side: the side of a cell, in the units of the coordinates.
            keep: which point stands for a cell: `first`, `nearest` (to its middle) or `mean`.
            rows: how rows are reduced, by name, as in `gl.grid_sample`.
        """
        self._expect("voxels", "cloud", cloud=cloud)
        if cloud.dim > 4:
            raise ValueError(f"voxels: {cloud} has {cloud.dim} dimensions. Use a cloud of 1 to 4.")
        settings: tuple[tuple[str, Any], ...] = (("side", check_cell(side, keep)), ("keep", keep))
        settings += (("rows", tuple(sorted(rows.items()))),) if rows else ()
        return self._cloud(Step("voxels", (cloud,), settings), cloud.dim, side=float(side))

    def coarser_voxels(
        self, voxels: Name, kernel: Axes = 2, stride: int = 2, padding: Axes = 0, dilation: Axes = 1
    ) -> Name:
        """The voxels of a grid `stride` times coarser that see at least one of these through the kernel.

        Args:
            voxels: the finer voxels.
            kernel: entries along each axis.
            stride: how much coarser the new grid is.
            padding: entries of the kernel before the first cell.
            dilation: cells between entries of the kernel.
        """
        self._expect_voxels("coarser_voxels", voxels=voxels)
        window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        settings = _window("coarser_voxels", voxels.dim, window)
        side = _side(voxels) * check_whole("coarser_voxels", "stride", stride)
        return self._cloud(Step("coarser_voxels", (voxels,), settings), voxels.dim, side=side)

    def taps(
        self,
        source: Name,
        target: Name,
        kernel: Axes = 3,
        stride: Axes = 1,
        padding: Axes | None = None,
        dilation: Axes = 1,
    ) -> Name:
        """The voxels of `source` that each voxel of `target` sees through a kernel.

        Target i sees at tap k the source in cell stride * i - padding + dilation * k. A voxel of `coarser_voxels` is
        searched with the same kernel, stride, padding and dilation. Up-sampling goes along `plan.transpose(taps)`.

        Args:
            source: the voxels that are seen.
            target: the voxels that see them; the same name for a submanifold convolution.
            kernel: entries along each axis.
            stride: how much coarser the target's grid is.
            padding: entries before the first cell; left out, the middle tap is the voxel itself.
            dilation: cells between entries.
        """
        self._expect_voxels("taps", source=source, target=target)
        window = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
        settings = _window("taps", source.dim, {name: v for name, v in window.items() if v is not None})
        count = math.prod(kernel if isinstance(kernel, Sequence) else [kernel] * source.dim)
        return self._taps(Step("taps", (source, target), settings), source, target, count)

    def transpose(self, edges: Name) -> Name:
        """The same edges from target to source, for up-sampling."""
        if isinstance(edges, Name) and edges.kind == "taps":
            self._expect("transpose", "taps", edges=edges)
            return self._taps(Step("transpose", (edges,)), edges.target, edges.source, edges.num_taps)
        self._expect("transpose", "edges", edges=edges)
        return self._edges(Step("transpose", (edges,)), edges.target, edges.source, edges.radius)

    def without_self(self, edges: Name) -> Name:
        """The same edges without those from a point to itself, or to the sample of it: `gl.geometry.without_self`."""
        self._expect("without_self", "edges", edges=edges)
        inputs = (edges,) if edges.source == edges.target else (edges, edges.target)
        return self._edges(Step("without_self", inputs), edges.source, edges.target, edges.radius)

    # Lines on events.

    def events(self, sensor: tuple[int, int], name: str | None = None) -> Name:
        """The events the plan is called with, of a sensor of (width, height), which may be tonic's triple; `name` tells
        several inputs apart."""
        size = as_sensor(sensor, "events")
        return self._stream(self._input("events", ("sensor", size), name), size)

    def lif(
        self, events: Name, kernel: int = 3, stride: int = 2, *, decay_time: float, threshold: float, reset: float
    ) -> Name:
        """The events that `events` fire on a grid `stride` times coarser.

        Args:
            events: what drives the potentials.
            kernel: the side of the window of pixels, odd, that an event reaches.
            stride: how much coarser the grid is.
            decay_time: microseconds in which a potential decays to 1/e.
            threshold: the potential above which an event is fired.
            reset: the potential after that.
        """
        self._expect("lif", "events", events=events)
        reach_of(kernel)
        check_stride(stride)
        settings = (("kernel", kernel), ("stride", stride), ("decay_time", float(decay_time)))
        settings += (("threshold", float(threshold)), ("reset", float(reset)))
        return self._stream(Step("lif", (events,), settings), coarser(events.sensor, stride))

    def causal(
        self, source: Name, target: Name, kernel: int | str = 3, stride: int = 1, window: float | None = None
    ) -> Name:
        """The earlier events that each target sees through a window of pixels.

        Args:
            source: the events that are seen.
            target: the events that see them.
            kernel: the side of the window of pixels, odd, or the name of one.
            stride: how much coarser the target's grid is.
            window: the greatest age in microseconds. Without it nothing is written out, and no line is added:
                convolutions walk the two streams themselves.
        """
        self._expect("causal", "events", source=source, target=target)
        reach_of(kernel)
        check_stride(stride)
        facts: dict[str, Any] = {"kind": "event edges", "plan": self._key}
        facts |= {"source": source, "target": target, "kernel": kernel, "stride": stride, "window": window, "dim": 2}
        text = f"N{source[1:]}{target[1:]}"
        if window is None:
            return Name(text, **facts)
        settings = (("kernel", kernel), ("stride", stride), ("window", float(window)))
        return self._add(text, Step("causal", (source, target), settings), facts)

    # Running.

    def __call__(self, x: Any) -> Geometry:
        return self.step(x, None)[0]

    def fixed(self, x: Any, like: Geometry | None = None) -> Geometry:
        """The geometry in fixed shapes, for `torch.export`: with room for larger inputs, or in the shapes of `like`.

        >>> example = model.plan.fixed(x)
        >>> program = torch.export.export(model, (example,)).module()
        >>> logits = program(model.plan.fixed(y, like=example))[:-1]

        The last example is one more than was given, a point that takes what is left. What does not fit is refused.
        """
        if [step.op for step in self.steps.values() if not step.inputs] != ["points"]:
            raise TypeError("fixed: the plan has events or several inputs. Use a plan of one cloud of points.")
        cloud = Cloud.of(x)
        if not len(cloud):
            raise ValueError("fixed: the cloud has no points. Give one or more.")
        spare = cloud[:1].examples[int(cloud.sizes.nonzero()[0])]
        return fixed(collate([self(cloud), self(spare)]), like)

    @uncompiled
    def step(self, x: Any, memory: dict[str, Any] | None = None) -> tuple[Geometry, dict[str, Any]]:
        """The geometry of the next packet of a stream: memory in (None before the first), memory out.

        Lines that remember (`lif`) continue from their memory, which has their names; causes are rows of the packet.
        """
        if torch._C._are_functorch_transforms_active() and not is_forced("reference"):
            from gridless.ops.operator import REMEDY

            raise NotImplementedError(f"a plan does not support torch.func. {REMEDY}")
        memory, after = memory or {}, {}
        values: dict[str, Any] = {}
        chain, on_gpu = self._lines_at_once(), None
        for name, step in self.steps.items():
            if name in values:
                continue
            settings = dict(step.settings)
            if not step.inputs:
                argument = self._given(x, settings.pop("name", None))
                own_chain = chain if chain is not None and name == chain.first else None
                if own_chain is not None:
                    if type(argument) is np.ndarray and argument.dtype == np.float32:
                        argument = tensor_of(argument)
                    if type(argument) is not Tensor or argument.ndim != 2:
                        argument = _INPUTS[step.op](argument, **settings)
                    results = own_chain.run(argument)
                    if len(results) == len(self.steps):
                        return Geometry.made(results, self._lines), after
                    values |= results
                if name not in values:
                    # A cloud that was made for the chain is one already.
                    is_cloud = own_chain is not None and type(argument) is Cloud
                    values[name] = argument if is_cloud else _INPUTS[step.op](argument, **settings)
                    if own_chain is not None and backend_for(values[name].device) == "gpu":
                        on_gpu = self._lines_on_gpu(own_chain)
                        with current(values[name].device):
                            values |= on_gpu.run(values[name])
                continue
            inputs = [values[i] for i in step.inputs]
            if step.op in _REMEMBERS:
                values[name], after[name] = _REMEMBERS[step.op](*inputs, memory.get(name), **settings)
            elif name in self._rows_of:
                values[name] = ball_of_samples(values[self._rows_of[name]], inputs[1])
            else:
                values[name] = _RUN[step.op](*inputs, **settings)
        if on_gpu is not None:
            with current(values[on_gpu.first].device):
                on_gpu.remember(values)
        return Geometry({name: values[name] for name in self.steps}, self._lines), after

    def _lines_at_once(self) -> PointChain | None:
        """The lines that a small cloud on the CPU runs in one call; found once, when all are written."""
        if self._chained != len(self.steps):
            from gridless.geometry.chain.cpu import PointChain

            lines = {name: (step.op, step.inputs, dict(step.settings)) for name, step in self.steps.items()}
            self._rows_of, self._gpu_chain = self._balls_of_samples(), None
            self._chain, self._chained = PointChain.of(lines), len(self.steps)
        return self._chain

    def _lines_on_gpu(self, chain: PointChain) -> GpuChain:
        """The same lines, which a GPU runs without a wait between them; it remembers how much they gave."""
        if (known := self._gpu_chain) is None:
            self._gpu_chain = known = load("gridless.geometry.chain", "gpu").GpuChain.of(chain, self._rows_of)
        return known

    def _balls_of_samples(self) -> dict[str, str]:
        """Balls of samples of a cloud in it, each with the earlier ball of the cloud in itself that has its rows."""
        earlier, whole = {}, {}
        for name, step in self.steps.items():
            if step.op == "ball" and "limit" not in dict(step.settings):
                source, target = step.inputs
                sampled = self.steps[target].op == "rejection_sample" and self.steps[target].inputs[0] == source
                if source == target:
                    whole[source, step.settings] = name
                elif sampled and (source, step.settings) in whole:
                    earlier[name] = whole[source, step.settings]
        return earlier

    def _given(self, x: Any, name: str | None) -> Any:
        """The argument of the plan, or the input of that name."""
        if name is None:
            return x
        names = [dict(step.settings)["name"] for step in self.steps.values() if not step.inputs]
        if not isinstance(x, Mapping) or set(x) != set(names):
            actual = f"with {', '.join(map(repr, x))}" if isinstance(x, Mapping) else f"with {type(x).__name__}"
            wanted = ", ".join(f'"{n}": ...' for n in names)
            raise TypeError(f"this plan has named inputs. Call it with plan({{{wanted}}}), not {actual}.")
        return x[name]

    # Values.

    def reach(self, layers: Iterable[str] = ()) -> float:
        """The distance at which points may change the result at a point: the halo that a part of a scene needs.

        The radii of searches add up along the plan. `layers` are the edges that a network convolves along, one name for
        each of its layers (`gridless.scenes.layers_of(model)`); their radii are added. Rejection sampling counts once,
        though a chain of rejections may reach further: `Tile.run` looks, and widens the halo where one does. Steps that
        cannot run on parts of a scene are refused by name.
        """
        reach: dict[str, float] = {}
        for name, step in self.steps.items():
            if step.op in _ENDLESS:
                raise ValueError(f"reach: {name} = {step} has no reach. {_ENDLESS[step.op]}")
            own = 0.0 if step.op in _SAME_SPAN else self._span(name)
            reach[name] = max((reach[i] for i in step.inputs), default=0.0) + own
        return max(reach.values(), default=0.0) + sum(self._span(name) for name in layers)

    def ends(self, edges: str) -> tuple[str, str]:
        """The clouds or streams that a line of edges leads from and to."""
        step = self.steps[edges]
        if step.op == "transpose":
            source, target = self.ends(step.inputs[0])
            return target, source
        if step.op == "without_self":
            return self.ends(step.inputs[0])
        return step.inputs[0], step.inputs[1]

    def _span(self, name: str) -> float:
        """Radius of one line."""
        step = self.steps[name]
        if step.op in _SAME_SPAN:
            return self._span(step.inputs[0])
        return dict(step.settings).get("radius", 0.0)

    @property
    def digest(self) -> str:
        """A short stable fingerprint: equal for equal plans, on any machine."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    @property
    def text(self) -> str:
        """All lines with every digit of their settings: equal for equal plans. `print(plan)` rounds them."""
        return "\n".join(f"{name} = {step}" for name, step in self.steps.items())

    def __str__(self) -> str:
        return _LONG_NUMBER.sub(lambda number: f"{float(number[0]):.4g}", self.text)

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Plan) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple:
        lines = tuple((str(n), s.op, tuple(map(str, s.inputs)), s.settings) for n, s in self.steps.items())
        return _rebuild, (self._key, *lines)

    # Names.

    def _expect(self, what: str, kind: str, **names: Any) -> None:
        """Refuse what is not a name of this plan, and of the right kind."""
        for role, name in names.items():
            if not isinstance(name, Name):
                raise TypeError(f"{what}: {role} must be a name that this plan returned, not {name!r}")
            if name.plan != self._key:
                raise ValueError(f"{what}: {role} {name!r} is of another plan. Pass a name that this plan returned.")
            if name.kind != kind:
                remedy = " Join events by causal." if name.kind == "events" else ""
                wanted, actual = _KINDS[kind], _KINDS[name.kind]
                raise TypeError(f"{what}: {role} {name} is the name of {actual}. Pass the name of {wanted}.{remedy}")

    def _input(self, op: str, setting: tuple[str, Any], name: str | None) -> Step:
        others = [dict(step.settings).get("name") for step in self.steps.values() if not step.inputs]
        if others and (name is None or None in others):
            raise ValueError(
                f'{op}: this plan has an input already. Name each input, plan.{op}(..., name="scan"), and call '
                'plan({"scan": a, "queries": b}).'
            )
        if name in others:
            raise ValueError(f"{op}: this plan has an input {name!r} already. Choose another name.")
        return Step(op, (), (setting, *((("name", name),) if name is not None else ())))

    def _expect_voxels(self, what: str, **names: Any) -> None:
        self._expect(what, "cloud", **names)
        for role, name in names.items():
            if name.side is None:
                raise TypeError(f"{what}: {role} {name} is no name of voxels. Pass one of plan.voxels(cloud, 0.1).")

    def _cloud(self, step: Step, dim: int, side: float | None = None) -> Name:
        count = sum(name.startswith("X") for name in self.steps)
        return self._add(f"X{count}", step, {"kind": "cloud", "dim": dim, "side": side})

    def _stream(self, step: Step, sensor: tuple[int, int]) -> Name:
        count = sum(name.startswith("X") for name in self.steps)
        return self._add(f"X{count}", step, {"kind": "events", "dim": 2, "sensor": sensor})

    def _edges(self, step: Step, source: Name, target: Name, radius: float | None) -> Name:
        if source.dim != target.dim:
            raise ValueError(
                f"{step.op}: {source} has {source.dim} dimensions, {target} has {target.dim}. Use the same for both."
            )
        between = "" if len(source) == len(target) == 2 else "_"
        text = f"N{source[1:]}{between}{target[1:]}"
        facts = {"kind": "edges", "source": source, "target": target, "dim": source.dim, "radius": radius}
        return self._add(text, step, facts)

    def _taps(self, step: Step, source: Name, target: Name, count: int) -> Name:
        if source.dim != target.dim:
            raise ValueError(
                f"{step.op}: {source} has {source.dim} dimensions, {target} has {target.dim}. Use the same for both."
            )
        facts = {"kind": "taps", "source": source, "target": target, "dim": source.dim, "num_taps": count}
        return self._add(f"T{source[1:]}{target[1:]}", step, facts)

    def _add(self, text: str, step: Step, facts: dict[str, Any]) -> Name:
        facts |= {"plan": self._key, "line": self._line(step)}
        for name, known in self.steps.items():
            # Lines are compared as text: 1 sample and a fraction of 1.0 differ, though the numbers are equal.
            if str(known) == str(step):
                return Name(name, **facts)
        free, letters = text, itertools.chain("bcdefghijklmnopqrstuvwxyz", (f"_{n}" for n in itertools.count(27)))
        while free in self.steps:
            free = text + next(letters)
        self.steps[free], self._lines[free] = step, facts["line"]
        return Name(free, **facts)

    def _line(self, step: Step) -> str:
        text = "\n".join([str(step), *(self._lines[name] for name in step.inputs)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


# Numbers with five decimals or more, such as 0.1125 times the root of 2.
_LONG_NUMBER = re.compile(r"\b\d+\.\d{5,}(?:e[+-]?\d+)?")

_KINDS = {
    "cloud": "a cloud",
    "edges": "edges between clouds",
    "taps": "taps between voxels",
    "events": "events",
    "event edges": "edges between events",
}


def _rebuild(key: str, *lines: tuple) -> Plan:
    plan = Plan()
    plan._key = key
    for name, *line in lines:
        plan.steps[name] = Step(*line)
        plan._lines[name] = plan._line(plan.steps[name])
    return plan


def _points(x: Any, dim: int) -> Cloud:
    if type(x) is Tensor:
        cloud = Cloud.of(x)
    else:
        _check_points(x, dim)
        cloud = _single(Cloud.of(x), x)
    if cloud.dim != dim:
        raise ValueError(f"this plan is for points of {dim} dimensions, not {cloud.dim}. Use plan.points({cloud.dim}).")
    return cloud


def _refuse_geometry(x: Any) -> None:
    if isinstance(x, Geometry):
        raise TypeError("the input is a Geometry already. Pass it to the network.")


def _check_points(x: Any, dim: int) -> None:
    _refuse_geometry(x)
    if isinstance(x, Events):
        raise TypeError("this plan begins with points, not with Events. Pass points.")
    if x is None or isinstance(x, str | bytes | PurePath):
        raise TypeError(
            f"this plan begins with points, not with {x!r}. Pass an (S, {dim}) tensor or array, a list of them, or a "
            "Cloud; for a file gl.read_cloud(path)."
        )


def _single(cloud: Cloud, x: Any) -> Cloud:
    """float64 that NumPy, Open3D or trimesh chose, as float32, where that is enough (`narrowest`).

    Kernels for both are compiled apart, and networks have weights of 32 bits. Tensors are taken at their word.
    """
    first = x[0] if isinstance(x, list | tuple) and len(x) else x
    if cloud.coords.dtype != torch.float64 or isinstance(first, Tensor | Cloud) or hasattr(first, "pos"):
        return cloud
    for a, b in itertools.pairwise(cloud.splits.tolist()):
        if narrowest(cloud.coords[a:b].numpy()) == np.float64:
            return cloud
    message = "float64 coordinates are used as float32, as networks are; for 64 bits pass a tensor, torch.from_numpy(x)"
    warnings.warn(message, stacklevel=6)
    return replace(cloud, coords=cloud.coords.float())


def _events(x: Any, sensor: tuple[int, int]) -> Events:
    _refuse_geometry(x)
    if isinstance(x, Cloud):
        raise TypeError("this plan begins with events, not with a Cloud. Pass events.")
    if x is None or isinstance(x, str | bytes | PurePath):
        raise TypeError(
            f"this plan begins with events, not with {x!r}. Pass Events or an array of fields x, y, t and p; for a "
            "file gl.read_events(path)."
        )
    if isinstance(x, Events) and x.sensor != sensor:
        raise ValueError(
            f"this plan is for the sensor {sensor}, but the events have {x.sensor}. Crop or pool the events."
        )
    return x if isinstance(x, Events) else Events.of(x, sensor=sensor)


def _farthest(cloud: Cloud, near: Edges | None = None, **settings: Any) -> Cloud:
    return geometry.farthest_sample(cloud, near=near, **settings)


def _grid(cloud: Cloud, rows: Sequence[tuple[str, str]] = (), **settings: Any) -> Cloud:
    return geometry.grid_sample(cloud, rows=dict(rows), **settings)


def _voxels(cloud: Cloud, rows: Sequence[tuple[str, str]] = (), **settings: Any) -> Voxels:
    return geometry.voxelise(cloud, rows=dict(rows), **settings)


def _transpose(edges: Edges | TapEdges) -> Edges | TapEdges:
    return edges.transpose()


def _side(voxels: Name) -> float:
    assert voxels.side is not None
    return voxels.side


def _window(what: str, dim: int, window: Mapping[str, Axes]) -> tuple[tuple[str, Any], ...]:
    """The settings of a kernel, checked: a number, or one for each axis."""
    settings = []
    for name, value in window.items():
        each = tuple(value) if isinstance(value, Sequence) else (value,)
        if len(each) not in (1, dim) or isinstance(value, str):
            raise ValueError(f"{what}: {name} must be a number or {dim} of them, not {value!r}")
        numbers = tuple(check_whole(what, name, v, 0 if name == "padding" else 1) for v in each)
        settings.append((name, numbers if isinstance(value, Sequence) else numbers[0]))
    return tuple(settings)


_INPUTS: dict[str, Callable[..., Any]] = {"points": _points, "events": _events}

_RUN: dict[str, Callable[..., Any]] = {
    "ball": geometry.ball,
    "nearest": geometry.nearest,
    "rejection_sample": geometry.rejection_sample,
    "farthest_sample": _farthest,
    "grid_sample": _grid,
    "voxels": _voxels,
    "coarser_voxels": geometry.coarsen,
    "taps": geometry.tap_search,
    "random_sample": geometry.random_sample,
    "without_self": geometry.without_self,
    "transpose": _transpose,
    "causal": geometry.causal,
}

# Lines that a part of a scene cannot give as the whole does, and why.
_ENDLESS = {
    "farthest_sample": "Each point depends on the whole scene. Use a rejection sample.",
    "random_sample": "Each point depends on the whole scene. Use a rejection sample.",
    "grid_sample": "The cells are chosen when the scene is cut. Use tiles(..., grid=...).",
    "voxels": "The cells are chosen when the scene is cut. Use tiles(..., grid=...).",
    "nearest": "The nearest points may be anywhere. Use a ball search.",
    "events": "Events have no distances. Use a plan of points.",
}

# Lines that reach as far as the edges they are made from.
_SAME_SPAN = ("transpose", "without_self")

# Steps that continue from where the last packet of a stream left them.
_REMEMBERS: dict[str, Callable[..., Any]] = {"lif": geometry.lif_step}
