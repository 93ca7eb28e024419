"""Accuracy on ModelNet40 of ten seeds, the paper's Table 4: mean, deviation and best of both networks.

    python benchmarks/table4.py --data DIR [--seeds 10] [--jobs 10] [--out results/reproduction/table4.json]
                                   (four rows; about 25 minutes on an H200, where ten runs share it through MPS)

The authors' recipe (plateau rule, 400 epochs, 32 augmentations of each cloud) and ours, for the large and the small
network. Judged on the held-out tenth of the training clouds after the last epoch: the official test split is not here.
The authors read geometry from files; here it is computed online, from the same 32 augmentations. A run that is in the
file is not run again. *Seconds* are of a run beside others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import RESULTS, commit, keep, machine, mps

ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "large, the authors' recipe": ("paper/modelnet40-large", {"geometry": "online"}),
    "small, the authors' recipe": ("paper/modelnet40-small", {"geometry": "online"}),
    "large, our recipe": ("modelnet40-large", {}),
    "small, our recipe": ("modelnet40-small", {}),
}


def one(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one row from one seed, in this process: the figures of its results."""
    import torch

    from gridless.tasks.loading import load_data
    from gridless.training import load_recipe
    from gridless.training.run import run

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_per_process_memory_fraction(0.95 / arguments.jobs)
    recipe_name, changes = ROWS[name]
    recipe = load_recipe(recipe_name).changed(**changes, seed=seed, validate_every=100)
    recipe = recipe.changed(epochs=arguments.epochs or recipe.epochs)
    learn, valid = (load_data(recipe, arguments.data, part) for part in ("fit", "validation"))
    if arguments.limit:
        learn, valid = (part.take(torch.arange(arguments.limit)) for part in (learn, valid))
    with tempfile.TemporaryDirectory() as folder:
        results = run(recipe, learn, valid, Path(folder) / "run", device=device, progress=False)
    assert results is not None
    return {key: results[key] for key in ("valid_accuracy", "train_accuracy", "seconds")}


def start(name: str, seed: int, arguments: argparse.Namespace) -> subprocess.Popen:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "--data", str(arguments.data), "--jobs", str(arguments.jobs)]
    command += ["--one", name, "--seed", str(seed)]
    command += ["--epochs", str(arguments.epochs)] if arguments.epochs else []
    command += ["--limit", str(arguments.limit)] if arguments.limit else []
    threads = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=threads)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=10, help="runs beside each other")
    parser.add_argument("--epochs", type=int, help="instead of the recipe's, for a trial")
    parser.add_argument("--limit", type=int, help="so many clouds only, for a trial")
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS), help="these rows only")
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "table4.json")
    parser.add_argument("--one", choices=list(ROWS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        print(json.dumps(one(arguments.one, arguments.seed, arguments)))
        return
    if arguments.jobs > 1:
        print("MPS:", mps(), flush=True)
    collect(arguments)


def collect(arguments: argparse.Namespace) -> None:
    """Run what is missing, several runs beside each other."""
    from gridless.training.seeds import summarise

    rows: dict[str, Any] = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else {}
    done = {name: runs_of(row) for name, row in rows.items()}
    waiting = [(name, n) for name in arguments.only for n in range(arguments.seeds) if n not in done.get(name, {})]
    running: dict[tuple[str, int], subprocess.Popen] = {}
    failed = []
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            name, seed = waiting.pop(0)
            running[name, seed] = start(name, seed, arguments)
        time.sleep(0.2)
        for (name, seed), process in list(running.items()):
            if process.poll() is None:
                continue
            del running[name, seed]
            text = process.communicate()[0]
            if process.returncode:
                failed.append(f"{name}, seed {seed}")
                continue
            runs = done.setdefault(name, {})
            runs[seed] = json.loads(text.splitlines()[-1])
            rows[name] = summarise(sorted(runs), [runs[n] for n in sorted(runs)]) | {"commit": commit()}
            keep(
                arguments.out, {"machine": machine(with_commit=False), "rows": {n: rows[n] for n in ROWS if n in rows}}
            )
            print(name, seed, runs[seed], flush=True)
    if failed:
        sys.exit(f"table4: these runs failed: {'; '.join(failed)}")


def runs_of(row: dict[str, Any]) -> dict[int, dict[str, float]]:
    """Seed -> figures of a row that was summed up."""
    figures = {name: entry["values"] for name, entry in row.items() if name not in ("seeds", "commit")}
    return {seed: {name: values[n] for name, values in figures.items()} for n, seed in enumerate(row["seeds"])}


if __name__ == "__main__":
    main()
