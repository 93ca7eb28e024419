"""The cost of a call: host and device time of each public call, in plain eager PyTorch.

    python benchmarks/calls.py [--clouds clouds.npz] [--out results/calls.json]

`host` is from the call to its return, with the device idle before it; `device` is what the kernels of the call take, by
torch's profiler. Medians of 30. A backward pass has a fixed cost, so rows "of ten" give a tenth of ten equal layers in
a row, over few points: what one more layer costs, torch's own beside ours. A step in "one thread" runs its backward
pass in the caller's (`torch.autograd.set_multithreading_enabled(False)`). A step "without a convolution" has the dense
maps, normalisations, dropout, loss and optimiser of the network alone, all torch's own. Clouds are 128 of ModelNet40
(1,024 points), a pack of `geometry.py pack`, or generated shapes where there is none. `first` is the first call of a
process whose compile cache is empty (set TRITON_CACHE_DIR to an empty folder for that).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine
from torch import nn
from torch.nn import functional

import gridless as gl

REPEAT = 30
BATCH = 128


def load_clouds(path: str | None) -> np.ndarray:
    """(N, 1024, 3) float32, N at least 512."""
    if path is None:
        shapes = gl.data.Shapes(512, points=1024)
        return np.stack([np.asarray(shapes[i][0]) for i in range(512)]).astype(np.float32)
    pack = np.load(path)
    return (pack["whole"].astype(np.float32) / 4095 * 2 - 1) * np.float32(pack["scale"])


def sync() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def host_ms(work: Callable[[], Any]) -> float:
    times = []
    for _ in range(REPEAT + 3):
        sync()
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    sync()
    return 1e3 * statistics.median(times[3:])


def device_ms(work: Callable[[], Any]) -> tuple[float, int]:
    """Milliseconds that the kernels of one call take, and how many they are."""
    if not torch.cuda.is_available():
        return float("nan"), 0
    sync()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(5):
            work()
        sync()
    events = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.device_time for e in events) / 5e3, len(events) // 5


def both(forward: Callable[[], torch.Tensor], layers: nn.Module | None = None) -> Callable[[], None]:
    """Forward and backward; gradients of `layers` are dropped before, as a training loop does."""
    grad = torch.ones_like(forward())
    learned = [] if layers is None else [*layers.parameters()]

    def work() -> None:
        for parameter in learned:
            parameter.grad = None
        forward().backward(grad)

    return work


def layer_works(clouds: list, device: str) -> dict[str, Callable[[], Any]]:
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.1125)
    geometry = plan(clouds)
    points = len(geometry[cloud])
    works: dict[str, Callable[[], Any]] = {}
    for channels in (32, 64, 128):
        conv = gl.nn.PointConv(near, channels, channels).to(device)
        features = torch.randn(points, channels, device=device, requires_grad=True)
        works[f"PointConv {channels}, forward"] = lambda c=conv, f=features: c(f, geometry)
        works[f"PointConv {channels}, both"] = both(lambda c=conv, f=features: c(f, geometry), conv)
    norm = gl.nn.BatchNorm(32, cloud, relu="after").to(device)
    plain = nn.BatchNorm1d(32).to(device)
    narrow = torch.randn(points, 32, device=device, requires_grad=True)
    works["BatchNorm with ReLU, both"] = both(lambda: norm(narrow, geometry), norm)
    works["torch's BatchNorm1d, both"] = both(lambda: plain(narrow).relu(), plain)
    pool = gl.nn.MaxPool(cloud)
    works["MaxPool, both"] = both(lambda: pool(narrow, geometry))
    return works


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


def works_of_ten(clouds: list, device: str) -> dict[str, Callable[[], Any]]:
    """Ten equal layers in a row."""
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.1125)
    geometry = plan([c[:64] for c in clouds])
    features = torch.randn(len(geometry[cloud]), 32, device=device, requires_grad=True)
    works: dict[str, Callable[[], Any]] = {}

    class Empty(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Nothing.apply(x)

    kinds: dict[str, Callable[[], nn.Module]] = {
        "an empty autograd function": Empty,
        "ReLU": nn.ReLU,
        "Linear": lambda: nn.Linear(32, 32),
        "torch's BatchNorm1d": lambda: nn.BatchNorm1d(32),
        "BatchNorm with ReLU": lambda: gl.nn.BatchNorm(32, cloud, relu="after"),
        "PointConv 32": lambda: gl.nn.PointConv(near, 32, 32),
    }
    for name, make in kinds.items():
        ten = nn.ModuleList(make() for _ in range(10)).to(device)

        def forward(layers: nn.ModuleList = ten) -> torch.Tensor:
            x = features
            for layer in layers:
                x = layer(x, geometry) if type(layer).__module__.startswith("gridless") else layer(x)
            return x

        works[f"{name}, of ten, forward"] = forward
        works[f"{name}, of ten, both"] = both(forward, ten)
    return works


def event_works(device: str) -> dict[str, Callable[[], Any]]:
    plan = gl.Plan()
    events = plan.events((128, 128))
    fired = plan.lif(events, decay_time=10000.0, threshold=1.5, reset=-3.0)
    near = plan.causal(events, fired, 3, 2)
    conv = gl.nn.EventConv(near, 8, 16).to(device)
    rng = np.random.default_rng(0)
    count = 20000
    stream = {"x": rng.integers(0, 128, count), "y": rng.integers(0, 128, count), "p": rng.integers(0, 2, count)}
    stream["t"] = np.sort(rng.integers(0, 100000, count))
    geometry = plan(gl.Events.of(stream, sensor=(128, 128)).to(device))
    features = torch.randn(count, 8, device=device, requires_grad=True)
    return {"EventConv, 20,000 events, both": both(lambda: conv(features, geometry), conv)}


class Norm(nn.BatchNorm1d):
    """torch's, in place of ours."""

    def __init__(self, ours: gl.nn.BatchNorm) -> None:
        super().__init__(ours.channels, ours.eps, ours.momentum)
        self.relu = ours.relu

    def forward(self, x: torch.Tensor, geometry: Any = None) -> torch.Tensor:
        y = super().forward(x.relu() if self.relu == "before" else x)
        return y.relu() if self.relu == "after" else y


