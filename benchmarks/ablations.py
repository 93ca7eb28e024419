"""The design choices of the paper: accuracy, time and memory of the large network with one choice changed.

    python benchmarks/ablations.py --data DIR [--jobs 6] [--epochs 100] [--out results/reproduction/ablations.json]
                                                          (about 25 minutes on an H200: 16 variants, 3 seeds each)

The recipe modelnet40-large with one choice changed (`gl.nn.Choices`), trained on the part `fit` of the training clouds
and judged on the held-out tenth after the last epoch; three seeds, mean and deviation. Seconds an epoch and peak memory
are of a few epochs with nothing beside them. Samplers other than rejection keep a fifth of the points, about as many as
rejection does (`gridless stats modelnet40-large`). Runs that are in the file are not run again. `--density` is the
authors' study of fewer points instead: five variants, judged at 32 to 1,024 points, kept in density.json (15 runs,
about 12 minutes). `python benchmarks/reproduction.py` draws the charts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from common import RESULTS, keep, machine, mps

FEWER = {"model__fraction": 0.2}
# name -> changes of the recipe modelnet40-large
VARIANTS: dict[str, dict[str, Any]] = {
    "the paper's choices": {},
    **{f"order {n}": {"model__order": n} for n in (0, 1, 3)},
    "kernel points": {"model__basis": "kernel points"},
    **{f"{n} nearest": {"model__nearest": n} for n in (8, 16)},
    "unweighted, normalised": {"model__falloff": None},
    "weighted, unnormalised": {"model__normalise": False},
    "unweighted, unnormalised": {"model__falloff": None, "model__normalise": False},
    "farthest points": {"model__sampler": "farthest", **FEWER},
    "approximate farthest points": {"model__sampler": "approximate farthest", **FEWER},
    "random points": {"model__sampler": "random", **FEWER},
    "no self-edge": {"model__self_edge": False},
    "16 nearest, no self-edge": {"model__nearest": 16, "model__self_edge": False},
    "16 nearest, farthest points": {"model__nearest": 16, "model__sampler": "farthest", **FEWER},
}
# The authors' study: normalised or not, weighted or not, with and without dropped points in training; all with the
# authors' limit of neighbours.
DENSITY: dict[str, dict[str, Any]] = {
    "normalised": {"model__limit": 64},
    "unnormalised": {"model__limit": 64, "model__normalise": False},
    # The authors' switch takes the normalisation away too.
    "weightless": {"model__limit": 64, "model__normalise": False, "model__falloff": None},
    "no drop, normalised": {"model__limit": 64, "augment__drop": 0.0},
    "no drop, unnormalised": {"model__limit": 64, "model__normalise": False, "augment__drop": 0.0},
}
TIMED = 5
POINTS = (32, 64, 128, 256, 512, 1024)
AUTHORS = {
    "normalised": (45.50, 74.72, 83.95, 88.49, 89.59, 90.19),
    "unnormalised": (48.34, 75.16, 83.31, 87.03, 88.94, 89.67),
    "weightless": (45.75, 73.46, 82.98, 87.93, 89.63, 89.63),
    "no drop, normalised": (4.13, 9.36, 25.93, 61.51, 87.84, 89.91),
    "no drop, unnormalised": (4.46, 6.56, 16.49, 57.82, 85.98, 90.64),
}


def prepared(name: str, seed: int, arguments: argparse.Namespace) -> tuple[Any, Any]:
    """A run of one variant that has not begun, and the held-out clouds."""
    import torch
    from direct import Run

    from gridless.tasks.loading import load_data
    from gridless.training import load_recipe

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.set_float32_matmul_precision("high")
    changes = (DENSITY if arguments.density else VARIANTS)[name]
    recipe = load_recipe("modelnet40-large").changed(**changes, epochs=arguments.epochs, seed=seed)
    learn, valid = (load_data(recipe, arguments.data, part).to(device) for part in ("fit", "validation"))
    if arguments.limit:
        learn, valid = (part.take(torch.arange(arguments.limit)) for part in (learn, valid))
    return Run(recipe, learn), valid


def one(name: str, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train one variant from one seed: its accuracies."""
    from gridless.tasks import find
    from gridless.training import accuracy
    from gridless.training.loop import estimate_statistics

    job, valid = prepared(name, seed, arguments)
    # The runs beside this one need memory, too. Geometry of fewer batches at once has the same bits.
    job.loader.group = max(1, job.loader.group // arguments.jobs)
    for epoch in range(arguments.epochs):
        job.epoch(epoch)
    task = find(job.recipe.task_name)
    estimate_statistics(job.recipe, task, job.best, job.loader, len(job.data), arguments.epochs - 1)
    counts = POINTS if arguments.density else POINTS[-1:]
    accuracies = {str(n): accuracy(job.best, valid.first(n)) for n in counts}
    return {"name": name, "seed": seed, "accuracy": accuracies, "epochs": arguments.epochs}


def timed(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Seconds an epoch and peak memory of one variant, after an epoch that compiles and captures."""
    import torch

    cuda = torch.cuda.is_available()
    job, _ = prepared(name, 0, arguments)
    times = []
    for epoch in range(min(TIMED, arguments.epochs)):
        began = time.perf_counter()
        job.epoch(epoch)
        if cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    peak = torch.cuda.max_memory_allocated() / 2**20 if cuda else None
    return {"seconds_per_epoch": statistics.median(times[1:] or times), "peak_mib": peak}


def command(name: str, seed: int | None, arguments: argparse.Namespace, folder: Path) -> subprocess.Popen:
    """A run from a seed, or the times of a variant, in a process of its own."""
    command = [sys.executable, __file__, "--data", str(arguments.data), "--epochs", str(arguments.epochs)]
    command += ["--one", name, "--out", str(arguments.out), "--jobs", str(arguments.jobs)]
    command += ["--times"] if seed is None else ["--seed", str(seed)]
    command += ["--density"] if arguments.density else []
    command += ["--limit", str(arguments.limit)] if arguments.limit else []
    log = open(folder / f"{name}-{seed}.log", "w")  # noqa: SIM115
    return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "OMP_NUM_THREADS": "2"})


def collect(arguments: argparse.Namespace, variants: dict[str, Any]) -> None:
    """Run what is missing, several runs beside each other; then time each variant alone."""
    content = json.loads(arguments.out.read_text()) if arguments.out.is_file() else {}
    runs, times = content.get("runs", []), content.get("times", {})
    folder = arguments.out.parent / "logs"
    folder.mkdir(parents=True, exist_ok=True)

    def store() -> None:
        keep(arguments.out, {"machine": machine(), "epochs": arguments.epochs, "runs": runs, "times": times,
                             "rows": table(runs, times, variants)})  # fmt: skip

    def result(name: str, seed: int | None, process: subprocess.Popen) -> Any:
        text = (folder / f"{name}-{seed}.log").read_text().splitlines()
        if process.returncode:
            print(f"{name}, {seed} failed:", *text[-6:], sep="\n  ", flush=True)
            return None
        return json.loads(text[-1])

    done = {(run["name"], run["seed"]) for run in runs}
    waiting = [(name, seed) for seed in range(arguments.seeds) for name in variants if (name, seed) not in done]
    running: dict[tuple[str, int], subprocess.Popen] = {}
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            key = waiting.pop(0)
            running[key] = command(*key, arguments, folder)
        time.sleep(0.5)
        for key, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[key]
            run = result(*key, process)
            if run is not None:
                runs.append(run)
                store()
                print(run, flush=True)
    for name in variants if not arguments.density and not arguments.untimed else ():
        if name not in times:
            process = command(name, None, arguments, folder)
            process.wait()
            figures = result(name, None, process)
            if figures is not None:
                times[name] = figures
                store()


def table(runs: list[dict[str, Any]], times: dict[str, Any], variants: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean and deviation over seeds of each variant, with its time and memory where they were measured."""
    rows = []
    for name in variants:
        mine = [run for run in runs if run["name"] == name]
        if not mine:
            continue
        row: dict[str, Any] = {"name": name, "seeds": len(mine)}
        for count in mine[0]["accuracy"]:
            values = [run["accuracy"][count] for run in mine]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            row[count] = {"mean": statistics.mean(values), "deviation": spread}
        rows.append(row | times.get(name, {}))
    return rows


def draw(rows: list[dict[str, Any]], density: bool, out: Path) -> None:
    """A chart of the table: bars with deviations, or curves beside the authors'."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    if density:
        for k, row in enumerate(rows):
            shown = [row[str(n)] for n in POINTS]
            means, spread = [100 * v["mean"] for v in shown], [100 * v["deviation"] for v in shown]
            axes.errorbar(POINTS, means, spread, marker="o", color=f"C{k}", label=f"{row['name']}, held-out clouds")
            axes.plot(POINTS, AUTHORS[row["name"]], "--", color=f"C{k}", label=f"{row['name']}, authors, test clouds")
        axes.set(xscale="log", xticks=POINTS, xticklabels=POINTS, xlabel="points", ylabel="accuracy, %")
        axes.legend(fontsize=7)
    else:
        means, spread = ([100 * row["1024"][k] for row in rows] for k in ("mean", "deviation"))
        axes.barh([row["name"] for row in rows], means, xerr=spread)
        axes.invert_yaxis()
        low = min(m - s for m, s in zip(means, spread)) - 1
        axes.set(xlim=(max(low, 0), 100), xlabel="accuracy on held-out clouds, %: mean and deviation of the seeds")
    figure.savefig(out, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=6)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--density", action="store_true")
    parser.add_argument("--only", nargs="+", help="these variants only")
    parser.add_argument("--limit", type=int, help="so many clouds only, for a trial")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--untimed", action="store_true", help="accuracies only, while other work runs beside them")
    arguments = parser.parse_args()
    name = "density" if arguments.density else "ablations"
    arguments.out = arguments.out or RESULTS / "reproduction" / f"{name}.json"
    if arguments.one is not None:
        figures = timed(arguments.one, arguments) if arguments.times else one(arguments.one, arguments.seed, arguments)
        print(json.dumps(figures))
        return
    variants = DENSITY if arguments.density else VARIANTS
    variants = {n: variants[n] for n in arguments.only or variants}
    if arguments.jobs > 1:
        print("MPS:", mps(), flush=True)
    collect(arguments, variants)


if __name__ == "__main__":
    main()
