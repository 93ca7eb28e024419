"""The command line and saved weights."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import tracemalloc
import warnings

import event_encoders
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_run import shapes

import gridless as gl
from gridless import models, weights
from gridless.cli.main import main
from gridless.cli.options import in_options, limited
from gridless.data.prepare import Preparation, prepare
from gridless.tasks.clouds import check_scale, preparation
from gridless.tasks.labelled import write_parts
from gridless.tasks.loading import load_data
from gridless.training import Recipe, load_recipe
from gridless.training.recipe import available
from gridless.weights import begin_with


@pytest.fixture
def saved(tmp_path):
    """An untrained network of three classes, saved with their names."""
    torch.manual_seed(0)
    model = models.PointResNet(3, width=8, levels=2, radius=0.3)
    recipe = {"points": 64, "votes": 2}
    gl.save(model, tmp_path / "net", class_names=["sphere", "disc", "rod"], recipe=recipe)
    return model.eval(), tmp_path / "net.safetensors"


def test_loading_leaves_the_random_state_but_a_new_head_is_another_each_time(saved):
    before = torch.get_rng_state()
    gl.load(saved[1])
    assert torch.equal(torch.get_rng_state(), before)
    one, other = (gl.load(saved[1], classes=2).state_dict() for _ in range(2))
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_path_in_the_place_of_the_network_is_refused_with_the_order(saved):
    with pytest.raises(TypeError, match=r"^save: .* str.*gl\.save\(model, path\)"):
        gl.save("x", saved[0])  # type: ignore[arg-type]


def test_weights_come_back_as_they_were_saved(saved):
    model, path = saved
    again = gl.load(path)
    assert again.about["class_names"] == ["sphere", "disc", "rod"]
    assert not again.training
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    cloud = shapes(1).points[0]
    assert torch.equal(model(model.plan(cloud)), again(again.plan(cloud)))


def test_weights_are_found_by_path_by_name_in_this_folder_and_with_their_class(saved, tmp_path, monkeypatch):
    model, path = saved
    gl.save(model, tmp_path / "net.v2")
    assert (tmp_path / "net.v2.safetensors").is_file()
    monkeypatch.chdir(tmp_path)
    for again in (gl.load("net"), gl.load("net.v2"), gl.load(path, model=models.PointResNet)):
        assert torch.equal(again.state_dict()["stem.weight"], model.state_dict()["stem.weight"])
    with pytest.raises(ValueError, match=r"'net' .*Linear"):
        begin_with(torch.nn.Linear(1, 1), "net")


def test_more_names_than_classes_are_not_saved(tmp_path):
    message = "^save: class_names.* 4 .* 3 classes"
    with pytest.raises(ValueError, match=message):
        gl.save(gl.models.point_resnet_small(3), tmp_path / "net", class_names=list("abcd"))
    model, arguments = Own(classes=3), {"classes": 3}
    with pytest.raises(ValueError, match=message):
        gl.save(model, tmp_path / "net", arguments=arguments, class_names=list("abcd"))
    assert not list(tmp_path.iterdir())


def test_names_of_classes_are_a_list_of_any_kind_but_not_one_word(tmp_path):
    model = gl.models.point_resnet_small(3)
    path = gl.save(model, tmp_path / "net", class_names=np.array(["a", "b", "c"]))
    assert gl.load(path).about["class_names"] == ["a", "b", "c"]
    with pytest.raises(TypeError, match=r"^save: class_names.*\['abc', ...\]"):
        gl.save(model, tmp_path / "other", class_names="abc")


def test_weights_of_16_bits_are_half_as_large_and_load_as_float32(saved, tmp_path):
    model, path = saved
    model.head[0].running_var.fill_(1e6)  # beyond float16
    half = gl.save(model, tmp_path / "half", bits=16)
    assert half.stat().st_size < 0.6 * path.stat().st_size
    for name, tensor in gl.load(half).state_dict().items():
        mine = model.state_dict()[name]
        assert tensor.dtype == mine.dtype, name
        assert torch.equal(tensor, mine.half().float() if mine.ndim > 1 else mine), name
    with pytest.raises(ValueError, match=r"^save: bits.* 8\b"):
        gl.save(model, tmp_path / "none", bits=8)
    with torch.no_grad():
        model.head[2].weight[0, 0] = 1e5
    with pytest.raises(ValueError, match=r"head\.2\.weight .* 65504"):
        gl.save(model, tmp_path / "none", bits=16)
    assert not list(tmp_path.glob("none*"))


def test_unknown_weights_list_what_exists():
    with pytest.raises(ValueError, match=r"'modelnet40-hug'.*modelnet40-large"):
        gl.load("modelnet40-hug")


@pytest.mark.parametrize("classes", [None, 5])
def test_weights_of_another_network_are_refused_by_the_first_mismatch(saved, tmp_path, classes):
    _, path = saved
    about = json.loads(path.with_suffix(".json").read_text())
    about["model"]["width"] = 16
    path.with_suffix(".json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match=r"'blocks.0.branch.reduce.weight' of this PointResNet .*\(8, 16\)"):
        gl.load(path, classes=classes)


@pytest.mark.parametrize(
    ("setting", "value"), [("levels", 40), ("levels", 10**9), ("width", 2**40), ("classes", 10**9)]
)
def test_a_config_that_asks_for_more_than_the_file_has_is_refused_before_it_takes_memory(saved, setting, value):
    about = saved[1].with_suffix(".json")
    settings = json.loads(about.read_text())
    about.write_text(json.dumps({**settings, "model": {**settings["model"], setting: value}}))
    tracemalloc.start()
    begun = time.perf_counter()
    with pytest.raises(ValueError, match=r"net\.safetensors.* \d+ numbers"):
        gl.load(saved[1])
    assert time.perf_counter() - begun < 5
    assert tracemalloc.get_traced_memory()[1] < 2**26
    tracemalloc.stop()


@pytest.mark.parametrize("network", ["event_resnet", "EventCounts"])
@pytest.mark.parametrize("levels", [33, 10**12])
def test_levels_without_end_are_refused(network, levels):
    with pytest.raises(ValueError, match=rf"levels.* {levels}\b"):
        models.build({"model": network, "classes": 2, "sensor": (8, 8), "levels": levels, "width": 0})


def test_json_that_is_too_deep_is_refused_by_the_name_of_its_file(saved):
    saved[1].with_suffix(".json").write_text('{"model": ' + "[" * 100_000)
    with pytest.raises(ValueError, match=r"net\.json"):
        gl.load(saved[1])


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_whole_numbers_are_no_weights(saved, dtype):
    model, path = saved
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors["stem.weight"] = tensors["stem.weight"].to(dtype)
    save_file(tensors, path)
    with pytest.raises(ValueError, match=r"'stem.weight' .*torch.float32.*torch\."):
        gl.load(path)
    with pytest.raises(ValueError, match=r"frozen: .*stem.weight"):
        Recipe.from_dict({"model": model.config, "start": str(path), "frozen": ["stem"]}).make_model()


def test_weights_may_be_real_numbers_of_another_size(saved):
    model, path = saved
    save_file({n: t.double() if t.is_floating_point() else t for n, t in model.state_dict().items()}, path)
    assert torch.equal(gl.load(path).state_dict()["stem.weight"], model.state_dict()["stem.weight"])


def test_damaged_and_missing_files_are_named(saved):
    _, path = saved
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"net\.safetensors "):
        gl.load(path)
    for content in ("[]", '{"model": "PointResNet"}'):
        path.with_suffix(".json").write_text(content)
        with pytest.raises(ValueError, match=r"net\.json .*model"):
            gl.load(path)
    path.with_suffix(".json").unlink()
    with pytest.raises(FileNotFoundError, match=r"net\.json is missing"):
        gl.load(path)


def test_a_network_that_cannot_be_rebuilt_is_not_saved(tmp_path):
    with pytest.raises(TypeError, match=r"^save: Linear .*in_features.*arguments=\{\.\.\.\}"):
        gl.save(torch.nn.Linear(1, 1), tmp_path / "x")
    with pytest.raises(ValueError, match=r"^save: .*'weight' of this Linear is \(1, 2\).*\(1, 1\)"):
        gl.save(torch.nn.Linear(1, 1), tmp_path / "x", arguments={"in_features": 2, "out_features": 1})
    with pytest.raises(TypeError, match="not JSON serializable"):
        gl.save(torch.nn.Linear(1, 1), tmp_path / "x", arguments={"in_features": 2, "device": torch.device("cpu")})
    model = models.PointResNet(3, width=8, levels=2)
    model.head[-1] = gl.nn.Dense(256, 5)
    with pytest.raises(ValueError, match=r"head.5.weight.*gl.load\(NAME, classes=N\)"):
        gl.save(model, tmp_path / "x")
    model = models.PointResNet(3, width=8, levels=2)
    model.plan = models.PointResNet(3, width=8, levels=2, radius=0.3).plan
    with pytest.raises(ValueError, match=r"^save: .* plan "):
        gl.save(model, tmp_path / "x")
    assert not list(tmp_path.iterdir())


class Own(torch.nn.Module):
    """A network that gridless does not know."""

    def __init__(self, classes=4, width=8, radii=(0.3,)):
        super().__init__()
        self.plan = gl.Plan()
        cloud = self.plan.points(dim=3)
        self.conv = gl.nn.FeaturelessConv(self.plan.ball(cloud, cloud, radii[0]), width)
        self.pool = gl.nn.MaxPool(cloud)
        self.head = torch.nn.Linear(width, classes)

    def forward(self, geometry):
        return self.head(self.pool(self.conv(geometry), geometry))


def test_a_network_of_your_own_class_is_saved_by_what_it_was_made_with(tmp_path, capsys):
    model = Own(classes=3, radii=(0.4,)).eval()
    path = gl.save(model, tmp_path / "own", arguments={"classes": 3, "radii": (0.4,)}, class_names=["a", "b", "c"])
    with pytest.raises(ValueError, match=r"test_commands:Own.*model="):
        gl.load(path)
    again = gl.load(path, model=Own)
    cloud = shapes(1).points[0]
    assert torch.equal(model(model.plan(cloud)), again(again.plan(cloud)))
    assert again.about["class_names"] == ["a", "b", "c"]
    gl.save(again, tmp_path / "again")
    assert json.loads((tmp_path / "again.json").read_text())["model"]["arguments"] == {"classes": 3, "radii": [0.4]}
    gl.save(again, tmp_path / "again", arguments={"classes": 3, "radii": [0.4], "width": 8})
    assert json.loads((tmp_path / "again.json").read_text())["model"]["arguments"]["width"] == 8
    wider = gl.load(path, model=Own, classes=6)
    assert wider.head.weight.shape == (6, 8)
    assert torch.equal(wider.conv.weight, model.conv.weight)


class Configured(Own):
    def __init__(self):
        super().__init__()
        self.config = object()


def test_a_network_of_your_own_class_may_have_a_config_of_its_own(tmp_path):
    again = gl.load(gl.save(Configured(), tmp_path / "own"), model=Configured)
    assert type(again.config) is object


def test_what_makes_a_network_draws_none_of_the_callers_random_numbers(tmp_path):
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    model = models.PointResNet(3, width=8, levels=1)
    torch.manual_seed(1)
    gl.save(model, tmp_path / "x")
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("classes", [5, 3, 1, ["cup", "pan"]])
def test_a_network_with_a_new_head_keeps_the_rest_and_can_be_saved(saved, tmp_path, classes, monkeypatch):
    model, path = saved
    read, tensors = [], weights._tensors
    monkeypatch.setattr(weights, "_tensors", lambda file: read.append(file) or tensors(file))
    new = gl.load(path, classes=classes)
    assert read == [path]
    count = classes if isinstance(classes, int) else len(classes)
    mine, theirs = new.state_dict(), model.state_dict()
    head = {
        name for name in mine if mine[name].shape != theirs[name].shape or not torch.equal(mine[name], theirs[name])
    }
    assert head <= {"head.5.weight", "head.5.bias"}
    assert "head.5.weight" in head
    assert mine["head.5.bias"].shape == (count,)
    assert new.config["classes"] == count
    assert new.about.get("class_names") == (None if isinstance(classes, int) else classes)
    again = gl.load(gl.save(new, tmp_path / "new"))
    assert torch.equal(again.state_dict()["head.5.weight"], mine["head.5.weight"])


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ("mug", r".*\['mug', ...\]"),
        (0, r".* 0\."),
        (-2, r".* -2\."),
        (2.5, r".* 2\.5\."),
        (True, ".* True"),
        ([], r".* 0\."),
        (["a", 1], r".* \['a', 1\]"),
        (["a", "b", "a"], "'a' .*twice"),
    ],
)
def test_classes_that_cannot_be_are_refused_by_name(saved, classes, message):
    with pytest.raises((TypeError, ValueError), match=f"^load: classes.*{message}"):
        gl.load(saved[1], classes=classes)


def test_networks_that_label_points_and_event_networks_take_new_classes_too(tmp_path):
    parts = gl.save(models.PointUNetPlus([3, 2], width=8, levels=1, hidden=16), tmp_path / "parts")
    assert gl.load(parts, classes=4).config["parts"] == [4]
    events = gl.save(models.event_resnet(3, (16, 16), width=8, levels=2, pooled=0), tmp_path / "events")
    assert gl.load(events, classes=["up", "down"]).config["classes"] == 2


def test_a_recipe_may_take_its_network_from_the_weights_it_begins_with(saved):
    model, path = saved
    recipe = Recipe.from_dict({"start": str(path), "model": {"classes": 7}})
    assert recipe.model == {**model.config, "classes": 7}
    state = recipe.make_model().state_dict()
    assert state["head.5.bias"].shape == (7,)
    assert torch.equal(state["stem.weight"], model.state_dict()["stem.weight"])
    with pytest.raises(ValueError, match="model is missing"):
        Recipe.from_dict({"epochs": 3})


def test_a_limit_takes_examples_from_all_of_the_data():
    recipe = load_recipe("shapes").changed(data_options={"size": 28, "held_out": 7}, points=16)
    whole = load_data(recipe, None, "fit")
    few = limited(whole, 4)
    step = (len(whole) - 1) / 3
    assert torch.equal(few.labels, whole.labels[[0, int(step), int(2 * step), len(whole) - 1]])
    assert len(limited(whole, 1000)) == len(whole)


def test_predict_prints_class_and_probabilities(saved, tmp_path, capsys):
    _, path = saved
    cloud = shapes(1, points=200).points[0].numpy()
    np.save(tmp_path / "one.npy", cloud)
    assert main(["predict", str(tmp_path / "one.npy"), "--weights", str(path), "--json", "--device", "cpu"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert set(line["probabilities"]) == {"sphere", "disc", "rod"}
    assert sum(line["probabilities"].values()) == pytest.approx(1, abs=1e-5)
    assert line["class"] == max(line["probabilities"], key=line["probabilities"].get)
    assert main(["predict", str(tmp_path / "one.npy"), "--weights", str(path), "--top", "2", "--device", "cpu"]) == 0
    best = sorted(line["probabilities"].items(), key=lambda each: -each[1])[:2]
    expected = ", ".join(f"{name} {p:.1%}" for name, p in best)
    assert capsys.readouterr().out == f"{tmp_path / 'one.npy'}: {expected}\n"
    np.save(tmp_path / "half.npy", cloud / 2)
    for options, same in (([], True), (["--keep-scale"], False)):
        asked = ["predict", str(tmp_path / "half.npy"), "--weights", str(path), "--json", "--device", "cpu", *options]
        assert main(asked) == 0
        half = json.loads(capsys.readouterr().out)["probabilities"]
        assert (half == pytest.approx(line["probabilities"], abs=1e-5)) == same


@pytest.mark.parametrize(("options", "hint"), [([], "--up z"), (["--up", "z"], "--up y"), (["--keep-scale"], "units")])
def test_a_low_probability_suggests_its_likely_causes(saved, tmp_path, capsys, options, hint):
    model, path = saved
    # All classes alike.
    with torch.no_grad():
        model.head[-1].weight.zero_()
        model.head[-1].bias.zero_()
    gl.save(model, path, class_names=["sphere", "disc", "rod"])
    np.save(tmp_path / "one.npy", shapes(1).points[0].numpy())
    arguments = ["predict", str(tmp_path / "one.npy"), "--weights", str(path), "--device", "cpu", *options]
    assert main(arguments) == 0
    text = capsys.readouterr().err
    assert "33%" in text
    assert hint in text
    assert "sphere, disc, rod" in text
    with torch.no_grad():
        model.head[-1].bias[1] = 5
    gl.save(model, path, class_names=["sphere", "disc", "rod"])
    assert main(arguments) == 0
    assert "%" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["predict", "no-such.ply"], "no-such.ply"),
        (["train", "modelnet40-hug", "--data", "."], "'modelnet40-hug'"),
        (["train", "modelnet40-large", "--data", "/no/such"], "/no/such"),
        (["train", "modelnet40-large", "--data", ".", "--set", "epochs"], "NAME=VALUE"),
        (["train", "modelnet40-large", "--data", ".", "--set", "epoch=1"], "'epoch'"),
        (["train", "modelnet40-large", "--data", ".", "--set", "epochs=[&a [], *a]"], "--set epochs=[&a [], *a]: "),
        (["train"], "gridless train: Missing argument '"),
        (["train", "shapes", "--epoch", "1"], "gridless train: No such option: --epoch"),
        (["train", "shapes", "--epochs", "many"], "gridless train: Invalid value for '--epochs': "),
        (["precompute", "shapes", "--cache", "/proc/x/y"], "/proc"),
        (
            ["predict", "recording.aedat4"],
            "recording.aedat4",
        ),
        (["predict", "."], ". is a folder. Give"),
        (["predict", "one.npy", "--top", "0"], "gridless predict: Invalid value for '--top': "),
        (["predict", "one.npy", "--tile", "0"], "--tile "),
        (["train", "shapes", "--set", "epochs=abc"], "recipe: epochs "),
        (["train", "shapes", "--set", "epochs=[1"], "--set epochs=[1: "),
        pytest.param(
            ["train", "own-clouds", "--data", "nowhere", "--device", "cuda", "--out", "no-such-run"],
            "'cuda'",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
        (["train", "shapes", "--device", "mps", "--out", "no-such-run"], "'mps'"),
        (["predict", "one.npy", "--out", "answers.json"], "--out "),
        (["predict", "one.npy", "--repair", "drop"], "--repair "),
        (["predict", "one.npy", "--workers", "2"], "--workers "),
        (["nonsense"], "'nonsense'"),
    ],
)
def test_errors_are_one_line(command, error, saved, capsys):
    if command[0] == "predict":
        command = [*command, "--weights", str(saved[1])]
    assert main(command) != 0
    text = capsys.readouterr().err
    assert error in text
    assert len(text.strip().splitlines()) == 1
    assert "Traceback" not in text


def test_the_folder_of_a_run_is_told_from_its_weights(saved, tmp_path):
    gl.save(saved[0], tmp_path / "run" / "weights")
    with pytest.raises(FileNotFoundError, match=r"run\b.*folder.*weights"):
        gl.load(tmp_path / "run")


def test_predict_draws_points_from_meshes(saved, tmp_path, capsys):
    corners, faces = "0 0 0\n1 0 0\n0 1 0\n0 0 1\n", "3 0 2 1\n3 0 1 3\n3 0 3 2\n3 1 2 3\n"
    (tmp_path / "tetra.off").write_text(f"OFF\n4 4 0\n{corners}{faces}")
    assert main(["predict", str(tmp_path / "tetra.off"), "--weights", str(saved[1]), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["probabilities"]) == {"sphere", "disc", "rod"}


def test_files_whose_suffix_recordings_have_too_are_read_as_clouds(saved, tmp_path, capsys):
    points = shapes(1, points=200).points[0].numpy()
    np.savez(tmp_path / "cloud.npz", xyz=points)
    np.hstack([points, np.zeros((200, 1), np.float32)]).tofile(tmp_path / "000001.bin")
    files = [str(tmp_path / name) for name in ("cloud.npz", "000001.bin")]
    assert main(["predict", *files, "--weights", str(saved[1]), "--json", "--device", "cpu"]) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["probabilities"] == second["probabilities"]


def test_clouds_are_refused_by_weights_for_recordings(tmp_path, capsys):
    gl.save(models.event_resnet(3, (16, 16), width=8, levels=2, pooled=0), tmp_path / "net")
    assert main(["predict", "scan.ply", "--weights", str(tmp_path / "net.safetensors")]) == 1
    assert re.search(r"scan\.ply.*cloud.*recordings", capsys.readouterr().err)


@pytest.mark.slow
def test_train_prints_one_json_object_and_nothing_else(tmp_path, capsys):
    small = ["--set", "data_options.size=56", "--set", "data_options.held_out=14", "--set", "points=32"]
    assert main(["train", "shapes", *small, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["epochs"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "option", ["--limit=0", "--limit=-5", "--checkpoint-steps=0", "--devices=0", "--nodes=0", "--workers=-1"]
)
def test_numbers_below_one_are_refused_by_name(option, tmp_path, capsys):
    assert main(["train", "shapes", option, "--out", str(tmp_path / "run"), "--device", "cpu"]) == 2
    assert f"'{option.partition('=')[0]}'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("data_options.size=0", "data_options.size "),
        ("data_options.held_out=few", "'few'"),
        ("data_options.nonsense=1", "'nonsense' "),
        ("data_options.seed=1", "'seed' "),
        ("model.classes=3", "3 classes"),
        ("precision=bf16", "bf16"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_run_begins(tmp_path, capsys, change, error):
    small = ["--device", "cpu", "--set", "data_options={size: 70, held_out: 14}"]
    assert main(["train", "shapes", "--out", str(tmp_path / "run"), *small, "--set", change]) == 1
    assert error in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("data", ["modelnet40", "shapenetpart", "semantickitti", "n_cars"])
def test_every_data_set_refuses_options_that_it_does_not_have(tmp_path, data):
    recipe = Recipe.from_dict({"model": {"model": "point_unet"}, "data": data, "data_options": {"nonsense": 1}})
    with pytest.raises(ValueError, match=r"data_options.*'nonsense'"):
        load_data(recipe, tmp_path, "fit")


@pytest.mark.slow
def test_a_rate_that_is_far_too_large_is_named(tmp_path, capsys):
    small = ["data_options.size=28", "data_options.held_out=14", "points=64", "learning_rate=1e30"]
    changes = [word for change in small for word in ("--set", change)]
    assert main(["train", "shapes", "--epochs", "2", "--out", str(tmp_path), "--device", "cpu", *changes]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"gridless train: .*diverged in epoch \d.*learning_rate.*1e\+30", err)


@pytest.mark.slow
@pytest.mark.parametrize("all_data", [True, False])
def test_evaluate_says_first_where_weights_were_trained_on_a_split(tmp_path, capsys, all_data):
    small = ["--set", "data_options.size=28", "--set", "data_options.held_out=14", "--set", "points=32"]
    command = ["train", "shapes", *small, "--epochs", "1", "--device", "cpu", "--out", str(tmp_path)]
    assert main([*command, "--all-data"] if all_data else command) == 0
    weights = str(tmp_path / "weights")
    expected = {"fit": "these", "train": "these" if all_data else "most of these", "test": None}
    expected["validation"] = "these" if all_data else None
    for split, many in expected.items():
        capsys.readouterr()
        assert main(["evaluate", weights, "--split", split, "--device", "cpu"]) == 0
        first, *rest = capsys.readouterr().out.splitlines()
        if many is None:
            assert "%" in first
        else:
            assert first == f"{weights} was trained on {many} examples: on unseen ones expect less"
            assert "%" in rest[0]
    assert main(["evaluate", weights, "--split", "fit", "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seen_in_training"] == "all"


def test_a_curve_over_points_judges_the_first_so_many_of_each_cloud(tmp_path, capsys, monkeypatch):
    small = {"model": "PointResNet", "classes": 7, "width": 8, "levels": 1, "radius": 0.3}
    recipe = Recipe(small, data="shapes", points=32, data_options={"size": 28, "held_out": 14})
    model, judged = recipe.make_model().eval(), []
    gl.save(model, tmp_path / "net", recipe=recipe.to_dict())
    monkeypatch.setattr("gridless.tasks.classify.report", lambda p, *more: judged.append(p) or {"number": len(p)})
    command = ["evaluate", str(tmp_path / "net"), "--split", "validation", "--points", "24", "--points", "48", "--json"]
    assert main([*command, "--device", "cpu"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores == {count: {"number": 14, "seen_in_training": "unknown"} for count in ("24", "48")}
    whole = load_data(recipe.changed(points=48), None, "validation")
    for count, p in zip((24, 48), judged, strict=True):
        with torch.no_grad():
            logits = model(model.plan(gl.Cloud.of(list(whole.points[:, :count]))))
        torch.testing.assert_close(p, logits.softmax(1))


def test_options_of_scenes_reach_what_labels_them(tmp_path, monkeypatch, capsys):
    gl.save(models.point_unet(2, width=8, levels=1, radius=0.5), tmp_path / "net", class_names=["road", "tree"])
    given = []
    monkeypatch.setattr("gridless.scenes.label.label_scene", lambda *_, **known: given.append(known) or {0: 5, 1: 2})
    command = [
        "predict",
        "city.npy",
        "--weights",
        str(tmp_path / "net"),
        "--out",
        str(tmp_path / "out.ply"),
        "--up",
        "z",
    ]
    command += ["--tile", "7", "--grid", "0.5", "--workers", "2", "--double", "--device", "cpu"]
    assert main(command) == 0
    assert given[0].pop("how").up == "z"
    wanted = {"size": 7, "grid": 0.5, "workers": 2, "double": True, "device": "cpu"}
    assert given == [wanted]
    assert "road 5, tree 2 points" in capsys.readouterr().out


@pytest.mark.slow
def test_debug_shows_where_an_error_came_from():
    with pytest.raises(ValueError, match="modelnet40-hug"):
        main(["train", "modelnet40-hug", "--data", ".", "--debug"])


def test_shipped_recipes_are_whole():
    names = available()
    assert {"modelnet40-large", "modelnet40-small", "modelnet40-plus"} <= set(names)
    for name in ("modelnet40-large", "modelnet40-small", "modelnet40-plus"):
        recipe = load_recipe(name)
        assert load_recipe(name) == type(recipe).from_dict(recipe.to_dict())
        recipe.make_model()


BOMB = "model: {model: point_resnet_large}\ndata_options:\n  a0: &a0 [x, x]\n" + "".join(
    f"  a{i}: &a{i} [*a{i - 1}, *a{i - 1}, *a{i - 1}, *a{i - 1}]\n" for i in range(1, 40)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "&a [*a]",
        "[" * 500,
        "model: !!python/object:os.system {}",
        "a: b: c",
        "[]",
        "a: 2024-99-99",
        "epochs: 1\nepochs: 2",
        "model: {width: 1, width: 2}",
    ],
)
def test_a_recipe_that_means_harm_is_refused_by_name(tmp_path, text):
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_recipe(tmp_path / "bad.yaml")


def test_a_cloud_is_prepared_as_training_clouds_were():
    raw = torch.randn(500, 3, generator=torch.Generator().manual_seed(0)) * 40 + 1000
    cloud = prepare(gl.Cloud.of(raw), "raw", 128).coords
    assert cloud.shape == (128, 3)
    assert cloud.mean(0).norm() < 1e-4
    assert cloud.norm(dim=1).max() == pytest.approx(1)


def test_coordinates_of_a_map_keep_their_digits_where_the_scale_is_kept():
    near = torch.rand(500, 3, dtype=torch.float64) * 20
    far = prepare(gl.Cloud.of(near + torch.tensor([5e5, 5.4e6, 300.0])), "x", None, Preparation(keep_scale=True)).coords
    assert far.dtype == torch.float32
    assert ((far - far[0]).double() - (near - near[0])).abs().max() < 1e-5
    # Coordinates that float32 holds stay.
    there = prepare(gl.Cloud.of(near.float()), "x", None, Preparation(keep_scale=True)).coords
    assert torch.equal(there, near.float())


def test_the_axis_that_points_up_becomes_y_and_left_stays_left():
    axes = torch.eye(3)
    for up in "xyz":
        turned = prepare(gl.Cloud.of(axes, normal=axes), "axes", 9, Preparation(up, keep_scale=True), ["normal"])
        assert turned.coords["xyz".index(up)].tolist() == [0, 1, 0]
        assert torch.linalg.det(turned.coords) == 1
        assert torch.equal(turned.rows["normal"], turned.coords)


def test_shapes_are_learned_y_up_and_files_of_them_are_turned_likewise():
    recipe = load_recipe("shapes").changed(data_options__size=3)
    learned = load_data(recipe, None, "fit").points
    drawn = gl.data.Shapes(3, points=256).coords
    x, y, z = drawn.unbind(2)
    assert torch.equal(learned, torch.stack([x, z, -y], 2))
    for up in (None, "z"):
        seen = prepare(gl.Cloud.of(drawn[1]), "x.ply", how=preparation(recipe.to_dict(), up)).coords
        assert torch.equal(seen, prepare(gl.Cloud.of(learned[1]), "x.ply").coords)


def test_bad_clouds_are_refused_with_a_reason():
    with pytest.raises(ValueError, match=r"^x\.ply: 1 points"):
        prepare(gl.Cloud.of(torch.tensor([[0.0, 0.0, torch.nan], [1, 2, 3]])), "x.ply", 10)
    with pytest.raises(ValueError, match=r"^x\.ply: .*\(0, 3\)"):
        prepare(gl.Cloud.of(torch.zeros(0, 3)), "x.ply", 10)
    with pytest.raises(ValueError, match=r"^x\.ply: all 4 points"):
        prepare(gl.Cloud.of(torch.ones(4, 3)), "x.ply", 10)
    with pytest.raises(ValueError, match=r"^x\.ply: all 7 points"):
        prepare(gl.Cloud.of(torch.full((7, 3), 0.1)), "x.ply", 10)


@pytest.mark.parametrize(
    ("how", "hint"),
    [
        ({}, r"more points\.$"),
        ({"keep_scale": True}, "units of training"),
    ],
)
def test_a_cloud_whose_points_have_no_neighbours_is_warned_of_with_what_may_help(how, hint):
    model = models.PointResNet(3, width=8, levels=1)
    with pytest.warns(UserWarning, match=rf"x\.ply.*100%.*neighbour.*{hint}"):
        check_scale(model.plan(shapes(1).points[0] * 100), "x.ply", Preparation(**how))


def test_the_warning_of_a_sparse_cloud_names_the_line_of_the_caller(saved, tmp_path):
    np.save(tmp_path / "x.npy", shapes(1).points[0].numpy())
    with pytest.warns(UserWarning, match="no neighbour") as warned:
        gl.training.classify(gl.load(saved[1]), tmp_path / "x.npy", points=8)
    parts = gl.load(gl.save(models.PointUNetPlus([3], width=8, levels=1, hidden=16), tmp_path / "parts"))
    with pytest.warns(UserWarning, match="no neighbour") as again:
        write_parts(parts, tmp_path / "x.npy", tmp_path, points=8)
    assert {one.filename for one in (*warned, *again)} == {__file__}


def test_warnings_of_a_command_are_one_line(saved, tmp_path, capsys):
    np.save(tmp_path / "x.npy", shapes(1).points[0].numpy())
    command = ["predict", str(tmp_path / "x.npy"), "--weights", str(saved[1]), "--points", "8", "--device", "cpu"]
    before = warnings.showwarning
    assert main(command) == 0
    line, doubt = capsys.readouterr().err.splitlines()
    assert line.startswith(f"gridless: {tmp_path / 'x.npy'}: 62% of the points")
    assert doubt.startswith("gridless predict: ")
    assert warnings.showwarning is before
    with pytest.warns(UserWarning, match="no neighbour"):
        main([*command, "--debug"])


def test_points_at_hand_are_no_file(saved):
    with pytest.raises(TypeError, match=r"^classify: .*Tensor.*model\(model.plan\(points\)\)"):
        gl.training.classify(saved[0], torch.rand(9, 3))


def test_a_file_that_would_become_a_folder_is_refused(tmp_path, capsys):
    scenes = gl.save(models.point_unet(3, width=8, levels=1, radius=0.3), tmp_path / "scenes")
    parts = gl.save(models.PointUNetPlus([3], width=8, levels=1, hidden=16), tmp_path / "parts")
    np.save(tmp_path / "one.npy", np.zeros((9, 3), np.float32))
    command = ["predict", str(tmp_path / "one.npy"), "--device", "cpu", "--out", str(tmp_path / "x.xyz"), "--weights"]
    assert main([*command, str(scenes)]) == 1
    assert re.search(r"--out .*x\.xyz", capsys.readouterr().err)
    assert main([*command, str(parts)]) == 1
    assert "OUT/NAME.ply" in capsys.readouterr().err
    np.save(tmp_path / "two.npy", np.zeros((9, 3), np.float32))
    files = [str(tmp_path / name) for name in ("one.npy", "two.npy")]
    more = ["--device", "cpu", "--weights", str(scenes)]
    assert main(["predict", *files, *more, "--out", str(tmp_path / "x.ply")]) == 1
    assert re.search("--out .*x.ply.*2 scenes", capsys.readouterr().err)
    assert main(["predict", files[0], *more, "--votes", "3"]) == 1
    assert "--votes " in capsys.readouterr().err
    assert not (tmp_path / "x.xyz").exists()


def test_predict_goes_on_after_a_file_that_it_cannot_use(saved, tmp_path, capsys):
    good = shapes(1, points=200).points[0].numpy()
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", good)
    (tmp_path / "nan.xyz").write_text("0 0 0\nnan 1 2\n")
    (tmp_path / "empty.xyz").write_text("")
    files = [str(tmp_path / name) for name in ("a.npy", "nan.xyz", "gone.ply", "rec.aedat4", "empty.xyz", "b.npy")]
    assert main(["predict", *files, "--weights", str(saved[1]), "--json", "--device", "cpu"]) == 1
    out, err = capsys.readouterr()
    assert [json.loads(line)["file"] for line in out.splitlines()] == [files[0], files[-1]]
    lines = err.splitlines()
    assert len(lines) == 6
    assert "nan.xyz: " in lines[0]
    assert "gone.ply" in lines[1]
    assert "rec.aedat4 is a recording" in lines[2]
    assert "empty.xyz" in lines[3]
    assert "2 of 6 files have under 40%" in lines[4]
    assert "4 of 6 files" in lines[5]


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".csv"])
def test_a_recording_in_a_format_of_clouds_is_called_one(saved, tmp_path, capsys, suffix):
    file, step = tmp_path / f"digit{suffix}", torch.arange(99)
    gl.write_events(file, gl.Events.of({"x": step % 9, "y": step % 7, "t": 10 * step, "p": step % 2}, sensor=(9, 7)))
    assert main(["predict", str(file), "--weights", str(saved[1]), "--device", "cpu"]) == 1
    assert re.search(f"{file.name}.*recording.*clouds", capsys.readouterr().err)


def test_files_without_points_say_so(saved, tmp_path):
    header = "format ascii 1.0\nelement vertex 0\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    (tmp_path / "none.ply").write_text(f"ply\n{header}")
    fields = "VERSION .7\nFIELDS x y z\nSIZE 4 4 4\nTYPE F F F\nCOUNT 1 1 1\nWIDTH 0\nHEIGHT 1\n"
    (tmp_path / "none.pcd").write_text(f"{fields}POINTS 0\nDATA ascii\n")
    (tmp_path / "none.csv").write_text("x,y,z\n")
    np.save(tmp_path / "none.npy", np.zeros((0, 3), np.float32))
    model = gl.load(saved[1])
    for file in sorted(tmp_path.glob("none.*")):
        with pytest.raises(ValueError, match=rf"{file.name}: .*points"):
            gl.training.classify(model, file)


@pytest.mark.slow
def test_a_missing_package_is_named_as_pip_knows_it(monkeypatch, capsys, tmp_path):
    for name in ("lightning", "lightning.fabric"):
        monkeypatch.setitem(sys.modules, name, None)
    out = tmp_path / "run"
    assert main(["train", "shapes", "--limit", "8", "--devices", "2", "--set", "capture=false", "--out", str(out)]) == 1
    assert capsys.readouterr().err.rstrip().endswith("pip install lightning")
    assert not out.exists()


def test_kernels_that_do_not_exist_are_refused_with_those_that_do(capsys):
    assert main(["compile", "points", "nonsense"]) == 1
    text = capsys.readouterr().err
    assert all(name in text for name in ("'nonsense'", "points", "events", "live", "files"))


# One process for all kernels, with the cache of all tests: most are on disk already.
COMPILED_AHEAD = """
import gc, sys
import numba, torch
import gridless as gl
from gridless.cli.main import main

