"""The two orders of a point convolution, the paper's Table 1: multiply-adds counted, time and memory measured.

    python benchmarks/orders.py [--out results/reproduction/orders.json]     (a minute on a GPU, five on two CPU cores)

Three layers of the shapes that the table is about: in place (Q = P, as many points), down-sampling (Q < P, fewer
points) and up-sampling (Q > P, more points). For both orders: the paper's count of multiply-adds; time and memory of
our operator, told to use that order; and of the sum of sparse products as the paper writes it, in torch. Memory is
the peak beyond inputs and result, which are the same for both orders. A row that is in the file is not measured again.

    python benchmarks/orders.py --network                                    (two minutes on a GPU)

A U-Net of 32 and of 64 channels on 8 clouds of 16,384 points, whose up-sampling layers transform first: milliseconds
of a forward pass and of a training step, with the cheaper order of each layer and with every layer gathering first.
TF32, eager; medians of passes in turn. Nothing is written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from common import RESULTS, keep, machine
from conv import cpu_memory, cpu_time, cuda_memory, cuda_time
from torch import Tensor

import gridless as gl
from gridless.nn import Monomials
from gridless.ops.point_conv import cheaper_order, reference
from gridless.ops.point_conv.order import ORDERS

# (sources, targets, in_channels, out_channels); 20 neighbours on average.
LAYERS = {
    "in place": (131072, 131072, 64, 64),
    "down-sample": (131072, 32768, 32, 64),
    "up-sample": (32768, 131072, 64, 32),
}
RADIUS = 0.1


def layer(name: str, device: str) -> tuple[Any, ...]:
    """Features, weight, edges and coordinates of a layer of 16 clouds."""
    sources, targets, q, p = LAYERS[name]
    g = torch.Generator().manual_seed(0)
    # As many points in a ball as 20 of the sources.
    side = (sources / 16 * 4.19 * RADIUS**3 / 20) ** (1 / 3)
    clouds = [gl.Cloud.of(torch.rand(16, n // 16, 3, generator=g) * side).to(device) for n in (sources, targets)]
    edges = gl.ball(*clouds, RADIUS)
    edges.transpose()
    basis = Monomials(3, 2)
    features = torch.randn(sources, q, generator=g).to(device)
    weight = (torch.randn(basis.size, q, p, generator=g) / 8).to(device)
    return features, weight, edges, *(cloud.coords for cloud in clouds), basis


def multiply_adds(name: str, order: str, edges: int, terms: int) -> int:
    """The paper's count."""
    sources, targets, q, p = LAYERS[name]
    return terms * (q * (edges + targets * p) if order == "gather_first" else p * (edges + sources * q))


@torch.no_grad()
def as_kernel(
    features: Tensor, weight: Tensor, edges: gl.Edges, source: Tensor, target: Tensor, basis: Monomials, order: str
) -> Tensor:
    """Our operator, told which order to use."""
    return gl.point_conv(features, weight, None, edges, source, target, RADIUS, basis, order=order)


@torch.no_grad()
def as_products(features: Tensor, weight: Tensor, edges: gl.Edges, order: str, values: Tensor) -> Tensor:
    """The sum over m of (N F) Theta or N (F Theta), with sparse matrices of torch."""
    total = None
    for m in range(len(weight)):
        matrix = edges.to_torch_csr(values[:, m].contiguous())
        term = (matrix @ features) @ weight[m] if order == "gather_first" else matrix @ (features @ weight[m])
        total = term if total is None else total + term
    assert total is not None
    return total


def measured(work: Callable[[], Tensor], cuda: bool) -> tuple[float, float]:
    """Milliseconds, and MiB beyond the result."""
    out = work().nbytes / 2**20
    if cuda:
        return cuda_time(work, 20)[0] / 1e3, cuda_memory(work) - out
    return cpu_time(work, 5)[0] / 1e3, max(cpu_memory(work) - out, 0.0)


def network_ms(width: int, device: str, points: int, rounds: int) -> dict[tuple[str, str], float]:
    """Median milliseconds of a pass, by (pass, order)."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    # About 15 neighbours of the surface of a sphere.
    model = gl.models.PointUNet(13, width, radius=(60 / points) ** 0.5, dropout=0.0).to(device)
    clouds = torch.nn.functional.normalize(torch.randn(8, points, 3), dim=2)
    geometry = model.plan(gl.Cloud.of(list(clouds)).to(device))
    label = torch.randint(13, (8 * points,), device=device)

    def forward() -> None:
        with torch.no_grad():
            model(geometry)

    def step() -> None:
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(geometry), label).backward()

    conv: Any = importlib.import_module("gridless.ops.point_conv")
    orders = {"cheaper order": cheaper_order, "gather first": lambda *sizes: "gather_first"}
    times: dict[tuple[str, str], list[float]] = {}
    for n in range(rounds + 3):
        for name, rule in orders.items():
            for what, work in (("forward", forward), ("step", step)):
                with mock.patch.object(conv, "cheaper_order", rule):
                    sync(device)
                    begin = time.perf_counter()
                    work()
                    sync(device)
                if n >= 3:
                    times.setdefault((what, name), []).append(1e3 * (time.perf_counter() - begin))
    return {key: statistics.median(values) for key, values in times.items()}


def sync(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def networks(device: str, points: int, rounds: int) -> None:
    for width in (32, 64):
        times = network_ms(width, device, points, rounds)
        for what in ("forward", "step"):
            cheaper, gather = times[what, "cheaper order"], times[what, "gather first"]
            gain = 100 * (1 - cheaper / gather)
            print(f"width {width}, {what}: {cheaper:.2f} ms instead of {gather:.2f} ms, {gain:+.1f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "orders.json")
    parser.add_argument("--network", action="store_true", help="time whole networks instead of layers")
    parser.add_argument("--points", type=int, default=16384, help="points of a cloud, of --network")
    parser.add_argument("--rounds", type=int, default=50, help="passes of each kind, of --network")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.network:
        return networks(device, arguments.points, arguments.rounds)
    content = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"rows": []}
    rows = content["rows"]
    for name in LAYERS:
        given = layer(name, device)
        features, weight, edges, source, target, basis = given
        chosen = cheaper_order(len(edges), *LAYERS[name])
        values = reference.edge_values(edges, source, target, basis, RADIUS, True, True, torch.float32)
        for order in ORDERS:
            if any((row["layer"], row["order"], row["device"]) == (name, order, device) for row in rows):
                continue
            ours = partial(as_kernel, *given, order)
            products = partial(as_products, features, weight, edges, order, values)
            torch.testing.assert_close(ours(), products(), rtol=2e-3, atol=2e-3)
            row: dict[str, Any] = {"layer": name, "order": order, "device": device, "cheaper": order == chosen}
            row["multiply_adds"] = multiply_adds(name, order, len(edges), basis.size)
            row["ms"], row["mib"] = measured(ours, device == "cuda")
            row["torch_ms"], row["torch_mib"] = measured(products, device == "cuda")
            rows.append(row)
            keep(arguments.out, {"machine": machine(), "rows": rows})
            print(row, flush=True)


if __name__ == "__main__":
    main()
