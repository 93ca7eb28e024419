"""Convolutions over the 27 taps of voxels on real LiDAR scans, beside spconv's, like for like.

    python benchmarks/taps.py --scans semantickitti_22_scans.npz [--parts layers unet graphs first triton] [--out FILE]
    python benchmarks/taps.py --parts cpu

Parts, each written to --out as soon as a row is measured; rows that are there are not measured again:

    layers   one `SubMConv3d`: precision (IEEE float32, TF32, float16: the same for both sides), side of a voxel,
             channels. Medians over all scans, and of the ratios of spconv's time to ours
    unet     a SparseUNet with the widths and depths of Pointcept's SpUNet-v1m1, written below with spconv's names.
             Indices are made anew in every pass
    graphs   the same network as a plan, from the points of a scan: eager, captured by `gl.capture`, and `ahead`, where
             `gl.training.ahead` makes the next geometry meanwhile
    first    seconds of the first step of that network in a new process, without kernels compiled before
    triton   spconv-triton, which tunes itself at its first calls: one scan of 10 cm, --tuning seconds at most.
             `tuning s` is with compiled kernels
    cpu      the layers and blocks of PTv3, and the SparseUNet, on 20,000 voxels, beside a plain loop over taps in torch

Columns, in milliseconds, medians of --repeats from call to finished result:

    forward, both      eager, indices kept; `both` is forward with the gradients of features, weight and bias
    anew               eager forward, with the search of the indices
    captured           ours alone: the same as CUDA graphs, indices kept
    floor              the larger of multiply-adds of the edges at the rate of a large matrix product in that precision
                       (IEEE: three TF32 products), and of the bytes of features and weight at the rate of a large copy
    MiB                the peak of `both` above its inputs and indices
    indices            bytes for each voxel that are kept for further passes of the layer

Before it is timed, each result is compared with spconv's, and on three scans both with the reference in float64: ours
must be within `TOLERANCE` of it.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from common import RESULTS, machine
from scenes import PRECISIONS, ahead_ms, load_scans, set_precision
from torch import Tensor, nn

import gridless as gl
from gridless.geometry.voxels import submanifold_taps

PARTS = ("layers", "unet", "graphs", "first", "triton", "cpu")
SIDES = (0.05, 0.1)
CHANNELS = (32, 64, 128, 256)
# Relative error of a result of ours, against the reference in float64. Rounding to float16 is 5e-4 at most.
TOLERANCE = {"IEEE float32": 1e-6, "TF32": 1e-3, "float16": 5e-4}


def timed(work: Callable[[], Any], repeats: int, warm_up: int = 2) -> float:
    """Milliseconds from call to finished result."""
    for _ in range(warm_up):
        work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def peak_of(work: Callable[[], Any]) -> float:
    """MiB above what was there before."""
    work()
    # Blocks that are kept may be larger than what is asked for, and would count as a whole.
    before = allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def allocated() -> int:
    """Bytes that tensors hold."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


