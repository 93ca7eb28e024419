"""The event convolution: results first, then times, per layer and for the whole CIFAR10-DVS network.

    python benchmarks/event_conv.py                        16 streams of 200,000 events; on the GPU if there is one
    python benchmarks/event_conv.py --streams 2 --events 20000 --device cpu

Streams are simulated: `event_streams.py` says how.

Beside both forms stands the paper's way, written in PyTorch: per tap and v one sparse matrix (CSR, values
exp(-rate age)) times the features, times theta; 36 sparse products in a 3 x 3 x 4 layer, with patterns and their
transposes made beforehand. On the CPU everything runs on one thread, and its time is counted. The floor is what must
be moved once: features and times in, results out, and the same with gradients, at the memory bandwidth given (H200:
4.8 TB/s).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import keep, machine
from event_streams import simulated
from torch import Tensor

import gridless as gl
from gridless.geometry import causal, lif
from gridless.geometry.causal import by_pixel
from gridless.models import cifar10_dvs
from gridless.nn.events import EventConv
from gridless.ops.event_conv import event_conv

# The paper's way.


class SparseProduct(torch.autograd.Function):
    """N F of a CSR matrix with given values, with gradients to both."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, features: Tensor, pattern: dict[str, Tensor]) -> Tensor:
        ctx.save_for_backward(values, features)
        ctx.pattern = pattern
        return torch.sparse_csr_tensor(pattern["splits"], pattern["source"], values, pattern["shape"]) @ features

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        values, features = ctx.saved_tensors
        p = ctx.pattern
        back = torch.sparse_csr_tensor(p["back_splits"], p["back_target"], values[p["back_order"]], p["shape"][::-1])
        return (grad[p["target"]] * features[p["source"]]).sum(1), back @ grad, None


def patterns(edges: gl.Edges, taps: int, source: gl.Events, target: gl.Events, decay_time: float) -> list[dict]:
    """Per tap: a CSR pattern, its transpose, and the ages."""
    row, column = edges.target.long(), edges.source.long()
    blocks = []
    for u in range(taps):
        mine = row % taps == u
        i, j = row[mine] // taps, column[mine]
        splits = torch.searchsorted(i, torch.arange(len(target) + 1, device=i.device))
        order = (j * (len(target) + 1) + i).argsort()
        back = torch.searchsorted(j[order], torch.arange(len(source) + 1, device=i.device))
        age = (target.time[i] - source.time[j]).float() / decay_time
        one = {"splits": splits, "source": j, "target": i, "age": age, "shape": (len(target), len(source))}
        blocks.append(one | {"back_splits": back, "back_target": i[order], "back_order": order})
    return blocks


def papers_way(features: Tensor, weight: Tensor, rate: Tensor, bias: Tensor, taps: list[dict]) -> Tensor:
    out = bias
    for u, tap in enumerate(taps):
        for v in range(rate.shape[1]):
            values = torch.exp(-rate[u, v] * tap["age"])
            out = out + SparseProduct.apply(values, features, tap) @ weight[u, v]
    return out


# Measuring.


def timed(work: Callable[[], Any], device: str, budget: float) -> tuple[float, float]:
    """Median milliseconds, and peak megabytes beyond what was there (GPU). On the CPU, the process's own time."""
    work()
    cuda = device == "cuda"
    clock = time.perf_counter if cuda else time.process_time
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    times = []
    end = time.perf_counter() + budget
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 50):
        start = clock()
        work()
        if cuda:
            torch.cuda.synchronize()
        times.append(clock() - start)
        if time.perf_counter() > end + 2 * budget:
            break
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6 if cuda else float("nan")
    return 1e3 * statistics.median(times), peak


def both_ways(forward: Callable[..., Tensor], values: list[Tensor]) -> Callable[[], None]:
    """Forward and backward, with a gradient of ones, as everything else is the same for all."""
    wanted = [v for v in values if v.requires_grad]

    def work() -> None:
        out = forward(*values)
        torch.autograd.grad(out, wanted, torch.ones_like(out))

    return work


def layer_inputs(layer: EventConv, geometry: gl.Geometry) -> list[Tensor]:
    source = geometry[layer.near.source]
    random = torch.Generator().manual_seed(0)
    features = torch.rand(len(source), layer.weight.shape[2], generator=random).to(source.device)
    features.requires_grad_(layer.near.source != "X0")
    return [features, layer.weight, layer.rate.detach().requires_grad_(), layer.bias]


