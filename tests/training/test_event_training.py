"""Event networks train through the same loop, loaders, checkpoints and commands as the networks on clouds."""

from __future__ import annotations

import importlib
import json
import os
import re

import numpy as np
import pytest
import torch
from killing import KillAfter, Killed, weights

import gridless as gl
from gridless.cli.main import main
from gridless.structures import Events
from gridless.tasks.loading import load_data
from gridless.tasks.recordings import ClassifyRecordings, chain, fitted
from gridless.training import Recipe, load_recipe
from gridless.training.examples import Recordings
from gridless.training.loader import Loader
from gridless.training.run import run
from gridless.training.step import make_step

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

MODEL = {
    "model": "EventResNet", "classes": 10, "sensor": [16, 16], "width": 4, "levels": 2, "pooled": 0, "threshold": 0.8,
    "reset": -1.0, "dropout": 0.1,
}  # fmt: skip


TASK = ClassifyRecordings()


def recipe(head: str = "stream", **changes) -> Recipe:
    values = {
        "model": {**MODEL, "head": head},
        "data": "glyphs",
        "data_options": {"size": 40, "held_out": 10, "sensor": [16, 16]},
        "epochs": 2,
        "batch_size": 16,
        "learning_rate": 0.01,
        "average": 0.9,
        "schedule": "cosine",
        "norm_momentum": 0.1,
        "validate_every": 1,
    }
    return Recipe.from_dict({**values, **changes})


@pytest.fixture(scope="module")
def glyphs() -> Recordings:
    return TASK.load(recipe(data_options={"size": 40, "sensor": [16, 16]}), None, "fit")


# Recordings and their loader.


def test_recordings_are_cut_in_the_order_asked_for(glyphs):
    index = torch.tensor([7, 0, 7, 39])
    weighed = Events.of(glyphs.events, weight=torch.arange(len(glyphs.events)))
    data = Recordings.of(weighed, glyphs.labels, glyphs.class_names)
    events = data.cut(index)
    for at, i in enumerate(index.tolist()):
        mine, whole = events.examples[at], weighed.examples[i]
        assert torch.equal(mine.rows["weight"], whole.rows["weight"])
        assert torch.equal(mine.pixel, whole.pixel)
        assert torch.equal(mine.time, whole.time)
        assert torch.equal(mine.polarity, whole.polarity)
    # The fingerprint of geometry files covers them, too.
    assert any(tensor is weighed.rows["weight"] for tensor in data.tensors())
    assert torch.equal(glyphs.take(index).labels, glyphs.labels[index])


def test_a_loader_without_augmentation_leaves_recordings_as_they_are(glyphs):
    plan = gl.Plan()
    stream = plan.events((16, 16))
    loader = gl.training.Loader(glyphs, plan, 16, shuffle=False)
    joined = gl.collate([batch.geometry[stream] for batch in loader])
    assert torch.equal(joined.pixel, glyphs.events.pixel)
    assert torch.equal(joined.time, glyphs.events.time)
    assert torch.equal(joined.splits, glyphs.events.splits)


def test_faulty_recordings_and_labels_are_refused(glyphs):
    with pytest.raises(ValueError, match=r"40 recordings.*39 labels"):
        Recordings.of(glyphs.events, glyphs.labels[:-1], glyphs.class_names)
    outside = Events(
        torch.tensor([[3, 99]], dtype=torch.int32),
        torch.tensor([0]),
        torch.tensor([True]),
        torch.tensor([0, 1]),
        (8, 8),
    )
    with pytest.raises(ValueError, match=r"recording 0.*\(3, 99\)"):
        Recordings.of(outside, torch.tensor([0]), ["one"])


