"""The point convolution against its peers: the paper's table "implementations vs FlexConv", two larger settings, and
the depthwise form at 64 to 512 channels.

    python benchmarks/conv.py [--settings paper,clouds] [--methods ours,csr] [--dtype bfloat16]
    python benchmarks/conv.py --depthwise

Every method computes the same function, is checked against a float64 sum first, and is timed in the same run: forward,
and forward with gradients of features and weights. (Open3D's is another function, and only timed.) Neighbours and
coordinates are given: each method makes the edge values from them, ours inside its kernels.

On a GPU the times are medians of CUDA graph replays, each after the second-level cache was overwritten (a method that
cannot be captured is timed from launch to launch, and marked *); memory is the peak beyond what was there before. On
the CPU the times are medians of calls, and memory is the largest growth of the process.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from common import RESULTS, keep, machine
from torch import Tensor

import gridless as gl
from gridless.nn import Monomials
from gridless.ops.point_conv import reference

# Bytes per second an H200 moves: a copy through its memory; what the second-level cache delivers to gathers is a guess.
MEMORY, CACHE = 4.3e12, 5.5e12
RADIUS = 0.1


class Setting(NamedTuple):
    """Clouds of so many points, each joined to its nearest; terms up to an order; channels in and out; and whether each
    channel has a kernel of its own."""

    clouds: int
    points: int
    neighbours: int
    order: int
    channels: int
    depthwise: bool = False


SETTINGS = {
    "paper": Setting(8, 4096, 9, 1, 64),
    "clouds": Setting(128, 1024, 10, 2, 32),
    "million": Setting(1, 1 << 20, 16, 2, 64),
    **{f"depthwise-{c}": Setting(128, 1024, 10, 2, c, depthwise=True) for c in (64, 128, 256, 512)},
}


class Problem(NamedTuple):
    features: Tensor
    weight: Tensor
    edges: gl.Edges
    coords: Tensor
    basis: Monomials
    direction: Tensor

    def values(self) -> Tensor:
        """The edge values (E, M)."""
        values = reference.edge_values(
            self.edges, self.coords, self.coords, self.basis, RADIUS, True, True, torch.float32
        )
        return values.to(self.features.dtype)


def problem(setting: Setting, device: str, dtype: torch.dtype) -> Problem:
    torch.manual_seed(0)
    if setting.points > 1 << 16:
        coords, edges = lattice(setting, device)
    else:
        scale = RADIUS * (setting.points / 8) ** (1 / 3)
        clouds = torch.rand(setting.clouds, setting.points, 3, device=device) * scale
        coords, edges = clouds.view(-1, 3), nearest_edges(clouds, setting.neighbours)
    basis = Monomials(3, setting.order)
    features = torch.randn(len(coords), setting.channels, device=device).to(dtype)
    shape = (basis.size, setting.channels) if setting.depthwise else (basis.size, setting.channels, setting.channels)
    weight = (torch.randn(shape, device=device) / 8).to(dtype)
    direction = torch.randn(len(coords), setting.channels, device=device).to(dtype)
    edges.transpose()
    return Problem(features, weight, edges, coords, basis, direction)


def nearest_edges(coords: Tensor, neighbours: int) -> gl.Edges:
    """The nearest points of each, itself included, within its cloud."""
    clouds, points, _ = coords.shape
    index = torch.stack([torch.cdist(c, c).topk(neighbours, largest=False).indices for c in coords]).sort(-1).values
    index = index + torch.arange(clouds, device=coords.device)[:, None, None] * points
    splits = torch.arange(clouds * points + 1, device=coords.device) * neighbours
    return gl.Edges(splits, index.flatten().int(), clouds * points)


def lattice_shape(setting: Setting) -> tuple[int, int, int]:
    side = round(setting.points ** (1 / 3))
    while setting.points % (side * side):
        side -= 1
    return side, side, setting.points // (side * side)


def lattice(setting: Setting, device: str) -> tuple[Tensor, gl.Edges]:
    """A jittered periodic lattice, each point with the nearest places around it, in spatial order."""
    shape = lattice_shape(setting)
    at = torch.cartesian_prod(*(torch.arange(n, device=device) for n in shape))
    steps = torch.cartesian_prod(*(torch.arange(-1, 2, device=device),) * 3)
    steps = steps[steps.abs().sum(1).argsort(stable=True)][: setting.neighbours]
    near = (at[:, None] + steps) % torch.tensor(shape, device=device)
    index = (near[..., 0] * shape[1] + near[..., 1]) * shape[2] + near[..., 2]
    coords = (at + torch.rand(at.shape, device=device) / 2) * (RADIUS / 2)
    splits = torch.arange(setting.points + 1, device=device) * setting.neighbours
    return coords, gl.Edges(splits, index.sort(-1).values.flatten().int(), setting.points)


# Methods: features and weight to the result.

Method = Callable[[Tensor, Tensor], Tensor]


def ours(p: Problem) -> Method:
    return lambda f, w: gl.point_conv(f, w, None, p.edges, p.coords, p.coords, RADIUS, p.basis)


def index_add(p: Problem) -> Method:
    source, target = p.edges.source.long(), p.edges.target.long()

    def depthwise(f: Tensor, w: Tensor) -> Tensor:
        return torch.zeros_like(p.direction).index_add(0, target, (p.values() @ w) * f[source])

    def run(f: Tensor, w: Tensor) -> Tensor:
        values = p.values()
        out = f.new_zeros(p.edges.num_target, w.shape[2])
        for m in range(len(w)):
            sums = f.new_zeros(p.edges.num_target, f.shape[1]).index_add(0, target, values[:, m, None] * f[source])
            out = out + sums @ w[m]
        return out

    return depthwise if p.weight.ndim == 2 else run


def compiled_index_add(p: Problem) -> Method:
    return torch.compile(index_add(p))


def csr(p: Problem) -> Method:
    def matrices() -> list[Tensor]:
        return [p.edges.to_torch_csr(column.contiguous()) for column in p.values().unbind(1)]

    def run(f: Tensor, w: Tensor) -> Tensor:
        return torch.stack([_times(n @ f, w[m]) for m, n in enumerate(matrices())]).sum(0)

    return run


def pyg(p: Problem) -> Method:
    from torch_geometric.nn import MessagePassing

    class Conv(MessagePassing):
        def __init__(self) -> None:
            super().__init__(aggr="sum")

        def forward(self, f: Tensor, w: Tensor, values: Tensor) -> Tensor:
            if w.ndim == 2:
                return self.propagate(edge_index, x=f, values=values @ w)
            return self.propagate(edge_index, x=f, values=values) @ w.flatten(0, 1)

        def message(self, x_j: Tensor, values: Tensor) -> Tensor:
            if p.weight.ndim == 2:
                return values * x_j
            return (values[:, :, None] * x_j[:, None, :]).flatten(1)

    edge_index, layer = p.edges.to_edge_index(), Conv()
    return lambda f, w: layer(f, w, p.values())


def open3d(p: Problem) -> Method:
    """Open3D's ContinuousConv on the CPU: the same edges, as many matrices, but in a grid: another function."""
    if p.features.is_cuda or p.weight.ndim == 2:
        raise NotImplementedError("dense, and compared on the CPU only")
    import open3d.ml.torch as ml3d

    grid = {4: (2, 2, 1), 10: (5, 2, 1)}[p.basis.size]
    none, extent, offset = torch.empty(0), torch.tensor([[2 * RADIUS]]), torch.zeros(3)

    def run(f: Tensor, w: Tensor) -> Tensor:
        return ml3d.ops.continuous_conv(
            filters=w.view(*grid, *w.shape[1:]), out_positions=p.coords, extents=extent, offset=offset,
            inp_positions=p.coords, inp_features=f, inp_importance=none, neighbors_index=p.edges.source,
            neighbors_importance=none, neighbors_row_splits=p.edges.splits, align_corners=True,
            coordinate_mapping="ball_to_cube_radial", normalize=True, interpolation="linear",
        )  # fmt: skip

    return run