def kernels():
    functions = [one for one in gc.get_objects() if isinstance(one, numba.core.registry.CPUDispatcher)]
    ours = [one for one in functions if one.py_func.__module__.startswith("gridless.")]
    return {f"{one.py_func.__module__}.{one.__name__}{kinds}" for one in ours for kinds in one.overloads}

def training_step():
    recording = gl.collate([gl.data.MovingGlyphs(2)[i][0] for i in range(2)])
    for form in ("scan", "edges"):
        model = gl.models.event_resnet(5, (34, 34), width=4, levels=2, pooled=0, form=form)
        model.loss(model.plan(recording), torch.arange(2))[0].backward()

def reading():
    for name in ("street", "car"):
        gl.data.sample(name)
    for file in sys.argv[1:]:
        gl.read_events(file)

for name, modules, use in (
    ("events", ["gridless.geometry.causal.", "gridless.geometry.lif.", "gridless.ops.event_conv."], training_step),
    ("files", ["gridless.data."], reading),
):
    assert main(["compile", name]) == 0
    compiled = kernels()
    assert all(any(one.startswith(module) for one in compiled) for module in modules), compiled
    use()
    assert not kernels() - compiled, kernels() - compiled
"""


@pytest.mark.slow
def test_what_is_compiled_ahead_is_all_that_a_training_step_and_the_readers_of_files_need(tmp_path):
    recording = event_encoders.recording()
    (tmp_path / "2.raw").write_bytes(event_encoders.evt2(recording))
    (tmp_path / "3.raw").write_bytes(event_encoders.evt3(recording))
    gl.write_events(tmp_path / "a.dat", recording)
    files = [str(tmp_path / name) for name in ("2.raw", "3.raw", "a.dat")]
    done = subprocess.run([sys.executable, "-c", COMPILED_AHEAD, *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    times = [line.split(":")[0] for line in done.stderr.splitlines() if line.endswith(" s")]
    assert times == ["events", "files"]


@pytest.fixture
def bag(tmp_path):
    """A recording of ROS with two topics of events, one and three messages, and one of clouds."""
    pytest.importorskip("rosbags")
    import bag_files

    types = bag_files.store(ros1=False)
    packets = [bag_files.array(types, "dvs_msgs", [(k, k, 10**9 + 10**6 * (10 * i + k), True) for k in range(9)])
               for i in range(3)]  # fmt: skip
    table = np.zeros(5, dtype=[("x", "f4"), ("y", "f4"), ("z", "f4")])
    cloud = ("/lidar", bag_files.cloud(types, table))
    return bag_files.write(
        tmp_path / "drive.mcap", [("/left", packets[0]), *(("/right", one) for one in packets), cloud]
    )


def test_a_bag_of_several_topics_is_refused_with_their_counts_and_the_option(bag, tmp_path, capsys):
    gl.save(models.event_resnet(3, (640, 480), width=4, levels=1, pooled=0, head="stream"), tmp_path / "net")
    stream = ["stream", "--weights", str(tmp_path / "net"), "--input", str(bag), "--quiet"]
    for command in (stream, ["show", str(bag)]):
        assert main(command) == 1
        text = capsys.readouterr().err
        assert all(part in text for part in ("/left (1 ", "/right (3 ", "--topic NAME"))
    assert in_options("topic=... or repair='cut'", "train") == (
        "--set data_options.topic=NAME or --set data_options.repair=cut"
    )
    assert main([*stream, "--topic", "/lidar"]) == 1
    assert "/lidar" in capsys.readouterr().err
    assert main([*stream, "--topic", "/right"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["time"] == 1_028_000
    assert main([*stream[:4], str(tmp_path / "net.json"), "--topic", "/right"]) == 1
    assert "--topic" in capsys.readouterr().err


def test_predict_reads_a_bag_and_the_folder_of_one_and_the_topic_of_training(bag, tmp_path, capsys):
    model = models.event_resnet(3, (640, 480), width=4, levels=1, pooled=0, head="stream")
    recipe = {"model": model.config, "data": "folder", "data_options": {"topic": "/right"}}
    gl.save(model, tmp_path / "chosen", recipe=recipe)
    gl.save(model, tmp_path / "open")
    folder = bag.with_name("drive-folder")
    predict = ["predict", "--device", "cpu", "--json", "--weights"]
    assert main([*predict, str(tmp_path / "chosen"), str(bag), str(folder)]) == 0
    of_training = [json.loads(line)["probabilities"] for line in capsys.readouterr().out.splitlines()]
    assert main([*predict, str(tmp_path / "open"), str(folder)]) == 1
    assert "--topic NAME" in capsys.readouterr().err
    assert main([*predict, str(tmp_path / "open"), str(folder), "--topic", "/right"]) == 0
    assert of_training == [json.loads(capsys.readouterr().out)["probabilities"]] * 2
    assert main([*predict, str(tmp_path / "open"), str(tmp_path), "--topic", "/right"]) == 1
    assert "is a folder" in capsys.readouterr().err
