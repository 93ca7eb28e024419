"""Folders that are packed rather than read: the same examples and weights, from files that are never all in memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.main import main
from gridless.data.readers.clouds import ply
from gridless.tasks import find, storage
from gridless.tasks.storage import Storage, load_splits
from gridless.training import PackedSet, TrainingSet
from gridless.training.recipe import load_recipe


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Two classes of six recordings, as CSV files, whose sensor is that of the largest."""
    rng = np.random.default_rng(0)
    for name, width in (("left", 32), ("right", 20)):
        for number in range(6):
            count = int(rng.integers(20, 60))
            events = np.stack([np.sort(rng.integers(0, 10**5, count)), rng.integers(0, width, count),
                               rng.integers(0, 15, count), rng.integers(0, 2, count)], 1)  # fmt: skip
            path = tmp_path / "events" / name / f"{number}.csv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("t,x,y,p\n" + "".join(f"{t},{x},{y},{p}\n" for t, x, y, p in events))
    return tmp_path / "events"


@pytest.fixture
def scans(tmp_path: Path) -> Path:
    """Five scans with labels 2, 6 and 9, each of several blocks."""
    rng = np.random.default_rng(0)
    for number in range(5):
        coords = torch.tensor(rng.uniform(0, 20, (300, 3)), dtype=torch.float32)
        label = torch.tensor(rng.choice([2, 9] if number % 2 else [2, 6, 9], 300))
        rgb = torch.tensor(rng.integers(0, 255, (300, 3)), dtype=torch.uint8)
        path = tmp_path / "scans" / f"{'abcde'[number]}_{number}.ply"
        path.parent.mkdir(exist_ok=True)
        ply.write(path, gl.Cloud.of(coords, label=label.int(), rgb=rgb))
    return tmp_path / "scans"


def scan_recipe(**changes):
    options = {"up": "z", "block": 10.0, "features": ["rgb"], "names": {6: "low", 9: "low"}}
    return load_recipe("own-scans", {"data_options": options, "points": 60, **changes})


def loaded(recipe, path: Path | None, keep: str, names=("fit", "validation"), folder: Path | None = None):
    return load_splits(find(recipe.task_name), recipe, path, names, Storage(keep, folder))


def assert_alike(memory: TrainingSet, disk: TrainingSet) -> None:
    index = torch.randperm(len(memory))
    for (_, a), (_, b) in zip(memory.cut(index).parts(), disk.cut(index).parts(), strict=True):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    assert torch.equal(memory.labels, disk.labels)
    assert torch.equal(memory.splits, disk.splits)
    for name in ("class_names", "features", "parts", "values", "scales"):
        assert getattr(memory, name) == getattr(disk, name)
    assert (memory.files is None and disk.files is None) or torch.equal(memory.files, disk.files)


def test_packed_recordings_are_those_that_were_read(recordings: Path):
    recipe = load_recipe("own-recordings")
    for memory, disk in zip(loaded(recipe, recordings, "memory"), loaded(recipe, recordings, "disk"), strict=True):
        assert isinstance(disk, PackedSet)
        assert disk.events.sensor == memory.events.sensor == (32, 15)
        assert_alike(memory, disk)


def test_packed_blocks_of_scans_are_those_that_were_read(scans: Path):
    recipe = scan_recipe()
    for memory, disk in zip(loaded(recipe, scans, "memory"), loaded(recipe, scans, "disk"), strict=True):
        assert isinstance(disk, PackedSet)
        assert disk.rows["part"].dtype == torch.int32
        assert_alike(memory, disk)
        assert_alike(memory, disk.resident(torch.device("cpu")))


def test_generated_examples_are_packed_too(tmp_path: Path):
    recipe = load_recipe("shapes", {"data_options": {"size": 12, "held_out": 4}, "points": 32})
    for memory, disk in zip(loaded(recipe, None, "memory"), loaded(recipe, None, "disk", folder=tmp_path), strict=True):
        assert_alike(memory, disk)


def test_large_folders_are_packed_and_small_ones_read(recordings: Path, monkeypatch: pytest.MonkeyPatch):
    recipe = load_recipe("own-recordings")
    assert type(loaded(recipe, recordings, "auto")[0]) is TrainingSet
    assert not (recordings / ".gridless").exists()
    monkeypatch.setattr(storage, "PACKED_ABOVE", 1000)
    assert isinstance(loaded(recipe, recordings, "auto")[0], PackedSet)
    # The sensor of the network does not change the pack; a sensor that is too small for the files is refused.
    loaded(load_recipe("own-recordings", {"model__sensor": [34, 34]}), recordings, "auto")
    assert len(list((recordings / ".gridless").glob("pack-*"))) == 1
    with pytest.raises(ValueError, match="32 x 15"):
        loaded(load_recipe("own-recordings", {"model__sensor": [16, 16]}), recordings, "auto")


