"""A small CNN on frames of N-MNIST, on the folds that our event network is judged on (nmnist_folds.py).

    python benchmarks/nmnist_cnn.py --data DIR [--out FILE.json]     (a minute on a GPU, hours on a slow core)

A recording becomes an image of two channels: the logarithm of one plus the number of OFF and of ON events of each
pixel. Four 3 x 3 convolutions, about 100,000 weights, 50 epochs, images moved by up to two pixels. Ten stratified folds
of the first 1,000 training recordings, each learned from another seed and judged after the last epoch. Folds that are
in the file are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine
from torch import Tensor, nn

import gridless as gl
from gridless.data.splits import folds
from gridless.tasks.loading import load_data
from gridless.training import load_recipe


def images(data: Any) -> Tensor:
    """(N, 2, 34, 34)."""
    frames = [gl.frames(data.draw(None, 0, 0, torch.tensor([k])))[0] for k in range(len(data))]
    return torch.stack(frames).float().log1p()


def network() -> nn.Sequential:
    layers: list[nn.Module] = []
    for q, p, stride in ((2, 32, 1), (32, 32, 2), (32, 64, 1), (64, 64, 2)):
        layers += [nn.Conv2d(q, p, 3, stride, 1, bias=False), nn.BatchNorm2d(p), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(64, 10))


def moved(batch: Tensor) -> Tensor:
    x, y = (int(torch.randint(-2, 3, ())) for _ in range(2))
    return batch.roll((y, x), (2, 3))


def accuracy(learn: tuple[Tensor, Tensor], held: tuple[Tensor, Tensor], seed: int, epochs: int) -> float:
    torch.manual_seed(seed)
    x, labels = learn
    model = network().to(x.device)
    optimiser = torch.optim.AdamW(model.parameters(), 3e-3, weight_decay=0.05)
    steps = epochs * (len(x) // 32)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps, pct_start=0.1)
    for _ in range(epochs):
        for index in torch.randperm(len(x), device=x.device).split(32):
            if len(index) < 32:
                continue
            loss = nn.functional.cross_entropy(model(moved(x[index])), labels[index], label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()
    with torch.no_grad():
        return (model(held[0]).argmax(1) == held[1]).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "nmnist_cnn.json")
    arguments = parser.parse_args()
    data: Any = load_data(load_recipe("n-mnist"), arguments.data, "train")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, labels = images(data).to(device), data.labels.to(device)
    which = torch.from_numpy(folds(data.labels.numpy(), 10)).to(device)
    content = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"runs": []}
    runs: list[dict[str, Any]] = content["runs"]
    for fold in range(arguments.folds):
        if any(run["fold"] == fold for run in runs):
            continue
        began = time.perf_counter()
        parts = [(x[mask], labels[mask]) for mask in (which != fold, which == fold)]
        share = accuracy(parts[0], parts[1], fold, arguments.epochs)
        runs.append({"fold": fold, "accuracy": share, "seconds": time.perf_counter() - began})
        each = [run["accuracy"] for run in runs]
        spread = statistics.stdev(each) if len(each) > 1 else 0.0
        weights = sum(p.numel() for p in network().parameters())
        content = {"epochs": arguments.epochs, "parameters": weights, "mean": statistics.mean(each), "spread": spread}
        keep(arguments.out, {"machine": machine(), **content, "best": max(each), "runs": runs})
        print(runs[-1], flush=True)


if __name__ == "__main__":
    main()