def forms(layer: EventConv, geometry: gl.Geometry, window: bool = True) -> dict[str, Callable[..., Tensor]]:
    """The three ways to compute one layer."""
    near = layer.near
    source, target = geometry[near.source], geometry[near.target]
    streams = source, target, near.kernel, near.stride, layer.decay_time
    edges = causal(source, target, near.kernel, near.stride, 4 * layer.decay_time if window else None)
    taps = patterns(edges, layer.weight.shape[0], source, target, layer.decay_time)
    return {
        "scan": lambda f, w, r, b: event_conv(f, w, r, b, *streams),
        "edges": lambda f, w, r, b: event_conv(f, w, r, b, *streams, edges),
        "paper": lambda f, w, r, b: papers_way(f, w, r, b, taps),
    }


def check(model: torch.nn.Module, events: gl.Events) -> None:
    """On the beginning of two streams: all forms, on this device, against the reference in float64."""
    few = gl.collate([events.examples[i].cpu()[:1800] for i in range(min(2, events.num_examples))])
    geometry = model.plan(few.to(events.device))
    with gl.use_backend("reference"):
        expected_geometry = model.plan(few)
    for name in geometry:
        same = all(
            torch.equal(getattr(geometry[name], f).cpu(), getattr(expected_geometry[name], f))
            for f in ("pixel", "time")
        )
        assert same, f"{name}: LIF fires other events than the reference"
    for name, layer in model.named_modules():
        if not isinstance(layer, EventConv) or name.startswith(
            ("downs.2", "downs.3", "downs.4", "blocks.2", "blocks.3")
        ):
            continue
        if not len(geometry[layer.near.target]):
            continue
        values = layer_inputs(layer, geometry)
        with gl.use_backend("reference"):
            exact = [v.detach().cpu().double().requires_grad_(v.requires_grad) for v in values]
            near = layer.near
            streams = expected_geometry[near.source], expected_geometry[near.target]
            out = event_conv(*exact, *streams, near.kernel, near.stride, layer.decay_time)
            expected = [out, *torch.autograd.grad(out.sum(), [v for v in exact if v.requires_grad])]
        for form, forward in forms(layer, geometry, window=False).items():
            out = forward(*values)
            results = [out, *torch.autograd.grad(out.sum(), [v for v in values if v.requires_grad])]
            for a, b in zip(results, expected, strict=True):
                error = float(
                    (a.detach().cpu().double() - b.detach()).abs().max() / b.detach().abs().max().clamp(min=1e-9)
                )
                assert error < 2e-5, f"{name}, {form}: relative error {error:.1e}"
    print(
        "checked: LIF to the bit; scan, edges and the paper's way, values and gradients, within 2e-5 of the reference"
    )


def floor_ms(layer: EventConv, geometry: gl.Geometry, bandwidth: float) -> float:
    """Forward: features, times and rows in, result out. Backward: the same, gradients in and out."""
    near = layer.near
    s, t = len(geometry[near.source]), len(geometry[near.target])
    q, p = layer.weight.shape[2:]
    index = 12 * (s + (t if near.source != near.target else 0))
    moved = 2 * (4 * s * q + index) + 4 * t * p * 2 + (4 * s * q if near.source != "X0" else 0)
    return moved / bandwidth * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds per measurement")
    parser.add_argument("--bandwidth", type=float, default=4.8e12, help="bytes per second, for the floor")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = options.device
    if device == "cpu":
        torch.set_num_threads(1)
    torch.manual_seed(0)
    events = simulated(options.streams, options.events, device)
    model = cifar10_dvs(dropout=0.0).to(device)
    check(model, events)
    about = machine() | ({"gpu": None} if device == "cpu" else {})
    result: dict[str, Any] = {"machine": about, "options": vars(options) | {"json": None}}
    result["geometry"] = geometry_times(model, events, device, options.budget)
    geometry = model.plan(events)
    layers = layer_times(model, geometry, device, options)
    if device != "cpu":
        result["layers"] = layers
    result["network"] = network_times(events, device, options)
    if options.json:
        keep(options.json, result)


