"""SemanticKITTI: the official folders, and a pack of scans."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.data.sets.semantickitti import CLASSES, IGNORED
from gridless.tasks import find
from gridless.tasks.loading import load_data
from gridless.tasks.storage import Storage, load_splits
from gridless.training import PackedSet
from gridless.training.recipe import Recipe

RAW = [raw for group in CLASSES.values() for raw in group] + list(IGNORED)


def scan(folder: Path, number: int, points: int = 400) -> np.ndarray:
    """A scan of a floor and a wall, with labels, in the layout of the release."""
    draw = np.random.default_rng(number)
    table = draw.random((points, 4)).astype("<f4") * [8, 8, 0.1, 1]
    wall = np.arange(points) % 2 == 1
    table[wall, 0], table[wall, 2] = 4, draw.random(wall.sum()) * 3
    for name in ("velodyne", "labels"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "velodyne" / f"{number:06d}.bin").write_bytes(table.astype("<f4").tobytes())
    raw = np.where(wall, 50, 40).astype("<u4")
    raw[:3] = [0, 252 | 7 << 16, 99]
    (folder / "labels" / f"{number:06d}.label").write_bytes(raw.tobytes())
    return table.astype(np.float32)


@pytest.fixture
def release(tmp_path) -> Path:
    for sequence in (0, 3, 8):
        for number in range(3):
            scan(tmp_path / "sequences" / f"{sequence:02d}", number)
    for name in ("calib.txt", "poses.txt"):
        for sequence in (0, 3, 8):
            # The camera looks along x of the scanner; the car goes one metre along x between scans.
            text = "P0: 1 0 0 0 0 1 0 0 0 0 1 0\nTr: 0 -1 0 0 0 0 -1 0 1 0 0 0.5\n"
            poses = "".join(f"1 0 0 0 0 1 0 0 0 0 1 {n}\n" for n in range(3))
            (tmp_path / "sequences" / f"{sequence:02d}" / name).write_text(text if name == "calib.txt" else poses)
    return tmp_path


def test_the_official_folders_give_scans_with_rows_by_the_learning_map(release):
    data = gl.data.SemanticKITTI(release, "fit")
    assert len(data) == 6
    assert data.labels.tolist() == [0, 0, 0, 3, 3, 3]
    assert len(gl.data.SemanticKITTI(release, "train")) == 9
    assert len(gl.data.SemanticKITTI(release, "validation")) == 3
    cloud, sequence = data[4]
    assert sequence == 3
    assert torch.equal(cloud.coords, torch.from_numpy(scan(release / "sequences" / "03", 1)[:, :3]))
    names = data.class_names
    assert len(names) == 19
    assert cloud.rows["label"][:5].tolist() == [
        -1,
        names.index("car"),
        -1,
        names.index("building"),
        names.index("road"),
    ]
    assert int(cloud.rows["instance"][1]) == 7
    assert cloud.rows["intensity"].shape == (400,)


def test_several_scans_are_aligned_by_their_poses(release):
    data = gl.data.SemanticKITTI(release, "validation", scans=2)
    cloud, _ = data[1]
    assert cloud.rows["age"].bincount().tolist() == [400, 400]
    now, before = (gl.data.SemanticKITTI(release, "validation").example(i).coords for i in (1, 0))
    torch.testing.assert_close(cloud.coords[:400], now)
    torch.testing.assert_close(cloud.coords[400:], before - torch.tensor([1.0, 0, 0]))
    # The first of a sequence has none before it, whichever was read before.
    assert len(data.example(0)) == 400
    assert [len(gl.data.SemanticKITTI(release, "fit", scans=2).example(i)) for i in (2, 3, 4)] == [800, 400, 800]


def test_a_grid_keeps_one_point_in_each_cell_and_its_label(release):
    whole, few = (gl.data.SemanticKITTI(release, "fit", grid=grid).example(0) for grid in (None, 0.5))
    assert 10 < len(few) < len(whole)
    assert torch.equal(few.rows["label"], whole.rows["label"][few.parent_index])


def test_returns_without_a_place_have_no_label_and_no_cell(release):
    file = release / "sequences" / "00" / "velodyne" / "000000.bin"
    table = np.frombuffer(file.read_bytes(), "<f4").reshape(-1, 4).copy()
    table[::7, :3] = np.nan
    table[::7, 3] = np.nan
    file.write_bytes(table.tobytes())
    whole, few = (gl.data.SemanticKITTI(release, "fit", grid=grid).example(0) for grid in (None, 0.5))
    assert len(whole) == 400
    assert (whole.rows["label"][::7] == -1).all()
    assert (whole.rows["label"] >= 0).sum() > 300
    assert torch.equal(few.coords, whole.coords[few.parent_index])
    assert few.num_parent == 400
    for grid in ({"grid": 0.5}, {}):
        model = {"model": "point_unet", "classes": 19}
        options = {"data_options": {**grid, "features": ["intensity"]}}
        data = load_data(Recipe.from_dict({"model": model, "data": "semantickitti", **options}), release, "fit")
        assert data.examples.coords.isfinite().all()
        assert data.rows["features"].isfinite().all()


def test_what_is_no_release_is_refused(release, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, error, message in [
        ((tmp_path / "gone",), FileNotFoundError, "gone"),
        ((tmp_path / "empty",), FileNotFoundError, "empty .*sequences/00"),
        ((release, "test"), FileNotFoundError, "'test'.* 11, 12"),
        ((release, "all"), ValueError, "split 'all'"),
        ((release, "fit", None, 0), ValueError, "scans .*0"),
    ]:
        with pytest.raises(error, match=message):
            gl.data.SemanticKITTI(*arguments)
    labels = release / "sequences" / "00" / "labels" / "000000.label"
    labels.write_bytes(np.full(400, 77, "<u4").tobytes())
    with pytest.raises(gl.data.FormatError, match="label 77"):
        gl.data.SemanticKITTI(release, "fit").example(0)
    labels.write_bytes(b"\0" * 8)
    with pytest.raises(gl.data.FormatError, match="2 labels"):
        gl.data.SemanticKITTI(release, "fit").example(0)
    (release / "sequences" / "00" / "poses.txt").write_text("1 0 0\n")
    with pytest.raises(gl.data.FormatError, match=r"poses"):
        gl.data.SemanticKITTI(release, "fit", scans=2).example(1)
    np.savez(tmp_path / "semantickitti_22_scans.npz", planes=np.zeros(3, np.uint8))
    with pytest.raises(gl.data.FormatError, match=r"22_scans\.npz.* pack of SemanticKITTI"):
        gl.data.SemanticKITTI(tmp_path / "semantickitti_22_scans.npz")


def test_scans_without_labels_are_read_but_neither_learned_nor_judged(release, tmp_path):
    (release / "sequences" / "03" / "labels" / "000001.label").unlink()
    (release / "sequences" / "08" / "labels").rename(release / "sequences" / "08" / "kept")
    (release / "sequences" / "08").rename(release / "sequences" / "11")
    recipe = Recipe.from_dict({"model": {"model": "point_unet", "classes": 19}, "data": "semantickitti"})
    assert (gl.data.SemanticKITTI(release, "fit").example(4).rows["label"] == -1).all()
    with pytest.raises(FileNotFoundError, match=r"1 of .*6 scans of 'fit' .*03/labels/000001.label"):
        load_data(recipe, release, "fit")
    assert (gl.data.SemanticKITTI(release, "test").example(0).rows["label"] == -1).all()
    with pytest.raises(ValueError, match=r"'test'.*labels.*--split validation"):
        load_data(recipe, release, "test")


def test_several_scans_as_one_say_where_poses_come_from(release):
    for name, origin in (("poses.txt", "data_odometry_labels.zip"), ("calib.txt", "data_odometry_calib.zip")):
        (release / "sequences" / "00" / name).unlink()
        with pytest.raises(FileNotFoundError, match=f"{name}.*{origin}"):
            gl.data.SemanticKITTI(release, "fit", scans=2).example(1)


def test_hidden_files_are_no_scans(release):
    (release / "sequences" / "00" / "velodyne" / "._000000.bin").write_bytes(b"AppleDouble")
    assert len(gl.data.SemanticKITTI(release, "fit")) == 6


def test_a_pack_holds_two_scans_of_each_sequence(tmp_path):
    draw = np.random.default_rng(0)
    x = draw.integers(-3000, 3000, (22 * 5, 3))
    steps = np.diff(x, axis=0, prepend=np.zeros((1, 3), np.int64)).astype("<i2")
    raw = draw.choice(RAW, len(x)).astype("<u2")
    packed = {
        "planes": np.ascontiguousarray(steps.view(np.uint8).T).tobytes(),
        "intensity": np.arange(len(x), dtype=np.uint8).tobytes(),
        "label": raw.tobytes(),
    }
    arrays = {name: np.frombuffer(lzma.compress(data), np.uint8) for name, data in packed.items()}
    np.savez(tmp_path / "semantickitti_22_scans.npz", offsets=np.arange(0, 111, 5), **arrays)
    fit, valid = (gl.data.SemanticKITTI(tmp_path, split) for split in ("fit", "validation"))
    assert len(fit) == 18
    assert sorted(set(valid.labels.tolist())) == [8, 10]
    assert torch.equal(fit.example(1).coords, torch.from_numpy(x[5:10]).float() / 100)
    assert fit.example(0).rows["label"].min() >= -1
    torch.testing.assert_close(fit.example(1).rows["intensity"], torch.arange(5, 10) / 255)
    with pytest.raises(ValueError, match="single scans"):
        gl.data.SemanticKITTI(tmp_path, "test")


def test_the_shared_pack_is_whole(shared_data):
    data = gl.data.SemanticKITTI(shared_data / "semantickitti_22_scans.npz", "train")
    assert len(data) == 22
    cloud = data.example(0)
    assert len(cloud) == 124668
    assert cloud.coords.abs().max() < 130
    assert (cloud.rows["label"] >= 0).float().mean() > 0.9


@pytest.mark.slow
def test_the_recipe_trains_whole_scans_and_labels_a_scene(release, tmp_path, capsys):
    out, small = tmp_path / "run", ["width=8", "levels=2", "radius=0.5"]
    options = [word for change in small for word in ("--set", f"model.{change}")]
    options += ["--set", "data_options.grid=0.2", "--epochs", "1", "--set", "validate_every=1", "--device", "cpu"]
    assert main(["train", "semantickitti", "--data", str(release), "--out", str(out), *options]) == 0
    result = json.loads(capsys.readouterr().out)
    assert 0 <= result["valid_mean_iou"] <= 1
    weights = str(out / "weights.safetensors")
    assert main(["evaluate", weights, "--data", str(release), "--split", "validation", "--device", "cpu"]) == 0
    assert "mIoU" in capsys.readouterr().out
    file = release / "sequences" / "08" / "velodyne" / "000000.bin"
    assert main(["predict", str(file), "--weights", weights, "--out", str(tmp_path / "a.ply"), "--device", "cpu"]) == 0
    labelled = gl.read_cloud(tmp_path / "a.ply")
    assert torch.equal(labelled.coords, gl.read_cloud(file).coords)
    assert labelled.rows["label"].shape == (400,)
    # Labels of the whole scan, turned as in training, are those of its tiles.
    model = gl.load(weights)
    data = load_data(Recipe.from_dict(model.about["recipe"]), release, "validation")
    one = data.draw(None, 0, 0, torch.tensor([0]))
    back = one.coords @ torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, -1, 0]])
    samples = gl.nearest(gl.Cloud.of(labelled.coords), gl.Cloud.of(back), 1).source.long()
    torch.testing.assert_close(labelled.coords[samples], back)
    with torch.no_grad():
        said = model(model.plan(one)).argmax(1)
    # A scene has another order of points, so that other ones are sampled: the labels are alike, as those of the whole
    # scan in another order are. They are called as in the release, where 0 is none: that of a car is 10.
    order = torch.randperm(len(one), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        other = model(model.plan(one[order])).argmax(1)
    alike = (said[order] == other).float().mean()
    raw = torch.tensor([names[0] for names in CLASSES.values()])
    assert (raw[said] == labelled.rows["label"][samples]).float().mean() > alike - 0.1


def test_a_release_is_a_folder_of_scans_too(release):
    (release / "README.txt").write_text("not a scan")
    data = gl.data.CloudFolder(release, label="auto", up="z", keep_scale=True, ignore=[0, 99], names={252: "car"})
    assert len(data) == 9
    assert data.part_names == ["40", "50", "car"]
    assert data.listing.others == (".label", "README.txt", "calib.txt", "poses.txt")
    (release / "sequences" / "03" / "labels" / "000001.label").unlink()
    with pytest.raises(ValueError, match=r"000001.bin: .*labels.*000001.label.*labels"):
        gl.data.CloudFolder(release, label="auto", up="z", keep_scale=True)


def test_packed_scans_are_those_that_were_read(release, tmp_path):
    options = {"data_options": {"up": "z", "features": ["intensity"]}, "points": 300}
    model = {"model": "point_unet", "classes": 19, "in_channels": 1}
    recipe = Recipe.from_dict({"model": model, "data": "semantickitti", **options})
    folder, splits = tmp_path / "packs", ["fit", "validation"]
    whole, packed = (
        load_splits(find("scenes"), recipe, release, splits, Storage(keep, folder)) for keep in ("memory", "disk")
    )
    for memory, disk in zip(whole, packed, strict=True):
        assert isinstance(disk, PackedSet)
        for name in ("class_names", "features", "values"):
            assert getattr(memory, name) == getattr(disk, name)
        for (_, a), (_, b) in zip(memory.examples.parts(), disk.cut(torch.arange(len(disk))).parts(), strict=True):
            assert torch.equal(a, b)
    # A changed label makes another pack.
    label = release / "sequences" / "03" / "labels" / "000001.label"
    label.write_bytes(label.read_bytes()[:-4] + b"\x28\0\0\0")
    load_splits(find("scenes"), recipe, release, splits, Storage("disk", folder))
    assert len(list(folder.glob("pack-*"))) == 2