def test_a_loader_begun_in_mid_epoch_yields_what_the_whole_epoch_has_there(glyphs):
    settings = recipe(transforms=["ReverseTime", {"Rotate": 0.4}, {"Thin": 0.5}])
    plan = settings.make_model().plan
    whole = TASK.loader(settings, glyphs, plan)
    batches = [*whole, *whole]
    assert whole.state_dict() == {"epoch": 2, "start": 0}
    again = TASK.loader(settings, glyphs, plan)
    again.load_state_dict({"epoch": 1, "start": 1})
    for a, b in zip(batches[4:], again, strict=True):
        for x, y in zip(a.group.tensors(), b.group.tensors(), strict=True):
            assert torch.equal(x, y)
    # Another epoch has another order and other augmentation.
    assert len(batches[0].geometry["X0"]) != len(batches[3].geometry["X0"])


def test_an_evaluation_sees_every_recording_once_in_order_and_as_it_is(glyphs):
    settings = recipe(transforms=[{"Thin": 0.9}])
    loader = TASK.loader(settings, glyphs, settings.make_model().plan, train=False)
    batches = list(loader)
    assert torch.equal(torch.cat([b.labels for b in batches]), glyphs.labels)
    assert sum(len(b.geometry["X0"]) for b in batches) == len(glyphs.events)


def test_the_first_vote_is_on_recordings_as_they_are(glyphs):
    model, few = recipe().make_model(), glyphs.take(torch.arange(4))
    thinned = recipe(transforms=[{"Thin": 0.5}])
    once, plain, twice = (
        TASK.probabilities(model, few, r, votes=n) for r, n in ((thinned, 1), (recipe(), 1), (thinned, 2))
    )
    assert torch.equal(once, plain)
    assert not torch.equal(once, twice)


def test_processes_divide_a_batch_of_recordings(glyphs):
    settings = recipe(batch_size=10)
    plan = settings.make_model().plan
    whole = list(TASK.loader(settings, glyphs, plan))
    parts = [list(TASK.loader(settings, glyphs, plan, rank=r, world=3)) for r in range(3)]
    for number, batch in enumerate(whole):
        mine = [part[number] for part in parts]
        assert torch.equal(torch.cat([b.labels for b in mine]), batch.labels)
        assert sum(b.share for b in mine) == pytest.approx(3)


def test_transforms_of_a_recipe_come_before_the_preparation():
    steps = chain(recipe(data="n_mnist", transforms=["ReverseTime", {"Zoom": [0.9, 1.1]}]), train=True).steps
    assert [type(s).__name__ for s in steps] == ["ReverseTime", "Zoom", "Recentre", "StartAtZero"]
    assert (steps[1].low, steps[1].high) == (0.9, 1.1)
    assert type(chain(recipe(data="n_mnist"), train=True).steps[0]).__name__ == "ReverseTime"
    assert [type(s).__name__ for s in chain(recipe(data="n_mnist"), train=False).steps] == ["Recentre", "StartAtZero"]


def test_what_a_recipe_prepares_is_done_in_training_and_afterwards():
    settings = recipe(data="n_mnist", transforms=["ReverseTime"], prepare=[{"PoolPixels": 2}])
    names = [[type(step).__name__ for step in chain(settings, train).steps] for train in (True, False)]
    assert names == [
        ["ReverseTime", "PoolPixels", "Recentre", "StartAtZero"],
        ["PoolPixels", "Recentre", "StartAtZero"],
    ]
    with pytest.raises(ValueError, match=r"prepare.*recordings"):
        load_recipe("shapes").changed(prepare=["ToOrigin"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transforms": ["Tilt"]}, "transforms.*'Tilt'.*Crop, Erase, FirstEvents, "),
        ({"transforms": [{"Zoom": 2}]}, "transforms: Zoom: "),
        ({"augment": {"jitter": 0.1}}, "augment.*clouds"),
        ({"data": "mnist"}, "data.*modelnet40, .*'mnist'"),
    ],
)
def test_what_a_recipe_cannot_mean_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


