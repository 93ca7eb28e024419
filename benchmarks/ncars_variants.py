"""Variants of the N-Cars recipe over folds and seeds on one GPU: mean and spread of the accuracy on drives not seen.

    python benchmarks/ncars_variants.py --data DIR --out OUT [--jobs 6] [--epochs 15] [--minutes 8] [NAME ...]

Each run trains by the recipe with its variant's changes on four folds of the drives and is judged on the fifth, after
the last epoch: nothing is chosen on the way. Several processes share the GPU, through MPS where that daemon can be
started; each loads the recordings once and then takes runs from a common list, variant after variant. No run is begun
after --minutes, so that what is finished can be reported. Finished runs are kept in OUT/runs.jsonl and not made again.
NAME@0,4 runs on these folds alone; NAME@all learns from every recording, for weights to ship. Prints a table, the best
variant first; writes OUT/variants.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
from common import mps

# Augmentation. Recordings of N-Cars are cropped to the origin. `Zoom` and `Translate` work about the middle of the
# sensor and cut off left and upper sides; `Stretch` and `ToOrigin` do not.
SHIPPED: list[Any] = [
    {"Flip": 0},
    {"Zoom": [0.85, 1.2]},
    {"Translate": [8, 8]},
    {"StretchTime": [0.8, 1.25]},
    {"Thin": 0.3},
]
SWAP: list[Any] = [
    {"Flip": 0}, {"Stretch": [0.75, 1.33]}, "ToOrigin", {"StretchTime": [0.8, 1.25]}, {"Thin": 0.3}, "SwapPolarity",
]  # fmt: skip
ERASE: list[Any] = [*SHIPPED, {"Erase": [0.1, 0.6]}]
# More events on deep levels, at the same cost: 62 instead of 22 on the last one (tenth percentile 25 instead of 3).
DENSE = {"model__width": 12, "model__decay_time": 32000.0, "model__threshold": 0.7, "model__reset": -2.0}

# Settings of longer runs with less regularisation.
FIT = {"model__dropout": 0.1, "batch_size": 64, "learning_rate": 0.003, "average": 0.995}
SMALL = {"prepare": [{"PoolPixels": 2}]}
BOARD = {
    "model": "n_cars", "head": "stream", "sensor": [60, 50], "levels": 3, "pooled": 0, "rates": "shared",
    "dropout": 0.1,
}  # fmt: skip

COUNTS = {
    "model": "EventCounts", "classes": 2, "sensor": [120, 100], "decay_times": [10_000.0, 30_000.0, 100_000.0],
}  # fmt: skip
LEAKY = {
    "model": COUNTS, "transforms": ERASE, "batch_size": 128, "learning_rate": 0.003, "average": 0.995,
    "weight_decay": 0.05,
}  # fmt: skip

# name -> changes of the recipe n-cars-voxel
VARIANTS: dict[str, dict[str, Any]] = {
    "shipped": {},
    "swap": {"transforms": SWAP},
    "dense": {"transforms": SWAP, **DENSE},
    # Networks with the stream head for small boards: half the resolution, few traces.
    "stream": {**FIT, "model": {"model": "n_cars", "head": "stream", "dropout": 0.1}},
    "small": {**FIT, **SMALL, "model": {**BOARD, "width": 12}},
    "small-erase": {**FIT, **SMALL, "transforms": ERASE, "model": {**BOARD, "width": 12}},
    "half-erase": {**FIT, **SMALL, "transforms": ERASE, "model": {**BOARD, "width": 16, "rates": "spread"}},
    # Counts that decay, without streams and without windows.
    "leaky-one": {**LEAKY, "model": {**COUNTS, "decay_times": [100_000.0]}},
    "leaky-last": {**LEAKY, "model": {**COUNTS, "decay_times": [100_000.0], "every": 100_000}, "average": None},
    "leaky-fit": {
        **LEAKY, "model": {**COUNTS, "decay_times": [100_000.0], "every": 100_000, "fit": True}, "average": None,
    },
    "leaky": {**LEAKY},
    "leaky-half": {**LEAKY, "model": {**COUNTS, "size": 2, "width": 32, "levels": 3}},
    "leaky-large": {**LEAKY, "transforms": [*SHIPPED, {"Erase": [0.2, 0.8]}]},
}  # fmt: skip

# In place of a fold: none is held out.
ALL = -1


def recipe_of(name: str, epochs: int, seed: int, fold: int) -> Any:
    from gridless.training import load_recipe

    changes = dict(VARIANTS[name])
    base = load_recipe("n-cars-voxel")
    if "model" in changes:
        base = base.changed(model=changes.pop("model"))
        changes = {k: v for k, v in changes.items() if not k.startswith("model__")}
    fixed: dict[str, Any] = {"epochs": epochs, "seed": seed, "validate_every": epochs}
    return base.changed(**changes, **fixed, **({} if fold == ALL else {"data_options__fold": fold}))


# Arrays of the recordings that workers read, unpacked once.
PACKED = ("x", "y", "t", "p", "offsets", "label")


def unpack(options: argparse.Namespace) -> None:
    from gridless.data import NCars

    if (options.out / "unpacked.npz").is_file():
        return
    data = NCars(options.data)
    if data.pack is None:
        sys.exit(f"{options.data}: packs of recordings are needed, ncars_train_*.npz.xz")
    arrays = {name: getattr(data.pack, name) for name in PACKED}
    np.savez(options.out / "unpacked.npz", folds=data.fold_of_each(), **arrays)


def work(number: int, jobs: Any, done: Any, options: argparse.Namespace) -> None:
    """Take runs until there are none, or until the time is up."""
    import torch

    from gridless.data import NCars
    from gridless.data.archives import Archive
    from gridless.training.examples import TrainingSet
    from gridless.training.run import run

    torch.set_num_threads(1)
    with np.load(options.out / "unpacked.npz") as arrays:
        folds = torch.from_numpy(arrays["folds"])
        pack = Archive(*(arrays[name] for name in PACKED), NCars.sensor)
    events = pack.events(np.arange(len(pack)))
    whole = TrainingSet.of(events, torch.from_numpy(pack.label), NCars.class_names)
    if options.limit:
        rows = torch.linspace(0, len(whole) - 1, min(options.limit, len(whole))).long()
        folds, whole = folds[rows], whole.take(rows)
    parts: dict[int, Any] = {}
    while time.time() < options.until:
        try:
            name, seed, fold = jobs.get_nowait()
        except Exception:
            return
        began = time.perf_counter()
        try:
            if fold not in parts:
                parts = {fold: [whole.take((mask).nonzero()[:, 0]) for mask in (folds != fold, folds == fold)]}
            learn, held = parts[fold]
            recipe = recipe_of(name, options.epochs, seed, fold)
            out = options.out / f"{name}-{seed}-{fold}"
            some = None if fold == ALL else held
            results = run(recipe, learn, some, out, device=options.device, progress=False)
            assert results is not None
            entry = {"name": name, "seed": seed, "fold": fold, "accuracy": results.get("valid_accuracy")}
            entry |= {"train_accuracy": results["train_accuracy"], "epochs": options.epochs}
            entry |= {"seconds": time.perf_counter() - began, "process": number}
            done.put(entry)
        except Exception:
            done.put({"name": name, "seed": seed, "fold": fold, "error": traceback.format_exc()[-800:]})


def table(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each variant: mean over its folds, the spread of its runs, and the mean of each fold.

    Folds differ more than variants do, so only variants with the same folds compare: `shared` is the mean over the
    folds that every variant has, and decides the order.
    """
    rows = []
    entries = [e for e in entries if e["fold"] != ALL]
    every = [{e["fold"] for e in entries if e["name"] == name} for name in {e["name"] for e in entries}]
    common = set.intersection(*every) if every else set()
    for name in dict.fromkeys(e["name"] for e in entries):
        mine = [e for e in entries if e["name"] == name]
        each = [e["accuracy"] for e in mine]
        folds = {f: statistics.mean(e["accuracy"] for e in mine if e["fold"] == f) for f in {e["fold"] for e in mine}}
        shared = statistics.mean(folds[f] for f in common) if common else float("nan")
        row = {"name": name, "shared": shared, "mean": statistics.mean(folds.values()), "runs": len(each)}
        row["spread"] = statistics.stdev(each) if len(each) > 1 else 0.0
        row |= {f"fold {f}": folds[f] for f in sorted(folds)}
        rows.append(row | {"train": statistics.mean(e["train_accuracy"] for e in mine)})
    return sorted(rows, key=lambda row: -row["shared" if common else "mean"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(VARIANTS)}; unless given, all")
    parser.add_argument("--data", type=Path, required=True, help="the folder of N-Cars, or of its packs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--limit", type=int, help="so many recordings only, for a trial")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    asked: list[tuple[str, list[int]]] = []
    for given in options.names or VARIANTS:
        name, _, folds = given.partition("@")
        if name not in VARIANTS:
            sys.exit(f"no variant {name!r}: there are {', '.join(VARIANTS)}")
        some = [ALL if fold == "all" else int(fold) for fold in folds.split(",")] if folds else options.folds
        asked.append((name, some))
    options.out.mkdir(parents=True, exist_ok=True)
    options.until = time.time() + 60 * options.minutes
    os.environ["OMP_NUM_THREADS"] = "1"
    log = options.out / "runs.jsonl"
    entries = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    known = {(e["name"], e["seed"], e["fold"]) for e in entries}
    if options.device != "cpu" and options.jobs > 1:
        print("MPS:", mps(), flush=True)
    unpack(options)
    context = multiprocessing.get_context("spawn")
    jobs, done = context.Queue(), context.Queue()
    waiting = [
        (name, seed, fold)
        for seed in range(options.seeds)
        for name, folds in asked
        for fold in folds
        if (name, seed, fold) not in known
    ]
    for job in waiting:
        jobs.put(job)
    began = time.perf_counter()
    processes = [context.Process(target=work, args=(i, jobs, done, options)) for i in range(options.jobs)]
    for process in processes:
        process.start()
    while any(process.is_alive() for process in processes) or not done.empty():
        try:
            entry = done.get(timeout=1)
        except Exception:
            continue
        print(f"{time.perf_counter() - began:.0f} s: {json.dumps(entry)}", flush=True)
        if "error" not in entry:
            entries.append(entry)
            with log.open("a") as file:
                file.write(json.dumps(entry) + "\n")
    jobs.cancel_join_thread()
    rows = table(entries)
    (options.out / "variants.json").write_text(json.dumps({"runs": entries, "table": rows}, indent=1) + "\n")
    for row in rows:
        print(
            "  ".join(
                f"{k} {v:.4f}" if isinstance(v, float) else f"{v:<18}" if k == "name" else f"{k} {v}"
                for k, v in row.items()
            )
        )


if __name__ == "__main__":
    main()
