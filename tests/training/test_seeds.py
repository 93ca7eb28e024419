"""`gridless train RECIPE --seeds N`."""

from __future__ import annotations

import json
import statistics

import pytest

from gridless.cli.main import main
from gridless.training.seeds import summarise

WORDS = ["train", "shapes", "--epochs", "2", "--limit", "40", "--device", "cpu", "--set", "data_options.size=60"]
WORDS += ["--set", "data_options.held_out=20", "--set", "points=64"]


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_seed_is_a_run_of_its_own_and_the_summary_is_of_all(tmp_path, capsys):
    out = tmp_path / "runs"
    assert main([*WORDS, "--seeds", "2", "--seed", "5", "--out", str(out)]) == 0
    printed = json.loads(capsys.readouterr().out)
    runs = [json.loads((out / f"seed-{n}" / "results.json").read_text()) for n in (5, 6)]
    assert printed == json.loads((out / "seeds.json").read_text())
    assert printed["seeds"] == [5, 6]
    values = [run["valid_accuracy"] for run in runs]
    assert printed["valid_accuracy"]["values"] == values
    assert printed["valid_accuracy"]["mean"] == pytest.approx(statistics.mean(values))
    assert printed["valid_accuracy"]["best"] == max(values)
    assert runs[0]["train_loss"] != runs[1]["train_loss"]

    # The same command with one seed more keeps what is there.
    before = (out / "seed-5" / "results.json").stat().st_mtime_ns
    assert main([*WORDS, "--seeds", "3", "--seed", "5", "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["seeds"] == [5, 6, 7]
    assert (out / "seed-5" / "results.json").stat().st_mtime_ns == before

    # The figures of other runs would be taken for those of this one.
    assert main([*WORDS, "--seeds", "2", "--seed", "5", "--epochs", "3", "--out", str(out)]) == 1
    assert "recipe.epochs is 3, was 2" in capsys.readouterr().err
    assert main([*WORDS, "--seeds", "2", "--seed", "5", "--limit", "30", "--out", str(out)]) == 1
    assert "limit is 30, was 40" in capsys.readouterr().err
    (out / "runs.json").unlink()
    assert main([*WORDS, "--seeds", "2", "--seed", "5", "--out", str(out)]) == 1
    assert "Choose another folder (--out)" in capsys.readouterr().err
    assert (out / "seed-5" / "results.json").stat().st_mtime_ns == before


def test_a_summary_has_mean_deviation_and_best_of_figures_only():
    runs = [{"valid_accuracy": a, "train_loss": b, "epochs": 3, "history": []} for a, b in ((0.8, 1.0), (0.9, 2.0))]
    summary = summarise([0, 1], runs)
    assert set(summary) == {"seeds", "valid_accuracy", "train_loss"}
    assert summary["valid_accuracy"]["mean"] == pytest.approx(0.85)
    assert summary["valid_accuracy"]["deviation"] == pytest.approx(statistics.stdev([0.8, 0.9]))
    assert summary["train_loss"]["best"] == 1.0


def test_seeds_are_not_for_several_devices(tmp_path, capsys):
    assert main([*WORDS, "--seeds", "2", "--devices", "2", "--out", str(tmp_path / "runs")]) == 1
    assert "--seeds 2" in capsys.readouterr().err
