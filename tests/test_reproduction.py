"""The page Reproduction: made from results, and in step with the shipped weights."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from gridless.training.recipe import load_recipe

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import ablations  # noqa: E402
import reproduction  # noqa: E402


@pytest.mark.parametrize("name", reproduction.PAGES)
def test_pages_are_as_new_as_their_results(name):
    assert (ROOT / "docs" / name).read_text() == reproduction.PAGES[name]()


def test_every_chart_of_the_pages_is_drawn_with_them(tmp_path):
    text = "".join(make() for make in reproduction.PAGES.values())
    assert set(re.findall(r"images/(\w+\.png)", text)) == reproduction.charts().keys()
    for name, draw in reproduction.charts().items():
        draw(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_official_figures_are_those_that_the_shipped_weights_tell():
    official = json.loads((ROOT / "benchmarks/results/official.json").read_text())["weights"]
    shipped = {path.stem: json.loads(path.read_text()) for path in (ROOT / "gridless/pretrained").glob("*.json")}
    assert official.keys() == shipped.keys()
    for name, row in official.items():
        figures = {key: value for key, value in row.items() if key not in ("on", "paper")}
        assert figures == {key: shipped[name]["test"][key] for key in figures}, name


def test_every_step_writes_the_file_it_is_named_by_and_its_script_is_there():
    assert all(step.file.stem == step.name for step in reproduction.STEPS if step.name != "figures")
    names = [step.name for step in reproduction.STEPS]
    assert len(set(names)) == len(names)
    for step in reproduction.STEPS:
        assert (ROOT / step.command.split()[1]).is_file(), step.command
    for row in reproduction.ROWS:
        assert row.step in {"", *names, *reproduction.load()}


def test_a_row_without_results_says_so(monkeypatch):
    monkeypatch.setattr(reproduction, "load", lambda: {"official": {"how": "", "weights": {}}})
    text = reproduction.page()
    assert "| Table 2" in text
    assert text.count("not run yet") >= len(reproduction.ROWS) - 2


@pytest.mark.parametrize(("name", "changes"), [*ablations.VARIANTS.items(), *ablations.DENSITY.items()])
def test_every_ablation_is_a_recipe_that_builds_its_network(name, changes):
    recipe = load_recipe("modelnet40-large").changed(**changes)
    inner = {key.removeprefix("model__"): value for key, value in changes.items() if key.startswith("model__")}
    assert recipe.make_model().config.get("choices", {}) == inner


def test_an_ablation_table_has_means_deviations_and_times():
    runs = [{"name": "a", "seed": k, "accuracy": {"1024": v}} for k, v in enumerate((0.8, 0.9))]
    (row,) = ablations.table(runs, {"a": {"seconds_per_epoch": 1.0}}, {"a": {}, "b": {}})
    assert row["1024"]["mean"] == pytest.approx(0.85)
    assert row["1024"]["deviation"] == pytest.approx(0.0707, abs=1e-3)
    assert row["seconds_per_epoch"] == 1.0
