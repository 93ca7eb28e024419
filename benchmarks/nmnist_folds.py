"""Ten-fold cross-validated accuracy on N-MNIST: every recording is predicted once, by a network that never saw it.

    python benchmarks/nmnist_folds.py --data DIR --out OUT [--folds 10] [--jobs 5] [--recipe n-mnist] [--set NAME=VALUE]

Folds are stratified and seeded (`gridless.data.splits.folds`); each is trained by the recipe, from another seed, and
judged after the last epoch: nothing is chosen on the fold. Several folds run at once, each in a process of its own; on
a GPU they share it through MPS where that daemon can be started. Finished folds are kept in OUT and not run again.
Prints the accuracy over all recordings, and mean and spread over the folds; writes OUT/folds.json, and with `--row`
also a row of results/nmnist_folds.json. The page has `n-mnist` (`--set epochs=50`), and two rows with a further change
(`--set transforms=[]`, `--set start=WEIGHTS`).
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

from common import RESULTS, commit, keep, machine, mps


def one(fold: int, arguments: argparse.Namespace) -> None:
    """Train on the other folds; writes OUT/fold-N/fold.json with the predictions on this one."""
    import torch

    from gridless.cli.options import assignment, pick_device
    from gridless.data.splits import folds
    from gridless.tasks import find
    from gridless.training import load_recipe
    from gridless.training.run import run
    from gridless.weights import load

    device = pick_device(arguments.device)
    if device.type == "cpu":
        torch.set_num_threads(1)
    changes: dict[str, Any] = dict(assignment(c) for c in arguments.changes)
    recipe = load_recipe(arguments.recipe)
    recipe = recipe.changed(**{"seed": recipe.seed + fold, **changes})
    task = find(recipe.task_name)
    data = task.load(recipe, arguments.data, "train")
    if arguments.limit:
        data = data.take(torch.arange(min(arguments.limit, len(data))))
    which = torch.from_numpy(folds(data.labels.numpy(), arguments.folds))
    learn, held = (which != fold).nonzero()[:, 0], (which == fold).nonzero()[:, 0]
    out = arguments.out / f"fold-{fold}"
    results = run(recipe, data.take(learn), data.take(held), out, device=device, progress=False)
    assert results is not None
    model = load(out / "weights", device)
    mine = data.take(held).to(device)
    best = task.probabilities(model, mine, recipe).argmax(1)
    entry = {
        "fold": fold,
        "accuracy": (best == mine.labels).double().mean().item(),
        "rows": held.tolist(),
        "predictions": best.tolist(),
        "labels": mine.labels.tolist(),
        "train_accuracy": results["train_accuracy"],
        "seconds": results["seconds"],
    }
    (out / "fold.json").write_text(json.dumps(entry))


def command(fold: int, arguments: argparse.Namespace) -> list[str]:
    command = [sys.executable, __file__, "--one", str(fold), "--data", str(arguments.data), "--out", str(arguments.out)]
    command += ["--folds", str(arguments.folds), "--recipe", arguments.recipe, "--device", arguments.device]
    command += ["--limit", str(arguments.limit)] if arguments.limit else []
    return command + [word for change in arguments.changes for word in ("--set", change)]


def all_folds(arguments: argparse.Namespace) -> None:
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.device != "cpu" and arguments.jobs > 1:
        print("MPS:", mps(), flush=True)
    done = [n for n in range(arguments.folds) if (arguments.out / f"fold-{n}" / "fold.json").is_file()]
    waiting = [n for n in range(arguments.folds) if n not in done]
    running: dict[int, Any] = {}
    began = time.perf_counter()
    while waiting or running:
        while waiting and len(running) < arguments.jobs:
            fold = waiting.pop(0)
            log = open(arguments.out / f"fold-{fold}.log", "w")  # noqa: SIM115
            environment = {**os.environ, "OMP_NUM_THREADS": "2"}
            running[fold] = subprocess.Popen(
                command(fold, arguments), stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        time.sleep(1)
        for fold, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[fold]
            if process.returncode:
                tail = (arguments.out / f"fold-{fold}.log").read_text().splitlines()[-8:]
                print(f"fold {fold} failed:", *tail, sep="\n  ", flush=True)
                continue
            entry = json.loads((arguments.out / f"fold-{fold}" / "fold.json").read_text())
            print(
                f"{time.perf_counter() - began:.0f} s: fold {fold}: {entry['accuracy']:.4f} of {len(entry['rows'])}, "
                f"train {entry['train_accuracy']:.4f}, {entry['seconds']:.0f} s",
                flush=True,
            )
    report(arguments)


def report(arguments: argparse.Namespace) -> None:
    files = sorted(arguments.out.glob("fold-*/fold.json"), key=lambda p: int(p.parent.name.split("-")[1]))
    entries = [json.loads(path.read_text()) for path in files]
    if not entries:
        sys.exit("no fold was finished")
    right = [a == b for e in entries for a, b in zip(e["predictions"], e["labels"], strict=True)]
    each = [e["accuracy"] for e in entries]
    spread = statistics.stdev(each) if len(each) > 1 else 0.0
    summary = {
        "recipe": arguments.recipe,
        "changes": arguments.changes,
        "folds": f"{len(entries)} of {arguments.folds}",
        "recordings": len(right),
        "accuracy": sum(right) / len(right),
        "mean": statistics.mean(each),
        "spread": spread,
        "by_fold": each,
        "seconds": [e["seconds"] for e in entries],
    }
    (arguments.out / "folds.json").write_text(json.dumps(summary, indent=1) + "\n")
    if arguments.row is not None:
        known = json.loads(arguments.results.read_text()) if arguments.results.is_file() else {"rows": {}}
        known["rows"][arguments.row] = {
            "accuracy": summary["accuracy"],
            "spread over folds": spread,
            "by fold": each,
            "changes": arguments.changes,
            "commit": commit(),
        }
        keep(arguments.results, {"machine": machine(with_commit=False), "rows": known["rows"]})
    print(
        f"{summary['folds']} folds: {summary['accuracy']:.2%} of {len(right)} recordings; "
        f"mean {summary['mean']:.2%}, standard deviation over folds {spread:.2%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of N-MNIST, or of a pack of it")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=5)
    parser.add_argument("--recipe", default="n-mnist")
    parser.add_argument("--set", dest="changes", action="append", default=[], help="NAME=VALUE of the recipe")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, help="so many recordings only, for a trial")
    parser.add_argument("--row", help="keep the result under this name in --results")
    parser.add_argument("--results", type=Path, default=RESULTS / "nmnist_folds.json")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one is not None:
        one(arguments.one, arguments)
    else:
        all_folds(arguments)


if __name__ == "__main__":
    main()
