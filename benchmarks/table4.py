"""Accuracy on ModelNet40 of ten seeds, the paper's Table 4: mean, deviation and best of both networks.

    python benchmarks/table4.py --data DIR [--seeds 10] [--out results/reproduction/table4.json]
                    (about an hour a row on an H200, four rows; `--only ROW` runs one; resumable)

`gridless train RECIPE --seeds 10` by the authors' recipe (plateau rule, 400 epochs, 32 augmentations of each cloud),
and by our own, for the large and the small network. Judged on the held-out tenth of the training clouds after the last
epoch: the official test split is not here. Runs go to --runs, and those that have ended are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from common import RESULTS, keep, machine

RUNS = {
    "large, the authors' recipe": "paper/modelnet40-large",
    "small, the authors' recipe": "paper/modelnet40-small",
    "large, our recipe": "modelnet40-large",
    "small, our recipe": "modelnet40-small",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, help="instead of the recipe's, for a trial")
    parser.add_argument("--runs", type=Path, default=Path("runs/table4"))
    parser.add_argument("--only", nargs="+", default=list(RUNS), help="these rows only")
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "table4.json")
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else {}
    for name in arguments.only:
        if name in rows:
            continue
        command = [sys.executable, "-m", "gridless", "train", RUNS[name], "--data", str(arguments.data)]
        command += ["--seeds", str(arguments.seeds), "--out", str(arguments.runs / name.replace(" ", "-"))]
        changes = ["validate_every=100", *([f"epochs={arguments.epochs}"] if arguments.epochs else [])]
        command += [word for change in changes for word in ("--set", change)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        summary = json.loads(process.stdout.splitlines()[-1])
        rows[name] = {key: summary[key] for key in ("seeds", "valid_accuracy", "seconds")}
        keep(arguments.out, {"machine": machine(), "rows": rows})
        print(name, rows[name]["valid_accuracy"], flush=True)


if __name__ == "__main__":
    main()
