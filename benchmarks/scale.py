"""A city of any size: real scans side by side, generated on the fly, searched, sampled and labelled tile by tile.

    python benchmarks/scale.py --scans semantickitti_22_scans.npz --points 1e7 1e8 [--out results/scale.json]
    python benchmarks/scale.py --scans semantickitti_22_scans.npz --points 1e7 --label --device cuda

One point of each 5 cm cell, a ball of 20 cm around each, and a rejection sample over it; with --label the network of
the recipe `semantickitti`, with random weights, instead. Each number of points is a process of its own, whose peak of
memory is the figure. First it is checked that tiles of two sizes give the same samples. `reading` is the first pass.
A core second is one of CPU time, over all threads: what other processes do matters less.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
from common import machine

import gridless as gl
from gridless.data.clouds.base import Parts, Points
from gridless.scenes import Scene, Tiles
from gridless.scenes.label import Labeller

# Scans are this far apart, and cut where the next begins.
APART = 160.0
GRID, RADIUS = 0.05, 0.2


def city(scans: str, points: float) -> Parts:
    """So many points of whole scans, row by row of a square; piece k is scan k."""
    data = gl.data.SemanticKITTI(scans, "train")
    each = []
    for i in range(len(data)):
        cloud = data.cloud(i)
        each.append(cloud[(cloud.coords[:, :2].abs() < APART / 2).all(1)])
    sizes: list[int] = []
    while sum(sizes) < points:
        sizes.append(len(each[len(sizes) % len(each)]))
    side = int(np.ceil(len(sizes) ** 0.5))

    def read(k: int) -> Points:
        cloud = each[k % len(each)]
        place = np.array([(k // side + 0.5) * APART, (k % side + 0.5) * APART, 0.0])
        rows = {"intensity": cloud.rows["intensity"].numpy()}
        return Points(cloud.coords.double().numpy() + place, rows, np.dtype(np.float64))

    return Parts(sizes, read)


def plan() -> gl.Plan:
    made = gl.Plan()
    cloud = made.points()
    made.rejection_sample(made.ball(cloud, cloud, RADIUS))
    return made


def samples(tiles: Tiles, device: str) -> list[int]:
    """The rows in the scene of all samples inside tiles."""
    found: list[int] = []
    for tile in tiles:
        _, geometry = tile.run(plan(), device=device)
        rows = geometry["X1"].rows
        found += rows["index"][rows["inside"]].tolist()
    return sorted(found)


def measured(scans: str, points: float, device: str, label: bool) -> dict[str, Any]:
    source = city(scans, points)
    result: dict[str, Any] = {"points": sum(source.sizes), "scans": len(source.sizes)}
    begin = time.perf_counter()
    if label:
        torch.manual_seed(0)
        from gridless.training.recipe import load_recipe

        model = load_recipe("semantickitti").make_model()
        how = gl.data.prepare.Preparation(up="z", features=("intensity",))
        worker = Labeller(
            source, model, grid=GRID, how=how, device=device, points=1 << (22 if device == "cuda" else 19)
        )
        tiles = worker.tiles
    else:
        tiles = Tiles(Scene(source, rows=[]), APART / 2, plan().reach(), GRID)
    result["reading, points/s"] = round(result["points"] / (time.perf_counter() - begin))
    kept = done = 0
    if device == "cuda" or label:
        # What is compiled is compiled.
        _ = worker(tiles.keys[0]) if label else tiles[0].run(plan(), device=device)
    begin, before, last = time.perf_counter(), time.process_time(), 0.0
    for key in tiles.keys:
        if label:
            done += len(worker(key)[0])
        else:
            tile, geometry = tiles.tile(key).run(plan(), device=device)
            kept += int(geometry["X1"].rows["inside"].sum())
            done += int(tile.every.rows["inside"].sum())
        last = time.perf_counter() - begin
    assert done == result["points"], (done, result)
    result["points/core second"] = round(done / (time.process_time() - before))
    result |= {"tiles": len(tiles), "samples": kept, "seconds": round(last, 1), "points/s": round(done / last)}
    result["peak, MiB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    if device == "cuda":
        result["peak on the GPU, MiB"] = torch.cuda.max_memory_allocated() >> 20
    return result


def check(scans: str, device: str) -> None:
    """Tiles of two sizes, none of which is a scan, give the same samples."""
    source = city(scans, 4e5)
    ours = [samples(Tiles(Scene(source, rows=[]), size, plan().reach(), GRID), device) for size in (37.0, 93.0)]
    assert ours[0] == ours[1]
    print(f"checked: {len(ours[0])} samples of {sum(source.sizes)} points, the same with tiles of 37 m and 93 m")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scans", required=True)
    parser.add_argument("--points", type=float, nargs="+", default=[1e7])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--label", action="store_true")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    check(arguments.scans, arguments.device)
    results: dict[str, Any] = {}
    for points in arguments.points:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            found = pool.apply(measured, (arguments.scans, points, arguments.device, arguments.label))
        results[f"{found.pop('points'):,} points"] = found
        print(json.dumps(results), flush=True)
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"machine": machine(), "label": arguments.label, "results": results}, indent=1)
        )


if __name__ == "__main__":
    main()
