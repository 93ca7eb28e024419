"""Training with geometry from worker processes and from files: the same run, wherever geometry is made."""

from __future__ import annotations

import json

import pytest
import torch
from killing import KillAfter, Killed
from safetensors.torch import load_file

from gridless.cli.main import main
from gridless.tasks.classify import Classify
from gridless.tasks.loading import load_data
from gridless.tasks.recordings import ClassifyRecordings
from gridless.training.recipe import load_recipe
from gridless.training.run import run
from gridless.training.workers import WorkerLoader, precomputed

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SMALL = [
    "--set", "data_options.size=28", "--set", "data_options.held_out=14", "--set", "points=64",
    "--set", "batch_size=10", "--set", "model.width=8", "--set", "model.radius=0.4", "--set", "augment.drop=0.3",
    "--device", "cpu",
]  # fmt: skip


def train(out, *arguments: str) -> dict:
    assert main(["train", "shapes", "--out", str(out), "--epochs", "3", *SMALL, *arguments]) == 0
    return json.loads((out / "results.json").read_text())


@pytest.mark.slow
def test_a_run_ends_the_same_wherever_its_geometry_is_made(tmp_path, capsys):
    ways = {
        "online": [],
        "workers": ["--geometry", "workers", "--workers", "2"],
        "offline": ["--geometry", "offline", "--cache", str(tmp_path / "cache"), "--workers", "1"],
    }
    # Three epochs of two augmentations.
    results = {way: train(tmp_path / way, "--repeats", "2", *arguments) for way, arguments in ways.items()}
    for way in ("workers", "offline"):
        assert results[way]["history"] == results["online"]["history"], way
        for name, tensor in load_file(tmp_path / "online" / "weights.safetensors").items():
            assert torch.equal(load_file(tmp_path / way / "weights.safetensors")[name], tensor), (way, name)


def test_a_run_from_files_that_was_killed_goes_on_to_the_bit(recipe, clouds, tmp_path):

    recipe = recipe.changed(geometry="offline", repeats=2)
    settings = {"checkpoint_steps": 1, "progress": False, "workers": 0, "cache": tmp_path / "cache"}
    whole = run(recipe, clouds, None, tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        run(recipe, clouds, None, tmp_path / "cut", callbacks=[KillAfter(8)], **settings)
    resumed = run(recipe, clouds, None, tmp_path / "cut", resume=True, **settings)
    assert whole is not None
    assert resumed is not None
    assert whole["history"] == resumed["history"]


@pytest.mark.parametrize("geometry", ["online", "offline"])
def test_augmentations_recur_after_the_repeats(recipe, clouds, geometry, tmp_path):
    plan = recipe.make_model().plan
    recipe = recipe.changed(repeats=2)
    loader = Classify().loader(recipe, clouds, plan)
    if geometry == "offline":
        loader = WorkerLoader(loader, "cpu", cache=precomputed(recipe, Classify(), clouds, plan, tmp_path))
    sums = []
    for epoch in range(3):
        loader.epoch, loader.start = epoch, 0
        sums.append(sum(batch.geometry["X0"].coords.double().sum() for batch in loader))
    assert sums[0] == pytest.approx(sums[2])
    assert sums[0] != pytest.approx(sums[1])


def test_processes_divide_the_batches_of_a_cache(recipe, clouds, tmp_path):
    plan = recipe.make_model().plan
    cache = precomputed(recipe, Classify(), clouds, plan, tmp_path)
    places = [{"rank": rank, "world": 3} for rank in range(3)]
    parts = [
        list(WorkerLoader(Classify().loader(recipe, clouds, plan, **place), "cpu", cache=cache)) for place in places
    ]
    whole = list(Classify().loader(recipe, clouds, plan))
    for number, batch in enumerate(whole):
        mine = [part[number] for part in parts]
        assert torch.equal(torch.cat([m.labels for m in mine]), batch.labels)
        assert torch.equal(torch.cat([m.geometry["X1"].coords for m in mine]), batch.geometry["X1"].coords)
        assert sum(m.share for m in mine) == pytest.approx(3)


def test_recordings_may_be_made_ahead_too(tmp_path):
    transforms = [{"Rotate": 0.3}, {"Thin": 0.3}, "ReverseTime"]
    recipe = load_recipe("glyphs").changed(data_options__size=6, batch_size=3, repeats=1, transforms=transforms)
    data, plan = load_data(recipe, None, "fit"), recipe.make_model().plan
    task = ClassifyRecordings()
    online = list(task.loader(recipe, data, plan))
    cache = precomputed(recipe, task, data, plan, tmp_path)
    for settings in ({"workers": 1}, {"cache": cache}):
        loader = WorkerLoader(task.loader(recipe, data, plan), "cpu", **settings)
        for batch, expected in zip(loader, online, strict=True):
            assert torch.equal(batch.labels, expected.labels)
            for name, value in expected.geometry.items():
                for leaf, tensor in value.leaves().items():
                    if isinstance(tensor, torch.Tensor):
                        assert torch.equal(batch.geometry[name].leaves()[leaf], tensor), (name, leaf)


@pytest.mark.slow
def test_precompute_makes_what_train_then_reads(tmp_path, capsys):
    settings = [w for w in SMALL if w not in ("--device", "cpu")]
    where = ["--cache", str(tmp_path / "cache"), "--repeats", "2", "--workers", "0"]
    assert main(["precompute", "shapes", *settings, *where, "--json"]) == 0
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert captured.err == ""
    assert (result["examples"], result["repeats"]) == (28, 2)
    files = sorted((tmp_path / "cache").rglob("*.safetensors"))
    stamps = [path.stat().st_mtime_ns for path in files]
    assert len(files) == 2
    train(tmp_path / "run", *where, "--geometry", "offline")
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "cache").rglob("*.safetensors"))] == stamps


def test_another_augmentation_seed_or_data_is_another_folder(recipe, clouds, tmp_path):
    plan = recipe.make_model().plan
    keys = {
        precomputed(recipe.changed(repeats=1, **changes), Classify(), data, plan, tmp_path).key
        for changes, data in [
            ({}, clouds),
            ({"seed": 1}, clouds),
            ({"augment__jitter": 0.02}, clouds),
            ({"points": 40}, clouds),
            ({}, clouds.take(torch.arange(41))),
        ]
    }
    assert len(keys) == 5


def test_unknown_ways_are_refused(recipe):
    with pytest.raises(ValueError, match=r"geometry.*online, workers, offline.*'gpu'"):
        recipe.changed(geometry="gpu")
