"""A plain CNN on N-Cars, on the folds that our event networks are judged on: what they have to beat.

    python benchmarks/ncars_cnn.py --data DIR [--folds 0 1 2 3 4] [--seeds 1]

A recording becomes an image of two channels, the logarithm of one plus the number of ON and of OFF events, at half
resolution; 1.2 million weights, 30 epochs, judged after the last. Images are mirrored, moved and magnified at random,
and all stay on the device. Prints each run, then mean and spread; keeps all of it in results/ncars_cnn.json, or in
--out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine
from torch import Tensor, nn
from torch.nn import functional

from gridless.data import NCars


def images(data: NCars, device: torch.device, size: int) -> Tensor:
    """Counts of OFF and ON events in pixels of `size` x `size`, (N, 2, H, W)."""
    width, height = (side // size for side in data.sensor)
    counts = torch.zeros(len(data), 2 * height * width, dtype=torch.int16, device=device)
    for rows in torch.arange(len(data)).split(2048):
        events = data.batch(rows.numpy()).to(device)
        x, y = (events.pixel.long() // size).unbind(1)
        at = (events.polarity * height + y.clamp(0, height - 1)) * width + x.clamp(0, width - 1)
        at += events.example * counts.shape[1]
        histogram = torch.bincount(at, minlength=len(rows) * counts.shape[1])
        counts[rows[0] : rows[-1] + 1] = histogram.view(len(rows), -1).to(torch.int16)
    return counts.view(-1, 2, height, width)


def network(width: int = 32) -> nn.Sequential:
    """Seven 3 x 3 convolutions, four of which halve the image; 1.2 million weights from 32 channels."""
    layers: list[nn.Module] = []
    steps = [(2, 1, 1), (1, 2, 2), (2, 2, 1), (2, 4, 2), (4, 4, 1), (4, 8, 2), (8, 8, 1)]
    for i, (q, p, stride) in enumerate(steps):
        before = 2 if i == 0 else q * width
        layers += [nn.Conv2d(before, p * width, 3, stride, 1, bias=False), nn.BatchNorm2d(p * width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(8 * width, 2))


def altered(values: Tensor) -> Tensor:
    """Images (B, C, H, W), each moved, magnified and mirrored at random."""
    n, device = len(values), values.device
    shift = 0.14 * _uniform(n, 2, device)
    scale = (_uniform(n, 1, device) * math.log(1.25)).exp().expand(n, 2)
    turned = torch.where(torch.rand(n, 1, device=device) < 0.5, -1.0, 1.0)
    turn = torch.zeros(n, 2, 3, device=device)
    turn[:, 0, 0], turn[:, 1, 1], turn[:, :, 2] = scale[:, 0] * turned[:, 0], scale[:, 1], shift
    grid = functional.affine_grid(turn, list(values.shape), align_corners=False)
    return functional.grid_sample(values, grid, align_corners=False)


def _uniform(n: int, m: int, device: torch.device) -> Tensor:
    return 2 * torch.rand(n, m, device=device) - 1


def train(learn: list[Tensor], held: list[Tensor], seed: int, options: Any) -> dict[str, float]:
    """Accuracy on the images (counts, labels) learned from and on those held out, after the last epoch."""
    torch.manual_seed(seed)
    counts, labels = learn
    device = counts.device
    model = network(options.width).to(device, memory_format=torch.channels_last)
    steps = options.epochs * (len(labels) // options.batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05, fused=device.type == "cuda")
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 3e-3, steps, pct_start=0.1)
    began = time.perf_counter()
    right = torch.zeros((), device=device)
    for epoch in range(options.epochs):
        model.train()
        order = torch.randperm(len(labels), device=device)
        right.zero_()
        for rows in order.split(options.batch)[: len(labels) // options.batch]:
            x = altered(counts[rows].float().log1p()).contiguous(memory_format=torch.channels_last)
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                logits = model(x).float()
            loss = functional.cross_entropy(logits, labels[rows], label_smoothing=0.05)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()
            right += (logits.argmax(1) == labels[rows]).sum()
        if options.verbose:
            print(f"  {epoch + 1}: {right.item() / len(labels):.4f} {accuracy(model, *held):.4f}", flush=True)
    return {
        "accuracy": accuracy(model, *held),
        "train_accuracy": right.item() / len(labels),
        "seconds": time.perf_counter() - began,
    }


@torch.no_grad()
def accuracy(model: nn.Module, counts: Tensor, labels: Tensor) -> float:
    model.eval()
    best = [model(part.float().log1p()).argmax(1) for part in counts.split(1024)]
    return (torch.cat(best) == labels).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of N-Cars, or of its packs")
    parser.add_argument("--folds", type=int, nargs="+", default=list(range(NCars.folds)))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--pixels", type=int, default=2, help="pixels of the camera, in a row, that become one")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--verbose", action="store_true", help="print every epoch")
    parser.add_argument("--out", type=Path, default=RESULTS / "ncars_cnn.json")
    options = parser.parse_args()
    device = torch.device(options.device)
    whole = NCars(options.data)
    all_of_it = [images(whole, device, options.pixels), whole.labels.to(device)]
    rows = []
    folds = torch.from_numpy(whole.fold_of_each()).to(device)
    for fold, seed in itertools.product(options.folds, range(options.seeds)):
        held = folds == fold
        result = train([x[~held] for x in all_of_it], [x[held] for x in all_of_it], seed, options)
        rows.append({"fold": fold, "seed": seed, **result})
        print(json.dumps(rows[-1]), flush=True)
    each = [row["accuracy"] for row in rows]
    spread = statistics.stdev(each) if len(each) > 1 else 0.0
    weights = sum(p.numel() for p in network(options.width).parameters())
    print(f"{weights:,} weights: mean {statistics.mean(each):.4f}, spread {spread:.4f}")
    settings = {
        k: v for k, v in vars(options).items() if k not in ("data", "out", "device", "verbose", "folds", "seeds")
    }
    summary = {"weights": weights, "mean": statistics.mean(each), "spread": spread, **settings}
    keep(options.out, {"machine": machine(), **summary, "runs": rows})


if __name__ == "__main__":
    main()
