"""Training on a folder of one's own files, from the command line to the prediction."""

from __future__ import annotations

import json
import re
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
import gridless.data.prepare
import gridless.data.readers.events
from gridless.cli.main import main
from gridless.data.listing import listing
from gridless.data.prepare import Preparation, joined, padded, prepare, turned
from gridless.data.sessions import held_out
from gridless.tasks import find
from gridless.tasks.clouds import describe_clouds, preparation
from gridless.tasks.labelled import write_parts
from gridless.tasks.loading import load_data
from gridless.training import Clouds
from gridless.training.recipe import Recipe, load_recipe

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

SMALL = ["--device", "cpu", "--epochs", "1", "--set", "batch_size=4"]
TINY = ["--set", "model.width=8", "--set", "model.levels=1", "--set", "model.lift=16"]


def write_cloud(path, coords, **rows):
    """A PLY file with columns for rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    from gridless.data.readers.clouds import ply

    ply.write(path, gl.Cloud.of(torch.as_tensor(coords, dtype=torch.float32), **rows))


@pytest.fixture
def scans(tmp_path):
    """Two classes, three sessions of two files each, far from the origin, z up."""
    random = np.random.default_rng(0)
    for name, squeeze in (("disc", (1, 1, 0.1)), ("rod", (0.1, 0.1, 1))):
        for session in ("mon", "tue", "wed"):
            for number in range(2):
                points = random.standard_normal((90 + 10 * number, 3)) * squeeze * 40 + 1000
                grey = torch.from_numpy(random.integers(0, 255, (len(points), 3))).to(torch.uint8)
                write_cloud(tmp_path / "scans" / name / f"{session}_{number:03d}.ply", points, rgb=grey)
    return tmp_path / "scans"


def run(out, *arguments):
    return main(["train", *arguments, "--out", str(out), *SMALL])


@pytest.mark.slow
def test_a_short_training_is_of_use(tmp_path, capsys):
    """A dozen steps: running statistics, as they are in training, would give chance on the files learned from, too."""
    names = ["bottle", "chair", "lamp", "table"]
    drawn = gl.data.Shapes(64, points=256, class_names=names, seed=3)
    for number in range(len(drawn)):
        coords, label = drawn[number]
        write_cloud(tmp_path / "files" / names[label] / f"{number // 8}_{number}.ply", coords)
    small = ["--set", "model.width=16", "--set", "model.lift=64", "--set", "model.levels=2", "--set", "points=256"]
    arguments = ["own-clouds", "--data", str(tmp_path / "files"), "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["train", *arguments, "--epochs", "6", *small]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["valid_accuracy"] > 0.6
    assert "done to each training example: points in random order, points moved by about 0.01, turned " in said.err
    weights = ["evaluate", str(tmp_path / "run" / "weights.safetensors"), "--data", str(tmp_path / "files")]
    assert main([*weights, "--split", "fit", "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["accuracy"] > 0.6


def test_a_folder_of_classes_is_learned_and_asked(scans, tmp_path, capsys):
    (scans / "notes.md").write_text("not a cloud")
    (scans / "empty").mkdir()
    more = ["--data", str(scans), *TINY, "--set", "data_options.up=z", "--set", "data_options.features=[rgb]"]
    assert run(tmp_path / "run", "own-clouds", *more) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["examples"] == 8
    assert "12 files; held out: 1 of 3 sessions, by folder and file name" in err
    assert "  disc: 4 fit, 2 validation" in err
    assert "points each: 90 to 100" in err
    assert "of other kinds: .md" in err
    assert err.count(f"{scans / 'empty'} holds no ") == 1
    assert "feature rgb: mean 0." in err
    held = (tmp_path / "run" / "split.txt").read_text().split()
    assert len(held) == 4
    assert len({name.split("/")[1][:3] for name in held}) == 1

    weights = str(tmp_path / "run" / "weights.safetensors")
    about = gl.load(weights).about
    assert about["class_names"] == ["disc", "rod"]
    assert about["model"]["in_channels"] == 3
    file = str(scans / "rod" / "mon_000.ply")
    assert main(["predict", file, "--weights", weights, "--json", "--device", "cpu"]) == 0
    assert set(json.loads(capsys.readouterr().out)["probabilities"]) == {"disc", "rod"}

    # Files that are added later are never taken for held-out ones.
    write_cloud(scans / "rod" / "thu_000.ply", torch.randn(50, 3), rgb=torch.zeros(50, 3, dtype=torch.uint8))
    for split, count in (("validation", 4), ("fit", 9)):
        command = ["evaluate", weights, "--data", str(scans), "--split", split, "--json", "--device", "cpu"]
        assert main(command) == 0
        assert json.loads(capsys.readouterr().out)["examples"] == count
    assert main(["evaluate", weights, "--data", str(scans), "--device", "cpu"]) == 1
    assert "no test files" in capsys.readouterr().err


@pytest.mark.parametrize("lists", [["cup/a.ply"], ["cup/a.ply", "rod/mon_000.ply"], []])
def test_a_list_of_what_another_folder_held_out_is_refused(scans, tmp_path, capsys, lists):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "split.txt").write_text("".join(f"{name}\n" for name in lists))
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), *TINY) == 1
    err = capsys.readouterr().err
    assert re.search(rf"split\.txt.*{scans}.* {min(len(lists), 1)} of .*{len(lists)} files", err)
    assert "--out" in err
    assert ("cup/a.ply" in err) == bool(lists)


def test_a_list_of_what_was_held_out_before_is_kept(scans, tmp_path):
    (tmp_path / "run").mkdir()
    listed = "disc/tue_000.ply\nrod/tue_001.ply\n"
    (tmp_path / "run" / "split.txt").write_text(listed)
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), *TINY) == 0
    assert (tmp_path / "run" / "split.txt").read_text() == listed


def test_a_radius_that_does_not_fit_is_warned_of_with_one_that_does(scans, tmp_path, capsys):
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), *TINY, "--set", "model.stem_radius=0.001") == 0
    warning = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: "))
    assert re.search(r"1\.0 neighbours.*0\.001.*12.* 0\.", warning)
    advice = [word for word in warning.split() if word.startswith("model.")]
    assert [word.split("=")[0] for word in advice] == ["model.spacing", "model.stem_radius"]
    options = [part for word in advice if "stem" in word for part in ("--set", word)]
    assert run(tmp_path / "again", "own-clouds", "--data", str(scans), *TINY, *options) == 0
    assert "warning: " not in capsys.readouterr().err


def said(data, radius):
    model = gl.models.point_resnet_small(2, width=8, radius=radius)
    return describe_clouds(data, model)


def advised(sizes, spread=1.0, radius=0.001):
    """The advice for random clouds of these sizes and a network of this radius."""
    clouds = [torch.rand(size, 3, generator=torch.Generator().manual_seed(size)) * spread for size in sizes]
    return said(Clouds(padded(clouds), torch.zeros(len(sizes)).long(), ["a"], torch.tensor(sizes)), radius)[-1]


def test_the_radius_that_is_advised_is_that_of_a_typical_example():
    advice = advised([1, 300, 300, 300])
    assert advice == advised([300, 300, 300, 300])
    assert "are few: about 12 are within 0." in advice
    few = advised([1, 5, 5, 5])
    assert "are few: about 5 are within " in few
    assert "model.radius=0 " not in f"{few} "
    assert advised([300, 300], spread=0.0, radius=1.0).endswith("are many: most points are at one place")
    assert advised([1, 1, 1]).endswith("are few: most clouds have a single point")


def test_shares_of_labels_are_of_the_points_that_there_are():
    part = padded([torch.tensor([0, 0, 0, 2, -1]), torch.tensor([0, 2, -1])])
    rows, sizes, names = {"part": part}, torch.tensor([5, 3]), ["ground", "pole", "wire"]
    data = Clouds(torch.rand(2, 5, 3), torch.zeros(2).long(), ["a"], sizes, rows, parts=names)
    lines = said(data, radius=0.001)
    assert "points: ground 50.0%, pole 0.0%, wire 25.0%, without a label 25.0%" in lines
    every = Clouds(torch.rand(2, 5, 3), torch.zeros(2).long(), ["a"], sizes, {"part": part.clamp(min=0)}, parts=names)
    assert "points: ground 75.0%, pole 0.0%, wire 25.0%" in said(every, radius=0.001)


def test_fine_tuning_begins_with_other_weights_and_the_classes_of_the_folder(scans, tmp_path, capsys):
    start = gl.models.point_resnet_plus(3, width=8, levels=1, lift=16)
    gl.save(start, tmp_path / "start", class_names=["a", "b", "c"])
    begin = ["--set", f"start={tmp_path / 'start'}.safetensors", "--set", "model={}", "--set", "learning_rate=1e-9"]
    assert run(tmp_path / "run", "own-fine-tuned", "--data", str(scans), *begin) == 0
    model = gl.load(tmp_path / "run" / "weights")
    assert model.config["classes"] == 2
    torch.testing.assert_close(model.stem.weight, start.stem.weight)


def test_the_shipped_recipe_of_fine_tuning_takes_its_network_from_the_weights():
    recipe = load_recipe("own-fine-tuned")
    assert recipe.model == gl.load("modelnet40-plus").about["model"]


def test_folders_of_splits_are_honoured(scans, tmp_path, capsys):
    base = tmp_path / "split"
    for part, session in (("train", "mon"), ("val", "tue"), ("test", "wed")):
        for file in scans.rglob(f"{session}_*.ply"):
            place = base / part / file.parent.name / file.name
            place.parent.mkdir(parents=True, exist_ok=True)
            file.rename(place)
    files_listed = listing(base, [".ply"])
    for split, part in (("fit", "train"), ("validation", "val"), ("test", "test")):
        assert {files_listed.files[i].split("/")[0] for i in files_listed.rows(split)} == {part}
    assert files_listed.class_names == ("disc", "rod")
    write_cloud(base / "test" / "cone" / "1.ply", torch.randn(9, 3))
    with pytest.raises(ValueError, match="'cone'"):
        listing(base, [".ply"])


def test_whole_sessions_are_held_out_whatever_the_class():
    labels = [k for k in range(2) for _ in range(30)]
    names = [f"drive{d}_{i}.npz" for _ in range(2) for d in range(10) for i in range(3)]
    chosen, rule = held_out(labels, names)
    sessions = {names[i].split("_")[0] for i in chosen}
    assert len(sessions) == 2
    assert sorted(chosen) == [i for i, name in enumerate(names) if name.split("_")[0] in sessions]
    assert rule == "2 of 10 sessions, by folder and file name"


@pytest.mark.parametrize(
    "name",
    ["recording_2024-05-{}_12-3{}-11.raw", "dvSave-2024_05_{}_12_3{}_11.aedat4", "202405{}123{}11.npz"]
    + ["DVS128-2024-05-{}T12-3{}-11+0200-0.aedat"],
)
def test_what_was_recorded_on_one_day_is_one_session(name):
    names = [name.format(f"{day:02d}", minute) for day in (1, 2, 3) for minute in range(6)]
    chosen, rule = held_out([0] * 18, names)
    assert rule == "1 of 3 sessions, by folder and file name"
    assert len({i // 6 for i in chosen}) == 1
    chosen, rule = held_out([0] * 6, names[:6])
    assert (chosen, rule) == ([5], "the last fifth of each class, in the order of the file names")


def test_the_folder_of_a_bag_is_a_recording_and_no_session(tmp_path):
    for name, day in [(name, day) for name in ("clap", "wave") for day in ("monday", "tuesday", "friday")]:
        for number in range(3):
            bag = tmp_path / name / f"{day}_{number}"
            bag.mkdir(parents=True)
            (bag / "metadata.yaml").write_text("rosbag2_bagfile_information:\n")
            (bag / f"{bag.name}_0.mcap").write_bytes(b"-")
        (tmp_path / name / f"{day}_3.bag").write_bytes(b"-")
    found = listing(tmp_path, (".bag", ".mcap"))
    assert "1 of 3 sessions" in found.rule
    assert len({Path(file).parts[1].partition("_")[0] for file in found.held_out}) == 1
    assert len(found.held_out) == 8


def test_numbers_alone_are_no_sessions_so_that_the_last_are_held_out():
    chosen, rule = held_out([0] * 12 + [1] * 5, [f"mug{i}.ply" for i in range(12)] + [f"{i}.ply" for i in range(5)])
    assert chosen == [10, 11, 16]
    assert rule == "the last fifth of each class, in the order of the file names"


@pytest.mark.parametrize(
    ("files", "facts"),
    [
        ([], ["{0}", "CLASS/FILE"]),
        (["a.ply"], ["{0}/a.ply", "{0}/CLASS/FILE", "label='auto'"]),
        (["one/a.ply", "one/b.ply"], ["'one'", "{0}/CLASS/FILE", "label='auto'"]),
    ],
)
def test_another_layout_is_refused_with_the_one_that_is_meant(tmp_path, files, facts, capsys):
    for file in files:
        write_cloud(tmp_path / file, torch.randn(9, 3))
    assert run(tmp_path / "run", "own-clouds", "--data", str(tmp_path)) == 1
    message = capsys.readouterr().err
    assert all(fact.format(tmp_path) in message for fact in facts)
    assert not (tmp_path / "run").exists()


def test_a_file_is_no_folder_of_data(tmp_path, capsys):
    write_cloud(tmp_path / "a.ply", torch.randn(9, 3))
    assert run(tmp_path / "run", "own-clouds", "--data", str(tmp_path / "a.ply")) == 1
    assert f"{tmp_path / 'a.ply'} is a file" in capsys.readouterr().err


def test_every_file_that_cannot_be_used_is_counted(scans, tmp_path, capsys):
    (scans / "rod" / "bad_1.xyz").write_text("0 0 0\n1 nan 2\n")
    (scans / "rod" / "bad_2.xyz").write_text("")
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), "--all-data") == 1
    err = capsys.readouterr().err
    assert "2 of 14 files" in err
    assert re.search(r"bad_1\.xyz.* 1 points", err)
    assert "bad_2.xyz" in err


def test_an_option_that_there_is_not_is_refused_by_name(scans, tmp_path, capsys):
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), "--set", "data_options.upp=z") == 1
    assert re.search("data_options.*'upp'", capsys.readouterr().err)


@pytest.mark.parametrize("option", ["transform=[]", "progress=false", "seed=1"])
def test_an_option_that_the_recipe_says_otherwise_is_refused_by_name(scans, tmp_path, capsys, option):
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), "--set", f"data_options.{option}") == 1
    assert re.search(f"data_options.*'{option.split('=')[0]}'.*CloudFolder", capsys.readouterr().err)


def test_the_order_of_classes_and_what_is_held_out_may_be_given(scans, tmp_path, capsys):
    (tmp_path / "mine.txt").write_text("rod/mon_000.ply\ndisc/wed_001.ply\n")
    options = ["data_options.class_names=[rod, disc]", f"data_options.held_out_list={tmp_path / 'mine.txt'}"]
    changes = [word for option in options for word in ("--set", option)]
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), *TINY, *changes) == 0
    assert "  rod: 5 fit, 1 validation" in capsys.readouterr().err
    assert gl.load(tmp_path / "run" / "weights").about["class_names"] == ["rod", "disc"]
    assert (tmp_path / "run" / "split.txt").read_text().split() == ["disc/wed_001.ply", "rod/mon_000.ply"]


def test_held_out_files_that_are_gone_are_missed_by_evaluate(scans, tmp_path, capsys):
    assert run(tmp_path / "run", "own-clouds", "--data", str(scans), *TINY) == 0
    gone = (tmp_path / "run" / "split.txt").read_text().split()[0]
    (scans / gone).unlink()
    judge = ["evaluate", str(tmp_path / "run" / "weights"), "--data", str(scans), "--device", "cpu", "--split"]
    assert main([*judge, "validation"]) == 1
    assert re.search(f" 1 of .*4 files.*{gone}", capsys.readouterr().err)


def test_a_run_inside_the_folder_is_no_data(scans, capsys):
    arguments = ["own-clouds", "--data", str(scans), *TINY]
    assert run(scans / "runs" / "1", *arguments) == 0
    assert run(scans / "runs" / "2", *arguments) == 0
    assert gl.load(scans / "runs" / "2" / "weights").about["class_names"] == ["disc", "rod"]


def test_many_classes_are_divided_in_one_pass():
    class Counted(list):
        asked = 0

        def __iter__(self):
            Counted.asked += 1
            return super().__iter__()

    held_out(Counted(i // 4 for i in range(4000)), [f"{i}.ply" for i in range(4000)])
    assert Counted.asked < 10


@pytest.fixture
def sites(tmp_path):
    """Three scans of ground (label 2) and poles (label 5), in metres, far from the origin, z up."""
    random = np.random.default_rng(0)
    for number in range(3):
        ground = random.random((400, 3)) * (20, 20, 0.1)
        poles = random.random((200, 3)) * (0.3, 0.3, 4) + random.integers(0, 4, (200, 1)) * (5, 5, 0)
        points = np.concatenate([ground, poles]) + (5000, 7000, 100)
        labels = torch.tensor([2] * 400 + [5] * 200, dtype=torch.uint8)
        write_cloud(tmp_path / "sites" / f"site_{number}.ply", points, classification=labels)
    return tmp_path / "sites"


LOCAL = "{model: point_unet, width: 8, levels: 2, radius: 1.5}"
WHOLE = "{model: point_unet_plus, width: 8, levels: 2, hidden: 16, spacing: 0.8, stem_radius: 1.5}"


@pytest.mark.parametrize(
    ("model", "key", "rows"), [(LOCAL, "labels", "label"), (WHOLE, "parts", "part")], ids=["local", "whole"]
)
def test_scans_with_labels_of_points_are_learned_block_by_block_and_labelled(sites, tmp_path, capsys, model, key, rows):
    options = ["model=" + model, "points=256", "data_options.grid=0.1", "data_options.names={2: ground, 5: pole}"]
    changes = [word for option in options for word in ("--set", option)]
    assert run(tmp_path / "run", "own-scans", "--data", str(sites), *changes) == 0
    out, err = capsys.readouterr()
    assert ("valid_mean_iou" if key == "labels" else "valid_instance_iou") in json.loads(out)
    assert "3 files; held out: the last fifth" in err
    assert "points: ground " in err
    weights = str(tmp_path / "run" / "weights.safetensors")
    asked = ["--weights", weights, "--out", str(tmp_path / "found"), "--json", "--device", "cpu"]
    assert main(["predict", str(sites / "site_2.ply"), *asked]) == 0
    line = json.loads(capsys.readouterr().out)
    assert set(line[key]) <= {"ground", "pole"}
    assert sum(line[key].values()) == 600
    labelled = gl.read_cloud(line["written"])
    assert len(labelled) == 600
    assert {int(v) for v in labelled.rows[rows].unique()} <= {2, 5}, "the classes have the numbers that files gave them"
    judge = ["evaluate", weights, "--data", str(sites), "--split", "validation", "--device", "cpu"]
    assert main(judge) == 0
    printed = capsys.readouterr().out
    assert " mIoU, " in printed
    if key == "labels":
        assert printed.rstrip().endswith("of the points of 1 scans")
        assert main([*judge, "--json"]) == 0
        assert set(json.loads(capsys.readouterr().out)["by_class"]) == {"ground", "pole"}


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ("{2: ground, 40: wire}", "names.*40.*wire"),
        ("{2: '5'}", "names.*'5'"),
    ],
)
def test_names_that_fit_no_label_are_refused(sites, tmp_path, capsys, names, error):
    change = ["--set", f"data_options.names={names}"]
    assert run(tmp_path / "run", "own-scans", "--data", str(sites), *change) == 1
    assert re.search(error, capsys.readouterr().err)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("names", "error"),
    [
        ({2: "ground", 40: "wire"}, "names.*40.*wire"),
        ({2: "5"}, "names.*'5'"),
        ({"ground": 2}, "names.*'ground'"),
        ({-5: "tree"}, "names.*-5"),
    ],
)
def test_a_folder_refuses_names_that_fit_no_label(sites, names, error):
    with pytest.raises(ValueError, match=error):
        gl.data.CloudFolder(sites, "train", label="auto", names=names, keep_scale=True)


def test_a_label_is_one_number_a_point_also_in_a_column_of_its_own(tmp_path):
    rows = {"kind": torch.arange(6).int()[:, None] % 2, "rgb": torch.zeros(6, 3, dtype=torch.uint8)}
    for number in range(2):
        np.savez(tmp_path / f"scan_{number}.npz", xyz=np.random.rand(6, 3), **{k: v.numpy() for k, v in rows.items()})
    folder = gl.data.CloudFolder(tmp_path, "train", label="kind", keep_scale=True)
    assert folder[0][0].rows["part"].tolist() == [0, 1, 0, 1, 0, 1]
    with pytest.raises(ValueError, match="'rgb'"):
        gl.data.CloudFolder(tmp_path, "train", label="rgb", keep_scale=True)


def test_labels_of_one_name_are_one_class(tmp_path):
    raw = torch.tensor([10, 252, 40, 10, 258, 252])
    for number in range(2):
        write_cloud(tmp_path / f"drive_{number}.ply", torch.rand(6, 3), label=raw.int())
    names = {"252": "car", 10: "car", 259: "truck", 258: "truck"}
    folder = gl.data.CloudFolder(tmp_path, "train", label="auto", names=names, ignore=[40], keep_scale=True)
    assert folder.values == [10, 258]
    assert folder.part_names == ["car", "truck"]
    assert folder[0][0].rows["part"].tolist() == [0, 0, -1, 0, 1, 0]
    again = gl.data.CloudFolder(
        tmp_path, "fit", label="auto", names=names, ignore=[40], values=[10, 258], keep_scale=True
    )
    assert again[0][0].rows["part"].tolist() == [0, 0, -1, 0, 1, 0], "numbered as weights do"


def test_padding_has_no_part_in_what_is_said_of_features(tmp_path, capsys):
    for number, points in enumerate((5, 40, 300)):
        rows = {"label": torch.arange(points).int() % 2, "intensity": torch.full((points,), 0.25)}
        write_cloud(tmp_path / "sites" / f"site_{number}.ply", torch.rand(points, 3), **rows)
    change = ["--set", "model=" + LOCAL, "--set", "data_options.features=intensity"]
    assert run(tmp_path / "run", "own-scans", "--data", str(tmp_path / "sites"), *change) == 0
    assert "feature intensity: mean 0.25, standard deviation 0\n" in capsys.readouterr().err


def test_labels_that_are_none_are_refused(sites, tmp_path, capsys):
    assert run(tmp_path / "run", "own-scans", "--data", str(sites), "--set", "data_options.label=colour") == 1
    assert re.search("'colour'.*classification", capsys.readouterr().err)
    write_cloud(sites / "site_9.ply", torch.randn(9, 3), classification=torch.randn(9))
    assert run(tmp_path / "run", "own-scans", "--data", str(sites)) == 1
    assert "'classification' does not hold labels" in capsys.readouterr().err
    np.savetxt(sites / "site_9.txt", torch.ones(9, 5).numpy(), fmt="%d")
    assert run(tmp_path / "run", "own-scans", "--data", str(sites)) == 1
    assert re.search(r"label='features\.1'.*data_options\.label=", capsys.readouterr().err)


def test_parts_are_not_written_over_the_file_they_are_of(tmp_path):
    file = tmp_path / "chair.ply"
    write_cloud(file, torch.rand(50, 3))
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"chair\.ply.*--out"):
        write_parts(gl.load("shapenetpart"), file, tmp_path, category="chair")
    assert file.read_bytes() == before


def test_points_without_a_label_are_neither_learned_nor_judged(sites, tmp_path, capsys):
    for number, none in enumerate((0, 255, -1)):
        cloud = gl.read_cloud(sites / f"site_{number}.ply")
        label = cloud.rows["classification"].to(torch.int16)
        label[::2] = none
        write_cloud(sites / f"site_{number}.ply", cloud.coords, classification=label)
    data = gl.data.CloudFolder(sites, "train", label="auto", ignore=[0, 255], keep_scale=True)
    assert data.values == [2, 5]
    assert all(set(row[:size].unique().tolist()) == {-1, 0, 1} for row, size in zip(data.rows["part"], data.sizes))
    options = ["model=" + LOCAL, "points=256", "data_options.grid=0.1", "data_options.ignore=[0, 255]"]
    changes = [word for option in options for word in ("--set", option)]
    assert run(tmp_path / "run", "own-scans", "--data", str(sites), *changes) == 0
    assert ", without a label " in capsys.readouterr().err
    weights = str(tmp_path / "run" / "weights")
    assert gl.load(weights).about["values"] == [2, 5]
    judge = ["evaluate", weights, "--data", str(sites), "--split", "validation", "--device", "cpu", "--json"]
    assert main(judge) == 0
    assert set(json.loads(capsys.readouterr().out)["by_class"]) <= {"2", "5"}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"label": "auto", "ignore": [2, 5]}, "no point .*label"),
        ({"label": "auto", "ignore": "ground"}, "ignore.*ground"),
        ({"ignore": [2]}, "block, grid and ignore"),
        ({"label": "auto", "grid": -1.0}, "grid.*-1.0"),
        ({"label": "auto", "block": "big"}, "block.*big"),
    ],
)
def test_what_cannot_be_ignored_or_measured_is_refused(sites, arguments, error):
    with pytest.raises(ValueError, match=error):
        gl.data.CloudFolder(sites, "train", **arguments)


def test_labels_below_those_that_mean_none_are_refused_unless_they_are_ignored(tmp_path):
    label = torch.arange(-2, 48, dtype=torch.int16)
    for number in range(2):
        write_cloud(tmp_path / f"{number}.ply", torch.rand(50, 3), label=label)
    with pytest.raises(ValueError, match=r"'label'.* -2\b.*ignore: \[-2\]"):
        gl.data.CloudFolder(tmp_path, "train", label="auto")
    assert gl.data.CloudFolder(tmp_path, "train", label="auto", ignore=-2).values == list(range(48))


@pytest.mark.parametrize("seen", [prepare, lambda cloud, what, kept: turned(cloud, Preparation(features=kept), what)])
def test_a_feature_that_is_not_finite_is_refused(seen):
    cloud = gl.Cloud.of(torch.randn(5, 3), heat=torch.tensor([1.0, 2.0, torch.nan, 3.0, 4.0]))
    with pytest.raises(ValueError, match=r"site: .*'heat' .*finite"):
        seen(cloud, "site", kept=("heat",))


def test_a_ply_with_faces_is_a_mesh_unless_its_vertices_are_asked_for(tmp_path):
    for name in ("roof", "tent"):
        (tmp_path / name).mkdir()
    header = "ply\nformat ascii 1.0\nelement vertex 4\nproperty float x\nproperty float y\nproperty float z\n"
    header += "property uchar red\nproperty uchar green\nproperty uchar blue\nelement face {}\n"
    header += "property list uchar int vertex_indices\nend_header\n0 0 0 1 2 3\n1 0 0 1 2 3\n0 1 0 1 2 3\n0 0 1 1 2 3\n"
    faces = "3 0 1 2\n3 0 1 3\n3 0 2 3\n3 1 2 3\n"
    (tmp_path / "tent" / "mesh.ply").write_text(header.format(4) + faces)
    (tmp_path / "tent" / "cloud.ply").write_text(header.format(0))
    (tmp_path / "roof" / "damaged.ply").write_text(header.format(4) + faces.replace("3 1 2 3", "3 1 2 9"))

    def sizes(**how):
        data = gl.data.CloudFolder(tmp_path, points=50, **how)
        return {Path(file).stem: size for file, size in zip(data.files, data.sizes.tolist(), strict=True)}

    assert sizes() == {"mesh": 50, "cloud": 4, "damaged": 4}
    assert set(sizes(features=["rgb"]).values()) == {4}
    # Training on labels sees the vertices, and so does prediction.
    model = gl.models.PointUNetPlus([2], width=8, levels=1, stem_radius=2.0, hidden=16)
    model.about = {"recipe": {"data": "folder"}}
    _, counts = write_parts(model, tmp_path / "tent" / "mesh.ply", tmp_path / "out", points=50)
    assert sum(counts.values()) == 4


def test_parts_are_found_on_the_grid_that_training_thinned_clouds_by(tmp_path, monkeypatch):
    coords = torch.rand(400, 3, generator=torch.Generator().manual_seed(0))
    np.save(tmp_path / "x.npy", coords.numpy())
    model = gl.models.PointUNetPlus([2], width=8, levels=1, stem_radius=2.0, hidden=16)
    model.about = {"recipe": {"data": "folder", "data_options": {"grid": 0.5, "keep_scale": True}}}
    seen, plan = [], model.plan
    monkeypatch.setattr(model, "plan", lambda cloud: seen.append(cloud) or plan(cloud))
    _, counts = write_parts(model, tmp_path / "x.npy", tmp_path / "out")
    assert sum(counts.values()) == 400
    assert [len(cloud) for cloud in seen] == [8]


def test_columns_without_names_may_be_labels_and_features(tmp_path):
    text = "\n".join(f"{i} {i % 3} 0 {i % 7} {i % 2}" for i in range(40))
    for name in ("a", "b"):
        (tmp_path / f"{name}.xyz").write_text(text)
    data = gl.data.CloudFolder(tmp_path, label="features.1", features=["features.0"])
    cloud, _ = data[0]
    assert data.part_names == ["0", "1"]
    assert cloud.rows["features"].shape == (40, 1)
    assert sorted(cloud.rows["features"][:, 0].unique().tolist()) == list(range(7))
    assert cloud.rows["part"].unique().tolist() == [0, 1]


def test_recordings_are_learned_from_a_folder(tmp_path, capsys):
    glyphs = gl.data.MovingGlyphs(24, sensor=(20, 20), threshold=0.3, seed=0)
    for i in range(24):
        events, label = glyphs[i]
        place = tmp_path / "digits" / ("low" if label < 5 else "high") / f"take{i % 4}_{i}.npz"
        place.parent.mkdir(parents=True, exist_ok=True)
        gl.write_events(place, events)
    tiny = ["--set", "model.width=8", "--set", "model.levels=2", "--set", "model.threshold=1.0"]
    assert run(tmp_path / "run", "own-recordings", "--data", str(tmp_path / "digits"), *tiny) == 0
    err = capsys.readouterr().err
    assert "held out: 1 of 4 sessions" in err
    assert "20 x 20 pixels" in err
    model = gl.load(tmp_path / "run" / "weights")
    assert model.about["class_names"] == ["high", "low"]
    assert model.config["sensor"] == [20, 20]
    files = sorted(map(str, (tmp_path / "digits" / "low").iterdir()))[:2]
    assert main(["predict", *files, "--weights", str(tmp_path / "run" / "weights"), "--json", "--device", "cpu"]) == 0
    assert {json.loads(line)["class"] for line in capsys.readouterr().out.splitlines()} <= {"high", "low"}


@pytest.fixture
def unstated(tmp_path):
    """Recordings of two classes in files that do not say the sensor, the events of each in a corner of its own size."""
    random = np.random.default_rng(0)
    for name in ("left", "right"):
        for number in range(5):
            side = 12 + number + 5 * (name == "right")
            write_recording(tmp_path / "moves" / name / f"{number}.npy", random, (side, 30 - side))
    return tmp_path / "moves"


def write_recording(path, random, extent):
    path.parent.mkdir(parents=True, exist_ok=True)
    events = np.zeros(200, [("x", "i4"), ("y", "i4"), ("t", "i8"), ("p", "?")])
    events["x"], events["y"] = (random.integers(0, size, 200) for size in extent)
    events["x"][0], events["y"][0] = extent[0] - 1, extent[1] - 1
    events["t"] = np.sort(random.integers(0, 50_000, 200))
    np.save(path, events)


def test_the_sensor_of_a_folder_is_that_of_all_its_splits(unstated):
    folders = {split: gl.data.EventFolder(unstated, split) for split in ("train", "fit", "validation")}
    assert {data.sensor for data in folders.values()} == {(21, 18)}
    assert {example.sensor for data in folders.values() for example, _ in data} == {(21, 18)}
    assert [len(data) for data in folders.values()] == [10, 8, 2]


def test_recordings_that_do_not_say_their_sensor_are_learned_and_judged_on_one(unstated, tmp_path, capsys):
    tiny = ["--set", "model.width=8", "--set", "model.levels=2", "--set", "model.threshold=1.0"]
    assert run(tmp_path / "run", "own-recordings", "--data", str(unstated), *tiny, "--set", "validate_every=1") == 0
    assert "21 x 18 pixels" in capsys.readouterr().err
    weights, random = str(tmp_path / "run" / "weights"), np.random.default_rng(1)
    write_recording(unstated / "left" / "9.npy", random, (9, 9))
    judge = ["evaluate", weights, "--data", str(unstated), "--split", "fit", "--device", "cpu"]
    assert main(judge) == 0
    assert "of 9 recordings" in capsys.readouterr().out
    small, large = str(unstated / "left" / "9.npy"), str(unstated / "left" / "10.npy")
    assert main(["predict", small, "--weights", weights, "--device", "cpu"]) == 0
    capsys.readouterr()
    write_recording(unstated / "left" / "10.npy", random, (22, 9))
    assert main(["predict", large, "--weights", weights, "--device", "cpu"]) == 1
    assert re.search(f"{large}.*22 x 9.*21 x 18", capsys.readouterr().err)
    assert main(["predict", large, "--weights", weights, "--repair", "drop", "--device", "cpu"]) == 0
    assert main(judge) == 1
    err = capsys.readouterr().err
    assert re.search(re.escape(str(large)) + r".*event 0 .*\(21, 8\).* 21 x 18.*repair='drop'", err)


def test_the_threshold_fits_the_recordings_of_a_folder(unstated, tmp_path, capsys):
    task, recipe = find("recordings"), load_recipe("own-recordings")
    data = task.load(recipe, unstated, "fit")
    fitted = task.fit(recipe, data)
    assert fitted.model["threshold"] in (0.75, 0.375, 0.1875)
    lines = task.describe(fitted, data, fitted.make_model())
    assert f"levels fire above {fitted.model['threshold']:g} (--set model.threshold=...)" in lines
    assert not any("warning" in line for line in lines)
    high = recipe.fitted(model={**recipe.model, "threshold": 1.5})
    assert task.fit(high, data).model["threshold"] == 1.5
    lines = task.describe(high, data, task.fit(high, data).make_model())
    assert any("no event for the last level" in line for line in lines)


def test_all_recordings_of_a_folder_that_cannot_be_used_are_named(unstated):
    for file in ("left/2.npy", "right/3.npy"):
        np.save(unstated / file, np.load(unstated / file)[::-1])
    with pytest.raises(ValueError, match=r"2 of 10 files.*left/2.*right/3.*data_options.repair="):
        gl.data.EventFolder(unstated, "fit")
    assert len(gl.data.EventFolder(unstated, "fit", repair="sort")) == 8
    np.save(unstated / "left/2.npy", np.load(unstated / "left/2.npy")[:0])
    with pytest.raises(ValueError, match=r"left/2\.npy: .*no events"):
        gl.data.EventFolder(unstated, "fit", repair="sort")


def test_with_a_seed_the_transforms_of_a_folder_depend_on_epoch_and_example_alone(unstated):
    thin = gl.augment.events.Thin(0.5)
    data = gl.data.EventFolder(unstated, transform=thin, seed=3)
    first, again = ([len(data[i][0]) for i in range(10)] for _ in range(2))
    assert first == again
    data.set_epoch(1)
    assert first != [len(data[i][0]) for i in range(10)]


@pytest.mark.parametrize("step", ["PoolPixels: 2", "Crop: [3, 2, 11, 9]"])
def test_recordings_of_a_folder_may_be_prepared_for_a_smaller_sensor(step, unstated, tmp_path, capsys):
    backwards = unstated / "left" / "1.npy"
    np.save(backwards, np.load(backwards)[::-1])
    more = ["--data", str(unstated), "--set", f"prepare=[{{{step}}}]", "--set", "data_options.repair=sort"]
    more += ["--set", "model.width=8", "--set", "model.levels=2", "--set", "model.threshold=1.0"]
    assert run(tmp_path / "run", "own-recordings", *more) == 0
    weights = str(tmp_path / "run" / "weights")
    assert gl.load(weights).config["sensor"] == [11, 9]
    assert main(["evaluate", weights, "--data", str(unstated), "--split", "fit", "--device", "cpu"]) == 0
    assert main(["predict", str(backwards), "--weights", weights, "--device", "cpu"]) == 0
    capsys.readouterr()
    assert run(tmp_path / "other", "own-recordings", *more, "--set", "model.sensor=[12, 9]") == 1
    assert re.search(r"model\.sensor.*21 x 18.*11 x 9.*12 x 9", capsys.readouterr().err)


def test_normals_turn_with_the_points_that_they_are_features_of(tmp_path):
    for name in ("a", "b"):
        for i in range(2):
            place = torch.nn.functional.normalize(torch.randn(60, 3), dim=1)
            write_cloud(tmp_path / name / f"{i}.ply", place, normal=place)
    recipe = load_recipe("own-clouds").changed(data_options__features=["normal"], data_options__keep_scale=True)
    data = gl.training.load_data(recipe, tmp_path, "train")
    cloud = data.draw(gl.training.Policy(azimuth=True), 0, 0, torch.arange(4))
    assert not torch.allclose(cloud.coords[:60], data.points[0], atol=0.1)
    torch.testing.assert_close(cloud.rows["features"], cloud.coords, atol=1e-5, rtol=0)
    model = gl.models.point_resnet_small(2, width=8, radius=0.5, in_channels=3).eval()
    turn = gl.augment.RotateAboutUp(up="z")
    for transform in ([turn], [turn, model.plan]):
        example, _ = gl.data.CloudFolder(tmp_path, features="normal", keep_scale=True, transform=transform)[0]
        turned = example["X0"] if transform[1:] else example
        torch.testing.assert_close(turned.rows["features"], turned.coords, atol=1e-5, rtol=0)
    assert model(example).shape == (1, 2)


def test_points_are_centred_and_features_scaled_as_the_preparation_says():
    place = torch.tensor([[1.0, 2, 3], [5, 8, 3], [3, 2, 9]])
    rows = {"rgb": torch.full((3, 3), 255, dtype=torch.uint8), "heat": torch.full((3,), 65535, dtype=torch.int32)}
    cloud = gl.Cloud.of(place, **rows)
    block = prepare(cloud, "site", how=Preparation(block=20.0), kept=["rgb", "heat"])
    assert torch.equal(block.coords, place - torch.tensor([3.0, 2, 6]))
    assert block.rows["rgb"].unique().tolist() == block.rows["heat"].unique().tolist() == [1]
    ball = prepare(cloud, "site").coords
    torch.testing.assert_close(ball * (place - place.mean(0)).norm(dim=1).max(), place - place.mean(0))
    far = prepare(gl.Cloud.of(place.double() + 4_500_000.1), "site", how=Preparation(keep_scale=True)).coords
    torch.testing.assert_close(far, place - torch.tensor([3.0, 5, 6]) + 0.1)


def test_points_beyond_those_wanted_are_left_out_with_their_rows_and_the_same_ones_each_time():
    cloud = gl.Cloud.of(torch.rand(200, 3), height=torch.arange(200.0).double())
    first, again = (prepare(cloud, "scan", 50, Preparation(keep_scale=True), ["height"]) for _ in range(2))
    height = first.rows["height"]
    assert torch.equal(first.coords, cloud.coords[height[:, 0].long()])
    assert torch.equal(height, again.rows["height"])
    assert len(height.unique()) == 50
    assert height.max() > 100, "not the first ones"
    assert height.dtype == torch.float32


def test_normals_of_examples_and_of_scenes_are_turned_as_the_points_are():
    place = torch.randn(20, 3)
    cloud, how = gl.Cloud.of(place, normal=place), Preparation(up="z", keep_scale=True, features=["normal"])
    for seen in (joined(prepare(cloud, "site", how=how, kept=["normal"]), how.features), turned(cloud, how, "site")):
        assert torch.equal(seen.rows["features"], seen.coords)
        assert torch.equal(seen.coords[:, 1], place[:, 2])


def touched(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


@pytest.mark.parametrize("suffix", [".ply", ".pcd.bin", ".copc.laz", ").ply"])
def test_the_number_at_the_end_of_a_name_is_found_before_any_suffix(suffix):
    names = [f"{day} ({i:03d}{suffix}" for day in ("mon", "tue", "wed") for i in range(6)]
    chosen, rule = held_out([0] * 18, names)
    assert rule.startswith("1 of 3 sessions")
    assert len({names[i][:3] for i in chosen}) == 1


def test_a_class_with_one_session_does_not_cut_those_of_others():
    names = [f"{day}_{i}.ply" for day in ("mon", "tue", "wed") for i in range(4)] + [f"thu_{i}.ply" for i in range(5)]
    chosen, rule = held_out([0] * 12 + [1] * 5, names)
    assert rule == "1 of 4 sessions, by folder and file name; the last fifth of 1 classes without several of them"
    assert len({names[i][:3] for i in chosen if i < 12}) == 1
    assert [names[i] for i in chosen if i >= 12] == ["thu_4.ply"]


def test_a_class_of_one_file_keeps_it_to_learn_from():
    assert held_out([0, 0, 0, 1], ["0.ply", "1.ply", "2.ply", "3.ply"])[0] == [2]


def test_names_with_raised_digits_are_names():
    assert held_out([0, 0, 1, 1], ["3\u00b24.ply", "3\u00b25.ply", "1.ply", "2.ply"])[0] == [1, 3]


def test_a_test_folder_beside_the_classes_is_no_class(tmp_path):
    files = [f"{name}/{i}.ply" for name in ("a", "b") for i in range(4)]
    listed = listing(touched(tmp_path, *files, "test/a/0.ply", "test/b/0.ply"), [".ply"])
    assert listed.class_names == ("a", "b")
    assert [listed.files[i] for i in listed.rows("test")] == ["test/a/0.ply", "test/b/0.ply"]
    assert len(listed.rows("train")) == 8
    # Its own files, or folders of no class: it is one.
    assert listing(touched(tmp_path / "c", "valid/0.ply", "valid/1.ply", "other/0.ply"), [".ply"]).class_names == (
        "other",
        "valid",
    )
    named = listing(touched(tmp_path / "d", "test/mon/0.ply", "test/mon/1.ply", "other/0.ply"), [".ply"])
    assert named.class_names == ("other", "test")


def test_folders_without_a_file_that_can_be_read_are_said_to_be_no_classes(tmp_path):
    root = touched(tmp_path, "a/0.ply", "b/0.ply", "c/0.glb", ".git/x", "runs/1/recipe.yaml", "runs/1/split.txt")
    (root / "d" / "mon").mkdir(parents=True)
    with pytest.warns(UserWarning, match="holds no ") as warned:
        assert listing(root, [".ply"]).class_names == ("a", "b")
    assert [str(warning.message).split()[0] for warning in warned] == [str(root / "c"), str(root / "d")]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        listing(root, [".ply"], by_class=False)
        listing(root, [".ply"], class_names=["a", "b", "c", "d"])


def test_folders_behind_links_are_read_once(tmp_path):
    outside = touched(tmp_path / "outside", "0.ply", "1.ply")
    root = touched(tmp_path / "root", "a/0.ply", "a/1.ply")
    (root / "b").symlink_to(outside)
    (outside / "back").symlink_to(root)
    assert listing(root, [".ply"]).files == ("a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")


@pytest.mark.parametrize("linked", ["b", "b/0.ply", "."])
def test_a_link_to_another_class_takes_nothing_from_it(tmp_path, linked):
    root = touched(tmp_path, "a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")
    (root / "a" / "link.ply").symlink_to((root / linked).resolve())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        listed = listing(root, [".ply"])
    assert listed.files == ("a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")
    assert [listed.class_names[k] for k in listed.labels] == ["a", "a", "b", "b"]
    # A link to a folder above is a circle, and takes nothing from a class.
    assert [str(root / "a" / "link.ply") in str(w.message) for w in caught] == [True] * (linked != ".")


def test_what_two_classes_link_to_is_refused(tmp_path):
    outside = touched(tmp_path / "outside", "0.ply", "1.ply")
    root = touched(tmp_path / "root", "a/0.ply", "b/0.ply")
    for name in "ab":
        (root / name / "link").symlink_to(outside)
    with pytest.raises(ValueError, match=r"b/link.*a/link.*another class"):
        listing(root, [".ply"])
    for name in "ab":
        (root / name / "link").unlink()
        (root / name / "5.ply").symlink_to(outside / "1.ply")
    with pytest.raises(ValueError, match=r"b/5\.ply.*a/5\.ply.*another class"):
        listing(root, [".ply"])
    # Points with labels have no classes, and their files are read once.
    assert listing(root, [".ply"], by_class=False).files == ("a/0.ply", "a/5.ply", "b/0.ply")


def test_a_class_whose_files_are_in_a_hidden_folder_is_there(tmp_path):
    root = touched(tmp_path, ".store/x/0.ply", ".store/x/1.ply", "a/0.ply", "a/1.ply")
    (root / "b").symlink_to(root / ".store" / "x")
    assert listing(root, [".ply"]).files == ("a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")


def test_a_link_to_a_test_file_is_not_learned_from(tmp_path):
    names = [f"{k}/{i}.ply" for k in "ab" for i in range(3)]
    root = touched(tmp_path, *names, "test/a/9.ply", "test/b/9.ply")
    (root / "a" / "link").symlink_to(root / "test" / "a")
    with pytest.warns(UserWarning, match=r"a/link.*another split"):
        listed = listing(root, [".ply"])
    assert [listed.files[i] for i in listed.rows("train")] == names


def test_links_that_lead_round_in_a_circle_end(tmp_path):
    root = touched(tmp_path, "a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")
    (root / "a" / "self").symlink_to(root / "a")
    (root / "b" / "never").symlink_to(root / "b" / "never")
    assert listing(root, [".ply"]).files == ("a/0.ply", "a/1.ply", "b/0.ply", "b/1.ply")


@pytest.mark.parametrize("kind", ["points", "recordings"])
def test_every_file_is_read_once_for_all_splits(sites, tmp_path, monkeypatch, kind):
    read = []
    if kind == "points":
        count = len(list(sites.glob("*.ply")))
        place, name, folder = gridless.data.prepare, "read_cloud", sites
        make = partial(gl.data.CloudFolder, folder, label="auto", up="z", block=10.0)
    else:
        for k in "ab":
            (tmp_path / "events" / k).mkdir(parents=True)
            for i in range(3):
                columns = {"x": [1 + i, 3], "y": [2, 2], "t": [10, 20], "p": [True, False]}
                events = gl.Events.of({name: np.array(column) for name, column in columns.items()}, (8 + i, 8))
                gl.write_events(tmp_path / "events" / k / f"{i}.npz", events)
        count, place, name = 6, gridless.data.readers.events, "read_events"
        make = partial(gl.data.EventFolder, tmp_path / "events")
    real = getattr(place, name)
    monkeypatch.setattr(place, name, lambda path, *a, **k: read.append(Path(path)) or real(path, *a, **k))
    fit, held = make("fit"), make("validation")
    assert len(read) == len(set(read)) == count
    # The cache holds what the file holds.
    alone = make("validation")
    assert len(read) > count
    assert len(alone) == len(held)
    for (one, _), (other, _) in zip(alone, held):
        field = "coords" if kind == "points" else "pixel"
        assert torch.equal(getattr(one, field), getattr(other, field))
    assert set(fit.files).isdisjoint(held.files)


def test_a_file_that_changed_is_read_again(sites):
    make = partial(gl.data.CloudFolder, sites, label="auto", up="z", keep_scale=True)
    make("fit")
    file = make("validation").files[0]
    make("fit")
    write_cloud(sites / file, torch.rand(7, 3), classification=torch.tensor([2, 5, 2, 5, 2, 5, 5], dtype=torch.uint8))
    assert make("validation").sizes.tolist() == [7]


def test_classes_and_labels_are_numbered_as_the_weights_do(scans, sites):
    folder = gl.data.CloudFolder(scans, "train", class_names=["cone", "rod", "disc"])
    assert {file.split("/")[0]: int(n) for file, n in zip(folder.files, folder.labels)} == {"rod": 1, "disc": 2}
    with pytest.raises(ValueError, match=r"class 'disc'.*rod, cone"):
        gl.data.CloudFolder(scans, "train", class_names=["rod", "cone"])
    known = gl.data.CloudFolder(sites, "train", label="auto", up="z", block=10.0)
    more = gl.data.CloudFolder(sites, "train", label="auto", up="z", block=10.0, values=[0, *known.values])
    for one, other, size in zip(more.rows["part"], known.rows["part"], known.sizes.tolist()):
        assert torch.equal(one[:size] - 1, other[:size])
    with pytest.raises(ValueError, match=f"weights .* label {known.values[-1]}"):
        gl.data.CloudFolder(sites, "train", label="auto", up="z", block=10.0, values=known.values[:-1])


def test_returns_of_a_scan_that_are_not_finite_are_left_out(tmp_path):
    label = torch.arange(50, dtype=torch.uint8) % 2
    for i in range(2):
        coords = torch.rand(50, 3)
        coords[:5, i] = torch.nan
        write_cloud(tmp_path / f"{i}.ply", coords, label=label)
    with pytest.warns(UserWarning, match=r"10 points of 2 files.*0\.ply.* finite"):
        data = gl.data.CloudFolder(tmp_path, "train", label="auto", keep_scale=True)
    assert data.sizes.tolist() == [45, 45]
    assert torch.equal(data.rows["part"][0].bincount(), label[5:].bincount())
    write_cloud(tmp_path / "0.ply", coords * torch.nan, label=label)
    with pytest.raises(ValueError, match=r"0\.ply: .*finite"):
        gl.data.CloudFolder(tmp_path, "train", label="auto")


def test_which_labels_there_are_does_not_depend_on_how_many_points_are_kept(tmp_path):
    label = torch.zeros(500, dtype=torch.uint8)
    label[7] = 9
    for i in range(3):
        write_cloud(tmp_path / f"{i}.ply", torch.rand(500, 3), label=label)
    assert gl.data.CloudFolder(tmp_path, "train", points=20, label="auto", keep_scale=True).values == [0, 9]


def test_features_of_another_type_than_in_training_are_refused(tmp_path):
    rgb = torch.randint(256, (50, 3))
    for i in range(4):
        write_cloud(tmp_path / "d" / "ab"[i % 2] / f"{i}.ply", torch.rand(50, 3), rgb=rgb.byte())
    network = {"model": "point_resnet_small", "width": 8, "levels": 1, "radius": 0.6}
    recipe = Recipe.from_dict({"model": network, "data": "folder", "data_options": {"features": ["rgb"]}})
    recipe = find(recipe.task_name).fit(recipe, load_data(recipe, tmp_path / "d", "fit"))
    assert recipe.data_options["scales"] == {"rgb": 255}
    model = gl.load(gl.save(recipe.make_model(), tmp_path / "net", recipe=recipe.to_dict()))
    assert gl.training.classify(model, tmp_path / "d" / "a" / "0.ply").shape == (2,)
    columns = dict(zip("xyz", np.random.rand(3, 50).astype(np.float32)))
    for kind, by in ((np.int64, 1), (np.float32, 1), (np.uint16, 65535)):
        np.savez(tmp_path / "x.npz", **columns, **dict(zip("rgb", rgb.T.numpy().astype(kind))))
        message = rf"'rgb' .* 255 in training .* {by} in .*x\.npz.* type"
        with pytest.raises(ValueError, match=message):
            gl.training.classify(model, tmp_path / "x.npz")
        with pytest.raises(ValueError, match=message):
            turned(gl.read_cloud(tmp_path / "x.npz"), preparation(recipe.to_dict()), "x.npz")


def test_colours_of_one_byte_and_of_four_are_not_mixed(tmp_path):
    rgb = torch.randint(256, (50, 3))
    write_cloud(tmp_path / "a" / "0.ply", torch.rand(50, 3), rgb=rgb.byte())
    columns = dict(zip("xyz", np.random.rand(3, 50).astype(np.float32))) | dict(zip("rgb", rgb.T.int().numpy()))
    (tmp_path / "b").mkdir()
    table = np.empty(50, [(name, column.dtype) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    for name in ("0.npy", "1.npy"):
        np.save(tmp_path / "b" / name, table)
    assert gl.read_cloud(tmp_path / "b" / "0.npy").rows["rgb"].dtype == torch.int64
    with pytest.raises(ValueError, match=r"'rgb' .*(255|1) in .* (255|1) in "):
        gl.data.CloudFolder(tmp_path, "train", features=["rgb"])
