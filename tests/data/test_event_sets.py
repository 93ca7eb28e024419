"""Event data sets: archives' layouts, splits, packs, and what is said when files are missing."""

from __future__ import annotations

import hashlib
import io
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.augment import events as ev
from gridless.data import ASLDVS, CIFAR10DVS, MNISTDVS, NMNIST, NCaltech101, NCars, splits
from gridless.tasks import find
from gridless.tasks.storage import Storage, load_splits
from gridless.training import PackedSet
from gridless.training.recipe import load_recipe

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
LISTS = {
    "mnist_dvs": (dict.fromkeys("0123456789", 1000), 1, 0.1, 9000),
    "cifar10_dvs": (dict.fromkeys(CIFAR, 1000), 0, 0.1, 9000),
    "n_caltech101": (None, 1, 0.1, 7838),
    "asl_dvs": (dict.fromkeys("abcdefghiklmnopqrstuvwxy", 4200), 1, 0.2, 80640),
}


def recording(seed: int, count: int = 40, sensor: tuple[int, int] = (34, 34), end: int = 90_000) -> gl.Events:
    random = np.random.default_rng(seed)
    t = np.sort(random.integers(0, end, count))
    t[0] = 0
    x, y = random.integers(0, sensor[0], count), random.integers(0, sensor[1], count)
    return gl.Events.of({"x": x, "y": y, "t": t, "p": random.integers(0, 2, count)}, sensor=sensor)


def put(path: Path, events: gl.Events) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    gl.write_events(path, events)


def put_aedat(path: Path, events: gl.Events) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    array = events.numpy()
    pairs = np.stack([array["y"] << 8 | array["x"] << 1 | array["p"], array["t"]], 1).astype(">u4")
    path.write_bytes(b"#!AER-DAT2.0\r\n# This is a raw AE data file\r\n" + pairs.tobytes())


def put_pack(path: Path, recordings: list[gl.Events], labels: list[int]) -> None:
    arrays = [r.numpy() for r in recordings]
    whole = np.concatenate(arrays)
    step = np.concatenate([np.diff(a["t"], prepend=0) for a in arrays])
    out = io.BytesIO()
    np.savez(
        out,
        x=whole["x"].astype(np.uint8),
        y=whole["y"].astype(np.uint8),
        dt=np.minimum(step, 255).astype(np.uint8),
        dt_big=step[step >= 255].astype(np.uint32),
        p=np.packbits(whole["p"]),
        offsets=np.cumsum([0] + [len(a) for a in arrays]),
        label=np.array(labels, np.uint8),
        sensor=np.array(recordings[0].sensor),
    )
    path.write_bytes(lzma.compress(out.getvalue(), preset=0))


@pytest.mark.parametrize("name", LISTS)
def test_shipped_lists_follow_their_rule(name):
    counts, first, share, train = LISTS[name]
    counts = counts or {label: len(letters) for label, (_, letters) in splits.load(name).items()}
    text = (Path(splits.__file__).parent / f"{name}.txt").read_text()
    assert text == splits.make(name, counts, first, share)
    parts = {split: set(splits.members(name, split)) for split in splits.SPLITS}
    assert len(parts["train"]) == train
    assert parts["fit"] | parts["validation"] == parts["train"]
    assert not parts["train"] & parts["test"]
    assert not parts["fit"] & parts["validation"]
    assert len(parts["train"] | parts["test"]) == sum(counts.values())
    for label, count in counts.items():
        assert abs(sum(c == label for c, _ in parts["test"]) - count * share) <= 0.5


def test_shipped_lists_never_change():
    text = b"".join((Path(splits.__file__).parent / f"{name}.txt").read_bytes() for name in LISTS)
    assert hashlib.sha256(text).hexdigest() == "19f419e54dbc05d7d3c85c892bbc9797eadc7799089562868c70bfbe9e390be1"
    # N-MNIST: the hash of the number decides.
    assert sum(NMNIST._held_out(number) for number in range(1, 60_001)) == 5980


def test_n_caltech101_has_the_classes_of_its_archive():
    assert len(NCaltech101.class_names) == 101
    assert sum(len(letters) for _, letters in splits.load("n_caltech101").values()) == 8709
    assert {"Faces_easy", "BACKGROUND_Google"} <= set(NCaltech101.class_names)
    assert "Faces" not in NCaltech101.class_names


