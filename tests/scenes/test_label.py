"""Every point of a scene is labelled, whatever the tiles, and whatever happens in between."""

from __future__ import annotations

import io
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.data.files import locked
from gridless.data.prepare import Preparation
from gridless.data.readers.clouds import ply
from gridless.scenes import Labeller, label, label_scene
from gridless.tasks.labelled import write_labels

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


@pytest.mark.slow
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
    expected = model.double()(features.double(), whole).argmax(1)
    assert np.array_equal(np.load(tmp_path / "one.npy")[tile.cloud.rows["index"]], expected.numpy())
    assert len(expected.unique()) > 1


@pytest.mark.slow
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


@pytest.mark.slow
def test_what_is_made_of_a_copc_file_is_not_called_so(weights, tmp_path, capsys):
    (tmp_path / "a.copc.laz").write_bytes(laz_in_chunks(street(300), 7))
    command = ["predict", str(tmp_path / "a.copc.laz"), "--weights", str(weights), "--out", str(tmp_path / "out")]
    assert main([*command, "--device", "cpu"]) == 0
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["a.laz"]
    (tmp_path / "a.laz").write_bytes(las(street(300), 7, True))
    assert main([*command, str(tmp_path / "a.laz")]) == 1
    assert "two of the files" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.3", "1.4"])
def test_waveforms_stay_where_the_header_says(version, weights, tmp_path):
    data = bytearray(las(street(200), 4 if version == "1.3" else 9, False, version))
    record = struct.pack("<H16sHQ32s", 0, b"LASF_Spec", 65535, 500, b"") + bytes(range(250)) * 2
    other = struct.pack("<H16sHQ32s", 0, b"me", 7, 10, b"") + bytes(10)
    at = len(data) if version == "1.3" else len(data) + len(other)
    data[6] |= 2
    struct.pack_into("<Q", data, 227, at)
    if version == "1.4":
        struct.pack_into("<QI", data, 235, len(data), 2)
        data += other
    # Records before the points move these.
    start, many = struct.unpack_from("<II", data, 96)
    copc = struct.pack("<H16sHH32s", 0, b"copc", 1, 30, b"") + bytes(30)
    size = struct.unpack_from("<H", data, 94)[0]
    data[size:size] = copc
    struct.pack_into("<II", data, 96, start + len(copc), many + 1)
    for place in (227, 235)[: 1 + (version == "1.4")]:
        struct.pack_into("<Q", data, place, struct.unpack_from("<Q", data, place)[0] + len(copc))
    (tmp_path / "a.las").write_bytes(data + record)
    label_scene(tmp_path / "a.las", weights, tmp_path / "b.las")
    out = (tmp_path / "b.las").read_bytes()
    (there,) = struct.unpack_from("<Q", out, 227)
    assert there == at
    assert out[there:] == record
    assert out[6] & 2
    assert version == "1.3" or struct.unpack_from("<QI", out, 235) == (at - len(other), 2)
    # With a wrong header, or without records, the result declares none.
    (tmp_path / "a.las").write_bytes(data[: at + len(copc)])
    if version == "1.4":
        struct.pack_into("<I", data, 243, 1)
        (tmp_path / "a.las").write_bytes(data)
    label_scene(tmp_path / "a.las", weights, tmp_path / "b.las")
    out = (tmp_path / "b.las").read_bytes()
    assert struct.unpack_from("<Q", out, 227) == (0,)
    assert not out[6] & 2


@pytest.mark.slow
def test_a_folder_becomes_a_ply_with_labels(weights, tmp_path):
    x = street(900)
    (tmp_path / "in").mkdir()
    for i in range(3):
        gl.write_cloud(
            tmp_path / "in" / f"{i}.ply",
            gl.Cloud.of(x[300 * i : 300 * i + 300], intensity=np.arange(300, dtype=np.float32)),
        )
    (tmp_path / "in" / "readme.txt").write_text("not a cloud")
    label_scene(tmp_path / "in", weights, tmp_path / "out.ply", size=9.0)
    labelled = gl.read_cloud(tmp_path / "out.ply")
    assert torch.equal(labelled.coords, torch.from_numpy(x))
    assert torch.equal(labelled.rows["intensity"], torch.arange(300).float().repeat(3))
    assert labelled.rows["label"].shape == (900,)


