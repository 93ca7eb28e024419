"""`gridless stats`."""

from __future__ import annotations

import json

import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.cli.stats import as_text, collect


def test_statistics_of_clouds_are_those_of_their_plans(capsys, tmp_path):
    chart = tmp_path / "levels.png"
    command = ["stats", "shapes", "--limit", "5", "--set", "data_options.size=40", "--set", "points=200"]
    assert main([*command, "--json", "--out", str(chart)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["examples"] == 5
    assert chart.stat().st_size > 1000
    plan = gl.training.load_recipe("shapes").make_model().plan
    assert [line.split()[0] for line in result["lines"]] == [str(name) for name in plan.steps]
    assert result["lines"]["X0 points"]["rows"] == {"median": 200, "mean": 200, "max": 200}
    first = next(v for k, v in result["lines"].items() if k.startswith("N00"))
    assert first["rows"]["mean"] == pytest.approx(200 * first["neighbours"]["mean"])
    assert first["neighbours"]["max"] >= first["neighbours"]["mean"] >= 1


def test_medians_and_maxima_are_over_targets_and_examples():
    recipe = gl.training.load_recipe("shapes").changed(data_options__size=20, points=100)
    result = collect("shapes", limit=20, changes=["data_options.size=20", "points=100"])
    model = recipe.make_model()
    from gridless.tasks.loading import load_data

    data = load_data(recipe, None, "train")
    # In the order of training, on which samples depend.
    assert recipe.augment.shuffle
    shuffle = gl.training.Policy(shuffle=True)
    geometries = [model.plan(data.draw(shuffle, 0, 0, torch.tensor([i]))) for i in range(len(data))]
    in_order = [model.plan(data.draw(None, 0, 0, torch.tensor([i]))) for i in range(len(data))]
    assert [len(g["X1"]) for g in geometries] != [len(g["X1"]) for g in in_order]
    assert result["examples"] == len(data)
    for line in ("X1", "N01"):
        key = next(k for k in result["lines"] if k.split()[0] == line)
        sizes = torch.tensor([len(g[line]) for g in geometries]).double()
        assert result["lines"][key]["rows"]["mean"] == pytest.approx(sizes.mean().item())
        assert result["lines"][key]["rows"]["max"] == sizes.max()
        assert result["lines"][key]["rows"]["median"] == pytest.approx(sizes.quantile(0.5).item())
    counts = torch.cat([g["N01"].counts for g in geometries]).double()
    key = next(k for k in result["lines"] if k.split()[0] == "N01")
    assert result["lines"][key]["neighbours"]["median"] == counts.quantile(0.5)


@pytest.mark.slow
def test_event_networks_are_counted_with_the_papers_window():
    result = collect("glyphs", limit=3)
    lines = result["lines"]
    assert lines["X0 events"]["rows"]["median"] > lines["X2 lif"]["rows"]["median"] > 0
    assert any(line.endswith("causal") and "neighbours" in values for line, values in lines.items())
    assert "neighbours mean" in as_text(result)


def test_a_chart_of_another_kind_is_refused(capsys, tmp_path):
    # Before any data is read.
    assert main(["stats", "no-such-recipe", "--out", str(tmp_path / "levels.gif")]) == 1
    assert "levels.gif" in capsys.readouterr().err