class Without(nn.Module):
    """In place of a convolution or a pooling: the same rows, those of the samples, or the first of each cloud."""

    def __init__(self, ours: nn.Module) -> None:
        super().__init__()
        self.ours = [ours]  # in a list: its parameters are left out, too
        self.given: torch.Tensor | None = None

    def forward(self, x: Any, geometry: Any = None) -> torch.Tensor:
        ours: Any = self.ours[0]
        if isinstance(ours, gl.nn.MaxPool):
            return x.index_select(0, geometry[ours.cloud].splits[:-1])
        if isinstance(ours, gl.nn.FeaturelessConv):
            if self.given is None:
                self.given = torch.randn(len(x[ours.edges.target]), ours.out_channels, device=x.device)
            return self.given
        source, target = ours.edges.source, ours.edges.target
        return x if source == target else x.index_select(0, geometry[target].parent_index)


def without_convolutions(model: nn.Module) -> nn.Module:
    """The network's dense maps, normalisations, dropout and sums alone, all of them torch's own."""
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if isinstance(child, gl.nn.BatchNorm):
                setattr(parent, name, Norm(child))
            elif isinstance(child, gl.nn.PointConv | gl.nn.FeaturelessConv | gl.nn.MaxPool):
                setattr(parent, name, Without(child))
    return model


class Loop:
    """A training loop as anyone writes it."""

    def __init__(self, model: nn.Module, clouds: list, device: str, sizes: bool) -> None:
        self.model = model.to(device).train()
        self.optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
        self.labels = torch.randint(0, 40, (BATCH,), device=device)
        rng = np.random.default_rng(0)
        # Other clouds each time, and with `sizes` other numbers of points.
        self.batches = []
        for _ in range(8):
            some = rng.choice(len(clouds), BATCH, replace=False)
            cut = rng.integers(600, 1025, BATCH) if sizes else [1024] * BATCH
            self.batches.append([clouds[i][:n] for i, n in zip(some, cut)])
        self.turn = 0

    def plan(self) -> Any:
        self.turn += 1
        return self.model.plan(self.batches[self.turn % len(self.batches)])

    def step(self, geometry: Any) -> None:
        loss = functional.cross_entropy(self.model(geometry), self.labels)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clouds")
    parser.add_argument("--out")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    points = load_clouds(options.clouds)
    clouds = [torch.from_numpy(x).to(device) for x in points]
    rows: dict[str, dict[str, float]] = {}

    def row(name: str, work: Callable[[], Any]) -> None:
        of = 10 if "of ten" in name else 1
        host, (busy, kernels) = host_ms(work) / of, device_ms(work)
        busy, kernels = busy / of, kernels // of
        rows[name] = {"host_ms": host, "device_ms": busy, "kernels": kernels}
        print(f"{name:48} host {host:8.3f} ms   device {busy:8.3f} ms   {kernels:4d} kernels", flush=True)

    for name, make in (("large", gl.models.point_resnet_large), ("plus", gl.models.point_resnet_plus)):
        loop = Loop(make(), clouds, device, sizes=False)
        begin = time.perf_counter()
        geometry = loop.plan()
        sync()
        first_plan = time.perf_counter() - begin
        begin = time.perf_counter()
        loop.step(geometry)
        sync()
        first_step = time.perf_counter() - begin
        rows[f"{name}: first plan and step, s"] = {"plan_s": first_plan, "step_s": first_step}
        print(f"{name}: the first plan {first_plan:.2f} s, the first step {first_step:.2f} s", flush=True)
        row(f"{name}: plan of 128 clouds", loop.plan)
        row(f"{name}: step, batch 128", partial(loop.step, geometry))
        with torch.autograd.set_multithreading_enabled(False):
            row(f"{name}: step, batch 128, one thread", partial(loop.step, geometry))
        if name == "large":
            bare = Loop(without_convolutions(make()), clouds, device, sizes=False)
            row(f"{name}: the same step without a convolution", partial(bare.step, geometry))
        varied = Loop(loop.model, clouds, device, sizes=True)
        row(f"{name}: plan, other sizes each time", varied.plan)
        times = []
        for _ in range(60):
            sync()
            begin = time.perf_counter()
            varied.step(varied.plan())
            sync()
            times.append(time.perf_counter() - begin)
        slow = sum(t > 5 * statistics.median(times) for t in times)
        mean = statistics.median(times) * 1e3
        rows[f"{name}: whole loop, other sizes"] = {"ms": mean, "epoch_s": mean * 77e-3, "stalls of 60": slow}
        print(f"{name}: plan and step {mean:.2f} ms, an epoch of 77 {mean * 77e-3:.2f} s, {slow} stalls", flush=True)
    some = clouds[:BATCH]
    for name, work in {**layer_works(some, device), **works_of_ten(some, device), **event_works(device)}.items():
        row(name, work)
    if options.out:
        Path(options.out).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
