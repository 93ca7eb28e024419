"""Every point of a scene is labelled, whatever the tiles, and whatever happens in between."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.__main__ import main
from gridless.data.clouds import ply
from gridless.data.prepare import Preparation
from gridless.scenes import label
from gridless.scenes.label import Labeller, label_scene

sys.path.append(str(Path(__file__).parents[1] / "data"))
from cloud_files import las, laz_in_chunks


def street(points: int = 4000, seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    x = draw.random((points, 3)) * [40, 12, 1]
    wall = draw.random(points) < 0.4
    x[wall, 1:] = np.stack([np.full(wall.sum(), 5.0), draw.random(wall.sum()) * 6], 1)
    return x[x[:, 0].argsort()].round(3)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    torch.manual_seed(0)
    model = gl.models.point_unet(5, width=8, levels=2, radius=0.4)
    # Classes that differ from place to place: no logit is larger than the others everywhere.
    geometry = model.plan(torch.from_numpy(street()).float())
    with torch.no_grad():
        for module in model.modules():
            if hasattr(module, "momentum"):
                module.momentum = 1.0
        model.train()(geometry)
        logits = model.eval()(geometry)
        model.head.weight /= logits.std(0)[:, None]
        model.head.bias -= logits.mean(0) / logits.std(0)
    path = tmp_path_factory.mktemp("weights") / "w"
    return gl.save(model, path, class_names=["a", "b", "c", "d", "e"])


@pytest.fixture(scope="module")
def city(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("city") / "city.laz"
    file.write_bytes(las(street(), 7, True))
    return file


def labels_of(file: Path) -> torch.Tensor:
    return gl.read_cloud(file).rows["classification"]


@pytest.mark.parametrize("grid", [None, 0.3])
def test_two_tilings_give_the_same_labels_and_nothing_else_changes(grid, city, weights, tmp_path):
    settings = {} if grid is None else {"grid": grid}
    counts = label_scene(city, weights, tmp_path / "one.laz", size=1000.0, **settings)
    label_scene(city, weights, tmp_path / "two.las", size=7.0, **settings)
    label_scene(city, weights, tmp_path / "three.npy", points=600, **settings)
    one, two = gl.read_cloud(tmp_path / "one.laz"), gl.read_cloud(tmp_path / "two.las")
    before = gl.read_cloud(city)
    assert torch.equal(one.rows["classification"], two.rows["classification"])
    assert np.array_equal(np.load(tmp_path / "three.npy"), one.rows["classification"].numpy())
    assert counts == dict(enumerate(one.rows["classification"].bincount(minlength=5).tolist()))
    assert len([n for n in counts.values() if n]) > 1
    assert torch.equal(one.coords, before.coords)
    for name, values in before.rows.items():
        assert name == "classification" or torch.equal(one.rows[name], values), name
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one.laz", "three.npy", "two.las"]


def test_double_labels_are_those_of_the_network_in_float64(city, tmp_path):
    torch.manual_seed(0)
    model = gl.models.point_unet(5, width=8, levels=1, radius=0.4, in_channels=1).eval()
    (tile,) = gl.tiles(city, 1000.0)
    features, whole = tile.cloud.rows["intensity"].float()[:, None] / 65535, tile.run(model.plan)[1]
    with torch.no_grad():
        model.head.bias -= model(features, whole).mean(0)
    how = Preparation(features=["intensity"])
    label_scene(city, model, tmp_path / "one.npy", size=9.0, how=how, double=True)
    assert model.head.weight.dtype == torch.float32
    found = model.double()(features.double(), whole).argmax(1)
    assert np.array_equal(np.load(tmp_path / "one.npy")[tile.cloud.rows["index"]], found.numpy())
    assert len(found.unique()) > 1


@pytest.mark.parametrize("format", [3, 7])
def test_a_copc_file_becomes_a_laz_file_that_others_read(format, weights, tmp_path):
    laspy = pytest.importorskip("laspy")
    (tmp_path / "a.copc.laz").write_bytes(laz_in_chunks(street(300), format))
    label_scene(tmp_path / "a.copc.laz", weights, tmp_path / "b.laz")
    with laspy.open(tmp_path / "b.laz") as file:
        theirs = file.read()
    ours = gl.read_cloud(tmp_path / "b.laz")
    assert np.array_equal(np.asarray(theirs.classification), ours.rows["classification"].numpy())
    assert np.allclose(theirs.xyz, ours.coords.numpy())
    assert len(theirs.points) == 300


def test_a_folder_becomes_a_ply_with_labels(weights, tmp_path):
    x = street(900)
    (tmp_path / "in").mkdir()
    for i in range(3):
        gl.data.clouds.ply.write(
            tmp_path / "in" / f"{i}.ply",
            gl.Cloud.of(x[300 * i : 300 * i + 300], intensity=np.arange(300, dtype=np.float32)),
        )
    label_scene(tmp_path / "in", weights, tmp_path / "out.ply", size=9.0)
    found = gl.read_cloud(tmp_path / "out.ply")
    assert torch.equal(found.coords, torch.from_numpy(x))
    assert torch.equal(found.rows["intensity"], torch.arange(300).float().repeat(3))
    assert found.rows["label"].shape == (900,)


def test_a_run_that_was_killed_goes_on(city, weights, tmp_path, monkeypatch):
    label_scene(city, weights, tmp_path / "whole.npy", size=6.0)
    made, whole = [], Labeller.label

    def counted(self, tile):
        made.append(tile.key)
        return whole(self, tile)

    monkeypatch.setattr(Labeller, "label", counted)
    out = tmp_path / "cut.npy"

    def dies(self, tile):
        if len(made) == 3:
            raise KeyboardInterrupt
        return counted(self, tile)

    monkeypatch.setattr(Labeller, "label", dies)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out, size=6.0)
    assert not out.exists()
    # What a kill in the middle of a line leaves.
    with (tmp_path / "cut.npy.unfinished" / "done").open("ab") as file:
        file.write(b"17")
    first = list(made)
    monkeypatch.setattr(Labeller, "label", counted)
    label_scene(city, weights, out, size=6.0)
    assert len(set(made)) == len(made) > len(first) == 3
    assert np.array_equal(np.load(out), np.load(tmp_path / "whole.npy"))
    # Other settings begin anew.
    made.clear()
    monkeypatch.setattr(Labeller, "label", dies)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out, size=6.0)
    monkeypatch.setattr(Labeller, "label", counted)
    made.clear()
    label_scene(city, weights, out, size=9.0)
    assert len(made) == len(set(made))
    assert np.array_equal(np.load(out), np.load(tmp_path / "whole.npy"))


@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_killed_with_no_warning_at_any_moment_the_command_goes_on(city, weights, tmp_path):
    out = tmp_path / "out.laz"
    words = [sys.executable, "-m", "gridless", "predict", str(city), "--weights", str(weights), "--out", str(out)]
    words += ["--tile", "2", "--device", "cpu"]
    folder = tmp_path / "out.laz.unfinished"
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (folder / "done").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    if not out.exists():
        assert folder.exists()
    assert main(words[3:]) == 0
    label_scene(city, weights, tmp_path / "whole.laz")
    assert torch.equal(labels_of(out), labels_of(tmp_path / "whole.laz"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.laz", "whole.laz"]


def test_processes_give_the_same_labels(city, weights, tmp_path):
    label_scene(city, weights, tmp_path / "one.npy", size=11.0)
    label_scene(city, weights, tmp_path / "two.npy", size=11.0, workers=2)
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


def test_tiles_that_threads_cut_ahead_give_the_same_labels(city, weights):
    worker = Labeller(city, weights, size=6.0)
    keys = worker.tiles.keys
    for (key, (index, labels)), (other, (rows, found)) in zip(worker.over(keys), worker.over(keys, 3), strict=True):
        assert key == other
        assert np.array_equal(index, rows)
        assert np.array_equal(labels, found)


def test_the_command_prints_how_many_points_have_each_label(city, weights, tmp_path, capsys):
    words = [
        "predict",
        str(city),
        "--weights",
        str(weights),
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
        "--grid",
        "0.3",
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == str(tmp_path / "city.laz")
    assert list(found["labels"]) == ["a", "b", "c", "d", "e"]
    assert sum(found["labels"].values()) == 4000
    assert main([*words[:-1], "0"]) != 0
    assert "grid must be positive, not 0" in capsys.readouterr().err


def test_a_feature_that_is_not_finite_is_named_before_any_work(tmp_path):
    rows = np.zeros((500, 4), np.float32)
    rows[:, :3] = np.random.default_rng(0).random((500, 3))
    rows[321, 3] = np.nan
    rows.tofile(tmp_path / "scan.bin")
    model = gl.models.point_unet(3, width=8, levels=1, radius=0.4, in_channels=1)
    with pytest.raises(ValueError, match=r"point 321 of .*scan\.bin has 'intensity' that is not finite"):
        label_scene(tmp_path / "scan.bin", model, tmp_path / "out.npy", how=Preparation(features=("intensity",)))
    assert [file.name for file in tmp_path.iterdir()] == ["scan.bin"]


@pytest.mark.parametrize("x", [np.zeros((1, 3)), np.ones((50, 3)), np.array([[0.0, 0, 0], [1e6, 1e6, 0]])])
def test_one_point_equal_points_and_points_far_apart_are_labelled(x, weights, tmp_path):
    np.save(tmp_path / "in.npy", x)
    assert sum(label_scene(tmp_path / "in.npy", weights, tmp_path / "out.npy", grid=0.3).values()) == len(x)


def test_two_runs_to_one_output_are_refused(city, weights, tmp_path, monkeypatch):
    out = tmp_path / "out.laz"

    def second(self, tile):
        with pytest.raises(ValueError, match=r"another run is writing .*out\.laz"):
            label_scene(city, weights, out)
        raise KeyboardInterrupt

    monkeypatch.setattr(Labeller, "label", second)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out)


class Full(io.FileIO):
    """On a disk that has room for the header alone."""

    def write(self, data) -> int:
        if self.tell() + len(data) > 1000:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.parametrize("suffix", [".laz", ".las", ".ply", ".npy"])
def test_a_disk_that_fills_loses_nothing(suffix, city, weights, tmp_path, monkeypatch):
    out = tmp_path / f"out{suffix}"

    def full(*_):
        raise OSError(28, "No space left on device")

    whole = label.whole_file
    with monkeypatch.context() as patch:
        for module in (label, ply):
            patch.setattr(module, "whole_file", lambda path: Full(f"{path}.new", "w") if path == out else whole(path))
        with pytest.raises(OSError, match=r"no space left while writing .*make room and start again"):
            label_scene(city, weights, out)
    assert not out.exists()
    with monkeypatch.context() as patch:
        # Where labels will be is taken first: memory that is mapped to a full disk ends a process without a word.
        patch.setattr(os, "posix_fallocate", full, raising=False)
        with pytest.raises(OSError, match=r"no space left while writing .*make room and start again"):
            label_scene(city, weights, out)
    monkeypatch.setattr(Labeller, "label", None)
    assert sum(label_scene(city, weights, out).values()) == 4000
    assert out.exists()


def test_a_cluster_that_cannot_be_reached_is_said_before_any_work(city, weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="pip install ray"):
        label_scene(city, weights, tmp_path / "out.laz", ray="auto")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_refused_before_any_work(city, weights, tmp_path):
    (tmp_path / "old.las").write_bytes(las(street(50), 3, False, "1.2"))
    many = gl.models.point_unet(40, width=8, levels=1)
    np.save(tmp_path / "a.npy", street(50))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    for source, network, out, error in [
        (city, weights, "out.txt", r"written as \.las, \.laz, \.ply, \.npy"),
        (tmp_path / "a.npy", weights, "out.laz", r"write a \.ply"),
        (tmp_path / "old.las", many, "out.laz", "can be of 32 classes, and the network has 40"),
        (tmp_path / "none.npy", weights, "out.npy", "holds no points"),
        (city, gl.models.point_unet_plus((4,)), "out.npy", "cannot label a scene"),
    ]:
        with pytest.raises(ValueError, match=error):
            label_scene(source, network, tmp_path / out)
    with pytest.raises(FileNotFoundError, match="there is no"):
        label_scene(tmp_path / "gone.laz", weights, tmp_path / "out.laz")
    data = city.read_bytes()
    (tmp_path / "cut.laz").write_bytes(data[: len(data) // 2])
    with pytest.raises(gl.data.FormatError, match=r"cut\.laz"):
        label_scene(tmp_path / "cut.laz", weights, tmp_path / "out.laz")
    names = {"old.las", "a.npy", "none.npy", "cut.laz"}
    assert {path.name for path in tmp_path.iterdir()} == names
