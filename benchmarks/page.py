"""Write docs/benchmarks.md and docs/models.md from what was measured: benchmarks/results/*.json and shipped weights.

python benchmarks/page.py; the built site is always as new as the results, through `on_page_markdown`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

HEAD = """# Benchmarks

Made by `python benchmarks/page.py` from `benchmarks/results/*.json`; nothing here is typed by hand. Each script checks
its results before it times anything; peers are of the same run. What was predicted, what happened, and why, is in
`benchmarks/NOTES.md`. Shipped weights have [cards](models.md).

Figures from the two-core machine were taken while other work ran on it, most of them as the CPU time of the process:
compare ratios, not absolute figures.
"""


def number(value: Any) -> str:
    """Four digits that mean something."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "not measured"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).replace("|", "/")
    if isinstance(value, int) or (abs(value) >= 1000 and math.isfinite(value)):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(columns: list[str], rows: list[list[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([number(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every number of a nested dict with the names that lead to it; a list of numbers is kept together."""
    if isinstance(value, dict):
        return [leaf for name, part in value.items() for leaf in leaves(part, (*path, str(name)))]
    if isinstance(value, list):
        known = [v for v in value if not (isinstance(v, float) and math.isnan(v))]
        return [(path, ", ".join(number(v) for v in known))]
    return [(path, value)]


def rendered(value: Any) -> str:
    """A list of dicts as one row each; a dict of dicts as rows by name; anything else as name and number."""
    if isinstance(value, list) and all(isinstance(row, dict) for row in value):
        flat = [{" ".join(path): leaf for path, leaf in leaves(row)} for row in value]
        columns = list(dict.fromkeys(name for row in flat for name in row))
        return table(columns, [[row.get(name, "") for name in columns] for row in flat])
    if isinstance(value, dict) and value and all(isinstance(row, dict) for row in value.values()):
        return rendered([{"": name, **row} for name, row in value.items()])
    return table(["", ""], [[", ".join(path), leaf] for path, leaf in leaves(value)])


def section(path: Path) -> str:
    """One file: on which machine, at which commit, and all that it holds."""
    content = json.loads(path.read_text())
    about = {
        k: content.pop(k)
        for k in ("about", "machine", "device", "commit", "date", "unit", "threads", "data")
        if k in content
    }
    content.pop("options", None)
    words = "; ".join(f"{' '.join(names)}: {number(leaf)}" for names, leaf in leaves(about) if leaf not in (None, ""))
    parts = [f"## {path.stem.replace('_', ' ').capitalize()}\n", words + "\n"]
    single = {k: v for k, v in content.items() if not isinstance(v, dict | list)}
    if single:
        parts.append(rendered(single))
    for name, value in content.items():
        if name not in single:
            parts += ([f"### {name}\n"] if len(content) > 1 else []) + [rendered(value)]
    return "\n".join(parts)


CARDS = """# Shipped weights

A card for each of the weights that come with the package, made by `python benchmarks/page.py` from the JSON file beside
them, which also holds the whole recipe; the log is the CSV file there. `gl.load(NAME)` gives the network.

Held-out figures are of the same recipe on training examples that it did not see. Weights that were trained on all
official training examples have then seen those too; the others are the very network that was judged. Official test
splits were never used here, neither to train nor to choose.
"""
# name in a recipe -> (title, terms)
DATA = {
    "modelnet40": ("ModelNet40, PointNet++'s release, xyz of the first 1,024 points", "for research (Princeton)"),
    "n_cars": ("N-Cars, 100 ms recordings", "for research (Prophesee); ask Prophesee for anything else"),
    "shapenetpart": ("ShapeNetPart, xyz of 2,048 points", "for research (ShapeNet's terms)"),
}
FIGURES = {
    "accuracy": "accuracy",
    "mean_class_accuracy": "mean over classes",
    "instance_iou": "instance mIoU",
    "category_iou": "category mIoU",
}


def figures(result: dict[str, Any] | None) -> str:
    """A result as words: its figures, with their spread over seeds where there are several, and how it was had."""
    if result is None:
        return "not known"
    parts = [f"{100 * result[k]:.2f} % {words}" for k, words in FIGURES.items() if k in result]
    if "spread" in result:
        parts.append(f"standard deviation {100 * result['spread']:.2f} over {len(result['seeds'])} seeds")
    elif "seeds" in result:
        parts.append("one seed" if len(result["seeds"]) == 1 else f"mean of {len(result['seeds'])} seeds")
    return "; ".join([", ".join(parts), *([result["how"]] if "how" in result else [])])


def card(name: str, about: dict[str, Any]) -> str:
    recipe, results = about["recipe"], about["results"]
    title, terms = DATA[recipe["data"]]
    everything = " --all-data" if about.get("split") == "train" else ""
    begun = f", begun with `{recipe['start']}`" if recipe.get("start") else ""
    split = {"train": "all official training examples", "fit": "the part `fit` of the training examples"}
    trained = f"{split.get(about.get('split', ''), 'training examples')}, {results['examples']:,} of them"
    rows = [
        ["network", f"{about['model']['model']}, {about['cost']['parameters']:,} parameters"],
        ["data", title],
        ["terms", terms],
        ["trained on", trained],
        ["training", f"{results['epochs']} epochs, {results['seconds']:.0f} s, seed {recipe['seed']}{begun}"],
        ["official test", figures(about.get("test"))],
        ["held out", figures(about.get("held_out"))],
        *([what, value] for what, value in about["cost"].items() if what != "parameters"),
    ]
    chosen = "".join(f" --set data_options.{k}={v}" for k, v in recipe["data_options"].items())
    commands = [f"gridless train {name} --data DIR{everything}{chosen} --out runs/{name}"]
    commands.append(f"gridless evaluate {name} --data DIR --split test")
    return f"## {name}\n\n{table(['', ''], rows)}\n```sh\n" + "\n".join(commands) + "\n```\n"


def cards() -> str:
    found = {path.stem: json.loads(path.read_text()) for path in sorted((ROOT / "gridless/pretrained").glob("*.json"))}
    return "\n".join([CARDS, *(card(name, about) for name, about in found.items())])


def benchmarks() -> str:
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return "\n".join([HEAD, *map(section, files)])


PAGES = {"benchmarks.md": benchmarks, "models.md": cards}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The hook of mkdocs: the built pages are as new as the results."""
    return PAGES[page.file.src_uri]() if page.file.src_uri in PAGES else markdown


if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / name).write_text(made())