def test_files_that_changed_are_packed_anew_and_others_are_not_read_again(recordings: Path, monkeypatch):
    recipe, place = load_recipe("own-recordings"), recordings / ".gridless"
    loaded(recipe, recordings, "disk")
    first = set(place.glob("pack-*"))
    with monkeypatch.context() as patch:
        patch.setattr("hashlib.file_digest", lambda *_: pytest.fail("a file was read"))
        loaded(recipe, recordings, "disk")
    file = recordings / "left" / "0.csv"
    text = file.read_text()
    # Other times, the same content.
    os.utime(file, (0, 0))
    loaded(recipe, recordings, "disk")
    assert set(place.glob("pack-*")) == first
    file.write_text(text[:-2] + ("0\n" if text[-2] == "1" else "1\n"))
    after = loaded(recipe, recordings, "disk")
    assert len(set(place.glob("pack-*"))) == 2
    assert_alike(loaded(recipe, recordings, "memory")[0], after[0])


def test_a_pack_that_the_user_made_is_data(tmp_path: Path):
    packed = gl.data.pack(gl.data.MovingGlyphs(40), tmp_path / "p", progress=False)
    recipe = load_recipe("own-recordings")
    learn, valid = loaded(recipe, packed.path, "auto")
    assert len(learn) + len(valid) == 40
    assert set(learn.index.tolist()).isdisjoint(valid.index.tolist())
    assert set(valid.labels.tolist()) == set(packed.labels.tolist())
    assert find("recordings").fit(recipe, learn).model["classes"] == len(packed.class_names)
    with pytest.raises(ValueError, match="'test'"):
        loaded(recipe, packed.path, "auto", ["test"])
    test = gl.data.pack(gl.data.MovingGlyphs(4), tmp_path / "t", progress=False, about={"split": "test"})
    assert len(loaded(recipe, test.path, "auto", ["test"])[0]) == 4


def test_a_folder_where_nothing_can_be_written_is_named(recordings: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match=r"packs|file"):
        loaded(load_recipe("own-recordings"), recordings, "disk", folder=tmp_path / "file" / "packs")
    with pytest.raises(ValueError, match="'tape'"):
        Storage("tape")


@pytest.mark.slow
def test_the_command_line_trains_the_same_weights_from_disk(scans: Path, tmp_path: Path, capsys):
    (recipe := tmp_path / "r.yaml").write_text(json.dumps(scan_recipe().to_dict()))
    small = ["--set", "model.width=8", "--set", "model.levels=1", "--epochs", "2", "--set", "batch_size=6"]
    command = ["train", str(recipe), "--data", str(scans), "--device", "cpu", *small]
    for keep in ("memory", "disk"):
        assert main([*command, "--keep", keep, "--out", str(tmp_path / keep), "--cache", str(tmp_path / "packs")]) == 0
        assert (f"kept on disk, {tmp_path / 'packs'}" in capsys.readouterr().err) == (keep == "disk")
    a, b = (gl.load(tmp_path / keep / "weights").state_dict() for keep in ("memory", "disk"))
    assert all(torch.equal(a[name], b[name]) for name in a)
    evaluated = [
        "evaluate",
        str(tmp_path / "disk" / "weights"),
        "--data",
        str(scans),
        "--split",
        "validation",
        "--json",
    ]
    figures = []
    for keep in ("memory", "disk"):
        assert main([*evaluated, "--keep", keep, "--cache", str(tmp_path / "packs"), "--device", "cpu"]) == 0
        figures.append(json.loads(capsys.readouterr().out))
    assert figures[0] == figures[1]
    assert len(list((tmp_path / "packs").glob("pack-*"))) == 1


MEMORY = """
import resource, sys
import numpy as np, torch
import gridless as gl
from gridless.training import Loader, PackedSet

class Recordings:
    class_names = ["a", "b"]
    def __init__(self, count, events): self.count, self.events = count, events
    def __len__(self): return self.count
    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        pixel = torch.from_numpy(rng.integers(0, 128, (self.events, 2), np.int32))
        time = torch.arange(self.events)
        return gl.Events(pixel, time, time % 2 == 0, torch.tensor([0, self.events]), (128, 128)), i % 2

def epoch(pack):
    data = PackedSet.of_pack(pack, keep="disk").to("cpu")
    plan = gl.Plan()
    plan.events((128, 128))
    loader = Loader(data, plan, 16, epochs=1)
    return sum(int(batch.geometry["X0"].time[-1]) for batch in loader)

def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

epoch(gl.data.pack(Recordings(32, 100_000), sys.argv[1] + "/small", progress=False))
before = peak()
pack = gl.data.pack(Recordings(320, 100_000), sys.argv[1] + "/large", progress=False)
packed = peak()
epoch(pack)
print(int(pack.splits[-1]), packed - before, peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_data(tmp_path: Path):
    """Packing and reading 32 million events, 256 MB on disk and 544 in memory, beside a tenth of them."""
    code = [sys.executable, "-c", MEMORY, str(tmp_path)]
    result = subprocess.run(code, capture_output=True, text=True, check=True)
    events, packing, reading = map(float, result.stdout.split())
    assert events == 32e6
    # A shard and two copies of it are 200 MB; the small pack had a tenth of that.
    assert packing < 220
    assert reading < 220
