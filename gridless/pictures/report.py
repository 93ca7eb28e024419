"""Report of a training run: learning curves, confusion matrix and a table of classes, from the files of its folder."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gridless.data.files import write_whole
from gridless.kernels.progress import shown


def report_run(out: str | Path, show: bool = True) -> Path | None:
    """Draw a run's folder: curves.png, confusion.png and report.html; print its table of classes to standard error.

    The run has `results.json`, whose `history` has one entry for each epoch; without it metrics.csv is read.
    `confusion` of the results, counts (C, C) of examples or points, gives the matrix and the table; `by_category`,
    figures by name, a table alone. Class names are in the results or in weights.json. Without matplotlib nothing is
    drawn.

    Args:
        out: the folder of the run.
        show: print the table.
    Returns:
        The path of report.html, or None without matplotlib.
    """
    out = Path(out)
    results = _json(out / "results.json")
    history = results.get("history") or _epochs(out)
    if not history:
        raise ValueError(f"report_run: {out} holds no run: it has neither a history in results.json nor metrics.csv")
    counts = np.array(results["confusion"]) if "confusion" in results else None
    about = _json(out / "weights.json")
    names = results.get("class_names") or about.get("parts") or about.get("class_names") or []
    names = [*map(shown, names)] or [str(k) for k in range(0 if counts is None else len(counts))]
    if counts is not None:
        table = class_table(counts, names, of_points="valid_mean_iou" in results)
    else:
        figures = results.get("by_category") or {}
        table = [["category", "mIoU"]] * bool(figures) + [[shown(k), f"{v:.1%}"] for k, v in figures.items()]
    if show and table:
        print("\n".join(_aligned(table)), file=sys.stderr, flush=True)
    try:
        return _draw(out, results, history, counts, names, table)
    except ImportError as error:
        print(f"gridless: no pictures of {out} ({error})", file=sys.stderr, flush=True)
        return None


def confusion_counts(labels: Any, answers: Any, classes: int) -> list[list[int]]:
    """The confusion matrix (C, C) as counts: rows are `labels` (N), columns are `answers` (N)."""
    at = np.asarray(labels, np.int64) * classes + np.asarray(answers, np.int64)
    return np.bincount(at, minlength=classes * classes).reshape(classes, classes).tolist()


def class_table(counts: np.ndarray, names: Sequence[str], of_points: bool = False) -> list[list[str]]:
    """A row for each class that has examples: their number, accuracy, precision, and the most frequent wrong answer.

    With `of_points`, counts are of points, and intersection over union stands beside them.
    """
    rows = [["class", "points" if of_points else "examples", "accuracy", "precision", "mistaken for"]]
    if of_points:
        rows[0].insert(4, "IoU")
    for k, name in enumerate(names):
        count, answered = counts[k].sum(), counts[:, k].sum()
        if not count:
            continue
        others = counts[k].copy()
        others[k] = 0
        wrong = f"{names[int(others.argmax())]} ({others.max()})" if others.max() else ""
        precision = f"{counts[k, k] / answered:.1%}" if answered else ""
        iou = [f"{counts[k, k] / (count + answered - counts[k, k]):.1%}"] if of_points else []
        rows.append([name, f"{count}", f"{counts[k, k] / count:.1%}", precision, *iou, wrong])
    return rows


def _draw(
    out: Path, results: dict[str, Any], history: list[dict[str, Any]], counts: np.ndarray | None,
    names: Sequence[str], table: list[list[str]],
) -> Path:  # fmt: skip
    from gridless.pictures import figures
    from gridless.pictures.page import Page, image, png

    accuracies = sorted({key for row in history for key in row if key.endswith(("accuracy", "iou"))})
    losses = sorted({key for row in history for key in row if key.endswith("loss")})
    drawn = {"curves.png": figures.learning(history, losses, accuracies)}
    if counts is not None:
        drawn["confusion.png"] = figures.confusion(counts, names)
    # Rendered once, for the files and for the page: that takes longer than a short run.
    pictures = {name: png(figure) for name, figure in drawn.items()}
    for name, picture in pictures.items():
        write_whole(out / name, picture)
    page = Page(f"Run {out.name}", f"{len(history)} epochs")
    kinds = {"valid_accuracy": "validation accuracy", "train_accuracy": "training accuracy"}
    page.figures([(f"{results[key]:.1%}", label) for key, label in kinds.items() if results.get(key) is not None])
    page.row(*(image(picture, name) for name, picture in pictures.items()))
    if table:
        page.heading("Classes")
        page.table(table[0], [list(row) for row in table[1:]])
    return page.save(out / "report.html")


def _epochs(out: Path) -> list[dict[str, Any]]:
    """One entry for each epoch, from metrics.csv."""
    path = out / "metrics.csv"
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as lines:
        return [{key: float(text) for key, text in row.items() if text} for row in csv.DictReader(lines)]


def _aligned(table: list[list[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in table) for k in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in table]


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8")) if path.is_file() else {}
