"""One convolution over the 27 taps of voxels on real LiDAR scans, beside spconv's `SubMConv3d`, like for like.

    python benchmarks/taps.py --scans semantickitti_22_scans.npz [--all] [--triton] [--out results/taps.json]

Rows: precision (IEEE float32, TF32, float16: the same for both sides), side of a voxel, channels. Columns, in
milliseconds, medians of --repeats from call to finished result:

    forward, both      eager, indices kept; `both` is forward with the gradients of features, weight and bias
    anew               eager forward, with the search of the indices
    captured           ours alone: the same as CUDA graphs, indices kept
    floor              the larger of multiply-adds of the edges at the rate of a large matrix product in that precision
                       (IEEE: three TF32 products), and of the bytes of features and weight at the rate of a large copy
    MiB                the peak of `both` above its inputs

Before it is timed, each result is compared with spconv's, or without it with the reference in float64. With --all every
scan is taken and figures are medians over scans; without, the first. --triton adds spconv-triton, which tunes itself at
its first call.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import RESULTS, machine
from scenes import load_scans
from torch import Tensor

import gridless as gl
from gridless.geometry.voxels import submanifold_taps

PRECISIONS = {"IEEE float32": torch.float32, "TF32": torch.float32, "float16": torch.float16}
SIDES = (0.05, 0.1)
CHANNELS = (32, 64, 128, 256)
# Relative error of a result, against another of the same precision.
TOLERANCE = {"IEEE float32": 1e-5, "TF32": 3e-3, "float16": 3e-3}


def timed(work: Callable[[], Any], repeats: int) -> float:
    """Milliseconds from call to finished result."""
    for _ in range(3):
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
    torch.cuda.synchronize()
    # Blocks that are kept may be larger than what is asked for, and would count as a whole.
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


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
        with torch.cuda.graph(graph, stream=stream):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    return graph.replay


def theirs(layer: Layer, spconv: Any) -> dict[str, Callable[[], Any]]:
    channels = layer.features.shape[1]
    conv = spconv.SubMConv3d(channels, channels, 3, bias=True, indice_key="near").cuda().to(layer.features.dtype)
    with torch.no_grad():
        conv.weight.copy_(layer.weight.view(3, 3, 3, channels, channels).permute(4, 0, 1, 2, 3))
        conv.bias.copy_(layer.bias)
    at = layer.sites[:, 1:] - layer.sites[:, 1:].min(0).values
    indices = torch.cat([layer.sites[:, :1], at], 1).int().contiguous()
    shape = [int(v) + 1 for v in at.max(0).values]
    # A result knows the indices that were found for it; what went in does not.
    known = conv(spconv.SparseConvTensor(layer.features, indices, shape, 1))

    def forward() -> Tensor:
        return conv(known.replace_feature(layer.features)).features

    def anew() -> Tensor:
        with torch.no_grad():
            return conv(spconv.SparseConvTensor(layer.features, indices, shape, 1)).features

    return {"forward": forward, "both": layer.both(forward, [layer.features, *conv.parameters()]), "anew": anew}


def difference(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def checked(precision: str, layer: Layer, own: dict[str, Callable], peer: dict[str, Callable] | None) -> float:
    """The relative difference of the results; refused where it is too large."""
    with torch.no_grad():
        if peer is None:
            with gl.use_backend("reference"):
                wide = layer.features.double(), layer.weight.double(), layer.bias.double()
                expected = gl.tap_conv(*wide, submanifold_taps(layer.sites))
        else:
            expected = peer["forward"]()
        error = difference(own["forward"](), expected)
    if not error <= TOLERANCE[precision]:
        raise ValueError(f"taps: {precision}: results differ by {error:.1e}, more than {TOLERANCE[precision]}")
    return error


def rates() -> dict[str, float]:
    """Multiply-adds a millisecond of a large product in each precision, and bytes a millisecond of a large copy."""
    found = {}
    for precision, dtype in PRECISIONS.items():
        a = torch.randn(8192, 8192, device="cuda").to(dtype)
        torch.backends.cuda.matmul.allow_tf32 = precision != "float16"
        found[precision] = 8192**3 / timed(lambda a=a: a @ a, 5) / (3 if precision == "IEEE float32" else 1)
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    found["bytes"] = 2 * len(x) / timed(lambda: y.copy_(x), 5)
    return found


def floor(layer: Layer, edges: int, precision: str, rate: dict[str, float]) -> float:
    """Milliseconds of a forward pass."""
    rows, channels = layer.features.shape
    size = layer.features.element_size()
    moved = (2 * rows * channels + layer.weight.numel()) * size + 4 * edges
    return max(edges * channels**2 / rate[precision], moved / rate["bytes"])


def cell(sites: Tensor, precision: str, channels: int, peers: dict[str, Any], rate: dict, repeats: int) -> dict:
    tf32 = precision == "TF32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    layer = Layer(sites, channels, PRECISIONS[precision])
    own, row = ours(layer), {}
    works = {}
    for name, spconv in peers.items():
        constants: Any = import_module(spconv.__name__.rpartition(".")[0] + ".constants")
        constants.SPCONV_ALLOW_TF32 = tf32
        try:
            works[name] = theirs(layer, spconv)
        except Exception as error:
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
    row["difference"] = checked(precision, layer, own, works.get("spconv"))
    for name, work in {"ours": own, **works}.items():
        with torch.no_grad():
            row[f"{name} forward"] = timed(work["forward"], repeats)
            row[f"{name} anew"] = timed(work["anew"], repeats)
        row[f"{name} both"] = timed(work["both"], repeats)
        row[f"{name} MiB"] = peak_of(work["both"])
    with torch.no_grad():
        row["ours captured forward"] = timed(captured(layer, "forward"), repeats)
    row["ours captured both"] = timed(captured(layer, "both"), repeats)
    row["floor"] = floor(layer, int((submanifold_taps(sites).table >= 0).sum()), precision, rate)
    return row


def sites_of(scan: np.ndarray, side: float) -> Tensor:
    cells = torch.from_numpy(np.unique(np.floor(scan.astype(np.float64) / side).astype(np.int64), axis=0))
    return torch.cat([cells.new_zeros(len(cells), 1), cells], 1).int().cuda()


def show(name: str, row: dict[str, float]) -> None:
    words = [f"{name:<28}"]
    for what in ("forward", "both", "anew", "MiB"):
        own, peer = row[f"ours {what}"], row.get(f"spconv {what}")
        words.append(f"{what} {own:.3f}" + ("" if peer is None else f" / {peer:.3f} = {peer / own:.2f}x"))
    words.append(f"captured {row['ours captured forward']:.3f} {row['ours captured both']:.3f}")
    print(" | ".join([*words, f"floor {row['floor']:.3f}", f"difference {row['difference']:.0e}"]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", required=True, help="a pack of scans")
    parser.add_argument("--all", action="store_true", help="every scan")
    parser.add_argument("--triton", action="store_true", help="spconv-triton too")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--channels", type=int, nargs="+", default=list(CHANNELS))
    parser.add_argument("--out", default=str(RESULTS / "taps.json"))
    given = parser.parse_args()
    peers = {}
    for name, module in (
        ("spconv", "spconv.pytorch"),
        *([("spconv-triton", "spconv_triton.pytorch")] if given.triton else []),
    ):
        try:
            peers[name] = import_module(module)
        except ImportError as error:
            print(f"{name} is not installed: {error}")
    scans, rate = load_scans(given.scans), rates()
    results: dict[str, Any] = {"machine": machine(), "rates": rate, "rows": {}}
    for side in SIDES:
        for precision in PRECISIONS:
            for channels in given.channels:
                found = []
                for scan in scans if given.all else scans[:1]:
                    found.append(cell(sites_of(scan, side), precision, channels, peers, rate, given.repeats))
                row = {key: statistics.median(r[key] for r in found) for key in found[0]}
                name = f"{side * 100:g} cm, {channels}, {precision}"
                results["rows"][name] = row
                show(name, row)
                Path(given.out).write_text(json.dumps(results, indent=1))
    for what in ("forward", "both", "anew") if "spconv" in peers else ():
        ratios = [row[f"spconv {what}"] / row[f"ours {what}"] for row in results["rows"].values()]
        print(f"{what}: {statistics.median(ratios):.2f} times spconv in the median, {min(ratios):.2f} at worst")


if __name__ == "__main__":
    main()
