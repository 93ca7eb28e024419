"""Accuracy on held-out examples by number of points: benchmarks/results/accuracy.json.

    python benchmarks/accuracy.py NAME=FILE ...

A file is what `gridless evaluate NAME --split validation --points 32 --points 64 ... --json` printed. The run was made
by `gridless train` without --all-data, so that a fixed part of the training examples was held out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

RESULTS = Path(__file__).parent / "results" / "accuracy.json"
# The authors' large network, on the test set, by number of points.
AUTHORS = {32: 0.4550, 64: 0.7472, 128: 0.8395, 256: 0.8849, 512: 0.8959, 1024: 0.9019}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("curves", nargs="+", metavar="NAME=FILE")
    parser.add_argument("--device", default="NVIDIA H200, shared by several trainings at once")
    options = parser.parse_args()
    curves = dict(entry.split("=", 1) for entry in options.curves)
    read = {name: json.loads(Path(file).read_text()) for name, file in curves.items()}
    content = json.loads(RESULTS.read_text()) | {"about": {"device": options.device}}
    content["by number of points (the authors' on the test set)"] = [
        {"points": n, **{name: round(curve[str(n)]["accuracy"], 4) for name, curve in read.items()}, "authors": authors}
        for n, authors in AUTHORS.items()
    ]
    RESULTS.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
