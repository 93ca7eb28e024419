"""Functions of every task, the task of a recipe or of weights, and tasks of users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import gridless as gl
from gridless import models
from gridless.cli.main import main
from gridless.tasks import Loss, Task, data_names, find, load_task, task_name, task_of
from gridless.tasks.loading import FOLDER, load_data
from gridless.tasks.registry import TASKS
from gridless.tasks.storage import divided
from gridless.training import Clouds, Recipe, TrainingSet, load_recipe
from gridless.training.recipe import available

SMALL = {"model": "PointResNet", "classes": 3, "width": 8, "levels": 2, "radius": 0.4}
OWN = Path(__file__).parents[2] / "examples" / "own_task.py"


@pytest.mark.parametrize("name", TASKS)
def test_every_task_says_what_it_is_and_which_options_it_has(name: str):
    task = find(name)
    assert isinstance(task, Task)
    assert task.name == name
    assert task.network.startswith("a network that ")
    assert FOLDER in task.data
    assert set(task.options) == {"evaluate", "predict"}
    for command, options in task.options.items():
        task.refuse(command, {option[2:].replace("-", "_"): 1 for option in options}, "w")
        with pytest.raises(ValueError, match=f"--nonsense.*w is {task.network}"):
            task.refuse(command, {"nonsense": 1}, "w")


@pytest.mark.parametrize(
    ("config", "data", "wanted"),
    [
        ({"model": "point_resnet_small"}, None, "classify"),
        ({"model": "PointMaxNet"}, "shapes", "classify"),
        ({"model": "point_unet"}, FOLDER, "scenes"),
        ({"model": "PointUNet"}, "shapenetpart", "scenes"),
        ({"model": "PointUNetPlus"}, "semantickitti", "parts"),
        ({"model": "n_cars"}, FOLDER, "recordings"),
        ({"model": "EventCounts"}, None, "recordings"),
        ({"model": "CountTracker"}, FOLDER, "track"),
        ({"model": "mine:Net", "arguments": {}}, None, "classify"),
        ({"model": "mine:Net", "arguments": {}}, "glyphs", "recordings"),
        ({}, "semantickitti", "parts"),
    ],
)
def test_the_network_and_the_data_decide_the_task_where_nothing_says_it(config, data, wanted):
    assert task_name(config, data) == wanted
    assert task_name(config, data, "another") == "another"


def test_every_network_is_of_a_task():
    kinds = [kind for kind in models.networks.NETWORKS.values() if isinstance(kind, type)]
    assert {kind.task for kind in kinds} == set(TASKS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", available())
def test_the_task_of_every_shipped_recipe_has_its_data(name: str):
    recipe = load_recipe(name)
    assert recipe.data in find(recipe.task_name).data
    assert recipe.data in data_names()


def test_weights_name_their_task_and_those_that_do_not_are_understood(tmp_path):
    model = gl.models.point_unet(3, width=8, levels=1)
    gl.save(model, tmp_path / "net")
    about = json.loads((tmp_path / "net.json").read_text())
    assert about.pop("task") == "scenes"
    (tmp_path / "net.json").write_text(json.dumps(about))
    assert task_of(gl.load(tmp_path / "net")).name == "scenes"
    assert task_of(gl.load("shapenetpart")).name == "parts"
    assert task_of(gl.load("n-cars")).name == "recordings"


@pytest.mark.parametrize("config", [{"model": "PointUNetPlus", "parts": [2, 3]}, SMALL])
def test_a_task_writes_the_config_of_a_network_for_other_classes(config):
    task = find(task_name(config))
    assert task.classes(config) in (3, 5)
    assert task.classes(task.with_classes(config, 7)) == 7


# One ragged training set.


def test_clouds_of_other_sizes_are_kept_without_padding():
    points, sizes = torch.rand(3, 8, 3), torch.tensor([8, 2, 5])
    data = Clouds(points, torch.arange(3), sizes=sizes, rows={"heat": torch.rand(3, 8)})
    assert len(data.examples) == len(data.rows["heat"]) == 15
    assert data.even is None
    drawn = data.draw(None, 0, 0, torch.tensor([2, 0]))
    assert torch.equal(drawn.examples[0].coords, points[2, :5])
    assert torch.equal(drawn.examples[1].coords, points[0])
    few = data.first(3)
    assert few.sizes.tolist() == [3, 2, 3]
    assert torch.equal(few.examples.examples[2].coords, points[2, :3])
    with pytest.raises(ValueError, match=r"TrainingSet\.points"):
        _ = data.points


def test_clouds_of_one_size_are_drawn_as_those_of_several_are():
    points, index = torch.rand(5, 6, 3), torch.tensor([4, 0, 4])
    even = Clouds(points, torch.arange(5))
    ragged = Clouds(torch.cat([points, points[:1]]), torch.arange(6), sizes=torch.tensor([6] * 5 + [1]))
    one, other = (data.draw(gl.training.Policy(shuffle=True), 3, 1, index) for data in (even, ragged))
    assert (even.even, ragged.even) == (6, None)
    assert torch.equal(one.coords, other.coords)
    assert torch.equal(one.splits, other.splits)
    assert torch.equal(even.take(index).points, points[index])


def test_a_label_for_each_example_is_needed():
    with pytest.raises(ValueError, match=r"2 clouds.*3 labels"):
        TrainingSet.of(gl.collate([gl.Cloud.of(torch.rand(4, 3)) for _ in range(2)]), torch.arange(3))


def test_a_folder_is_read_once_for_what_is_learned_and_what_is_held_out(tmp_path, monkeypatch):
    from gridless.data.readers.clouds import ply

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(5):
            ply.write(tmp_path / name / f"{i}.ply", gl.Cloud.of(torch.rand(20 + i, 3)))
    recipe = load_recipe("own-clouds")
    wanted = {split: load_data(recipe, tmp_path, split) for split in ("fit", "validation")}
    reads, read = [], gl.data.folder.read_points
    monkeypatch.setattr(
        "gridless.data.folder.read_points", lambda path, *a, **k: reads.append(path) or read(path, *a, **k)
    )
    parts = divided(load_data(recipe, tmp_path, "train"))
    assert len(reads) == len(set(reads)) == 10
    for split, data in wanted.items():
        assert torch.equal(data.labels, parts[split].labels)
        assert torch.equal(data.examples.coords, parts[split].examples.coords)
        assert data.files.tolist() == parts[split].files.tolist()


# Tasks of users.


def test_a_task_of_a_file_is_run_only_where_the_user_names_it(tmp_path, capsys):
    mark = tmp_path / "ran"
    lines = ["from pathlib import Path", f"Path({str(mark)!r}).touch()", "from gridless.tasks import Task"]
    (tmp_path / "mine.py").write_text("\n".join([*lines, "class Mine(Task): ..."]))
    name = f"{tmp_path / 'mine.py'}:Mine"
    model = gl.models.PointResNet(**{k: v for k, v in SMALL.items() if k != "model"})
    recipe = {"model": SMALL, "task": name, "data": "whatever"}
    gl.save(model, tmp_path / "net", task=name, recipe=recipe)
    Recipe.from_dict(gl.load(tmp_path / "net").about["recipe"])
    torch.save(torch.zeros(1), tmp_path / "x.npy")
    for command in (["predict", "x.npy", "--weights"], ["evaluate"]):
        assert main([*command, str(tmp_path / "net")]) == 1
        assert f"task {name!r}" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"task '{name}'"):
        find(name)
    assert not mark.exists()
    assert load_task(name).name == name
    assert mark.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [("nowhere.py:Mine", "no file nowhere.py"), (f"{OWN}:HERE", "'HERE'.*Task")],
)
def test_a_task_that_is_none_is_refused_by_name(name, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        load_task(name)


def test_what_a_task_does_not_say_is_named():
    class Half(Task):
        name = "half"

    for function in ("load", "loss", "score", "figures", "predict"):
        with pytest.raises(NotImplementedError, match=rf"task half.*\b{function}\(\)"):
            getattr(Half(), function)(*[None] * (2 if function in ("loss", "score", "figures") else 3))


def test_a_task_of_ones_own_predicts_by_the_command_line(tmp_path, capsys):
    from gridless.data.readers.clouds import ply

    name = f"{OWN}:Volume"
    recipe = {"model": {**SMALL, "classes": 1}, "task": name, "data": "ellipsoids", "points": 48}
    gl.save(Recipe.from_dict(recipe).make_model(), tmp_path / "net", task=name, recipe=recipe)
    ply.write(tmp_path / "egg.ply", gl.Cloud.of(torch.rand(60, 3)))
    ask = [str(tmp_path / "egg.ply"), "--weights", str(tmp_path / "net"), "--task", name, "--device", "cpu"]
    assert main(["predict", *ask, "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"file", "volume"}
    assert main(["predict", *ask, "--votes", "2"]) == 1
    assert f"--votes does nothing for {tmp_path / 'net'}" in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "net"), "--task", name, "--device", "cpu"]) == 0
    assert "mean_error " in capsys.readouterr().out


def test_a_loss_without_right_answers_is_no_accuracy():
    assert Loss(torch.zeros(()))[1:] == (None, None)
