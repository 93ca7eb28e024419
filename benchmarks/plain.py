"""A plain PyTorch loop beside peers: eager code, public names, PyTorch's default precision (IEEE float32).

    python benchmarks/plain.py [--data DIR] [--out results/plain.json]        (a minute on a GPU)

*layer*: one point convolution of 128 clouds of 1,024 points, 32 channels, forward and with gradients; PyG and
`index_add` compute the same function, and all are checked against a float64 sum first. *epoch*: ModelNet40, batches of
128: plan or search, forward, backward and fused AdamW in a loop, scaled from some steps to 9,843 clouds; our large
network beside PointNet++ and DGCNN (torch-geometric's layers, our searches). A time is the mean of calls made one after
the other, with one wait for the device at the end.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, modelnet, report
from conv import METHODS, SETTINGS, expected, passes, problem
from peers_points import DGCNN, PointNet2

import gridless as gl

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
EPOCH, BATCH = 9843, 128
LAYER_LIMIT = 1e-5


def milliseconds(work: Callable[[], Any], repeats: int) -> float:
    for _ in range(3 if CUDA else 1):
        work()
    if CUDA:
        torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    if CUDA:
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began) / repeats


def layers(repeats: int) -> list[dict[str, Any]]:
    p = problem(SETTINGS["clouds"], DEVICE, torch.float32)
    truth, rows = expected(p), []
    for name in ("ours", "compiled index_add", "index_add", "pyg"):
        works = passes(p, METHODS[name](p))
        results = (works["forward"](), *works["both"]())
        error = max(float((a.double() - b).norm() / b.norm()) for a, b in zip(results, truth))
        if not error < LAYER_LIMIT:
            raise SystemExit(f"{name} is wrong: {error}")
        times = {f"{what}, ms": milliseconds(work, repeats) for what, work in works.items()}
        rows.append({"what": "layer", "who": name, **times, "error": error})
    return rows


def step_of(model: torch.nn.Module, geometry: Callable[[Any], Any]) -> Callable[[Any, torch.Tensor], None]:
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3, fused=CUDA or None)

    def step(clouds: Any, labels: torch.Tensor) -> None:
        loss = torch.nn.functional.cross_entropy(model(geometry(clouds)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step


def epochs(steps: int) -> list[dict[str, Any]]:
    _, points = modelnet(10 * BATCH)
    labels = torch.randint(0, 40, (len(points),), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    batches = [gl.Cloud.of(x).to(DEVICE) for x in torch.from_numpy(points).split(BATCH)]
    rows = []
    for kind in (gl.models.point_resnet_large, PointNet2, DGCNN):
        torch.manual_seed(0)
        model = kind().to(DEVICE).train()
        step = step_of(model, model.plan if hasattr(model, "plan") else kind.geometry)
        turn = cycle(zip(batches, labels.split(BATCH)))
        ms = milliseconds(lambda step=step, turn=turn: step(*next(turn)), steps)
        who = {"PointResNet": "ours, large"}.get(kind.__name__, kind.__name__)
        rows.append({"what": "epoch", "who": who, "step, ms": ms, "s/epoch": ms * EPOCH / BATCH / 1e3})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "plain.json")
    arguments = parser.parse_args()
    # The default of PyTorch: no TF32 in matrix products.
    assert torch.get_float32_matmul_precision() == "highest"
    rows = layers(50 if CUDA else 2) + epochs(40 if CUDA else 1)
    report(arguments.out, rows)


if __name__ == "__main__":
    main()
