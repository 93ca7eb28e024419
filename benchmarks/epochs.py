"""Seconds per epoch of ModelNet40, the paper's Table of epoch times: batch 32 to the whole set.

    python benchmarks/epochs.py --data DIR [--batches 32 128 1024] [--peers] [--out results/epochs.json]

online: augmentation and geometry on the device, every epoch anew; offline: geometry computed ahead of time and kept.
full: 1,024 points; dropped: as the authors trained, 576 in the mean. An epoch is the 9,843 official training clouds.
Peak memory is of the training alone, the data set (121 MB) included. The peers, on the same clouds in the same run, are
PointNet++ (single scale) and DGCNN (`peers_points.py`).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, keep, machine
from direct import Run
from peers_points import DGCNN, PYG, PointNet2

from gridless.tasks.loading import load_data
from gridless.training import Clouds, Policy, load_recipe
from gridless.training.step import begin_step

CUDA = torch.cuda.is_available()
# Epochs that are timed together: while one ends, the next is prepared.
THREE = 3


def sync() -> None:
    if CUDA:
        torch.cuda.synchronize()


def reset() -> None:
    # A run and its graphs know each other.
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> float:
    return torch.cuda.max_memory_allocated() / 2**20 if CUDA else float("nan")


def ours(clouds: Clouds, name: str, batch: int, drop: bool, offline: bool, epochs: int, **changes: Any) -> dict:
    recipe = load_recipe(name).changed(batch_size=batch, augment__drop=0.875 if drop else 0.0, **changes)
    reset()
    run = Run(recipe, clouds)
    # Ten steps and an epoch first: kernels are compiled, sizes learned, graphs captured.
    first = 1 - (-10 // len(run.loader))
    for epoch in range(first + (not offline)):
        run.epoch(epoch)
    loss, _ = run.step.read()
    if not loss < 20:
        raise RuntimeError(f"the loss of the first epochs is {loss}: not a training run")
    if offline:
        groups = [run.loader._group(first, number) for number in range(0, len(run.loader), run.loader.group)]
        batches = [batch for group in groups for batch in group]

        def one_epoch(epoch: int) -> None:
            for number, batch in enumerate(batches):
                begin_step(recipe, run.schedule, run.optimiser, epoch, number, len(batches))
                run.step(batch)

        one_epoch(first)
    else:
        one_epoch = run.epoch
    # The median: an epoch in which a graph is captured anew, as one batch was larger than all before, takes 0.2 s more.
    times = []
    for begin in range(first + 1, first + 1 + THREE * epochs, THREE):
        sync()
        began = time.perf_counter()
        for epoch in range(begin, begin + THREE):
            one_epoch(epoch)
        sync()
        times.append((time.perf_counter() - began) / THREE)
    return {
        "network": name,
        "batch": batch,
        "points": "dropped" if drop else "full",
        "geometry": "offline" if offline else "online",
        "captured": run.step.captured is not None,
        "seconds_per_epoch": statistics.median(times),
        "peak_mib": peak(),
        "mib_per_cloud": (peak() - clouds.points.numel() * 4 / 2**20) / batch,
    }


def peer(clouds: Clouds, kind: type, batch: int, steps: int) -> dict:
    """So many steps, scaled to an epoch; sampling and searches on the device, as for ours online."""
    reset()
    device = clouds.points.device
    model = kind().to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), fused=CUDA or None)
    policy = Policy(shuffle=True, scale=(0.8, 1.25))
    order = torch.randperm(len(clouds), generator=torch.Generator().manual_seed(0))

    def step(number: int) -> None:
        index = order[torch.arange(number * batch, (number + 1) * batch) % len(order)]
        geometry = kind.geometry(clouds.draw(policy, 0, 0, index))
        loss = torch.nn.functional.cross_entropy(model(geometry), clouds.labels[index.to(device)])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    for number in range(3):
        step(number)
    sync()
    began = time.perf_counter()
    for number in range(steps):
        step(number)
    sync()
    seconds = (time.perf_counter() - began) / (steps * batch) * len(clouds)
    built_on = "torch-geometric" if PYG else "torch"
    row = {"network": kind.__name__, "built_on": built_on, "batch": batch, "points": "full", "geometry": "online"}
    return row | {"seconds_per_epoch": seconds, "peak_mib": peak()}


def attempt(rows: list, label: str, function: Any, *arguments: Any, **settings: Any) -> None:
    try:
        row = function(*arguments, **settings)
    except torch.OutOfMemoryError:
        row = {"network": label, "batch": arguments[2], "error": "out of memory"}
    rows.append(row)
    if "error" in row:
        print(f"{label:<18}{arguments[2]:>6}  out of memory", flush=True)
        return
    print(
        f"{row['network']:<18}{row['batch']:>6}  {row['points']:<8}{row['geometry']:<8}"
        f"{row['seconds_per_epoch']:>9.3f} s/epoch{row['peak_mib']:>9.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--batches", type=int, nargs="+", default=[32, 128, 512, 1024, 4096, 9843])
    parser.add_argument("--networks", nargs="+", default=["modelnet40-large", "modelnet40-small", "modelnet40-plus"])
    parser.add_argument("--epochs", type=int, default=5, help="how often three epochs are timed; the median counts")
    parser.add_argument("--limit", type=int, help="so many clouds only, for a trial")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--peer-batches", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--out", type=Path, default=RESULTS / "epochs.json")
    arguments = parser.parse_args()
    clouds = load_data(load_recipe("modelnet40-small"), arguments.data, "train").to("cuda" if CUDA else "cpu")
    if arguments.limit:
        clouds = clouds.take(torch.arange(arguments.limit))
    if CUDA:
        torch.backends.cuda.matmul.allow_tf32 = True
    rows: list[dict] = []

    def measure(*work: Any) -> None:
        attempt(rows, *work)
        keep(arguments.out, {"machine": machine(), "rows": rows})

    if arguments.peers:
        for kind in (PointNet2, DGCNN):
            for batch in arguments.peer_batches:
                measure(kind.__name__, peer, clouds, kind, batch, max(5, 1000 // batch) if CUDA else 1)
    for name in arguments.networks:
        for batch in arguments.batches:
            for drop in (False, True):
                for offline in (False, True):
                    measure(name, ours, clouds, name, batch, drop, offline, arguments.epochs)


if __name__ == "__main__":
    main()
