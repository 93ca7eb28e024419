"""Accuracy on ModelNet40 of ten seeds, the paper's Table 4: mean, deviation and best of both networks.

    python benchmarks/table4.py --data DIR [--seeds 10] [--out results/reproduction/table4.json]
                    (about 12 minutes a row on an H200, four rows; `--only ROW` runs one; resumable)

`gridless train RECIPE --seeds 10` by the authors' rule (plateau, 400 epochs, augmentation anew in every epoch), and by
our own recipe, for the large and the small network. Judged on the held-out tenth of the training clouds after the last
epoch: the official test split is not here. Runs go to --runs, and those that have ended are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from common import RESULTS, keep, machine

AUTHORS = ["schedule=plateau", "epochs=400", "patience=20", "optimiser=adam", "learning_rate=0.001", "epsilon=1e-7"]
AUTHORS += ["l2=4e-5", "weight_decay=0.0", "smoothing=0.0", "clip=null", "norm_momentum=null", "average=null"]
RUNS = {
    "large, the authors' rule": ("modelnet40-large", AUTHORS),
    "small, the authors' rule": ("modelnet40-small", AUTHORS),
    "large, our recipe": ("modelnet40-large", []),
    "small, our recipe": ("modelnet40-small", []),
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
        recipe, changes = RUNS[name]
        command = [sys.executable, "-m", "gridless", "train", recipe, "--data", str(arguments.data)]
        command += ["--seeds", str(arguments.seeds), "--out", str(arguments.runs / name.replace(" ", "-"))]
        changes = [*changes, "validate_every=100", *([f"epochs={arguments.epochs}"] if arguments.epochs else [])]
        command += [word for change in changes for word in ("--set", change)]
        process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        summary = json.loads(process.stdout.splitlines()[-1])
        rows[name] = {key: summary[key] for key in ("seeds", "valid_accuracy", "seconds")}
        keep(arguments.out, {"machine": machine(), "rows": rows})
        print(name, rows[name]["valid_accuracy"], flush=True)


if __name__ == "__main__":
    main()