METHODS: dict[str, Callable[[Problem], Method]] = {
    "ours": ours,
    "index_add": index_add,
    "compiled index_add": compiled_index_add,
    "csr": csr,
    "pyg": pyg,
    "open3d": open3d,
}
# Timed beside the others, but another function: its values are not compared.
OTHER = ("open3d",)


def _times(sums: Tensor, weight: Tensor) -> Tensor:
    """With one term's matrix, or with its diagonal."""
    return sums * weight if weight.ndim == 1 else sums @ weight


# Measuring.


def expected(p: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """The result and the gradients of features and weight, in float64, term by term."""
    source, target = p.edges.source.long(), p.edges.target.long()
    f, w, g = p.features.double(), p.weight.double(), p.direction.double()
    values = p._replace(features=p.features.float()).values().double()
    out, d_f, d_w = torch.zeros_like(g), torch.zeros_like(f), torch.zeros_like(w)
    for m in range(len(w)):
        sums = torch.zeros_like(f).index_add_(0, target, values[:, m, None] * f[source])
        out += _times(sums, w[m])
        d_w[m] = (sums * g).sum(0) if w.ndim == 2 else sums.t() @ g
        d_f.index_add_(0, source, values[:, m, None] * _times(g, w[m].t())[target])
    return out, d_f, d_w


def passes(p: Problem, method: Method) -> dict[str, Callable[[], Any]]:
    f, w = p.features.clone().requires_grad_(), p.weight.clone().requires_grad_()

    def forward() -> Tensor:
        with torch.no_grad():
            return method(p.features, p.weight)

    return {"forward": forward, "both": lambda: torch.autograd.grad(method(f, w), (f, w), p.direction)}


def cuda_time(work: Callable[[], Any], repeats: int) -> tuple[float, str]:
    """Median microseconds of a replay (or, marked *, of a call), with a cold second-level cache."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    mark = ""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        run: Callable[[], Any] = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
        run, mark = work, "*"
    other, pairs = torch.empty(64 << 20, device="cuda"), []
    for _ in range(repeats):
        other.zero_()
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        run()
        b.record()
        pairs.append((a, b))
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairs) * 1e3, mark


def cuda_memory(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = work()
    torch.cuda.synchronize()
    del result
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def cpu_time(work: Callable[[], Any], repeats: int) -> tuple[float, str]:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6, ""


def cpu_memory(work: Callable[[], Any]) -> float:
    """The growth of the resident set, read all the while."""
    page, done, most = 4096 / 2**20, threading.Event(), [0.0]

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    def watch() -> None:
        while not done.wait(0.0005):
            most[0] = max(most[0], resident())

    # Memory that earlier calls freed goes back to the system first: it would hide growth.
    ctypes.CDLL(None).malloc_trim(0)
    before = resident()
    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    done.set()
    watcher.join()
    del result
    return max(most[0] - before, 0.0)


def measure(p: Problem, name: str, repeats: int, truth: tuple[Tensor, ...]) -> dict[str, Any]:
    cuda = p.features.is_cuda
    method = METHODS[name](p)
    row: dict[str, Any] = {}
    works = passes(p, method)
    results = (works["forward"](), *works["both"]())
    row["error"] = max(((a.double() - b).norm() / b.norm()).item() for a, b in zip(results, truth))
    limit = 2e-3 if p.features.dtype == torch.float32 else 2e-2
    if name in OTHER:
        row["error"] = float("nan")
    elif not row["error"] < limit:
        raise SystemExit(f"{name} is wrong: {row['error']}")
    del results
    for what, work in works.items():
        row[what], row[f"{what} mark"] = cuda_time(work, repeats) if cuda else cpu_time(work, repeats)
        row[f"{what} MiB"] = cuda_memory(work) if cuda else cpu_memory(work)
        if cuda:
            torch.cuda.empty_cache()
    return row


def floors(p: Problem) -> dict[str, float]:
    """Microseconds: each input read and each output written once; and one feature row gathered per edge."""
    size = p.features.element_size()
    moved = 2 * p.features.numel() * size + p.coords.nbytes + len(p.edges) * 4 + p.edges.splits.nbytes
    return {"bytes": moved / MEMORY * 1e6, "gather": len(p.edges) * p.features.shape[1] * size / CACHE * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", default=None)
    parser.add_argument("--depthwise", action="store_true")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--repeats", type=int, default=None)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = True
    known = [name for name, setting in SETTINGS.items() if setting.depthwise == args.depthwise]
    settings = args.settings.split(",") if args.settings else known if device == "cuda" else known[:1]
    repeats = args.repeats or (20 if device == "cuda" else 5)
    results: dict[str, Any] = {"machine": machine() | {"threads": torch.get_num_threads()}, "dtype": args.dtype}
    for key in settings:
        p = problem(SETTINGS[key], device, getattr(torch, args.dtype))
        truth, rows = expected(p), {}
        for name in args.methods.split(","):
            try:
                rows[name] = measure(p, name, repeats, truth)
            except (ImportError, torch.OutOfMemoryError, NotImplementedError) as error:
                print(f"{key}: {name} did not run: {type(error).__name__}: {str(error)[:100]}", flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()
        results[key] = {"floors": floors(p), **rows}
        show(key, SETTINGS[key], results[key])
        kind = "depthwise_conv" if args.depthwise else "conv"
        keep(args.out / f"{kind}_{device}_{args.dtype}.json", results)
        del p, truth


def show(key: str, setting: Setting, result: dict[str, Any]) -> None:
    floor = result["floors"]
    print(f"\n{key}: {setting}; floors: bytes {floor['bytes']:.1f} us, gather {floor['gather']:.1f} us")
    print(f"{'':20}{'forward us':>14}{'MiB':>9}{'both us':>14}{'MiB':>9}{'error':>10}")
    rows = {name: row for name, row in result.items() if name != "floors"}
    for name, row in rows.items():
        times = "".join(f"{row[w]:13.1f}{row[w + ' mark'] or ' '}{row[w + ' MiB']:9.1f}" for w in ("forward", "both"))
        print(f"{name:20}{times}{row['error']:10.1e}")
    peers = [row for name, row in rows.items() if name != "ours"]
    if "ours" in rows and peers:
        ratios = [min(row[w] for row in peers) / rows["ours"][w] for w in ("forward", "both")]
        print(f"best peer / ours: forward {ratios[0]:.1f}, forward and backward {ratios[1]:.1f}", flush=True)


if __name__ == "__main__":
    main()