class Layer:
    """The tensors of one cell: those of both sides are the same."""

    def __init__(self, sites: Tensor, channels: int, dtype: torch.dtype) -> None:
        generator = torch.Generator("cuda").manual_seed(0)

        def draw(*shape: int, scale: float = 1.0) -> Tensor:
            values = torch.randn(*shape, device="cuda", generator=generator) * scale
            return values.to(dtype).requires_grad_()

        self.sites, self.features = sites, draw(len(sites), channels)
        self.weight = draw(27, channels, channels, scale=(5 * channels) ** -0.5)
        self.bias = draw(channels)
        self.slope = draw(len(sites), channels).detach()

    def again(self) -> Layer:
        """The same values in new leaves."""
        other = copy.copy(self)
        for name in ("features", "weight", "bias"):
            setattr(other, name, getattr(self, name).detach().clone().requires_grad_())
        return other

    def both(self, forward: Callable[[], Tensor], inputs: list[Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(forward(), inputs, self.slope)


def ours(layer: Layer) -> dict[str, Callable[[], Any]]:
    edges = submanifold_taps(layer.sites)
    inputs = layer.features, layer.weight, layer.bias

    def forward() -> Tensor:
        return gl.tap_conv(*inputs, edges)

    def anew() -> Tensor:
        with torch.no_grad():
            return gl.tap_conv(*inputs, submanifold_taps(layer.sites))

    return {"forward": forward, "both": layer.both(forward, [*inputs]), "anew": anew}


def captured(layer: Layer, what: str) -> Callable[[], None]:
    """Ours as a CUDA graph. Its leaves are new: autograd adds gradients on the stream where a leaf was first used."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work = ours(layer.again())[what]
        for _ in range(2):
            work()
        torch.cuda.synchronize()
        graph.capture_begin()
        work()
        graph.capture_end()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


def indices_of(sites: Tensor) -> tuple[Tensor, list[int]]:
    """Sites from 0 and their extent, as spconv takes them."""
    at = sites[:, 1:] - sites[:, 1:].min(0).values
    return torch.cat([sites[:, :1], at], 1).int().contiguous(), [int(v) + 1 for v in at.max(0).values]


def theirs(layer: Layer, spconv: Any) -> dict[str, Callable[[], Any]]:
    channels = layer.features.shape[1]
    conv = spconv.SubMConv3d(channels, channels, 3, bias=True, indice_key="near").cuda().to(layer.features.dtype)
    with torch.no_grad():
        conv.weight.copy_(layer.weight.view(3, 3, 3, channels, channels).permute(4, 0, 1, 2, 3))
        conv.bias.copy_(layer.bias)
    indices, shape = indices_of(layer.sites)
    # A result knows the indices that were found for it; what went in does not.
    known = conv(spconv.SparseConvTensor(layer.features, indices, shape, 1)).replace_feature(layer.features)

    def forward() -> Tensor:
        return conv(known).features

    def anew() -> Tensor:
        with torch.no_grad():
            return conv(spconv.SparseConvTensor(layer.features, indices, shape, 1)).features

    return {"forward": forward, "both": layer.both(forward, [layer.features, *conv.parameters()]), "anew": anew}


def kept_of(make: Callable[[Layer], dict], layer: Layer) -> tuple[dict[str, Callable[[], Any]], float]:
    """The works of a layer, and the bytes for each voxel that stay after a pass of them, without weights and sites."""
    before = allocated()
    works = make(layer)
    works["both"]()
    bytes_ = allocated() - before
    if make is not ours:
        bytes_ -= sum(x.numel() * x.element_size() for x in (layer.weight, layer.bias)) + 16 * len(layer.sites)
    return works, bytes_ / len(layer.sites)


def difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def checked(precision: str, layer: Layer, works: dict[str, dict[str, Callable]], exactly: bool) -> dict[str, float]:
    """The relative difference of the results, and with `exactly` of each from the reference in float64."""
    row: dict[str, float] = {}
    with torch.no_grad():
        results = {name: work["forward"]() for name, work in works.items()}
        if "spconv" in results:
            row["difference"] = difference(results["ours"], results["spconv"])
        if not exactly:
            return row
        with gl.use_backend("reference"):
            wide = layer.features.double(), layer.weight.double(), layer.bias.double()
            expected = gl.tap_conv(*wide, submanifold_taps(layer.sites))
        row |= {f"{name} error": difference(result, expected) for name, result in results.items()}
    if not row["ours error"] <= TOLERANCE[precision]:
        raise ValueError(f"taps: {precision}: the error is {row['ours error']:.1e}, above {TOLERANCE[precision]}")
    return row


def rates() -> dict[str, float]:
    """Multiply-adds a millisecond of a large product in each precision, and bytes a millisecond of a large copy."""
    peaks = {}
    for precision, dtype in PRECISIONS.items():
        a = torch.randn(8192, 8192, device="cuda").to(dtype)
        set_precision("TF32", [])
        peaks[precision] = 8192**3 / timed(lambda a=a: a @ a, 5) / (3 if precision == "IEEE float32" else 1)
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    peaks["bytes"] = 2 * len(x) / timed(lambda: y.copy_(x), 5)
    return peaks


def floor(layer: Layer, edges: int, precision: str, rate: dict[str, float]) -> float:
    """Milliseconds of a forward pass."""
    rows, channels = layer.features.shape
    size = layer.features.element_size()
    moved = (2 * rows * channels + layer.weight.numel()) * size + 4 * edges
    return max(edges * channels**2 / rate[precision], moved / rate["bytes"])


def cell(
    sites: Tensor, precision: str, channels: int, peer: Any, rate: dict, repeats: int, memory: bool
) -> dict[str, float]:
    """One layer on one scan."""
    set_precision(precision, [] if peer is None else [peer])
    layer, row, works = Layer(sites, channels, PRECISIONS[precision]), {}, {}
    makers: dict[str, Callable[[Layer], dict]] = {"ours": ours}
    if peer is not None:
        makers["spconv"] = lambda layer: theirs(layer, peer)
    for name, make in makers.items():
        if memory:
            works[name], row[f"{name} indices"] = kept_of(make, layer)
        else:
            works[name] = make(layer)
    row |= checked(precision, layer, works, exactly=memory)
    for name, work in works.items():
        with torch.no_grad():
            row[f"{name} forward"] = timed(work["forward"], repeats)
            row[f"{name} anew"] = timed(work["anew"], repeats)
        row[f"{name} both"] = timed(work["both"], repeats)
        if memory:
            row[f"{name} MiB"] = peak_of(work["both"])
    with torch.no_grad():
        row["ours captured forward"] = timed(captured(layer, "forward"), repeats)
    row["ours captured both"] = timed(captured(layer, "both"), repeats)
    row["floor"] = floor(layer, int((submanifold_taps(sites).table >= 0).sum()), precision, rate)
    return row


def sites_of(scan: np.ndarray, side: float) -> Tensor:
    cells = torch.unique((torch.from_numpy(scan).cuda().double() / side).floor().long(), dim=0)
    return torch.cat([cells.new_zeros(len(cells), 1), cells], 1).int()


def over_scans(scans: list[dict[str, float]]) -> dict[str, float]:
    """Medians of all columns, and of the ratios of spconv to ours the median and the least."""
    row = {key: statistics.median(r[key] for r in scans if key in r) for key in scans[0]}
    for what in ("forward", "both", "anew", "MiB", "indices"):
        if f"spconv {what}" in row:
            ratios = [r[f"spconv {what}"] / r[f"ours {what}"] for r in scans if f"spconv {what}" in r]
            row[f"{what} ratio"], row[f"{what} least ratio"] = statistics.median(ratios), min(ratios)
    return row


def show(name: str, row: dict[str, float]) -> None:
    parts = [f"{name:<26}"]
    for what in ("forward", "both", "anew", "MiB", "indices"):
        own, peer = row[f"ours {what}"], row.get(f"spconv {what}")
        ratio = "" if peer is None else f"/{peer:.3g} {row[f'{what} ratio']:.2f} >{row[f'{what} least ratio']:.2f}"
        parts.append(f"{what} {own:.3g}{ratio}")
    parts.append(f"captured {row['ours captured forward']:.3f} {row['ours captured both']:.3f}")
    print(" | ".join([*parts, f"floor {row['floor']:.3f}", f"error {row['ours error']:.0e}"]), flush=True)


def layers(options: Any, results: Results) -> None:
    spconv = library("spconv")
    scans, rate = load_scans(options.scans)[: options.first], rates()
    results.put("rates", rate)
    # Memory is read after a collection, which then passes over what was imported.
    gc.collect()
    gc.freeze()
    rows = {}
    for side in SIDES:
        sites = [sites_of(scan, side) for scan in scans]
        for precision in options.precisions:
            for channels in options.channels:
                name = f"{side * 100:g} cm, {channels}, {precision}"
                if results.has("rows", name) or results.late():
                    continue
                given = precision, channels, spconv, rate, options.repeats
                # Memory follows from the number of voxels: three scans say it.
                cells = [cell(at, *given, memory=n < 3) for n, at in enumerate(sites)]
                rows[name] = over_scans(cells) | {"scans": len(cells)}
                results.put("rows", rows[name], name)
                show(name, rows[name])
    for what in ("forward", "both", "anew", "MiB", "indices") if spconv is not None else ():
        ratios = [row[f"{what} ratio"] for row in rows.values()] or [0.0]
        print(f"{what}: spconv / ours {statistics.median(ratios):.2f} in the median, {min(ratios):.2f} at worst")


# The network.

WIDTHS = (32, 64, 128, 256, 256, 128, 96, 96)
DEPTHS = (2, 3, 4, 6, 2, 2, 2, 2)
INPUTS, CLASSES = 4, 20


def norm(width: int) -> nn.BatchNorm1d:
    return nn.BatchNorm1d(width, eps=1e-3, momentum=0.01)


def network(spconv: Any) -> nn.Module:
    """A SparseUNet with the widths and depths of SpUNet-v1m1, of one library's layers."""

    class Block(spconv.SparseModule):
        """Two submanifold convolutions beside a shortcut."""

        def __init__(self, inputs: int, width: int, key: str) -> None:
            super().__init__()
            self.first = spconv.SubMConv3d(inputs, width, 3, bias=False, indice_key=key)
            self.second = spconv.SubMConv3d(width, width, 3, bias=False, indice_key=key)
            self.norms = nn.ModuleList([norm(width), norm(width)])
            self.short = None if inputs == width else spconv.SubMConv3d(inputs, width, 1, bias=False)
            self.short_norm: Any = None if inputs == width else norm(width)

        def forward(self, x: Any) -> Any:
            short = x.features if self.short is None else self.short_norm(self.short(x).features)
            y = self.first(x)
            y = self.second(y.replace_feature(self.norms[0](y.features).relu()))
            return y.replace_feature((self.norms[1](y.features) + short).relu())

    def follow(conv: Any, width: int) -> Any:
        return spconv.SparseSequential(conv, norm(width), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = follow(spconv.SubMConv3d(INPUTS, 32, 5, padding=1, bias=False, indice_key="stem"), 32)
            self.down, self.enc, self.up, self.dec = (nn.ModuleList() for _ in range(4))
            width, skips = 32, [32]
            for n in range(4):
                wider, depth = WIDTHS[n], DEPTHS[n]
                conv = spconv.SparseConv3d(width, wider, 2, 2, bias=False, indice_key=f"down{n}")
                self.down.append(follow(conv, wider))
                blocks = [Block(wider, wider, f"level{n + 1}") for _ in range(depth)]
                self.enc.append(spconv.SparseSequential(*blocks))
                width = wider
                skips.append(wider)
            for n in range(4):
                narrower, depth, level = WIDTHS[4 + n], DEPTHS[4 + n], 3 - n
                conv = spconv.SparseInverseConv3d(width, narrower, 2, bias=False, indice_key=f"down{level}")
                self.up.append(follow(conv, narrower))
                widths = [narrower + skips[level]] + [narrower] * (depth - 1)
                blocks = [Block(inputs, narrower, f"level{level}") for inputs in widths]
                self.dec.append(spconv.SparseSequential(*blocks))
                width = narrower
            self.head = spconv.SubMConv3d(width, CLASSES, 1, bias=True)

        def forward(self, features: Tensor, indices: Tensor, shape: list[int]) -> Tensor:
            x = self.stem(spconv.SparseConvTensor(features, indices, shape, 1))
            skips = [x]
            for down, blocks in zip(self.down, self.enc, strict=True):
                x = blocks(down(x))
                skips.append(x)
            skips.pop()
            for up, blocks in zip(self.up, self.dec, strict=True):
                x = up(x)
                x = blocks(x.replace_feature(torch.cat([x.features, skips.pop().features], 1)))
            return self.head(x).features

    return UNet()


class PlanUNet(nn.Module):
    """The same network as a plan, for `gl.capture`."""

    def __init__(self, side: float) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        self.voxels = plan.voxels(plan.points(dim=3), side)
        levels, downs = [self.voxels], []
        for _ in range(4):
            levels.append(plan.coarser_voxels(levels[-1]))
            downs.append(plan.taps(levels[-2], levels[-1], 2, 2, 0))
        near = [plan.taps(level, level) for level in levels]
        self.stem = Normed(plan.taps(self.voxels, self.voxels, 5), INPUTS, 32)
        self.down, self.enc, self.up, self.dec = (nn.ModuleList() for _ in range(4))
        width, skips = 32, [32]
        for n in range(4):
            wider = WIDTHS[n]
            self.down.append(Normed(downs[n], width, wider))
            self.enc.append(nn.ModuleList(PlanBlock(near[n + 1], wider, wider) for _ in range(DEPTHS[n])))
            width = wider
            skips.append(wider)
        for n in range(4):
            narrower, level = WIDTHS[4 + n], 3 - n
            self.up.append(Normed(plan.transpose(downs[level]), width, narrower))
            widths = [narrower + skips[level]] + [narrower] * (DEPTHS[4 + n] - 1)
            self.dec.append(nn.ModuleList(PlanBlock(near[level], inputs, narrower) for inputs in widths))
            width = narrower
        self.head = nn.Linear(width, CLASSES)

    def forward(self, geometry: gl.Geometry) -> Tensor:
        x = self.stem(geometry[self.voxels].rows["features"], geometry)
        skips = [x]
        for down, blocks in zip(self.down, self.enc, strict=True):
            x = down(x, geometry)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, geometry)
            skips.append(x)
        skips.pop()
        for up, blocks in zip(self.up, self.dec, strict=True):
            x = torch.cat([up(x, geometry), skips.pop()], 1)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, geometry)
        return self.head(x)

    def step(self, geometry: gl.Geometry) -> Tensor:
        """A loss over the voxels and its gradients. Rows of padding belong to no example."""
        self.zero_grad()
        voxels = geometry[self.voxels]
        out = self(geometry).float().square().sum(1)
        loss = 0.01 * torch.where(voxels.example < voxels.num_examples, out, 0).sum()
        loss.backward()
        return loss.detach()


class Normed(nn.Module):
    """A convolution over taps, then batch normalisation and ReLU."""

    def __init__(self, edges: Any, inputs: int, width: int, relu: str | None = "after") -> None:
        super().__init__()
        self.conv = gl.nn.TapConv(edges, inputs, width, bias=False)
        self.norm = gl.nn.BatchNorm(width, edges.target, eps=1e-3, momentum=0.01, relu=relu)

    def forward(self, x: Tensor, geometry: gl.Geometry) -> Tensor:
        return self.norm(self.conv(x, geometry), geometry)


class PlanBlock(nn.Module):
    def __init__(self, edges: Any, inputs: int, width: int) -> None:
        super().__init__()
        self.first, self.second = Normed(edges, inputs, width), Normed(edges, width, width, relu=None)
        self.short = None if inputs == width else nn.Linear(inputs, width, bias=False)
        self.short_norm: Any = (
            None if inputs == width else gl.nn.BatchNorm(width, edges.target, eps=1e-3, momentum=0.01)
        )

    def forward(self, x: Tensor, geometry: gl.Geometry) -> Tensor:
        short = x if self.short is None else self.short_norm(self.short(x), geometry)
        return (self.second(self.first(x, geometry), geometry) + short).relu()


def works_of(spconv: Any, sites: Tensor, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """Forward and both of the network of a library, on one scan."""
    torch.manual_seed(0)
    model = network(spconv).to(sites.device, dtype)
    indices, shape = indices_of(sites)
    features = torch.randn(len(sites), INPUTS, generator=torch.Generator().manual_seed(1)).to(sites.device, dtype)

    return passes_of(model, lambda: model(features, indices, shape))


def passes_of(model: nn.Module, forward: Callable[[], Tensor]) -> dict[str, Callable[[], Any]]:
    """A forward pass without gradients, and one with those of a loss."""

    def both() -> Tensor:
        model.zero_grad()
        out = forward()
        out.float().square().mean().backward()
        return out

    def alone() -> Tensor:
        with torch.no_grad():
            return forward()

    return {"forward": alone, "both": both}


def unet(options: Any, results: Results) -> None:
    import gridless.compat.spconv.pytorch as own

    libraries = {"ours": own} | ({} if (spconv := library("spconv")) is None else {"spconv": spconv})
    scans = load_scans(options.scans)[: min(options.first, 6)]
    for side in SIDES:
        sites = [sites_of(scan, side) for scan in scans]
        for precision in options.precisions:
            name = f"{side * 100:g} cm, {precision}"
            if results.has("unet", name) or results.late():
                continue
            set_precision(precision, [*libraries.values()])
            cells = [unet_cell(libraries, at, PRECISIONS[precision], options.repeats) for at in sites]
            row = over_scans(cells) | {"scans": len(cells)}
            results.put("unet", row, name)
            print(f"unet, {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)


def unet_cell(libraries: dict[str, Any], sites: Tensor, dtype: torch.dtype, repeats: int) -> dict[str, float]:
    row, outputs = {}, {}
    for name, spconv in libraries.items():
        works = works_of(spconv, sites, dtype)
        outputs[name] = works["both"]().detach()
        for what, work in works.items():
            row[f"{name} {what}"] = timed(work, repeats)
        row[f"{name} MiB"] = peak_of(works["both"])
    if "spconv" in outputs:
        # Networks in float16 drift apart through their normalisations: the figure is written down, and not judged.
        row["difference"] = difference(outputs["ours"], outputs["spconv"])
    return row


def graphs(options: Any, results: Results) -> None:
    scans = load_scans(options.scans)[: min(options.first, 6)]
    for side in SIDES:
        for precision in options.precisions:
            name = f"{side * 100:g} cm, {precision}"
            if results.has("graphs", name) or results.late():
                continue
            set_precision(precision, [])
            row = captured_unet(scans, side, PRECISIONS[precision]) | {"scans": len(scans)}
            results.put("graphs", row, name)
            print(f"graphs, {name}: " + ", ".join(f"{k} {v:.4g}" for k, v in row.items()), flush=True)


def captured_unet(scans: list[np.ndarray], side: float, dtype: torch.dtype) -> dict[str, float]:
    """Milliseconds of `both`; geometry anew each time, but where a row says that it is kept."""
    torch.manual_seed(0)
    model = PlanUNet(side).cuda().to(dtype)
    generator = torch.Generator("cuda").manual_seed(1)
    points = [torch.from_numpy(scan).cuda() for scan in scans]
    features = [torch.randn(len(at), INPUTS, device="cuda", generator=generator).to(dtype) for at in points]

    def cloud(n: int) -> gl.Cloud:
        """A new one, of which nothing is known."""
        return gl.Cloud.of(points[n], features=features[n])

    each = range(len(scans))
    row = {"eager": statistics.median(timed(lambda n=n: model.step(model.plan(cloud(n))), 3) for n in each)}
    step = gl.capture(model.step, model.plan)
    for n in [*each] * max(2, 10 // len(scans)):
        step(model.plan(cloud(n)))
    row["graphs"] = step.graphs
    loss, wanted = step(model.plan(cloud(0))), model.step(model.plan(cloud(0)))
    row["difference"] = difference(loss, wanted)
    row["captured"] = statistics.median(timed(lambda n=n: step(model.plan(cloud(n))), 5) for n in each)
    row["ahead"] = ahead_ms(step, model.plan, (cloud(n) for n in [*each] * 6), len(scans))
    geometries = [model.plan(cloud(n)) for n in each]
    row["geometry kept"] = statistics.median(timed(lambda g=g: step(g), 5) for g in geometries)
    return row


# The first step, and tuning.


def first(options: Any, results: Results) -> None:
    for name in ("ours", "spconv", "spconv_triton"):
        if results.has("first", name) or results.late():
            continue
        with tempfile.TemporaryDirectory() as folder:
            script = [sys.executable, __file__, "--scans", options.scans, "--step", name]
            caches = {"TRITON_CACHE_DIR": folder, "NUMBA_CACHE_DIR": folder}
            try:
                done = subprocess.run(
                    script, env=os.environ | caches, capture_output=True, text=True, timeout=options.tuning
                )
                figures = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else done.stderr[-500:]
            except subprocess.TimeoutExpired:
                figures = f"more than {options.tuning:g} s"
        results.put("first", figures, name)
        print(f"first step, {name}: {figures}", flush=True)


def step(options: Any) -> None:
    """Prints the seconds of the first two steps of the network, in this process."""
    names = {"ours": "gridless.compat.spconv", "spconv": "spconv", "spconv_triton": "spconv_triton"}
    spconv = import_module(names[options.step] + ".pytorch")
    sites = sites_of(load_scans(options.scans)[0], 0.1)
    works, seconds = works_of(spconv, sites, torch.float32), []
    for _ in range(2):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        works["both"]()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    print(json.dumps({"first s": seconds[0], "second s": seconds[1]}))


def tuned(options: Any, results: Results) -> None:
    """Cells of spconv-triton compile and tune beside each other, each in a process of its own. Then each tunes again
    alone, with compiled kernels, and is timed. --cache keeps the kernels."""
    if library("spconv_triton") is None:
        return
    names = [f"{precision}, {c}" for precision in options.precisions for c in options.channels]
    names = [name for name in names if not results.has("triton", f"10 cm, {name}")]
    with tempfile.TemporaryDirectory() as folder:
        folder = options.cache or folder
        command = [sys.executable, __file__, "--scans", options.scans, "--repeats", str(options.repeats), "--tune"]
        caches = os.environ | {"TRITON_CACHE_DIR": folder}
        pipe = subprocess.PIPE
        tuning = {name: subprocess.Popen([*command, name], env=caches, stdout=pipe, stderr=pipe) for name in names}
        end = time.monotonic() + options.tuning
        errors = {}
        for name, process in tuning.items():
            try:
                _, error = process.communicate(timeout=max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                error = f"more than {options.tuning:g} s".encode()
            if process.returncode:
                errors[name] = error.decode()[-200:]
        # What was chosen while other processes ran is chosen again.
        for path in Path(folder).rglob("*.autotune.json"):
            path.unlink()
        for name in names:
            row = {"error": errors.get(name)}
            if name not in errors:
                done = subprocess.run([*command, name], env=caches, capture_output=True, text=True, check=True)
                row = json.loads(done.stdout.splitlines()[-1])
            results.put("triton", row, f"10 cm, {name}")
            print(f"spconv-triton, {name}: {row}", flush=True)


def tune(options: Any) -> None:
    """Prints how long spconv-triton takes to tune itself for one layer on one scan, and the times of both sides."""
    precision, channels = options.tune.split(", ")
    spconv = import_module("spconv_triton.pytorch")
    set_precision(precision, [spconv])
    layer, row = Layer(sites_of(load_scans(options.scans)[0], 0.1), int(channels), PRECISIONS[precision]), {}
    works = {"ours": ours(layer), "spconv-triton": theirs(layer, spconv)}
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for what in ("both", "anew"):
        works["spconv-triton"][what]()
    torch.cuda.synchronize()
    row["tuning s"] = time.perf_counter() - begin
    row["difference"] = difference(works["ours"]["forward"](), works["spconv-triton"]["forward"]())
    for who, work in works.items():
        for what in work:
            with torch.set_grad_enabled(what == "both"):
                row[f"{who} {what}"] = timed(work[what], options.repeats)
    print(json.dumps(row))


# On a CPU.


def plain_taps(x: Tensor, weight: Tensor, bias: Tensor | None, edges: Any) -> Tensor:
    """`tap_conv` as a loop over taps in torch."""
    out = x.new_zeros(edges.num_target, weight.shape[2]) if bias is None else bias.expand(edges.num_target, -1).clone()
    for k in range(edges.num_taps):
        source = edges.table[:, k]
        target = (source >= 0).nonzero()[:, 0]
        out = out.index_add(0, target, x[source[target].long()] @ weight[k])
    return out


class PlainConv(nn.Module):
    """A submanifold convolution as a loop over taps in torch."""

    def __init__(self, taps: int, inputs: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(taps, inputs, width) * (5 * inputs) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        return plain_taps(x, self.weight, self.bias, edges)


class OwnConv(PlainConv):
    """The same as one `tap_conv`."""

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        return gl.tap_conv(x, self.weight, self.bias, edges)


class PTv3Block(nn.Module):
    """Position by a convolution, attention among patches of 1024 voxels in their order, and two dense layers."""

    def __init__(self, conv: Any, width: int, heads: int) -> None:
        super().__init__()
        self.conv, self.heads = conv(27, width, width), heads
        self.place, self.qkv, self.out = nn.Linear(width, width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, edges: Any) -> Tensor:
        x = x + self.norms[0](self.place(self.conv(x, edges)))
        rows, width = x.shape
        patch = min(1024, rows)
        patches = -(-rows // patch)
        qkv = nn.functional.pad(self.qkv(self.norms[1](x)), (0, 0, 0, patches * patch - rows))
        q, k, v = qkv.view(patches, patch, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(-1, width)[:rows])
        return x + self.mlp(self.norms[2](x))


class PTv3Like(nn.Module):
    """The stages of PTv3 with its widths, depths and heads: sums of voxels go down, copies go up."""

    def __init__(self, conv: Any) -> None:
        super().__init__()
        widths, depths, heads = (32, 64, 128, 256, 512), (2, 2, 2, 6, 2), (2, 4, 8, 16, 32)
        self.stem = conv(125, 6, 32)
        self.down, self.enc, self.up, self.skip, self.dec = (nn.ModuleList() for _ in range(5))
        for n in range(5):
            self.enc.append(nn.ModuleList(PTv3Block(conv, widths[n], heads[n]) for _ in range(depths[n])))
            if n < 4:
                self.down.append(nn.Linear(widths[n], widths[n + 1]))
        wide, up_heads = (256, 128, 64, 64), (16, 8, 4, 4)
        for n in range(4):
            self.up.append(nn.Linear((512, *wide)[n], wide[n]))
            self.skip.append(nn.Linear(widths[3 - n], wide[n]))
            self.dec.append(nn.ModuleList(PTv3Block(conv, wide[n], up_heads[n]) for _ in range(2)))

    def forward(self, x: Tensor, stem: Any, edges: list[Any], parents: list[Tensor]) -> Tensor:
        x, skips = self.stem(x, stem), []
        for n, blocks in enumerate(self.enc):
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, edges[n])
            if n < 4:
                skips.append(x)
                rows = self.down[n](x)
                x = rows.new_zeros(edges[n + 1].num_target, rows.shape[1]).index_add(0, parents[n], rows)
        for n, blocks in enumerate(self.dec):
            x = self.up[n](x)[parents[3 - n]] + self.skip[n](skips.pop())
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, edges[3 - n])
        return x


def surface(count: int) -> Tensor:
    """Sites (count, 4) of a bent sheet: neighbourhoods as full as those of indoor scans, 20,000 as it is."""
    side = round(count**0.5)
    a, b = torch.meshgrid(torch.arange(side), torch.arange(count // side), indexing="ij")
    height = (8 * (a / 20).sin() + 8 * (b / 20).cos()).round().long()
    return torch.stack([torch.zeros_like(a), a, b, height], -1).reshape(-1, 4)


def cpu(options: Any, results: Results) -> None:
    """Seconds of forward and of both, the least of --repeats passes: other processes disturb."""
    sites = surface(20000)
    rows = {"PTv3's layers": ptv3_cpu(sites, options.repeats), "SparseUNet": unet_cpu(sites, options.repeats)}
    for name, row in rows.items():
        results.put("cpu", {"machine": machine()} | row, name)
        print(name, ", ".join(f"{k} {v:.4g}" for k, v in row.items()))


def ptv3_cpu(sites: Tensor, repeats: int) -> dict[str, float]:
    """Layers and blocks of PTv3, with neighbourhoods that are kept."""
    stem, edges, parents = submanifold_taps(sites, 5), [], []
    for n in range(5):
        edges.append(submanifold_taps(sites))
        if n < 4:
            half = torch.cat([sites[:, :1], sites[:, 1:].div(2, rounding_mode="floor")], 1)
            sites, parent = half.unique(dim=0, return_inverse=True)
            parents.append(parent)
    x = torch.randn(len(parents[0]), 6)
    row: dict[str, float] = {"voxels": len(x)}
    for name, conv in (("ours", OwnConv), ("plain", PlainConv)):
        torch.manual_seed(0)
        model = PTv3Like(conv)
        row |= cpu_seconds(name, passes_of(model, lambda m=model: m(x, stem, edges, parents)), repeats)
    return row


def unet_cpu(sites: Tensor, repeats: int) -> dict[str, float]:
    """A SparseUNet of spconv's names, whose indices are made anew; `plain` calls the loop in place of `tap_conv`."""
    import gridless.compat.spconv.pytorch as own
    from gridless.compat.spconv.pytorch import functional

    works, row = works_of(own, sites, torch.float32), {"voxels": len(sites)}
    for name, conv in (("ours", gl.tap_conv), ("plain", plain_taps)):
        with mock.patch.object(functional, "tap_conv", conv):
            row |= cpu_seconds(name, works, repeats)
    return row


def cpu_seconds(name: str, works: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The least seconds of each work."""
    row = {}
    for what, work in works.items():
        work()
        times = []
        for _ in range(max(1, repeats // 3)):
            begin = time.perf_counter()
            work()
            times.append(time.perf_counter() - begin)
        row[f"{name} {what} s"] = min(times)
    return row


# Results.


class Results:
    """A file of results that is written after each row."""

    def __init__(self, path: str, seconds: float) -> None:
        self.path, self.end = Path(path), time.monotonic() + seconds
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        # Files of one scan were written before rows said how many there were.
        is_old = any("scans" not in row for row in known.get("rows", {}).values())
        self.values: dict[str, Any] = {} if is_old else known
        self.values["machine"] = machine()

    def has(self, part: str, name: str) -> bool:
        return name in self.values.get(part, {})

    def late(self) -> bool:
        """True if no further row may begin."""
        return time.monotonic() > self.end

    def put(self, part: str, value: Any, name: str | None = None) -> None:
        if name is None:
            self.values[part] = value
        else:
            self.values.setdefault(part, {})[name] = value
        self.path.write_text(json.dumps(self.values, indent=1))


def library(name: str) -> Any:
    """The layers of an installed library, or None."""
    try:
        return import_module(f"{name}.pytorch")
    except ImportError as error:
        print(f"{name} is not installed: {error}", flush=True)
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", default="", help="a pack of scans; all parts but cpu need it")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["layers", "unet", "graphs", "first", "triton"])
    parser.add_argument("--first", type=int, default=22, metavar="N", help="how many scans")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--channels", type=int, nargs="+", default=list(CHANNELS))
    parser.add_argument("--precisions", nargs="+", choices=list(PRECISIONS), default=list(PRECISIONS))
    parser.add_argument("--tuning", type=float, default=60, metavar="SECONDS", help="for what compiles or tunes itself")
    parser.add_argument("--cache", metavar="FOLDER", help="keeps the compiled kernels of spconv-triton")
    parser.add_argument("--seconds", type=float, default=1e9, help="no further row is begun after that")
    parser.add_argument("--out", default=str(RESULTS / "taps.json"))
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--tune", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        step(options)
        return
    if options.tune:
        tune(options)
        return
    results = Results(options.out, options.seconds)
    measures = {"layers": layers, "unet": unet, "graphs": graphs, "first": first, "triton": tuned, "cpu": cpu}
    for part in options.parts:
        begin = time.monotonic()
        measures[part](options, results)
        print(f"{part}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