def test_folds_are_stratified_and_equal():
    labels = np.random.default_rng(0).integers(0, 10, 1000)
    fold = splits.folds(labels, 10, seed=1)
    assert np.array_equal(fold, splits.folds(labels, 10, seed=1))
    assert not np.array_equal(fold, splits.folds(labels, 10, seed=2))
    assert np.bincount(fold).tolist() == [100] * 10
    for label in range(10):
        assert np.ptp(np.bincount(fold[labels == label], minlength=10)) <= 1
    assert sorted(splits.folds([0, 1], 2)) == [0, 1]
    for number in (1, 3):
        with pytest.raises(ValueError, match=f"folds: {number} "):
            splits.folds([0, 1], number)


@pytest.fixture
def nmnist(tmp_path: Path) -> Path:
    for number in range(1, 41):
        put(tmp_path / "archive" / "Train" / str(number % 10) / f"{number:05d}.bin", recording(number))
    put(tmp_path / "archive" / "Test" / "3" / "00001.bin", recording(99))
    return tmp_path


def test_nmnist_reads_its_archive(nmnist: Path):
    data = NMNIST(nmnist, partial=True)
    assert len(data) == 40
    events, label = data[12]
    assert label == int(data.files[12].parent.name)
    assert events.sensor == (34, 34)
    assert np.array_equal(events.numpy(), recording(int(data.files[12].stem)).numpy())
    assert len(NMNIST(nmnist, "test", partial=True)) == 1
    fit, held = NMNIST(nmnist, "fit", partial=True), NMNIST(nmnist, "validation", partial=True)
    assert len(held) > 0
    assert sorted(fit.files + held.files) == sorted(data.files)


def test_nmnist_holds_out_the_same_recordings_of_a_pack(nmnist: Path, tmp_path: Path):
    put_pack(tmp_path / "nmnist_x_train.npz.xz", [recording(n) for n in range(1, 41)], [n % 10 for n in range(1, 41)])
    held = NMNIST(tmp_path / "nmnist_x_train.npz.xz", "validation")
    files = NMNIST(nmnist / "archive", "validation", partial=True)
    assert sorted((held.rows + 1).tolist()) == sorted(int(f.stem) for f in files.files)
    order = np.argsort([int(f.stem) for f in files.files])
    for row, i in enumerate(order):
        assert np.array_equal(held[row][0].numpy(), files[int(i)][0].numpy())
        assert held[row][1] == files[int(i)][1]


def test_missing_recordings_are_counted_and_named(nmnist: Path, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match=r"40 of .*60000"):
        NMNIST(nmnist)
    with pytest.raises(FileNotFoundError, match="garrickorchard"):
        NMNIST(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="airplane"):
        CIFAR10DVS(nmnist)
    (tmp_path / "cifar" / "airplane").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"0 of .*1000 .*cifar10_airplane_\d+\.aedat"):
        CIFAR10DVS(tmp_path / "cifar", "test")
    with pytest.raises(ValueError, match="split 'everything'"):
        NMNIST(nmnist, "everything")


