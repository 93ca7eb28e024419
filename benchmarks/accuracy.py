"""Collect what training runs reached on held-out examples: benchmarks/results/accuracy.json.

    python benchmarks/accuracy.py RUN/weights.json ... [--curve NAME=FILE ...]

Each run was made by `gridless train` without --all-data, so that a fixed part of the training examples was held out. A
curve is what `gridless evaluate NAME --split validation --points 32 --points 64 ... --json` printed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
# The authors' large network, on the test set, by number of points.
AUTHORS = {32: 0.4550, 64: 0.7472, 128: 0.8395, 256: 0.8849, 512: 0.8959, 1024: 0.9019}


def name_of(recipe: dict) -> str:
    """The shipped recipe that trains this model on this data."""
    from gridless.training.recipe import available, load_recipe

    key = {k: v for k, v in recipe["model"].items() if k in ("model", "head")}
    for name in available():
        other = load_recipe(name)
        if other.data == recipe["data"] and {k: v for k, v in other.model.items() if k in ("model", "head")} == key:
            return name
    raise SystemExit(f"no shipped recipe trains {key} on {recipe['data']}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+")
    parser.add_argument("--curve", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--device", default="NVIDIA H200, shared by several trainings at once")
    options = parser.parse_args()
    rows = []
    for path in options.runs:
        about = json.loads(path.read_text())
        results = about["results"]
        row = {"recipe": name_of(about["recipe"]), "held-out accuracy": round(results["valid_accuracy"], 4)}
        rows.append(
            row
            | {k: results[k] for k in ("examples", "epochs") if k in results}
            | {"seconds": round(results["seconds"])}
        )
    curves = dict(entry.split("=", 1) for entry in options.curve)
    read = {name: json.loads(Path(file).read_text()) for name, file in curves.items()}
    points = [
        {"points": n, **{name: round(curve[str(n)]["accuracy"], 4) for name, curve in read.items()}, "authors": authors}
        for n, authors in AUTHORS.items()
    ]
    content = {"about": {"device": options.device}, "held out": rows}
    if read:
        content["by number of points (the authors' on the test set)"] = points
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