@pytest.mark.slow
def test_files_with_different_rows_become_a_ply_of_what_all_have(weights, tmp_path):
    x = street(300)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.las").write_bytes(las(x[:100], 1, False, "1.2"))
    (tmp_path / "in" / "b.las").write_bytes(las(x[100:200], 3, False, "1.2"))
    wide = np.arange(100, dtype=np.uint64) + np.uint64(2**52)
    np.savez(tmp_path / "in" / "c.npz", xyz=x[200:], user_data=wide, gps_time=np.zeros((100, 2)))
    with pytest.warns(UserWarning, match=r"gps_time, .*rgb"):
        label_scene(tmp_path / "in", weights, tmp_path / "out.ply")
    label_scene(tmp_path / "in", weights, tmp_path / "out.npy")
    labelled = gl.read_cloud(tmp_path / "out.ply")
    x[:200, 0] += 4_500_000
    np.testing.assert_allclose(labelled.coords.numpy(), x, rtol=0, atol=1e-3)
    assert set(labelled.rows) == {"user_data", "label"}
    assert np.array_equal(labelled.rows["user_data"][200:].numpy(), wide.astype(np.float64))
    assert np.array_equal(labelled.rows["label"].numpy(), np.load(tmp_path / "out.npy"))


@pytest.mark.slow
def test_rows_of_any_name_are_written_to_a_ply(weights, tmp_path):
    x = street(50)
    names = ["Echo Width", "größe", "X", "red", "directions", "x_", "red_1"]
    rows = {name: np.full(50, 10 + i, np.uint16) for i, name in enumerate(names)}
    rgb = np.arange(150, dtype=np.uint16).reshape(50, 3) * 300
    np.savez(tmp_path / "a.npz", xyz=x, **rows, rgb=rgb, wide=np.full(50, 2**40), label=np.full(50, 99))
    label_scene(tmp_path / "a.npz", weights, tmp_path / "a.ply")
    labelled = gl.read_cloud(tmp_path / "a.ply").rows
    expected = ["echo_width", "gr_e", "x__", "red_", "directions", "x_", "red_1", "rgb", "wide", "label"]
    assert set(labelled) == set(expected)
    assert sorted(int(labelled[name][0]) for name in expected[:7]) == list(range(10, 17))
    # As wide as they were.
    assert labelled["rgb"].dtype == gl.read_cloud(tmp_path / "a.npz").rows["rgb"].dtype == torch.int32
    assert np.array_equal(labelled["rgb"].numpy(), rgb)
    assert labelled["wide"][0] == 2**40


@pytest.mark.slow
def test_the_output_is_no_part_of_the_scene(weights, tmp_path):
    folder = tmp_path / "in"
    (folder / "below").mkdir(parents=True)
    np.save(folder / "a.npy", street(50))
    before = (folder / "a.npy").read_bytes()
    (tmp_path / "link.npy").symlink_to(folder / "a.npy")
    for out, error in [
        (folder / "a.npy", r"--out .*a\.npy is a file of the scene"),
        (tmp_path / "link.npy", r"--out .*link\.npy is a file of the scene"),
        (folder / "b.ply", r"--out .*b\.ply .*folder"),
    ]:
        with pytest.raises(ValueError, match=error):
            label_scene(folder, weights, out)
    assert (folder / "a.npy").read_bytes() == before
    label_scene(folder, weights, folder / "below" / "b.npy")
    assert len(np.load(folder / "below" / "b.npy")) == 50


