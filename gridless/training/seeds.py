"""Runs of one recipe with several seeds; mean, deviation and best of their figures."""

from __future__ import annotations

import gc
import json
import statistics
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from gridless.data.files import check_writable, write_whole
from gridless.training.checkpoints import differences
from gridless.training.recipe import Recipe

# Entries of the results that are not figures of the network.
_NOT_FIGURES = ("epochs", "examples", "learning_rate")


def run_seeds(
    train: Callable[..., Any], recipe: Recipe, options: dict[str, Any], out: Path, count: int
) -> dict[str, Any]:
    """Run `train` once for each of `count` seeds into `out`/seed-N, and write `out`/seeds.json.

    Completed runs are kept, and an interrupted one resumes from its checkpoint: repeat the same command to continue.
    Runs of another recipe or of other data are refused.

    Args:
        train: the train command, called with `options`, `seed`, `out` and `resume`.
        recipe: the recipe that `options` give; its seed is the first one.
        options: the other arguments of the command.
        out: the folder of all runs.
        count: number of seeds.
    Returns:
        `seeds`, and for each figure of the runs its mean, deviation (of the sample), best and all values.
    """
    if options.get("devices", 1) * options.get("nodes", 1) > 1:
        raise ValueError(f"--seeds {count} needs a single process. Leave --devices and --nodes out.")
    _check_runs(out, recipe, options)
    seeds, results = list(range(recipe.seed, recipe.seed + count)), []
    summary: dict[str, Any] = {}
    for seed in seeds:
        folder = out / f"seed-{seed}"
        if not (folder / "results.json").is_file():
            resume = (folder / "checkpoints" / "last.ckpt").is_file()
            # Only the summary goes to standard output.
            with redirect_stdout(sys.stderr):
                train(**{**options, "seed": seed, "out": folder, "resume": resume})
            gc.collect()
        results.append(json.loads((folder / "results.json").read_text("utf-8")))
        summary = summarise(seeds[: len(results)], results)
        write_whole(out / "seeds.json", (json.dumps(summary, indent=1) + "\n").encode())
    return summary


def _check_runs(out: Path, recipe: Recipe, options: dict[str, Any]) -> None:
    """Write what the runs in `out` are of, or refuse runs of something else."""
    check_writable(out, "--out")
    data = options.get("data")
    now = {
        "recipe": {name: value for name, value in recipe.to_dict().items() if name != "seed"},
        "data": None if data is None else str(Path(data).resolve()),
        "limit": options.get("limit"),
        "all_data": options.get("all_data", False),
    }
    now, path = json.loads(json.dumps(now)), out / "runs.json"
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))
        changes = [f"{name} is {a!r}, was {b!r}" for name, a, b in differences(now, before)]
    else:
        changes = ["there is no runs.json"] if any(out.glob("seed-*")) else []
    if changes:
        raise FileExistsError(f"{out} holds other runs: {'; '.join(changes)}. Choose another folder (--out).")
    write_whole(path, (json.dumps(now, indent=1) + "\n").encode())


def summarise(seeds: list[int], results: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean, deviation, best and values of each figure that all runs have. The best loss or time is the smallest."""
    summary: dict[str, Any] = {"seeds": seeds}
    for name in results[0]:
        values: list[Any] = [result.get(name) for result in results]
        if name in _NOT_FIGURES or not all(type(value) in (int, float) for value in values):
            continue
        least = "loss" in name or name == "seconds"
        summary[name] = {
            "mean": statistics.mean(values),
            "deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            "best": min(values) if least else max(values),
            "values": values,
        }
    return summary
