"""`gridless stats` of the data that is here, for the page Reproduction: the paper's Table 7.

python benchmarks/stats.py --data DIR [--out results/reproduction/stats.json]     (2 minutes on two cores)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from common import RESULTS, keep, machine

from gridless.cli.stats import collect

RECIPES = ("n-mnist", "n-cars-voxel", "modelnet40-large", "modelnet40-small")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipes", nargs="+", default=RECIPES)
    parser.add_argument("--limit", type=int, help="so many examples of each only")
    parser.add_argument("--out", type=Path, default=RESULTS / "reproduction" / "stats.json")
    arguments = parser.parse_args()
    rows = json.loads(arguments.out.read_text())["rows"] if arguments.out.is_file() else {}
    for name in arguments.recipes:
        if name not in rows:
            rows[name] = collect(name, arguments.data, limit=arguments.limit)
            keep(arguments.out, {"machine": machine(), "rows": rows})


if __name__ == "__main__":
    main()