def test_colours_on_two_scales_are_refused_as_in_training(tmp_path):
    (tmp_path / "in").mkdir()
    for kind in (np.uint8, np.uint16):
        rgb = np.full((50, 3), 200, kind)
        np.savez(tmp_path / "in" / f"{kind.__name__}.npz", xyz=street(50), rgb=rgb)
    model = gl.models.point_unet(3, width=8, levels=1, radius=0.4, in_channels=3)
    with pytest.raises(ValueError, match=r"'rgb' .* 65535 in .*uint16\.npz .* 255 in .*uint8\.npz"):
        label_scene(tmp_path / "in", model, tmp_path / "out.npy", how=Preparation(features=("rgb",)))


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".laz", ".npy"])
def test_a_scene_that_changes_while_it_is_labelled_is_refused(suffix, city, weights, tmp_path, monkeypatch):
    file, whole = tmp_path / "in.laz", Labeller.label
    file.write_bytes(city.read_bytes())

    def changes(self, tile):
        file.write_bytes(las(street(4000, seed=1), 7, True))
        return whole(self, tile)

    monkeypatch.setattr(Labeller, "label", changes)
    with pytest.raises(ValueError, match=r"in\.laz .*changed"):
        label_scene(file, weights, tmp_path / f"out{suffix}")
    assert not (tmp_path / f"out{suffix}").exists()
    monkeypatch.setattr(Labeller, "label", whole)
    label_scene(file, weights, tmp_path / f"out{suffix}")
    assert not (tmp_path / f"out{suffix}.unfinished").exists()


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on(city, weights, tmp_path, monkeypatch):
    label_scene(city, weights, tmp_path / "whole.npy", size=6.0)
    keys, whole = [], Labeller.label

    def counted(self, tile):
        keys.append(tile.key)
        return whole(self, tile)

    monkeypatch.setattr(Labeller, "label", counted)
    out = tmp_path / "cut.npy"

    def dies(self, tile):
        if len(keys) == 3:
            raise KeyboardInterrupt
        return counted(self, tile)

    monkeypatch.setattr(Labeller, "label", dies)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out, size=6.0)
    assert not out.exists()
    # Trace of a kill in the middle of a line.
    with (tmp_path / "cut.npy.unfinished" / "done").open("ab") as file:
        file.write(b"17")
    first = list(keys)
    monkeypatch.setattr(Labeller, "label", counted)
    label_scene(city, weights, out, size=6.0)
    assert len(set(keys)) == len(keys) > len(first) == 3
    assert np.array_equal(np.load(out), np.load(tmp_path / "whole.npy"))
    # Other settings begin anew.
    keys.clear()
    monkeypatch.setattr(Labeller, "label", dies)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out, size=6.0)
    monkeypatch.setattr(Labeller, "label", counted)
    keys.clear()
    label_scene(city, weights, out, size=9.0)
    assert len(keys) == len(set(keys))
    assert np.array_equal(np.load(out), np.load(tmp_path / "whole.npy"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kill -9")
def test_killed_with_no_warning_at_any_moment_the_command_goes_on(city, weights, tmp_path):
    out = tmp_path / "out.laz"
    command = [sys.executable, "-m", "gridless", "predict", str(city), "--weights", str(weights), "--out", str(out)]
    command += ["--tile", "2", "--device", "cpu"]
    folder = tmp_path / "out.laz.unfinished"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while process.poll() is None and not (folder / "done").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    if not out.exists():
        assert folder.exists()
    assert main(command[3:]) == 0
    label_scene(city, weights, tmp_path / "whole.laz")
    assert torch.equal(labels_of(out), labels_of(tmp_path / "whole.laz"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out.laz", "whole.laz"]


@pytest.mark.slow
def test_processes_give_the_same_labels(city, weights, tmp_path):
    label_scene(city, weights, tmp_path / "one.npy", size=11.0)
    label_scene(city, weights, tmp_path / "two.npy", size=11.0, workers=2)
    assert np.array_equal(np.load(tmp_path / "one.npy"), np.load(tmp_path / "two.npy"))


@pytest.mark.slow
def test_tiles_that_threads_cut_ahead_give_the_same_labels(city, weights):
    worker = Labeller(city, weights, size=6.0)
    keys = worker.tiles.keys
    for (key, (index, labels)), (other, (rows, others)) in zip(worker.over(keys), worker.over(keys, 3), strict=True):
        assert key == other
        assert np.array_equal(index, rows)
        assert np.array_equal(labels, others)


@pytest.mark.slow
def test_keys_in_columns_give_the_rows_and_labels_of_their_tiles(city, weights):
    worker = Labeller(city, weights, size=11.0)
    keys = worker.tiles.keys[:3]
    results = worker({"i": np.array([i for i, _ in keys]), "j": np.array([j for _, j in keys])})
    expected = [worker(key) for key in keys]
    for name, part in zip(("index", "label"), zip(*expected, strict=True), strict=True):
        assert np.array_equal(results[name], np.concatenate(part))


@pytest.mark.slow
def test_the_command_prints_how_many_points_have_each_label(city, weights, tmp_path, capsys):
    command = [
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
    assert main([*command, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["written"] == str(tmp_path / "city.laz")
    assert list(summary["labels"]) == ["a", "b", "c", "d", "e"]
    assert sum(summary["labels"].values()) == 4000
    assert main([*command[:-1], "0"]) != 0
    assert "grid must be positive, not 0" in capsys.readouterr().err


def test_a_feature_that_is_not_finite_is_named_before_any_work(tmp_path):
    rows = np.zeros((500, 4), np.float32)
    rows[:, :3] = np.random.default_rng(0).random((500, 3))
    rows[321, 3] = np.nan
    rows.tofile(tmp_path / "scan.bin")
    model = gl.models.point_unet(3, width=8, levels=1, radius=0.4, in_channels=1)
    with pytest.raises(ValueError, match=r"point 321 of .*scan\.bin.*'intensity'.*finite"):
        label_scene(tmp_path / "scan.bin", model, tmp_path / "out.npy", how=Preparation(features=("intensity",)))
    assert [file.name for file in tmp_path.iterdir()] == ["scan.bin"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".ply", ".npy"])
def test_points_that_are_not_finite_have_no_part_in_the_labels_of_others(suffix, weights, tmp_path, monkeypatch):
    monkeypatch.setattr("gridless.data.readers.clouds.base.PART", 100)
    x = street(500).astype(np.float32)
    np.save(tmp_path / "whole.npy", x)
    whole = label_scene(tmp_path / "whole.npy", weights, tmp_path / "whole_labels.npy")
    # A piece of nothing else among them, and a scene in no order, which is sorted.
    gaps = np.r_[3, 100:200, 450]
    mixed = np.random.default_rng(0).permutation(500)
    scan = np.full((602, 3), np.nan, np.float32)
    present = np.setdiff1d(np.arange(602), gaps)
    scan[present] = x[mixed]
    scan[450, 1:] = 0, np.inf
    np.save(tmp_path / "scan.npy", scan)
    with pytest.warns(UserWarning, match=r"scan\.npy: 102 of 602 points .*finite"):
        counts = label_scene(tmp_path / "scan.npy", weights, tmp_path / f"out{suffix}", size=5.0)
    assert counts == whole
    out = tmp_path / f"out{suffix}"
    labels = np.load(out) if suffix == ".npy" else gl.read_cloud(out).rows["label"].numpy()
    assert np.array_equal(labels[present], np.load(tmp_path / "whole_labels.npy")[mixed])
    assert not labels[gaps].any()
    np.save(tmp_path / "none.npy", scan[100:200])
    with pytest.raises(ValueError, match=r"none\.npy.*finite"):
        label_scene(tmp_path / "none.npy", weights, tmp_path / "none_labels.npy")


@pytest.mark.slow
def test_a_scan_has_the_same_labels_as_text_and_as_numbers(weights, tmp_path):
    x = street().astype(np.float32)
    np.save(tmp_path / "in.npy", x)
    np.savetxt(tmp_path / "in.xyz", x.astype(np.float64), "%.3f")
    for file in ("in.npy", "in.xyz"):
        label_scene(tmp_path / file, weights, tmp_path / f"{file}.labels.npy", size=9.0)
    assert np.array_equal(*(np.load(tmp_path / f"{file}.labels.npy") for file in ("in.npy", "in.xyz")))


@pytest.mark.slow
def test_weights_for_clouds_on_the_unit_sphere_label_no_scene(city, weights, tmp_path):
    model = gl.load(weights)
    model.about |= {"recipe": {"data": "folder"}, "class_names": ["a", "b"]}
    with pytest.raises(ValueError, match=r"unit sphere.*keep_scale"):
        write_labels(model, city, tmp_path)
    for options in ({"keep_scale": True}, {"block": 5.0}):
        model.about["recipe"]["data_options"] = options
        path, counts = write_labels(model, city, tmp_path)
        assert path == tmp_path / city.name
        assert list(counts) == ["a", "b", "2", "3", "4"]


@pytest.mark.slow
@pytest.mark.parametrize(("last", "dtype"), [(255, np.uint8), (256, np.uint16), (65536, np.int32)])
def test_labels_are_those_of_the_files_that_were_learned_from_whatever_their_size(last, dtype, city, weights, tmp_path):
    model, values = gl.load(weights), np.array([2, 3, 7, 40, last])
    label_scene(city, model, tmp_path / "numbers.npy")
    model.about["values"] = values.tolist()
    label_scene(city, model, tmp_path / "out.npy")
    labels = np.load(tmp_path / "out.npy")
    assert labels.dtype == dtype
    assert np.array_equal(labels, values[np.load(tmp_path / "numbers.npy")])


@pytest.mark.slow
@pytest.mark.parametrize("x", [np.zeros((1, 3)), np.ones((50, 3)), np.array([[0.0, 0, 0], [1e6, 1e6, 0]])])
def test_one_point_equal_points_and_points_far_apart_are_labelled(x, weights, tmp_path):
    np.save(tmp_path / "in.npy", x)
    assert sum(label_scene(tmp_path / "in.npy", weights, tmp_path / "out.npy", grid=0.3).values()) == len(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("far", "dtype", "error"),
    [
        ((1e38, 0, 0), np.float32, r"point 7 of .*in\.npy .*1e\+38, 0, 0"),
        ((0, -1e300, 0), np.float64, r"point 7 of .*in\.npy .*0, -1e\+300, 0"),
        (
            (1, 1, -9999),
            np.float64,
            "-9999 to .* axis 2.* float32",
        ),
    ],
)
def test_a_point_that_is_too_far_out_is_refused_and_leaves_no_trace(far, dtype, error, weights, tmp_path):
    x = street(50).astype(dtype)
    x[7] = far
    np.save(tmp_path / "in.npy", x)
    with pytest.raises(ValueError, match=error):
        label_scene(tmp_path / "in.npy", weights, tmp_path / "out.npy")
    assert [path.name for path in tmp_path.iterdir()] == ["in.npy"]


@pytest.mark.slow
def test_what_the_first_tile_refuses_leaves_no_trace_and_an_interrupt_what_was_found(
    city, weights, tmp_path, monkeypatch
):
    for error, left in ((ValueError, []), (KeyboardInterrupt, ["out.npy.unfinished"])):

        def refuse(*_, error=error):
            raise error

        monkeypatch.setattr(Labeller, "label", refuse)
        with pytest.raises(error):
            label_scene(city, weights, tmp_path / "out.npy")
        assert [path.name for path in tmp_path.iterdir()] == left


@pytest.mark.slow
def test_two_runs_to_one_output_are_refused(city, weights, tmp_path, monkeypatch):
    out = tmp_path / "out.laz"

    def second(self, tile):
        with pytest.raises(ValueError, match=r"another run .*out\.laz"):
            label_scene(city, weights, out)
        raise KeyboardInterrupt

    monkeypatch.setattr(Labeller, "label", second)
    with pytest.raises(KeyboardInterrupt):
        label_scene(city, weights, out)


def test_where_there_are_no_locks_no_file_is_kept_open_for_one(tmp_path, monkeypatch):
    """Windows, which does not remove a file that is open."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / ".out.laz.lock", tmp_path / "out.laz"):
        assert list(tmp_path.iterdir()) == []


class Full(io.FileIO):
    """On a disk that has room for the header alone."""

    def write(self, data) -> int:
        if self.tell() + len(data) > 1000:
            raise OSError(28, "No space left on device")
        return super().write(data)


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".laz", ".las", ".ply", ".npy"])
def test_a_disk_that_fills_loses_nothing(suffix, city, weights, tmp_path, monkeypatch):
    out = tmp_path / f"out{suffix}"

    def too_large(*_):
        raise OSError(27, "File too large")

    whole = label.whole_file
    with monkeypatch.context() as patch:
        for module in (label, ply):
            patch.setattr(module, "whole_file", lambda path: Full(f"{path}.new", "w") if path == out else whole(path))
        with pytest.raises(OSError, match=r"no space left .*out\."):
            label_scene(city, weights, out)
    assert not out.exists()
    with monkeypatch.context() as patch:
        # The disk space of labels is reserved first: memory mapped to a full disk ends a process without an error.
        patch.setattr(os, "posix_fallocate", too_large, raising=False)
        with pytest.raises(OSError, match=r"ulimit -f.*out\."):
            label_scene(city, weights, out)
    monkeypatch.setattr(Labeller, "label", None)
    assert sum(label_scene(city, weights, out).values()) == 4000
    assert out.exists()


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_said_before_any_work(city, weights, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match="install ray"):
        label_scene(city, weights, tmp_path / "out.laz", ray="auto")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_what_cannot_be_written_is_refused_before_any_work(city, weights, tmp_path):
    (tmp_path / "old.las").write_bytes(las(street(50), 3, False, "1.2"))
    many = gl.models.point_unet(40, width=8, levels=1)
    np.save(tmp_path / "a.npy", street(50))
    np.save(tmp_path / "none.npy", np.zeros((0, 3)))
    for source, network, out, error in [
        (city, weights, "out.txt", r"--out .*out\.txt.*\.las, \.laz, \.ply, \.npy"),
        (tmp_path / "a.npy", weights, "out.laz", r"--out .*a\.npy.* \.ply"),
        (tmp_path / "old.las", many, "out.laz", "32 classes.* 40"),
        (tmp_path / "none.npy", weights, "out.npy", r"none\.npy.* no points"),
        (city, gl.models.point_unet_plus((4,)), "out.npy", "PointUNetPlus"),
    ]:
        with pytest.raises(ValueError, match=error):
            label_scene(source, network, tmp_path / out)
    with pytest.raises(FileNotFoundError, match=r"gone\.laz"):
        label_scene(tmp_path / "gone.laz", weights, tmp_path / "out.laz")
    data = city.read_bytes()
    (tmp_path / "cut.laz").write_bytes(data[: len(data) // 2])
    with pytest.raises(gl.data.FormatError, match=r"cut\.laz"):
        label_scene(tmp_path / "cut.laz", weights, tmp_path / "out.laz")
    names = {"old.las", "a.npy", "none.npy", "cut.laz"}
    assert {path.name for path in tmp_path.iterdir()} == names
