"""Time and memory of one convolution, the paper's Table 2: ours beside FlexConv, PointConv and KPConv in plain torch.

    python benchmarks/table2.py [--out results/reproduction/table2.json]     (3 minutes on a GPU, 10 on two CPU cores)

The paper's setting: 8 clouds of 4,096 points, 9 neighbours, 64 to 64 channels, M = 4 terms. Neighbours are given.
`ours, FlexConv's` is our operator with FlexConv's function: terms 1, x, y, z, no fall-off, not normalised; both are
checked against each other. PointConv (16 numbers an edge) and KPConv (15 kernel points) are other functions of more
parameters. IEEE float32 and TF32 are measured apart, on both sides. Eager is a call from Python, host time included;
captured is a replay of a CUDA graph. Memory is the peak beyond inputs. A row that is in the file is not measured again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine
from conv import RADIUS, SETTINGS, Problem, cpu_memory, cuda_memory, cuda_time, problem
from peers_convs import flex_conv, flex_conv_per_edge, kp_conv, point_conv_net
from torch import Tensor

import gridless as gl

PRECISIONS = {"IEEE float32": "highest", "TF32": "high"}


class Method:
    """A convolution of some parameters: `call(features, *parameters)`."""

    def __init__(self, call: Callable[..., Tensor], *parameters: Tensor) -> None:
        self.call, self.parameters = call, parameters


def methods(p: Problem) -> dict[str, Method]:
    setting = SETTINGS["paper"]
    index = p.edges.source.long().view(-1, setting.neighbours)
    target = torch.arange(len(index), device=index.device)
    vectors = (p.coords[index] - p.coords[target][:, None]) / RADIUS
    g = torch.Generator(p.features.device).manual_seed(1)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, device=p.features.device) / 8

    points = torch.tensor(gl.nn.KernelPoints(3).centres, device=p.features.device)
    channels = setting.channels
    # Our order of the terms is 1, z, y, x of target - source; FlexConv's 1, x, y, z of source - target.
    signs = torch.tensor([1.0, -1.0, -1.0, -1.0], device=p.features.device)[:, None, None]
    plain = (p.weight * signs)[[0, 3, 2, 1]].contiguous()

    def own(falloff: str | None, normalise: bool, order: str | None = None) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda f, w: gl.point_conv(
            f, w, None, p.edges, p.coords, p.coords, RADIUS, p.basis, falloff, normalise, order
        )

    return {
        "ours": Method(own("linear", True), p.weight),
        "ours, (N F) Theta": Method(own("linear", True, "gather_first"), p.weight),
        "ours, N (F Theta)": Method(own("linear", True, "transform_first"), p.weight),
        "ours, FlexConv's": Method(own(None, False), p.weight),
        "FlexConv": Method(lambda f, w: flex_conv(f, w, index, vectors), plain),
        "FlexConv, a kernel per edge": Method(lambda f, w: flex_conv_per_edge(f, w, index, vectors), plain),
        "PointConv": Method(
            lambda f, w, a, b: point_conv_net(f, w, a, b, index, vectors),
            drawn(channels * 16, channels), 8 * drawn(3, 8), 8 * drawn(8, 16),
        ),
        "KPConv": Method(
            lambda f, w: kp_conv(f, w, points, index, vectors, 1 / 3), drawn(len(points), channels, channels)
        ),
    }  # fmt: skip


def works(p: Problem, method: Method) -> dict[str, Callable[[], Any]]:
    leaves = [t.clone().requires_grad_() for t in (p.features, *method.parameters)]

    def forward() -> Tensor:
        with torch.no_grad():
            return method.call(p.features, *method.parameters)

    return {"forward": forward, "both": lambda: torch.autograd.grad(method.call(*leaves), leaves, p.direction)}


def eager_time(work: Callable[[], Any], cuda: bool, repeats: int = 20) -> float:
    """Median milliseconds of a call with its wait for the device."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats if cuda else 3):
        if cuda:
            torch.cuda.synchronize()
        began = time.perf_counter()
        work()
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def measure(p: Problem, method: Method) -> dict[str, float]:
    cuda, row = p.features.is_cuda, {}
    for what, work in works(p, method).items():
        row[f"{what}, eager ms"] = eager_time(work, cuda)
        if cuda:
            time_us, mark = cuda_time(work, 20)
            if not mark:
                row[f"{what}, captured ms"] = time_us / 1e3
            torch.cuda.empty_cache()
        row[f"{what}, MiB"] = cuda_memory(work) if cuda else cpu_memory(work)
    return row


def check(p: Problem) -> None:
    """FlexConv's function is the same in all three ways."""
    operators = methods(p)
    ours, plain, edge = (works(p, operators[n])["both"]() for n in ("ours, FlexConv's", "FlexConv",
                                                                "FlexConv, a kernel per edge"))  # fmt: skip
    torch.testing.assert_close(ours[0], plain[0], rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(plain[0], edge[0], rtol=1e-3, atol=1e-3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "table2.json")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    content = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"rows": []}
    rows: list[dict[str, Any]] = content["rows"]
    p = problem(SETTINGS["paper"], device, torch.float32)
    check(p)
    for precision, setting in PRECISIONS.items() if device == "cuda" else [("IEEE float32", "highest")]:
        torch.set_float32_matmul_precision(setting)
        for name, method in methods(p).items():
            if any((row["method"], row["precision"], row["device"]) == (name, precision, device) for row in rows):
                continue
            row: dict[str, Any] = {"method": name, "precision": precision, "device": device}
            try:
                row |= measure(p, method)
            except torch.OutOfMemoryError:
                row["error"] = "out of memory"
            rows.append(row)
            keep(arguments.out, {"machine": machine(), "rows": rows})
            print(row, flush=True)


if __name__ == "__main__":
    main()
