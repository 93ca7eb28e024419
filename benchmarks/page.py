"""Write docs/benchmarks.md from what was measured: benchmarks/results/*.json and the logs beside the shipped weights.

python benchmarks/page.py; the built site is always as new as the results, through `on_page_markdown`.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "benchmarks.md"

HEAD = """# Benchmarks

Made by `python benchmarks/page.py` from `benchmarks/results/*.json`, and from what was saved with the shipped weights;
nothing here is typed by hand. Each script checks its results before it times anything; peers are of the same run. What
was predicted, what happened, and why, is in `benchmarks/NOTES.md`.

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


def weights() -> str:
    """The shipped networks: how they were trained, as saved beside them."""
    rows = []
    for path in sorted((ROOT / "gridless" / "pretrained").glob("*.json")):
        about = json.loads(path.read_text())
        if path.with_suffix(".safetensors").is_file() and path.with_suffix(".csv").is_file() and "results" in about:
            results = about["results"]
            held_out = results.get("valid_accuracy")
            shown = [results.get(k) for k in ("examples", "epochs", "seconds")]
            rows.append([path.stem, about["model"]["model"], *shown, "none" if held_out is None else f"{held_out:.2%}"])
    if not rows:
        return ""
    text = """## Shipped weights

Recipe and log lie beside the weights. Where no example was held out, the accuracy of the same recipe on a part that it
did not see is under *Accuracy*; the test splits of the data sets are no part of either.

"""
    return text + table(["weights", "network", "examples", "epochs", "seconds of training", "held-out accuracy"], rows)


def written() -> str:
    files = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    return "\n".join(part for part in (HEAD, weights(), *map(section, files)) if part)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """The hook of mkdocs: the built page is as new as the results."""
    return written() if page.file.src_uri == PAGE.name else markdown


if __name__ == "__main__":
    PAGE.write_text(written())