def test_ncars_holds_out_contiguous_ranges_of_file_numbers(tmp_path: Path):
    recordings = [recording(n, sensor=(120, 100)) for n in range(60)]
    labels = [n % 2 for n in range(60)]
    numbers = [(4211, 4396)[n % 2] + 250 * (n // 2) for n in range(60)]
    put_pack(tmp_path / "ncars_train_0.npz.xz", recordings[:20], labels[:20])
    put_pack(tmp_path / "ncars_train_3.npz.xz", recordings[20:], labels[20:])
    with pytest.raises(FileNotFoundError, match=r"file_numbers\.npz"):
        NCars(tmp_path, "fit")
    np.savez(tmp_path / "ncars_train_file_numbers.npz", pack_0=numbers[:20], pack_3=numbers[20:])
    for n, events in enumerate(recordings):
        put(tmp_path / "set" / "n-cars_train" / ("background", "cars")[n % 2] / f"obj_{numbers[n]:06d}_td.dat", events)
    held = []
    for fold in range(5):
        for split in ("fit", "validation"):
            packed, files = NCars(tmp_path, split, fold), NCars(tmp_path / "set", split, fold, partial=True)
            assert sorted(int(f.name[4:10]) for f in files.files) == sorted(numbers[i] for i in packed.rows)
            assert packed.labels.sum() == files.labels.sum()
        for label in (0, 1):
            mine = sorted(numbers[i] for i in packed.rows if labels[i] == label)
            everything = sorted(number for number, other in zip(numbers, labels, strict=True) if other == label)
            first = everything.index(mine[0])
            assert mine == everything[first : first + len(mine)]
        assert set(packed.fold_of_each()) == {fold} == set(files.fold_of_each())
        held += packed.rows.tolist()
    assert sorted(held) == list(range(60))
    whole = NCars(tmp_path)
    assert len(whole) == 60
    # Packs follow one another.
    assert all(np.array_equal(whole[i][0].numpy(), recordings[i].numpy()) for i in (0, 19, 20, 59))
    with pytest.raises(ValueError, match=r"fold.* 4.* 5"):
        NCars(tmp_path, "fit", 5)
    with pytest.raises(FileNotFoundError, match=r"packs.*test"):
        NCars(tmp_path, "test")
    with pytest.raises(FileNotFoundError, match=r"60 of .*15422"):
        NCars(tmp_path / "set")
    np.savez(tmp_path / "ncars_train_file_numbers.npz", pack_0=numbers[:20])
    with pytest.raises(ValueError, match=r"20 file numbers.* 60"):
        NCars(tmp_path, "fit")


def test_the_ranges_of_ncars_are_equal_and_meet():
    for label, count in (("background", 7482), ("cars", 7940)):
        first = splits.ranges("n_cars")[label]
        assert first[-1] - first[0] == count
        assert [n - first[0] for n in first] == [round(i * count / 5) for i in range(6)]
        numbers = np.arange(first[0], first[-1])
        folds = splits.range_of("n_cars", label, numbers)
        assert (np.diff(folds) >= 0).all()
        assert np.ptp(np.bincount(folds, minlength=5)) <= 1
        with pytest.raises(ValueError, match=rf"{label} .* {first[-1]}"):
            splits.range_of("n_cars", label, np.array([first[-1]]))


def test_listed_sets_read_their_archives(tmp_path: Path):
    number = next(n for label, n in splits.members("mnist_dvs", "test") if label == "4")
    events = recording(0, sensor=(128, 128))
    put_aedat(tmp_path / f"grabbed_data4/scale16/mnist_4_scale16_{number:04d}.aedat", events)
    (tmp_path / "grabbed_data0").mkdir()
    data = MNISTDVS(tmp_path, "test", partial=True)
    assert len(data) == 1
    assert data[0][1] == 4
    assert np.array_equal(data[0][0].numpy(), events.numpy())
    assert len(MNISTDVS(tmp_path, "train", partial=True)) == 0

    for n in range(1000):
        path = tmp_path / "c" / "dog" / f"cifar10_dog_{n}.aedat"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "c" / "airplane").mkdir()
    assert [len(CIFAR10DVS(tmp_path / "c", s, partial=True)) for s in splits.SPLITS] == [900, 810, 90, 100]

    number = next(n for label, n in splits.members("n_caltech101", "train") if label == "yin_yang")
    put(tmp_path / "Caltech101" / "yin_yang" / f"image_{number:04d}.bin", recording(1, sensor=(234, 174)))
    (tmp_path / "Caltech101" / "accordion").mkdir()
    data = NCaltech101(tmp_path, partial=True)
    assert data[0][0].sensor == (234, 174)
    assert data.class_names[data[0][1]] == "yin_yang"


def test_asl_dvs_reads_its_archive(tmp_path: Path):
    scipy_io = pytest.importorskip("scipy.io")
    number = next(n for label, n in splits.members("asl_dvs", "train") if label == "k")
    events = recording(2, sensor=(240, 180))
    array = events.numpy()
    (tmp_path / "a").mkdir()
    (tmp_path / "k").mkdir()
    columns = {"ts": array["t"], "x": array["x"], "y": array["y"], "pol": array["p"].astype(np.uint8)}
    scipy_io.savemat(tmp_path / "k" / f"k_{number:04d}.mat", {k: v[:, None] for k, v in columns.items()})
    data = ASLDVS(tmp_path, partial=True)
    assert data.class_names[data[0][1]] == "k"
    assert np.array_equal(data[0][0].numpy(), events.numpy())


def test_a_seed_fixes_what_each_example_draws(nmnist: Path):
    data = NMNIST(nmnist, partial=True, transform=ev.n_mnist(), seed=5)
    first = data[3][0].numpy()
    torch.rand(7)
    assert np.array_equal(data[3][0].numpy(), first)
    data.set_epoch(1)
    assert not np.array_equal(data[3][0].numpy(), first)
    loader = torch.utils.data.DataLoader(data, batch_size=8, collate_fn=gl.collate)
    events, labels = next(iter(loader))
    assert events.num_examples == len(labels) == 8


def test_the_bad_file_of_a_set_is_named(nmnist: Path):
    data = NMNIST(nmnist, partial=True)
    data.files[5].write_bytes(b"\x00" * 7)
    with pytest.raises(gl.data.FormatError, match=data.files[5].name):
        data[5]


def test_a_batch_is_the_recordings_side_by_side(nmnist: Path, tmp_path: Path):
    put_pack(tmp_path / "nmnist_x_train.npz.xz", [recording(n) for n in range(5)], list(range(5)))
    for data in (NMNIST(nmnist / "archive", partial=True), NMNIST(tmp_path)):
        batch = data.batch([3, 0, 3])
        for i, row in enumerate([3, 0, 3]):
            assert np.array_equal(batch.examples[i].numpy(), data[row][0].numpy())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"nothing", "Input format not supported"),
        (lzma.compress(b"nothing"), "File is not a zip file"),
        ({"y": [1]}, "There is no item named 'x.npy'"),
        ({"x": np.array([None])}, "Python objects"),
    ],
)
def test_a_file_that_is_no_pack_is_refused_by_name(tmp_path: Path, data, message):
    if isinstance(data, dict):
        out = io.BytesIO()
        np.savez(out, **data)
        data = lzma.compress(out.getvalue(), preset=0)
    (tmp_path / "nmnist_x_train.npz.xz").write_bytes(data)
    with pytest.raises(gl.data.FormatError, match=f"nmnist_x_train.npz.xz: .*{message}"):
        NMNIST(tmp_path)