def test_rates_are_not_pulled_towards_zero():
    model = recipe().make_model()
    decayed, free = recipe(l2=1e-4).make_optimiser(model).param_groups
    assert decayed["weight_decay"] == 2e-4
    assert free["weight_decay"] == 0
    rates = {id(p) for name, p in model.named_parameters() if name.endswith("log_rate")}
    assert rates
    assert rates <= {id(p) for p in free["params"]}


# Training.


@pytest.mark.parametrize("head", ["stream", "voxel"])
def test_a_few_glyphs_are_learned(head, glyphs):
    few = glyphs.take(torch.tensor([0, 1, 4, 10, 11, 14, 20, 21, 24, 30, 31, 34]))
    settings = recipe(head, batch_size=12, model={**MODEL, "head": head, "dropout": 0.0})
    model = settings.make_model().train()
    step = make_step(settings, model, settings.make_optimiser(model), None, capture=False)
    losses, right = [], []
    for epoch in range(25):
        loader = TASK.loader(settings, few, model.plan)
        loader.epoch = epoch
        for batch in loader:
            step(batch)
        loss, accuracy = step.read()
        losses.append(loss)
        right.append(accuracy)
    assert losses[-1] < 0.6 * losses[0]
    # Three classes of ten, four recordings each.
    assert max(right[-3:]) > 0.8


@pytest.mark.parametrize("head", ["stream", "voxel"])
@pytest.mark.parametrize("silent", [[0], [0, 1, 2]])
def test_a_batch_in_which_recordings_fire_nothing_still_trains(head, silent, glyphs):
    some = glyphs.take(torch.arange(3))
    # One event of the silent ones remains, which fires nothing.
    at = torch.arange(len(some.events)) - some.splits[:-1][some.events.example]
    quiet = torch.isin(some.events.example, torch.tensor(silent))
    data = Recordings.of(some.events[~quiet | (at < 1)], some.labels, some.class_names)
    settings = recipe(head, model={**MODEL, "head": head, "threshold": 1.2})
    model = settings.make_model().train()
    step = make_step(settings, model, settings.make_optimiser(model), None, capture=False)
    for batch in TASK.loader(settings, data, model.plan):
        last = max(name for name in batch.geometry if name.startswith("X"))
        assert (batch.geometry[last].sizes == 0).sum() == len(silent)
        step(batch)
    loss, _ = step.read()
    assert np.isfinite(loss)
    for name, tensor in model.state_dict().items():
        assert tensor.isfinite().all(), name
    assert model.eval()(model.plan(data.events)).isfinite().all()


def test_a_run_killed_in_mid_epoch_and_resumed_ends_with_the_same_weights(glyphs, tmp_path):
    settings = recipe(transforms=["ReverseTime", {"Rotate": 0.4}])
    how = {"device": "cpu", "checkpoint_steps": 1, "progress": False}
    whole = run(settings, glyphs, glyphs, tmp_path / "whole", **how)
    with pytest.raises(Killed):
        run(settings, glyphs, glyphs, tmp_path / "cut", callbacks=[KillAfter(4)], **how)
    resumed = run(settings, glyphs, glyphs, tmp_path / "cut", resume=True, **how)
    for (name, a), b in zip(weights(tmp_path / "whole").items(), weights(tmp_path / "cut").values(), strict=True):
        assert torch.equal(a, b), name
    assert whole["history"] == resumed["history"]
    assert [entry["epoch"] for entry in whole["history"]] == [1, 2]
    assert all({"train_loss", "train_accuracy", "valid_accuracy"} <= set(entry) for entry in whole["history"])


def test_idle_openmp_threads_sleep_unless_the_user_says_otherwise(monkeypatch):
    from gridless.kernels import openmp

    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    importlib.reload(openmp)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    importlib.reload(openmp)
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"


# Commands and recipes.


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    settings = recipe()
    run(settings, load_data(settings, None, "fit"), load_data(settings, None, "validation"), out, progress=False)
    return out / "weights.safetensors"


