"""Packs: examples on disk, the same as in memory, whatever interrupts the writing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.data import FormatError
from gridless.data import packing as packs

SENSOR = (37, 20)


def recording(i: int, count: int | None = None) -> gl.Events:
    rng = np.random.default_rng(i)
    count = int(rng.integers(0, 300)) if count is None else count
    pixel = np.stack([rng.integers(0, SENSOR[0], count), rng.integers(0, SENSOR[1], count)], 1)
    time = 10**12 + np.cumsum(rng.integers(0, 50_000, count))
    return gl.Events(
        torch.tensor(pixel, dtype=torch.int32).reshape(-1, 2),
        torch.tensor(time, dtype=torch.int64),
        torch.tensor(rng.integers(0, 2, count), dtype=torch.bool),
        torch.tensor([0, count]),
        SENSOR,
    )


def cloud(i: int) -> gl.Cloud:
    rng = np.random.default_rng(i)
    count = int(rng.integers(1, 50))
    return gl.Cloud.of(
        torch.tensor(rng.normal(size=(count, 3)), dtype=torch.float32),
        part=torch.tensor(rng.integers(0, 9, count), dtype=torch.uint8),
        normal=torch.tensor(rng.normal(size=(count, 3)), dtype=torch.float32),
        directions="normal",
    )


class Recordings:
    class_names = ("left", "right")

    def __init__(self, count: int = 100, kill_at: int | None = None, wait: float = 0.0) -> None:
        self.count, self.kill_at, self.wait = count, kill_at, wait

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int):
        if i == self.kill_at:
            raise KeyboardInterrupt
        time.sleep(self.wait)
        return recording(i), i % 2


class Clouds:
    def __len__(self) -> int:
        return 70

    def __getitem__(self, i: int):
        return cloud(i), torch.tensor([i / 7, -i])


def same(a, b) -> bool:
    return all(torch.equal(x, y) for (_, x), (_, y) in zip(a.parts(), b.parts(), strict=True))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_recordings_come_back_as_they_were(tmp_path: Path, workers: int):
    packed = gl.data.pack(Recordings(), tmp_path / "p", workers=workers)
    assert (len(packed), packed.sensor, packed.class_names) == (100, SENSOR, ["left", "right"])
    assert torch.equal(packed.labels, torch.arange(100) % 2)
    index = torch.randperm(100)
    assert same(packed.read(index), gl.collate([recording(int(i)) for i in index]))
    events, label = packed[-1]
    assert same(events, recording(99))
    assert int(label) == 1


def test_clouds_come_back_with_their_rows_and_labels_of_any_shape(tmp_path: Path):
    packed = gl.data.pack(Clouds(), tmp_path / "p")
    index = torch.tensor([69, 3, 3, 0])
    assert same(packed.read(index), gl.collate([cloud(int(i)) for i in index]))
    assert packed.read(index).directions == ("normal",)
    assert torch.equal(packed.labels[index][:, 1], -index.double())


def test_an_event_takes_eight_bytes(tmp_path: Path):
    packed = gl.data.pack(Recordings(400), tmp_path / "p")
    size = sum(file.stat().st_size for file in (tmp_path / "p").iterdir())
    assert size < 8 * int(packed.splits[-1]) + 100 * len(packed)


def test_negative_ages_and_the_largest_pixel_are_kept(tmp_path: Path):
    events = gl.Events(
        torch.tensor([[0, 0], [36, 19], [36, 0]], dtype=torch.int32),
        torch.tensor([5, -7, 2**36]),
        torch.tensor([True, False, True]),
        torch.tensor([0, 3]),
        SENSOR,
    )
    packed = gl.data.pack([(events, 0)], tmp_path / "p")
    assert same(packed.read(torch.tensor([0])), events)


def test_recordings_that_are_too_long_and_examples_of_another_kind_are_refused(tmp_path: Path):
    events = recording(0, 2)
    long = gl.Events(events.pixel, torch.tensor([0, 2**37]), events.polarity, events.splits, SENSOR)
    with pytest.raises(ValueError, match="recording 0"):
        gl.data.pack([(long, 0)], tmp_path / "a")
    with pytest.raises(ValueError, match="example 1"):
        gl.data.pack([(events, 0), (cloud(0), 0)], tmp_path / "b")
    with pytest.raises(TypeError, match="str"):
        gl.data.pack([("chair", 0)], tmp_path / "c")
    with pytest.raises(ValueError, match="empty"):
        gl.data.pack([], tmp_path / "d")


def test_structured_arrays_of_tonic_are_events(tmp_path: Path):
    class Tonic(list):
        sensor_size, classes = (37, 20, 2), ["a"]

    array = np.zeros(3, [("x", "<i2"), ("y", "<i2"), ("t", "<i8"), ("p", "?")])
    array["x"], array["t"], array["p"] = [1, 2, 36], [10, 20, 20], [True, False, True]
    packed = gl.data.pack(Tonic([(array, 0)]), tmp_path / "p")
    assert packed.read(torch.tensor([0])).pixel[:, 0].tolist() == [1, 2, 36]
    assert packed.class_names == ["a"]


def test_an_interrupted_pack_goes_on_where_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packs, "SHARD_BYTES", 5_000)
    with pytest.raises(KeyboardInterrupt):
        gl.data.pack(Recordings(kill_at=50), tmp_path / "p")
    with pytest.raises(FileNotFoundError, match="complete pack"):
        gl.data.Pack(tmp_path / "p")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "p").glob("*.safetensors")}
    assert before
    packed = gl.data.pack(Recordings(), tmp_path / "p")
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert same(packed.read(torch.arange(100)), gl.collate([recording(i) for i in range(100)]))
    # A complete pack is not read again.
    assert len(gl.data.pack(Recordings(kill_at=0), tmp_path / "p")) == 100


@pytest.mark.slow
def test_a_killed_pack_goes_on_and_leaves_nothing_behind(tmp_path: Path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[2]); import gridless as gl; import test_pack\n"
        "test_pack.packs.SHARD_BYTES = 5_000\n"
        "gl.data.pack(test_pack.Recordings(wait=0.02), sys.argv[1], progress=False)"
    )
    out = tmp_path / "p"
    process = subprocess.Popen([sys.executable, "-c", code, str(out), str(Path(__file__).parent)])
    while not list(out.glob("*.safetensors")):
        time.sleep(0.01)
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (out / "0000000099-0000000100.safetensors.unfinished-x-1-1").write_bytes(b"half")
    os.utime(out / "0000000099-0000000100.safetensors.unfinished-x-1-1", (0, 0))
    packed = gl.data.pack(Recordings(), out)
    assert same(packed.read(torch.arange(100)), gl.collate([recording(i) for i in range(100)]))
    assert not [file for file in out.iterdir() if "unfinished" in file.name]


def test_of_two_writers_the_second_waits_for_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    class First(Recordings):
        def __getitem__(self, i: int):
            if i == 40:
                self.second.start()
                while "waiting" not in capfd.readouterr().err:
                    time.sleep(0.01)
            return super().__getitem__(i)

    results = []
    First.second = threading.Thread(target=lambda: results.append(gl.data.pack(Recordings(kill_at=0), tmp_path / "p")))
    packed = gl.data.pack(First(), tmp_path / "p")
    First.second.join()
    assert same(results[0].read(torch.arange(100)), packed.read(torch.arange(100)))


@pytest.mark.slow
def test_a_full_disk_is_named_and_leaves_no_half_shard(tmp_path: Path):
    """Files may be 20 kB long at most, which the system reports as a full disk is."""
    code = (
        "import sys, signal, resource; sys.path.insert(0, sys.argv[2]); import gridless as gl; import test_pack\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "gl.data.pack(test_pack.Recordings(), sys.argv[1], progress=False)"
    )
    out = tmp_path / "p"
    result = subprocess.run([sys.executable, "-c", code, out, Path(__file__).parent], capture_output=True, text=True)
    assert f"OSError: [Errno {errno.EFBIG}]" in result.stderr
    assert "0000000000-0000000016.safetensors" in result.stderr
    assert not list(out.glob("*safetensors*"))
    assert len(gl.data.pack(Recordings(), out)) == 100


class Scans:
    """Items of several examples: item i holds i + 1 clouds."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> packs.Item:
        return packs.Item([(cloud(100 * i + k), k) for k in range(i % 4 + 1)], {"number": i})