def test_real_packs_are_whole(shared_data: Path):
    data = NMNIST(shared_data)
    assert len(data) == 1000
    sample = gl.read_events(shared_data / "formats" / "nmnist_train_00001.bin", sensor=(34, 34))
    assert np.array_equal(data[0][0].numpy(), sample.numpy())
    data.batch(np.arange(1000)).check()
    assert data.labels[:5].tolist() == [5, 0, 4, 1, 9]


@pytest.mark.slow
def test_a_fifth_of_a_real_shard_of_ncars_is_held_out_in_every_fold(shared_data: Path):
    pack = shared_data / "ncars_train_0.npz.xz"
    labels = NCars(pack).labels
    assert len(labels) == 3085
    for fold in (0, 4):
        held = NCars(pack, "validation", fold).labels
        for label in (0, 1):
            assert 0.18 < (held == label).sum() / (labels == label).sum() < 0.22


def test_a_packed_set_has_the_recordings_that_were_read(tmp_path: Path):
    for label, number in splits.members("n_caltech101", "train")[::200]:
        events = recording(number, sensor=(234, 174))
        put(tmp_path / "data" / "Caltech101" / label / f"image_{number:04d}.bin", events)
    (tmp_path / "data" / "Caltech101" / "accordion").mkdir(exist_ok=True)
    recipe = load_recipe("n-caltech101", {"data_options": {"partial": True}})
    whole, packed = (
        load_splits(find("recordings"), recipe, tmp_path / "data", ["fit", "validation"], Storage(keep, tmp_path))
        for keep in ("memory", "disk")
    )
    for memory, disk in zip(whole, packed, strict=True):
        assert isinstance(disk, PackedSet)
        assert len(disk) > 0
        assert disk.events.sensor == memory.events.sensor == (234, 174)
        assert torch.equal(disk.labels, memory.labels)
        for (_, a), (_, b) in zip(memory.examples.parts(), disk.cut(torch.arange(len(disk))).parts(), strict=True):
            assert torch.equal(a, b)
