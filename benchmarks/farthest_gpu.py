"""Exact farthest points of large clouds on the GPU, in milliseconds from call to finished result, host included.

    python benchmarks/farthest_gpu.py --scans semantickitti_22_scans.npz [--out results/farthest_gpu.json]

Every sample is compared with the CPU's, index for index, before it is timed; median of 7.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from common import machine, seconds
from scenes import load_scans

import gridless as gl


def clouds(path: str) -> dict[str, tuple[torch.Tensor, int]]:
    scans = [torch.from_numpy(scan) for scan in load_scans(path)]
    random = torch.rand(1_000_000, 3, generator=torch.Generator().manual_seed(0))
    return {
        **{f"scan {i}, {len(scans[i]):,} points, to 10,000": (scans[i], 10_000) for i in (0, 9)},
        "100,000 random points to 10,000": (random[:100_000], 10_000),
        "100,000 random points to 10,000, float64": (random[:100_000].double(), 10_000),
        "1,000,000 random points to 100,000": (random, 100_000),
    }


def timed(coords: torch.Tensor, size: int) -> float:
    want = gl.farthest_sample(gl.Cloud.of(coords), size).parent_index
    cloud = gl.Cloud.of(coords.cuda())
    assert torch.equal(gl.farthest_sample(cloud, size).parent_index.cpu(), want)

    def work() -> None:
        gl.farthest_sample(cloud, size)
        torch.cuda.synchronize()

    return 1e3 * seconds(work)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scans", required=True)
    parser.add_argument("--out")
    options = parser.parse_args()
    results = {}
    for name, given in clouds(options.scans).items():
        results[name] = timed(*given)
        print(f"{name:44} {results[name]:8.3f} ms", flush=True)
    if options.out:
        Path(options.out).write_text(json.dumps({"machine": machine(), "results": results}, indent=1))


if __name__ == "__main__":
    main()