def test_an_item_may_hold_several_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(packs, "SHARD_BYTES", 5_000)
    monkeypatch.setattr(packs, "OPEN_SHARDS", 2)
    packed = gl.data.pack(Scans(), tmp_path / "p", together=1)
    assert len(packed.shards) > 10
    assert packed.items.tolist() == [i for i in range(40) for _ in range(i % 4 + 1)]
    assert packed.facts[7] == {"number": 7}
    chosen = (packed.items == 7).nonzero()[:, 0]
    assert same(packed.read(chosen), gl.collate([cloud(700 + k) for k in range(4)]))
    assert packed.labels[chosen].tolist() == [0, 1, 2, 3]


def test_damaged_packs_are_refused_by_name(tmp_path: Path):
    gl.data.pack(Recordings(), tmp_path / "p")
    shard = sorted((tmp_path / "p").glob("*.safetensors"))[1]
    whole = shard.read_bytes()
    for damage in (whole[:-9], whole[:20], b"", b"\xff" * 64, whole[:8] + b"[" * int.from_bytes(whole[:8], "little")):
        shard.write_bytes(damage)
        with pytest.raises(FormatError, match=shard.name):
            gl.data.Pack(tmp_path / "p")
    shard.write_bytes(whole)
    index = tmp_path / "p" / "pack.json"
    facts = json.loads(index.read_bytes())
    for change in (
        {"version": 9},
        {"shards": ["../x"]},
        {"shards": facts["shards"][1:]},
        {"items": 3},
        {"about": 3},
    ):
        index.write_text(json.dumps(facts | change))
        with pytest.raises((FormatError, FileNotFoundError)):
            gl.data.Pack(tmp_path / "p")


