"""The report of a training run."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from gridless.pictures.report import class_table, confusion_counts, report_run

HISTORY = [
    {"epoch": 0, "train_loss": 2.0, "train_accuracy": 0.3, "learning_rate": 0.001},
    {"epoch": 1, "train_loss": 1.0, "train_accuracy": 0.6, "valid_accuracy": 0.5, "learning_rate": 0.001},
]
LABELS, ANSWERS = [0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 2, 2]


@pytest.fixture
def folder(tmp_path):
    counts = confusion_counts(LABELS, ANSWERS, 3)
    results = {"train_accuracy": 0.6, "valid_accuracy": 0.5, "history": HISTORY, "confusion": counts}
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / "weights.json").write_text(json.dumps({"class_names": ["chair", "table", "lamp"]}))
    return tmp_path


def test_a_run_is_drawn_and_its_classes_are_printed(folder, capsys):
    page = report_run(folder)
    assert page == folder / "report.html"
    for name in ("curves.png", "confusion.png"):
        assert (folder / name).read_bytes()[:4] == b"\x89PNG"
    text = page.read_text()
    assert text.count("<img") == 2
    assert "50.0%" in text
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].split() == ["class", "examples", "accuracy", "precision", "mistaken", "for"]
    assert lines[1].split() == ["chair", "3", "66.7%", "100.0%", "table", "(1)"]


def test_a_run_without_a_history_is_read_from_its_log(folder, capsys):
    (folder / "results.json").unlink()
    (folder / "metrics.csv").write_text("epoch,train_loss,valid_accuracy\n1,2.0,0.4\n2,1.0,\n")
    report_run(folder)
    assert (folder / "curves.png").is_file()
    assert not (folder / "confusion.png").exists()
    assert capsys.readouterr().err == ""


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"report_run: {tmp_path}"):
        report_run(tmp_path)


def test_without_matplotlib_a_run_still_has_its_table(folder, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert report_run(folder) is None
    said = capsys.readouterr().err
    assert "chair" in said
    assert "matplotlib" in said


def test_classes_that_were_never_shown_are_left_out():
    table = class_table(np.array([[2, 0, 1], [0, 0, 0], [0, 0, 4]]), ["a", "b", "c"])
    assert [row[0] for row in table[1:]] == ["a", "c"]
    assert table[1][3:] == ["100.0%", "c (1)"]


def test_points_have_an_intersection_over_union_and_categories_a_table(tmp_path, capsys):
    results = {"history": HISTORY, "valid_mean_iou": 0.5, "confusion": [[3, 1], [0, 4]]}
    (tmp_path / "results.json").write_text(json.dumps(results))
    report_run(tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].split()[:5] == ["class", "points", "accuracy", "precision", "IoU"]
    assert lines[1].split() == ["0", "4", "75.0%", "100.0%", "75.0%", "1", "(1)"]
    assert lines[2].split() == ["1", "4", "100.0%", "80.0%", "80.0%"]
    (tmp_path / "results.json").write_text(json.dumps({"history": HISTORY, "by_category": {"chair": 0.875}}))
    report_run(tmp_path)
    assert [line.split() for line in capsys.readouterr().err.splitlines()] == [["category", "mIoU"], ["chair", "87.5%"]]
