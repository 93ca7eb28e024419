"""Accuracy against load: what thinning costs when events come faster than they can be worked on.

    python benchmarks/overload.py --data DIR [--recordings 600]

At a load of k times what the engine can do, `gridless stream --overload thin` keeps every k-th event, evenly.
Recordings of N-Cars of the fold that the weights n-cars-counts have not seen are thinned so and judged. Writes
results/overload.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import RESULTS, keep, machine  # noqa: E402

import gridless as gl  # noqa: E402
from gridless.data import NCars  # noqa: E402
from gridless.streaming.overload import thinned  # noqa: E402

LOADS = (1, 1.5, 2, 3, 5, 10, 20)
WEIGHTS = "n-cars-counts"


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder of N-Cars, or of its packs")
    parser.add_argument("--recordings", type=int, default=600)
    options = parser.parse_args()
    model = gl.load(WEIGHTS)
    fold = model.about["recipe"]["data_options"]["fold"]
    data = NCars(options.data, split="validation", fold=fold)
    rows = np.linspace(0, len(data) - 1, min(options.recordings, len(data))).astype(np.int64)
    results = []
    for load in LOADS:
        right = events = 0
        for part in np.array_split(rows, -(-len(rows) // 50)):
            whole = [data[int(i)] for i in part]
            some = [thinned(recording, max(round(len(recording) / load), 1)) for recording, _ in whole]
            logits = model(model.plan(gl.collate(some)))
            right += int((logits.argmax(1) == torch.tensor([label for _, label in whole])).sum())
            events += sum(map(len, some))
        row = {"load": load, "events kept of each": 1 / load, "accuracy": right / len(rows)}
        results.append(row | {"events a recording": events / len(rows)})
        print(results[-1], flush=True)
    about = f"{WEIGHTS}, {len(rows)} recordings of fold {fold}, which it has not seen, thinned evenly"
    keep(RESULTS / "overload.json", {"machine": machine(), "about": about, "rows": results})


if __name__ == "__main__":
    main()