def test_random_changes_of_a_shard_never_crash(tmp_path: Path):
    gl.data.pack(Recordings(40), tmp_path / "p")
    shard = sorted((tmp_path / "p").glob("*.safetensors"))[0]
    whole, rng = shard.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[int(rng.integers(0, 600))] ^= int(rng.integers(1, 256))
        shard.write_bytes(damaged)
        try:
            packed = gl.data.Pack(tmp_path / "p")
            packed.read(torch.arange(40))
        except (FormatError, ValueError, FileNotFoundError, MemoryError):
            pass


@pytest.mark.parametrize("open_shards", [256, 0])
def test_a_shard_that_becomes_shorter_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_shards: int):
    monkeypatch.setattr(packs, "OPEN_SHARDS", open_shards)
    packed = gl.data.pack(Recordings(40), tmp_path / "p")
    shard = packed.shards[-1].path
    os.truncate(shard, shard.stat().st_size // 2)
    with pytest.raises(FormatError, match=rf"{shard.name}: .*shorter"):
        packed.read(torch.arange(40))
    assert same(packed.read(torch.arange(10)), gl.collate([recording(i) for i in range(10)]))


def test_a_pack_is_pickled_by_its_path(tmp_path: Path):
    import pickle

    packed = gl.data.pack(Recordings(20), tmp_path / "p")
    again = pickle.loads(pickle.dumps(packed))
    assert same(again.read(torch.arange(20)), packed.read(torch.arange(20)))
