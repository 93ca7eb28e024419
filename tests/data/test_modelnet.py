"""ModelNet40 in all its releases."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.augment import Jitter, RotateAboutUp
from gridless.data import FormatError, ModelNet40, splits
from gridless.data.sets import modelnet

# Some of the training shapes, of which the shipped list keeps at least one for validation.
NAMES = {"train": ["airplane_0001", "airplane_0006", "bathtub_0002", "night_stand_0003"], "test": ["airplane_0627"]}


def shape(name: str, points: int = 16) -> np.ndarray:
    return np.random.default_rng(abs(hash(name)) % 2**32).normal(size=(points, 3)).astype(np.float32)


def text_release(root: Path) -> Path:
    for part, names in NAMES.items():
        (root / f"modelnet40_{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            folder = root / name.rpartition("_")[0]
            folder.mkdir(parents=True, exist_ok=True)
            table = np.concatenate([shape(name), np.zeros((16, 3))], 1)
            np.savetxt(folder / f"{name}.txt", table, "%.9g", ",")
    return root


def h5_release(root: Path, listing: bool = True) -> Path:
    h5py = pytest.importorskip("h5py")
    for part, names in NAMES.items():
        for number, chunk in enumerate([names[::2], names[1::2]]):
            if not chunk:
                continue
            with h5py.File(root / f"ply_data_{part}{number}.h5", "w") as file:
                file["data"] = np.stack([shape(n) for n in chunk])
                labels = [modelnet.CLASS_NAMES.index(n.rpartition("_")[0]) for n in chunk]
                file["label"] = np.array(labels, np.uint8)[:, None]
            if listing:
                files = [f"{n.rpartition('_')[0]}/{n}.ply" for n in chunk]
                (root / f"ply_data_{part}_{number}_id2file.json").write_text(json.dumps(files))
    return root


def mesh_release(root: Path) -> Path:
    for part, names in NAMES.items():
        for name in names:
            folder = root / "ModelNet40" / name.rpartition("_")[0] / part
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.off").write_text("OFF3 1 0\n0 0 0\n1 0 0\n0 1 0\n3 0 1 2\n")
    return root


RELEASES = {"text": text_release, "h5": h5_release, "mesh": mesh_release}


@pytest.mark.parametrize("release", RELEASES)
def test_reads_every_release(release, tmp_path):
    data = ModelNet40(RELEASES[release](tmp_path), points=10)
    assert data.release == release
    assert sorted(data.names) == sorted(NAMES["train"])
    for i, name in enumerate(data.names):
        cloud, label = data[i]
        assert data.class_names[label] == name.rpartition("_")[0]
        assert cloud.coords.shape == (10, 3)
        if release != "mesh":
            np.testing.assert_allclose(cloud.coords, shape(name)[:10], rtol=1e-6)
    assert ModelNet40(tmp_path, "test", points=10).names == NAMES["test"]


@pytest.mark.parametrize("release", RELEASES)
def test_fit_and_validation_divide_the_training_part_by_name(release, tmp_path):
    root = RELEASES[release](tmp_path)
    parts, whole = [], ModelNet40(root, points=4)
    for split in ("fit", "validation"):
        data = ModelNet40(root, split, points=4)
        parts.append(set(data.names))
        rows = [whole.names.index(name) for name in data.names]
        assert torch.equal(data.coords, whole.coords[rows])
        assert torch.equal(data.labels, whole.labels[rows])
    held_out = {f"{label}_{number:04d}" for label, number in splits.members("modelnet40", "validation")}
    assert parts[1] == set(NAMES["train"]) & held_out
    assert "airplane_0006" in parts[1]
    assert parts[0] == set(NAMES["train"]) - held_out


def test_the_shipped_list_is_stratified_and_complete():
    counts = Counter(label for label, _ in splits.members("modelnet40", "train"))
    held_out = Counter(label for label, _ in splits.members("modelnet40", "validation"))
    assert sum(counts.values()) == 9843
    assert len(counts) == 40
    assert all(held_out[label] == round(n / 10) for label, n in counts.items())


@pytest.mark.parametrize("release", ["text", "mesh"])
def test_the_second_start_reads_the_cache(release, tmp_path, monkeypatch):
    root = RELEASES[release](tmp_path)
    first = ModelNet40(root, points=8)
    monkeypatch.setattr(modelnet, "_text", None)
    monkeypatch.setattr(modelnet, "_meshes", None)
    again = ModelNet40(root, points=8)
    assert torch.equal(first.coords, again.coords)
    assert torch.equal(first.labels, again.labels)
    assert first.names == again.names
    again.coords[0] = 7  # does not reach the file
    assert torch.equal(ModelNet40(root, points=8).coords, first.coords)
    with pytest.raises(TypeError):
        ModelNet40(root, points=8, cache=False)
    with pytest.raises(TypeError):
        ModelNet40(root, points=7)


@pytest.mark.parametrize("release", ["text", "mesh"])
def test_a_file_that_is_written_anew_is_read_anew(release, tmp_path):
    root = RELEASES[release](tmp_path)
    before = ModelNet40(root, points=8)
    name = before.names[0]
    file = next(path for path in root.rglob(f"{name}.*") if path.suffix in (".txt", ".off", ".ply"))
    text = file.read_text()
    # The same size: only the time of the change tells.
    file.write_text(text.replace("1", "2") if release == "text" else text.replace("\n1 0 0", "\n9 0 0"))
    assert file.read_text() != text
    after = ModelNet40(root, points=8)
    assert not torch.equal(before.coords[0], after.coords[0])
    assert before.fingerprint != after.fingerprint


def test_an_outdated_or_damaged_cache_is_made_again(tmp_path):
    root = text_release(tmp_path)
    ModelNet40(root, points=8)
    listing = root / "modelnet40_train.txt"
    listing.write_text("bathtub_0002\n")
    assert ModelNet40(root, points=8).names == ["bathtub_0002"]
    array, about = (next((root / ".gridless").glob(kind)) for kind in ("*.npy", "*.json"))
    whole, entry = array.read_bytes(), about.read_bytes()
    damages = [
        (array, whole[:-50]),
        (array, whole.replace(b"<f4", b"|O8")),
        (array, whole.replace(b"<f4", b"<i4")),
        (array, whole.replace(b"(1, 8, 3)", b"(1, 4, 6)")),
        (array, whole.replace(b"(1, 8, 3)", b"(1, 8, (((")),
        (about, b"[" * 100_000),
        (about, entry.replace(b'"label": [', b'"label": [99999999999999999999, ')),
    ]
    for path, data in damages:
        path.write_bytes(data)
        coords = ModelNet40(root, points=8).coords
        np.testing.assert_allclose(coords[0], shape("bathtub_0002")[:8], rtol=1e-6)


def test_a_folder_that_cannot_be_written_costs_a_warning(tmp_path):
    root = text_release(tmp_path)
    (root / "wall").touch()
    with pytest.warns(UserWarning, match="cache=FOLDER"):
        data = ModelNet40(root, points=8, cache=root / "wall" / "cache")
    assert len(data) == 4


def test_missing_and_truncated_files_are_named(tmp_path):
    root = text_release(tmp_path)
    victim = root / "bathtub" / "bathtub_0002.txt"
    whole = victim.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", whole.replace(b",", b";"), whole[:-100] + b"x" * 100):
        victim.write_bytes(damaged)
        with pytest.raises(FormatError, match="bathtub_0002"):
            ModelNet40(root, points=16)
    victim.unlink()
    with pytest.raises(FileNotFoundError, match="bathtub_0002"):
        ModelNet40(root, points=16)
    with pytest.raises(FileNotFoundError, match=r"nowhere.*Download"):
        ModelNet40(root / "nowhere")
    (root / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty.*modelnet40_train\.npz"):
        ModelNet40(root / "empty")
    with pytest.raises(ValueError, match="split 'training'"):
        ModelNet40(root, "training")
    with pytest.raises(ValueError, match=r"points .*0"):
        ModelNet40(root, points=0)


def test_h5_files_that_are_cut_or_too_small_are_named(tmp_path):
    root = h5_release(tmp_path, listing=False)
    with pytest.raises(FileNotFoundError, match="id2file"):
        ModelNet40(root, "fit", points=8)
    with pytest.raises(FormatError, match="fewer points"):
        ModelNet40(root, points=17)
    victim = root / "ply_data_train1.h5"
    os.truncate(victim, victim.stat().st_size // 2)
    with pytest.raises(FormatError, match="ply_data_train1"):
        ModelNet40(root, points=8)


def test_with_a_seed_examples_depend_on_epoch_and_place_alone(tmp_path):
    root = text_release(tmp_path)
    data = ModelNet40(root, points=8, transform=[Jitter(0.01), RotateAboutUp()], seed=3)
    first = [data[i][0].coords for i in range(4)]
    torch.manual_seed(99)
    assert all(torch.equal(data[i][0].coords, first[i]) for i in (3, 1, 0, 2))
    data.set_epoch(1)
    assert not torch.equal(data[0][0].coords, first[0])


def test_a_pack_has_twelve_bits_per_coordinate_and_numbers_the_shapes_of_each_class(tmp_path):
    values, label = np.random.default_rng(0).integers(0, 4096, (4, 30), np.uint16), np.array([0, 0, 3, 39])
    a, b = values[:, 0::2], values[:, 1::2]
    packed = np.stack([a & 255, a >> 8 | (b & 15) << 4, b >> 4], 2).astype(np.uint8).reshape(4, -1)
    names = np.array([name.encode() for name in modelnet.CLASS_NAMES])
    np.savez(tmp_path / "modelnet40_train.npz", packed=packed, label=label, scale=0.5, class_names=names)
    for root in (tmp_path, tmp_path / "modelnet40_train.npz"):
        data = ModelNet40(root, points=7)
        np.testing.assert_allclose(data.coords.flatten(1), values[:, :21] / 4095 - 0.5, atol=1e-6)
        assert data.labels.tolist() == label.tolist()
        assert data.names == ["airplane_0001", "airplane_0002", "bench_0001", "xbox_0001"]
    with pytest.raises(FormatError, match=r"10 points.* 11"):
        ModelNet40(tmp_path, points=11)


def test_reads_the_pack_of_real_clouds(shared_data):
    data = ModelNet40(shared_data, points=100)
    assert len(data) == 9843
    assert data.coords.shape == (9843, 100, 3)
    assert float(data.coords.norm(dim=2).max()) <= 1.003
    assert data.names[0] == "airplane_0001"
    assert data.names[-1] == "xbox_0103"
    assert len(ModelNet40(shared_data, "validation", points=8)) == 985
    with pytest.raises(FileNotFoundError, match=r"\.npz has only training"):
        ModelNet40(shared_data, "test")
    clouds = gl.collate([data[i][0] for i in (0, 5000)])
    assert torch.equal(clouds.examples[1].coords, data.coords[5000])