def geometry_times(model: torch.nn.Module, events: gl.Events, device: str, budget: float) -> dict[str, Any]:
    geometry = model.plan(events)
    counts = {name: len(value) for name, value in geometry.items()}
    runs = by_pixel(events).splits.diff()
    print(f"\n{len(events):,} events, per level {list(counts.values())}, at most {int(runs.max())} on a pixel")
    rule = {"decay_time": 4000.0, "threshold": 1.6, "reset": -3.0}
    facts: dict[str, Any] = {"counts": counts}

    def fresh() -> gl.Events:
        """The same events, with nothing kept from earlier calls."""
        return gl.Events(events.pixel, events.time, events.polarity, events.splits, events.sensor)

    works: dict[str, Callable[[], Any]] = {
        "lif, first level": lambda: lif(fresh(), 3, 2, **rule),
        "runs by pixel": lambda: by_pixel(fresh()),
        "whole plan": lambda: model.plan(fresh()),
    }
    for name, work in works.items():
        ms, memory = timed(work, device, budget)
        facts[name] = ms
        print(f"{name:18}{ms:9.3f} ms  {len(events) / ms / 1e3:8.1f} Mev/s  {memory:8.0f} MB", flush=True)
    return facts


def layer_times(model: torch.nn.Module, geometry: gl.Geometry, device: str, options: Any) -> list[dict[str, Any]]:
    print("\nforward + backward, ms (MB)")
    print(
        f"{'layer':16}{'sources':>10}{'targets':>9}{'Q':>4}{'P':>4}{'scan':>18}{'edges':>18}{'paper':>18}{'floor':>9}"
    )
    rows = []
    for name, layer in model.named_modules():
        if not isinstance(layer, EventConv):
            continue
        near = layer.near
        row: dict[str, Any] = {
            "layer": name,
            "sources": len(geometry[near.source]),
            "targets": len(geometry[near.target]),
        }
        values = layer_inputs(layer, geometry)
        ways = forms(layer, geometry)
        for form, forward in ways.items():
            row[form] = timed(both_ways(forward, values), device, options.budget)
        row["floor"] = floor_ms(layer, geometry, options.bandwidth)
        q, p = layer.weight.shape[2:]
        cells = "".join(f"{row[f][0]:10.3f} ({row[f][1]:5.0f})" for f in ways)
        print(f"{name:16}{row['sources']:10}{row['targets']:9}{q:4}{p:4}{cells}{row['floor']:9.4f}", flush=True)
        rows.append(row)
        del ways, values
    total = {f: sum(r[f][0] for r in rows) for f in ("scan", "edges", "paper")}
    print(
        f"all layers: scan {total['scan']:.2f}, edges {total['edges']:.2f}, paper {total['paper']:.2f} ms, "
        f"floor {sum(r['floor'] for r in rows):.3f}; paper / scan {total['paper'] / total['scan']:.1f}"
    )
    return rows


def network_times(events: gl.Events, device: str, options: Any) -> dict[str, Any]:
    print("\nthe whole network, forward + backward, geometry made beforehand")
    label = torch.arange(events.num_examples, device=device) % 10
    forms = {}
    for form in ("scan", "edges", "paper"):
        torch.manual_seed(0)
        model = cifar10_dvs(dropout=0.0, form="scan" if form == "scan" else "edges").to(device)
        geometry = model.plan(events)
        if form == "paper":
            _as_in_the_paper(model, geometry)

        def step(model: torch.nn.Module = model, geometry: gl.Geometry = geometry) -> None:
            model.zero_grad()
            model.loss(geometry, label)[0].backward()

        ms, memory = timed(step, device, 2 * options.budget)
        geometry_bytes = sum(
            t.numel() * t.element_size() for s in geometry.values() for t in vars(s).values() if isinstance(t, Tensor)
        )
        forms[form] = {"ms": ms, "MB": memory, "geometry MB": geometry_bytes / 1e6}
        print(f"{form:8}{ms:10.2f} ms{memory:10.0f} MB, geometry {geometry_bytes / 1e6:6.0f} MB", flush=True)
        del model, geometry
    return forms


def _as_in_the_paper(model: torch.nn.Module, geometry: gl.Geometry) -> None:
    for layer in model.modules():
        if isinstance(layer, EventConv):
            near = layer.near
            ends = geometry[near.source], geometry[near.target]
            taps = patterns(geometry[near], layer.weight.shape[0], *ends, layer.decay_time)

            def run(features: Tensor, *_: Any, layer: EventConv = layer, taps: list[dict] = taps) -> Tensor:
                if isinstance(features, gl.Geometry):
                    features = gl.nn.events.polarity_features(features[layer.near.source])
                return papers_way(features, layer.weight, layer.rate, layer.bias, taps)

            layer.forward = run


if __name__ == "__main__":
    main()
