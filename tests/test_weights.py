"""The JSON file beside weights is checked before anything is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import gridless as gl


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    gl.save(gl.models.PointResNet(2, width=8, levels=1, radius=0.4), tmp_path / "net", class_names=["a", "b"])
    return tmp_path / "net"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("recipe", "modelnet40-large", "`recipe`.*mapping.*'modelnet40-large'"),
        ("recipe", {"data_options": [1]}, r"`recipe\.data_options`.*mapping.*\[1\]"),
        ("class_names", "ab", "`class_names`.*list.*'ab'"),
        ("class_names", ["a", 2], "`class_names`.*text.*2"),
        ("values", [0, "x"], "`values`.*whole.*'x'"),
        ("task", 3, "`task`.*text.*3"),
        ("task", "recordings", "`task`.*'recordings'.*PointResNet.*'classify'"),
        ("model", {"classes": 2}, "`model`.*NAME"),
        ("model", {"model": "mine:Net", "arguments": [2]}, r"`model\.arguments`.*mapping.*\[2\]"),
    ],
)
@pytest.mark.parametrize("classes", [None, 2])
def test_entries_of_other_types_are_refused_by_name(saved: Path, name: str, value: Any, message: str, classes):
    file = saved.with_suffix(".json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.raises(ValueError, match=message):
        gl.load(saved, classes=classes)


def test_json_of_any_depth_is_refused_in_words(saved: Path):
    saved.with_suffix(".json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"net\.json.*JSON"):
        gl.load(saved)


def test_a_network_with_new_classes_keeps_its_task(saved: Path):
    assert gl.load(saved, classes=5).about["task"] == "classify"