def test_evaluate_reports_the_accuracy_that_training_ended_with(trained, capsys):
    assert main(["evaluate", str(trained), "--split", "validation", "--json", "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    results = json.loads((trained.parent / "results.json").read_text())
    assert scores["examples"] == 10
    assert scores["accuracy"] == pytest.approx(results["valid_accuracy"])
    assert main(["evaluate", str(trained), "--split", "fit", "--votes", "3", "--device", "cpu"]) == 0
    assert "of 40 recordings" in capsys.readouterr().out
    assert main(["evaluate", str(trained), "--points", "10", "--device", "cpu"]) != 0
    assert re.search(f"--points.*{trained}", capsys.readouterr().err)


def test_predict_names_the_class_of_a_recording_in_a_file(trained, glyphs, tmp_path, capsys):
    one = glyphs.events.examples[3]
    np.save(tmp_path / "three.npy", one.numpy())
    assert main(["predict", str(tmp_path / "three.npy"), "--weights", str(trained), "--json", "--device", "cpu"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert list(line["probabilities"]) == list("0123456789")
    model = gl.load(trained)
    expected = model(model.plan(one)).softmax(1)[0]
    torch.testing.assert_close(torch.tensor(list(line["probabilities"].values())), expected)


def test_a_recording_of_a_larger_camera_is_refused(glyphs):
    with pytest.raises(ValueError, match=r"a\.dat.*16 x 16.*8 x 8"):
        fitted(glyphs.events.examples[0], (8, 8), "a.dat")


def test_training_on_a_real_data_set_needs_its_folder(capsys, tmp_path):
    assert main(["train", "n-mnist", "--out", str(tmp_path)]) == 1
    assert re.search("n_mnist.*--data", capsys.readouterr().err)
    assert main(["train", "own-recordings", "--out", str(tmp_path)]) == 1
    assert re.search("your files.*--data", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("name", "data", "parameters"),
    [
        ("n-mnist", "n_mnist", 1_849_490),
        ("mnist-dvs", "mnist_dvs", 1_890_466),
        ("cifar10-dvs", "cifar10_dvs", 1_890_466),
        ("n-caltech101", "n_caltech101", 7_432_414),
        ("asl-dvs", "asl_dvs", 7_412_368),
        ("n-cars-voxel", "n_cars", None),
        ("n-cars-stream", "n_cars", None),
        ("n-cars", "n_cars", None),
        ("n-cars-small", "n_cars", None),
        ("glyphs", "glyphs", None),
        ("shapes", "shapes", None),
        ("shapenetpart", "shapenetpart", None),
        ("semantickitti", "semantickitti", None),
    ],
)
def test_recipes_are_whole_and_build_their_networks(name, data, parameters):
    recipe = load_recipe(name)
    assert recipe.data == data
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    model = recipe.make_model()
    if parameters is not None:
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert (recipe.optimiser, recipe.l2, recipe.learning_rate) == ("adam", 4e-5, 1e-3)


def test_the_paper_s_batch_sizes_epochs_and_rules():
    rows = {"n-mnist": (32, 500), "mnist-dvs": (32, 200), "cifar10-dvs": (16, 100), "n-caltech101": (8, 100)}
    for name, row in rows.items():
        recipe = load_recipe(name)
        assert (recipe.batch_size, recipe.epochs) == row
        assert (recipe.schedule, recipe.factor, recipe.patience) == ("plateau", 0.2, 10)
    schedule = load_recipe("asl-dvs").make_schedule()
    for _ in range(100):
        schedule.epoch_ended(0.5)
    assert schedule(0) == 1e-3


REPEATS = {"n-mnist": None, "mnist-dvs": 8, "cifar10-dvs": 8, "n-caltech101": 8, "asl-dvs": 1}


@pytest.mark.parametrize("name", REPEATS)
def test_recipes_of_the_paper_have_its_authors_settings_and_the_same_network(name):
    authors, ours = load_recipe(f"paper/{name}"), load_recipe(name)
    assert (authors.model["form"], authors.model["rates"]) == ("edges", "ones")
    assert authors.geometry == ("online" if REPEATS[name] is None else "offline")
    assert REPEATS[name] in (None, authors.repeats)
    alike = ("data", "epochs", "batch_size", "learning_rate", "epsilon", "l2", "schedule", "factor")
    assert all(getattr(authors, entry) == getattr(ours, entry) for entry in alike)
    model = authors.make_model()
    assert [(n, p.shape) for n, p in model.named_parameters()] == [
        (n, p.shape) for n, p in ours.make_model().named_parameters()
    ]
    assert model.downs[0].conv.log_rate.eq(0).all()


@pytest.mark.parametrize("size", ["large", "small"])
def test_point_networks_of_the_paper_learn_by_the_plateau_rule_from_32_repeats(size):
    recipe = load_recipe(f"paper/modelnet40-{size}")
    assert (recipe.schedule, recipe.factor, recipe.patience, recipe.epochs) == ("plateau", 0.2, 20, 400)
    assert (recipe.geometry, recipe.repeats, recipe.batch_size, recipe.augment.drop) == ("offline", 32, 128, 0.875)
    ours = load_recipe(f"modelnet40-{size}").changed(model__limit=64)
    assert recipe.make_model().config == ours.make_model().config


def test_loaders_refuse_what_cannot_be_divided(glyphs):
    with pytest.raises(ValueError, match=r"batch of 2 .*3 processes"):
        Loader(glyphs, recipe().make_model().plan, 2, world=3)


# Beginning with other weights.


def test_frozen_parts_stay_as_they_begin(glyphs, tmp_path):
    run(recipe("voxel", epochs=1), glyphs, None, tmp_path / "first", progress=False)
    begin = {"start": str(tmp_path / "first" / "weights"), "frozen": ["downs", "blocks"]}
    run(recipe("stream", **begin), glyphs, None, tmp_path / "second", progress=False)
    first, second = weights(tmp_path / "first"), weights(tmp_path / "second")
    trunk = [name for name in second if name.startswith(("downs.", "blocks."))]
    assert len(trunk) > 20
    for name in trunk:
        assert torch.equal(first[name], second[name]), name
    fresh = recipe("stream").make_model().state_dict()
    head = [name for name in second if name.startswith("head.") and second[name].is_floating_point()]
    assert head
    for name in head:
        assert not torch.equal(second[name], fresh[name]), name


def test_without_frozen_parts_all_go_on_from_where_they_begin(glyphs, tmp_path):
    run(recipe("voxel", epochs=1), glyphs, None, tmp_path / "first", progress=False)
    begun = recipe("stream", start=str(tmp_path / "first" / "weights")).make_model().state_dict()
    first = weights(tmp_path / "first")
    assert all(torch.equal(begun[name], first[name]) for name in begun if name.startswith("blocks."))
    run(recipe("stream", start=str(tmp_path / "first" / "weights")), glyphs, None, tmp_path / "second", progress=False)
    second = weights(tmp_path / "second")
    assert not torch.equal(first["blocks.0.expand.weight"], second["blocks.0.expand.weight"])


def test_what_cannot_be_frozen_or_begun_with_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"frozen.*start"):
        recipe(frozen=["downs"])
    with pytest.raises(ValueError, match=r"frozen.*'trunk'.*downs, blocks, head"):
        recipe(start="n-cars-voxel", frozen=["trunk"]).make_model()
    with pytest.raises(ValueError, match=r"frozen.*'n-cars-voxel'.*downs\.0\.conv\.weight"):
        recipe(start="n-cars-voxel", frozen=["downs"]).make_model()
    with pytest.raises(ValueError, match="'nothing'"):
        recipe(start="nothing").make_model()
    gl.weights.save(gl.models.point_unet(4), tmp_path / "unet")
    with pytest.raises(ValueError, match=r"unet.*EventResNet"):
        recipe(start=str(tmp_path / "unet")).make_model()
