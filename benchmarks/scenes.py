"""Real LiDAR scans: one convolution, the search before it and a whole network, beside spconv where that is installed.

    python benchmarks/scenes.py --scans semantickitti_22_scans.npz [--all] [--network] [--out results/scenes.json]

As a user gets it: eager, one call after the other, median of --repeats from call to finished result, both sides in the
same precision. A scan becomes voxel centres of 5 or 10 cm; our ball holds the 3 x 3 x 3 neighbourhood, with 10
monomials; spconv's is SubMConv3d of 27 weights. `kept`: edges (indices) from an earlier call; `anew`: the search is
part of the call. MiB are the peak of the call above its inputs. With --all every scan is taken, and figures are medians
over scans; without, the first.

The network is a U-Net of five levels, all of the same width: two convolutions a level on the way down, one on the way
up, each with batch normalisation and ReLU. Its geometry, that is every search and sampling or index, is made anew for
each scan. Ours thins a level by rejection sampling, spconv's by convolutions of 2 x 2 x 2 with stride 2. `captured` is
its step by `gl.capture`: the plan of a scan, then a graph, one scan after the other; `ahead`, the time for each scan
where `gl.training.ahead` makes the next geometry meanwhile. Losses and gradients of the captured step are compared with
those of the eager one first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import machine

import gridless as gl

spconv: Any
try:
    import spconv.pytorch as spconv
except ImportError:
    spconv = None

REPEAT = 30
# Scans of the network at most.
FEW = 6
LEVELS, INPUTS = 5, 4
WIDTHS = (32, 64, 128, 256)
# Those that both sides have.
PRECISIONS = {"IEEE float32": torch.float32, "TF32": torch.float32, "float16": torch.float16}


def load_scans(path: str) -> list[np.ndarray]:
    """Coordinates (n, 3) float32 of each scan: a pack of whole scans, or a file with one under `coords`."""
    pack = np.load(path)
    if "coords" in pack:
        return [pack["coords"].astype(np.float32)]
    sys.path.insert(0, str(Path(path).parent))
    from read import scans  # the reader that lies beside the pack

    return [scan[0] for scan in scans(path)]


def set_precision(precision: str, spconvs: list[Any]) -> None:
    """The same for torch, for us and for every library of spconv's names."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "TF32" else "ieee"
    for library in spconvs:
        root = library.__name__.rpartition(".")[0]
        constants: Any = import_module(f"{root}.constants")
        if (precision == "TF32") != constants.SPCONV_ALLOW_TF32:
            constants.SPCONV_ALLOW_TF32 = precision == "TF32"
            if find_spec(f"{root}.algo") is not None:
                forget_kernels(root)


def forget_kernels(root: str) -> None:
    """Makes spconv choose its kernels again: it keeps them by dtype, whether they use TF32 or not."""
    algo, core, ops = (import_module(f"{root}.{name}") for name in ("algo", "algocore", "pytorch.ops"))
    products = [core.get_gemm_algo_desp_from_param(given) for given in algo.ALL_NATIVE_PARAMS]
    convolutions = [core.get_conv_algo_desp_from_param(given) for given in algo.ALL_IMPGEMM_PARAMS]
    ops.GEMM_CPP = algo.GEMM_CPP = algo.GemmTunerSimple(products)  # type: ignore[attr-defined]
    ops.CONV_CPP = algo.CONV_CPP = algo.ConvTunerSimple(convolutions)  # type: ignore[attr-defined]


def measured(work: Callable[[], Any]) -> tuple[float, float]:
    """Milliseconds from call to finished result, and MiB above what was there before."""
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    times = []
    for _ in range(REPEAT):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times), peak


def both(forward: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> Callable[[], Any]:
    grad = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), inputs, grad)


