"""Seconds an epoch of ModelNet40 and peak memory, the paper's Table 3: both networks, six batch sizes, three ways.

    python benchmarks/table3.py --data DIR [--out results/reproduction/table3.json]     (about 25 minutes on an H200)
    python benchmarks/table3.py --data DIR --part peers | limit | online | workers | files     (one part of it)

An epoch is 9,840 training clouds, as the paper's. Times are of the loop of `gridless train`: the median epoch of a run,
after three epochs that compile and capture. Points are dropped as the authors did (576 on average),
and full (1,024) for the batch of 128. *online*: augmentation and geometry on the device; *workers*: by processes on the
CPU; *files*: geometry read from files that were made before (`gridless precompute`; their time is a column of its own).
PointNet++ and PointCNN (torch-geometric's layers, our searches, eager, in TF32 as ours) are timed for as many steps as
fit, on 1,024 points. *limit*: batches of 4,096 with the allocator limited to 11 GB, the paper's card. A row that is in
the file is not measured again: started anew, the script goes on where it ended.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, commit, keep, machine

from gridless.tasks import find
from gridless.tasks.loading import load_data
from gridless.training import Policy, TrainingSet, load_recipe
from gridless.training.run import run
from gridless.training.workers import precomputed, processes

CUDA = torch.cuda.is_available()
NETWORKS = ("modelnet40-large", "modelnet40-small")
BATCHES = (32, 64, 128, 1024, 4096, 9840)
PEERS = {"PointNet2": (32, 64, 128), "PointCNN": (32, 64, 128)}
WARM, TIMED = 3, 5
LIMIT_GB = 11


def jobs(part: str | None) -> list[dict[str, Any]]:
    """Every row that is wanted, the shortest first."""
    rows: list[dict[str, Any]] = []
    for name, batches in PEERS.items():
        rows += [{"part": "peers", "network": name, "batch": batch, "points": "full"} for batch in batches]
    for way in ("online", "workers", "files"):
        for network in NETWORKS:
            for batch in BATCHES:
                rows.append({"part": way, "network": network, "batch": batch, "points": "dropped"})
                if batch == 128:
                    rows.append({"part": way, "network": network, "batch": batch, "points": "full"})
    rows += [{"part": "limit", "network": n, "batch": 4096, "points": p} for n in NETWORKS for p in ("dropped", "full")]
    return [row for row in rows if part in (None, row["part"])]


def peak() -> float | None:
    return torch.cuda.max_memory_allocated() / 2**20 if CUDA else None


def finish() -> None:
    if CUDA:
        torch.cuda.synchronize()


class EpochClock:
    """A callback of a run: the times at which epochs end, when the device has finished them."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_epoch_end(self, state: Any) -> None:
        finish()
        self.ends.append(time.perf_counter())


def epoch_seconds(recipe: Any, clouds: TrainingSet, folder: Path, warm: int, timed: int) -> float:
    """The median time of `timed` epochs after `warm` epochs, in which kernels are compiled and graphs are captured."""
    clock = EpochClock()
    result = run(
        recipe.changed(epochs=warm + timed + 1), clouds, None, folder / "run",
        device="cuda" if CUDA else "cpu", progress=False, cache=folder / "cache", callbacks=[clock],
    )  # fmt: skip
    assert result is not None
    shutil.rmtree(folder / "run")
    if not result["train_loss"] < 20:
        raise RuntimeError(f"a loss of {result['train_loss']} is no training run")
    times = [end - begin for begin, end in pairwise(clock.ends)]
    # The last epoch is left out: the run stops to prepare its successor.
    return statistics.median(times[warm - 1 : warm - 1 + timed])


def ours(row: dict[str, Any], clouds: TrainingSet, warm: int = WARM, timed: int = TIMED) -> dict[str, Any]:
    """The figures of one row."""
    way = {"online": "online", "limit": "online", "workers": "workers", "files": "offline"}[row["part"]]
    recipe = load_recipe(row["network"]).changed(
        batch_size=row["batch"], augment__drop=0.875 if row["points"] == "dropped" else 0.0, geometry=way,
        repeats=1 if way == "offline" else None,
    )  # fmt: skip
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("SCRATCH")) as scratch:
        if row["part"] == "files":
            began = time.perf_counter()
            plan: Any = recipe.make_model().plan
            precomputed(recipe, find(recipe.task_name), clouds, plan, Path(scratch) / "cache", processes(None))
            figures["precompute_seconds"] = time.perf_counter() - began
        figures["seconds_per_epoch"] = epoch_seconds(recipe, clouds, Path(scratch), warm, timed)
    return figures | {"peak_mib": peak()}


def peer(clouds: TrainingSet, kind: Any, batch: int, steps: int) -> dict[str, Any]:
    """So many steps, scaled to an epoch; sampling and searches on the device, as for ours online."""
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
    finish()
    began = time.perf_counter()
    for number in range(steps):
        step(number)
    finish()
    seconds = (time.perf_counter() - began) / (steps * batch) * len(clouds)
    return {"seconds_per_epoch": seconds, "peak_mib": peak()}


def measured(row: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """One row with its figures, or with why there are none. It runs in a process of its own, for the peak."""
    clouds = load_data(load_recipe(NETWORKS[0]), arguments.data, "train").take(torch.arange(arguments.limit))
    if CUDA and row["part"] == "limit":
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_GB * 1e9 / whole))
        row = {**row, "limit_gb": LIMIT_GB}
    try:
        if row["part"] == "peers":
            torch.set_float32_matmul_precision("high")  # as `gridless train` sets it
            kind = getattr(import_module("peers_points"), row["network"])
            place = clouds.to("cuda" if CUDA else "cpu")
            return row | peer(place, kind, row["batch"], max(5, 1000 // row["batch"]) if CUDA else 1)
        return row | ours(row, clouds, arguments.warm, arguments.timed)
    except torch.OutOfMemoryError:
        return row | {"error": "out of memory"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--part", choices=["peers", "limit", "online", "workers", "files"])
    parser.add_argument("--limit", type=int, default=9840, help="so many clouds only, for a trial")
    parser.add_argument("--warm", type=int, default=WARM, help="epochs that are not timed")
    parser.add_argument("--timed", type=int, default=TIMED, help="epochs whose median time counts")
    parser.add_argument("--batches", type=int, nargs="+", default=None, help="of these batch sizes only")
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "table3.json")
    arguments = parser.parse_args()
    content = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {"rows": []}
    rows: list[dict[str, Any]] = content["rows"]
    names = ("part", "network", "batch", "points")
    done = {tuple(row[name] for name in names) for row in rows}
    order = [tuple(row[name] for name in names) for row in jobs(None)]
    for row in jobs(arguments.part):
        if tuple(row[name] for name in names) in done or row["batch"] not in (arguments.batches or BATCHES):
            continue
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            row = alone.submit(measured, row, arguments).result() | {"commit": commit()}
        rows.append(row)
        rows.sort(key=lambda row: order.index(tuple(row[name] for name in names)))
        keep(arguments.out, {"machine": machine(with_commit=False), "examples": arguments.limit, "rows": rows})
        print(row, flush=True)


if __name__ == "__main__":
    main()