class Ours:
    def __init__(self, voxels: torch.Tensor, size: float) -> None:
        plan = gl.Plan()
        cloud = plan.points(dim=3)
        self.near = plan.ball(cloud, cloud, size * 3**0.5 * 1.001)
        self.plan, self.cloud = plan, gl.Cloud.of(((voxels.float() + 0.5) * size).contiguous())
        self.geometry = plan(self.cloud)

    def works(self, width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
        conv = gl.nn.PointConv(self.near, width, width).cuda().to(dtype)
        features = torch.randn(len(self.cloud), width, device="cuda", dtype=dtype, requires_grad=True)

        def anew() -> Any:
            with torch.no_grad():
                return conv(features, self.plan(self.cloud))

        kept = lambda: conv(features, self.geometry)  # noqa: E731
        return {"kept": kept, "both": both(kept, [features, *conv.parameters()]), "anew": anew}


class Theirs:
    def __init__(self, voxels: torch.Tensor) -> None:
        self.low = voxels.min(0).values
        at = (voxels - self.low).int()
        self.indices = torch.cat([torch.zeros_like(at[:, :1]), at], 1).contiguous()
        self.shape = [int(v) + 1 for v in at.max(0).values]

    def works(self, width: int, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
        conv = spconv.SubMConv3d(width, width, 3, bias=True, indice_key="near").cuda().to(dtype)
        features = torch.randn(len(self.indices), width, device="cuda", dtype=dtype, requires_grad=True)
        # A result knows the indices that were found for it; what went in does not.
        known = conv(spconv.SparseConvTensor(features, self.indices, self.shape, 1))
        assert known.find_indice_pair("near") is not None

        def kept() -> torch.Tensor:
            return conv(known.replace_feature(features)).features

        def anew() -> Any:
            with torch.no_grad():
                return conv(spconv.SparseConvTensor(features, self.indices, self.shape, 1)).features

        return {"kept": kept, "both": both(kept, [features, *conv.parameters()]), "anew": anew}


Rows = dict[str, dict[str, Any]]


def convolutions(scans: list[np.ndarray]) -> Iterator[Rows]:
    """Rows of one size of voxels in one precision after the other: spconv tunes itself anew in each precision."""
    for size in (0.05, 0.1):
        for precision, dtype in (PRECISIONS | {"bfloat16": torch.bfloat16}).items():
            set_precision(precision, [] if spconv is None else [spconv])
            cells: dict[tuple[int, str], list[dict[str, tuple[float, float]]]] = {}
            for scan in scans:
                voxels = torch.unique((torch.from_numpy(scan).cuda() / size).floor().int(), dim=0)
                libraries: dict[str, Any] = {"ours": Ours(voxels, size)}
                # bfloat16 is not one of spconv's types.
                if spconv is not None and dtype != torch.bfloat16:
                    libraries["spconv"] = Theirs(voxels)
                for width in WIDTHS:
                    for library, it in libraries.items():
                        got = {what: measured(work) for what, work in it.works(width, dtype).items()}
                        cells.setdefault((width, library), []).append(got)
            rows: Rows = {}
            for (width, library), values in cells.items():
                row = rows.setdefault(f"{100 * size:.0f} cm, {width} channels, {precision}", {})
                for what in ("kept", "both", "anew"):
                    row[f"{library} {what} ms"] = statistics.median(v[what][0] for v in values)
                    row[f"{library} {what} MiB"] = statistics.median(v[what][1] for v in values)
            for name, row in rows.items():
                print(f"{name:32}" + with_ratios(row), flush=True)
            yield rows


def with_ratios(row: dict[str, Any]) -> str:
    """Adds the ratios of spconv to ours to a row; the row as text."""
    line = ""
    for library in ("ours", "spconv"):
        if f"{library} kept ms" in row:
            reused, pair, anew = (row[f"{library} {w} ms"] for w in ("kept", "both", "anew"))
            line += f"  {library} {reused:.3f} / {pair:.3f} ms, anew {anew:.3f}, {row[f'{library} both MiB']:.0f} MiB"
    if "spconv kept ms" in row:
        for what in ("kept", "both", "anew"):
            row[f"{what} ratio"] = row[f"spconv {what} ms"] / row[f"ours {what} ms"]
        line += "  ratio " + " / ".join(f"{row[f'{w} ratio']:.1f}" for w in ("kept", "both", "anew"))
    return line


class Norm(torch.nn.Module):
    """A convolution along edges, then batch normalisation and ReLU."""

    def __init__(self, edges: Any, inputs: int, width: int) -> None:
        super().__init__()
        self.conv = gl.nn.PointConv(edges, inputs, width, bias=False)
        self.norm = gl.nn.BatchNorm(width, edges.target, relu="after")

    def forward(self, x: torch.Tensor, geometry: gl.Geometry) -> torch.Tensor:
        return self.norm(self.conv(x, geometry), geometry)


class OurUNet(torch.nn.Module):
    def __init__(self, width: int, size: float) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        cloud, radius = plan.points(dim=3), size * 3**0.5 * 1.001
        near = plan.ball(cloud, cloud, radius)
        self.stem = Norm(near, INPUTS, width)
        self.places, self.down, self.up, self.merge = (torch.nn.ModuleList() for _ in range(4))
        self.places.append(Norm(near, width, width))
        for _ in range(LEVELS - 1):
            coarse = plan.rejection_sample(near)
            down = plan.ball(cloud, coarse, radius)
            self.down.append(Norm(down, width, width))
            self.up.append(Norm(plan.transpose(down), width, width))
            self.merge.append(Norm(near, width, width))
            cloud, radius = coarse, 2 * radius
            near = plan.ball(cloud, cloud, radius)
            self.places.append(torch.nn.ModuleList([Norm(near, width, width) for _ in range(2)]))

    def on(self, coords: torch.Tensor, features: torch.Tensor) -> Callable[[], torch.Tensor]:
        # A new cloud each time: nothing that was found for it is kept.
        return lambda: self(features, self.plan(gl.Cloud.of(coords)))

    def step(self, geometry: gl.Geometry) -> torch.Tensor:
        """A loss over the points and its gradients, with features that travel with the points."""
        self.zero_grad()
        # Rows of padding come out as 0, and so add nothing.
        loss = 0.01 * self(geometry["X0"].rows["features"], geometry).float().square().sum()
        loss.backward()
        return loss.detach()

    def forward(self, features: torch.Tensor, geometry: gl.Geometry) -> torch.Tensor:
        x, skips = self.places[0](self.stem(features, geometry), geometry), []
        for down, places in zip(self.down, list(self.places)[1:], strict=True):
            skips.append(x)
            x = down(x, geometry)
            for place in places:  # type: ignore[attr-defined]
                x = place(x, geometry)
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = merge(up(x, geometry) + skips.pop(), geometry)
        return x


class TheirUNet(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()

        def norm(conv: Any) -> Any:
            return spconv.SparseSequential(conv, torch.nn.BatchNorm1d(width), torch.nn.ReLU())

        def place(level: int, inputs: int = width) -> Any:
            return norm(spconv.SubMConv3d(inputs, width, 3, bias=False, indice_key=f"near{level}"))

        self.places, self.down, self.up, self.merge = (torch.nn.ModuleList() for _ in range(4))
        self.places.append(spconv.SparseSequential(place(0, INPUTS), place(0)))
        for i in range(LEVELS - 1):
            self.down.append(norm(spconv.SparseConv3d(width, width, 2, 2, bias=False, indice_key=f"down{i}")))
            self.up.append(norm(spconv.SparseInverseConv3d(width, width, 2, bias=False, indice_key=f"down{i}")))
            self.merge.append(place(i))
            self.places.append(spconv.SparseSequential(place(i + 1), place(i + 1)))

    def on(self, voxels: torch.Tensor, features: torch.Tensor) -> Callable[[], torch.Tensor]:
        it = Theirs(voxels)
        return lambda: self(spconv.SparseConvTensor(features, it.indices, it.shape, 1))

    def forward(self, x: Any) -> torch.Tensor:
        x, skips = self.places[0](x), []
        for down, place in zip(self.down, list(self.places)[1:], strict=True):
            skips.append(x.features)
            x = place(down(x))
        for up, merge in zip(reversed(self.up), reversed(self.merge), strict=True):
            x = up(x)
            x = merge(x.replace_feature(x.features + skips.pop()))
        return x.features


def relative(values: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """The distance of tensors, over the size of those that are wanted."""
    apart = sum(float((f.double() - w.double()).square().sum()) for f, w in zip(values, wanted, strict=True))
    return (apart / sum(float(w.double().square().sum()) for w in wanted)) ** 0.5


def distance(model: OurUNet, step: Callable[..., torch.Tensor], clouds: list[gl.Cloud]) -> float:
    """The relative difference between losses and gradients of a captured step and the eager one."""
    values, wanted = [], []
    gradients = [p.grad for p in model.parameters() if p.grad is not None]  # where the graph writes them
    for cloud in clouds:
        values += [step(model.plan(cloud)), *(g.clone() for g in gradients)]
    for cloud in clouds:
        wanted += [model.step(model.plan(cloud)), *(p.grad for p in model.parameters())]
    return relative(values, wanted)


def captured(model: OurUNet, scans: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, float]:
    """Milliseconds of a scan by `gl.capture`, and how far its losses and gradients are from the eager ones."""

    def clouds(turns: int) -> Iterator[gl.Cloud]:
        for _ in range(turns):
            yield from (gl.Cloud.of(points, features=features) for points, features in scans)

    def made() -> Any:
        step = gl.capture(model.step, model.plan)
        # Sizes are learned, and a scan that is too large for the first graph makes another.
        for cloud in clouds(max(2, 10 // len(scans))):
            step(model.plan(cloud))
        assert step.graphs == 1
        return step

    some, figures = list(clouds(1))[:3], {}
    if next(model.parameters()).dtype == torch.float32:
        # TF32 and half precision round differently in the kernels that padded sizes choose, and signs before a ReLU
        # flip: the check is in full precision.
        precision = torch.backends.cuda.matmul.fp32_precision
        torch.backends.cuda.matmul.fp32_precision = "ieee"
        figures["distance"] = distance(model, made(), some)
        torch.backends.cuda.matmul.fp32_precision = precision
        assert figures["distance"] < 5e-3, figures
    step = made()
    figures["distance, rounded"] = distance(model, step, some)
    assert figures["distance, rounded"] < 0.1, figures
    times = []
    for points, features in scans * max(1, REPEAT // len(scans)):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(model.plan(gl.Cloud.of(points, features=features)))
        torch.cuda.synchronize()
        times.append(time.perf_counter() - begin)
    each = ahead_ms(step, model.plan, clouds(1 + max(2, 2 * REPEAT // len(scans))), len(scans))
    return {"both ms": 1e3 * statistics.median(times), "both ms, ahead": each, **figures}


def ahead_ms(step: Callable[[gl.Geometry], Any], plan: gl.Plan, clouds: Iterable[gl.Cloud], warm_up: int) -> float:
    """Milliseconds for each cloud after the first `warm_up`, with `gl.training.ahead`."""
    begin, count = 0.0, 0
    for count, geometry in enumerate(gl.training.ahead(plan, clouds, "cuda")):
        if count == warm_up:
            torch.cuda.synchronize()
            begin = time.perf_counter()
        step(geometry)
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begin) / (count + 1 - warm_up)


def network(scans: list[np.ndarray], width: int = 64, size: float = 0.05) -> Iterator[Rows]:
    """Milliseconds of a forward pass, and of one with the gradients of all parameters; geometry anew each time."""
    for precision, dtype in PRECISIONS.items():
        name = f"{width} channels, {precision}"
        set_precision(precision, [] if spconv is None else [spconv])
        timings: dict[str, list[float]] = {}
        ours = OurUNet(width, size).cuda().to(dtype)
        theirs = None if spconv is None else TheirUNet(width).cuda().to(dtype)
        given: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {"ours": [], "ours, raw scan": []}
        for scan in scans:
            raw = torch.from_numpy(scan).cuda()
            voxels = torch.unique((raw / size).floor().int(), dim=0)
            centres = ((voxels.float() + 0.5) * size).contiguous()
            works: list[tuple[str, Any, torch.Tensor]] = [("ours", ours, centres), ("ours, raw scan", ours, raw)]
            if theirs is not None:
                works.append(("spconv", theirs, voxels))
            for who, model, points in works:
                features = torch.randn(len(points), INPUTS, device="cuda", dtype=dtype)
                forward = model.on(points, features)
                whole = both(forward, list(model.parameters()))
                figures: dict[str, float] = {"points": len(points)}
                figures["both ms"], figures["both MiB"] = measured(whole)
                with torch.no_grad():
                    figures["forward ms"] = measured(forward)[0]
                if model is ours:
                    given[who].append((points, features))
                    figures["plan ms"] = measured(lambda points=points: ours.plan(gl.Cloud.of(points)))[0]  # noqa: B023
                if scan is scans[0]:
                    figures["both, device busy ms"] = busy(whole)
                for what, value in figures.items():
                    timings.setdefault(f"{who} {what}", []).append(value)
        row: dict[str, Any] = {what: statistics.median(values) for what, values in timings.items()}
        for who, clouds in given.items():
            row |= {f"{who}, captured {what}": value for what, value in captured(ours, clouds).items()}
        print(f"U-Net, {name}: " + ", ".join(f"{what} {value:.3f}" for what, value in row.items()), flush=True)
        yield {name: row}


def busy(work: Callable[[], Any]) -> float:
    """Milliseconds of one call in which the device works."""
    from torch.profiler import ProfilerActivity, profile

    work()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in seen.key_averages()) / 1e3


def searches(scan: np.ndarray) -> dict[str, float]:
    """The raw scan: ball searches, sampling, in milliseconds."""
    cloud = gl.Cloud.of(torch.from_numpy(scan).cuda())
    near = gl.ball(cloud, cloud, 0.2)
    works = {
        "ball, 0.2 m": lambda: gl.ball(cloud, cloud, 0.2),
        "ball, 0.4 m": lambda: gl.ball(cloud, cloud, 0.4),
        "rejection sampling": lambda: gl.rejection_sample(cloud, near),
        "farthest points, 10,000": lambda: gl.farthest_sample(cloud, 10000),
    }
    rows = {}
    for name, work in works.items():
        rows[name] = measured(work)[0]
        print(f"raw scan of {len(scan):,} points: {name:28} {rows[name]:8.3f} ms", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scans", required=True)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out")
    options = parser.parse_args()
    global REPEAT
    REPEAT = options.repeats
    scans = load_scans(options.scans)
    chosen = scans if options.all else scans[:1]
    rows: dict[str, Any] = {"scans": len(chosen), "scans of the network": len(chosen[:FEW]), "repeats": REPEAT}
    rows["raw scan"] = searches(scans[0])
    for what, measure, some in (("network", network, chosen[:FEW]), ("convolutions", convolutions, chosen)):
        if what == "convolutions" or options.network:
            for part in measure(some):
                rows.setdefault(what, {}).update(part)
                if options.out:
                    Path(options.out).write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
