"""`gridless clean` removes what can be made again, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.cli.clean import caches
from gridless.cli.main import main
from gridless.data.files import locked


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder of data with a pack, a cache of clouds, geometry, and a file of the user's in each of them."""
    beside = tmp_path / "data" / ".gridless"
    clouds = [(gl.Cloud.of(torch.rand(4, 3)), 0)]
    gl.data.pack(clouds, beside / "pack-0123")
    np.save(beside / "text-train.npy", np.zeros(3))
    (beside / "text-train.json").write_text("{}")
    plan = gl.Plan()
    plan.ball(cloud := plan.points(dim=3), cloud, 0.1)
    gl.Precomputed(clouds, tmp_path / "cache", plan)
    mine = [tmp_path / "data" / "a.ply", beside / "notes.json", beside / "pack-0123" / "notes.txt"]
    for file in mine:
        file.write_text("mine")
    return tmp_path


def left(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


MINE = {"data/a.ply", "data/.gridless/notes.json", "data/.gridless/pack-0123/notes.txt"}


def test_caches_are_listed_and_stay_unless_one_agrees(data: Path, capsys: pytest.CaptureFixture[str]):
    before = left(data)
    assert main(["clean", str(data / "data"), str(data / "cache")]) == 0
    out, err = capsys.readouterr()
    assert [line.split()[2] for line in out.splitlines()] == ["clouds", "pack", "geometry", "in"]
    assert "--yes" in err
    assert left(data) == before


def test_hashes_of_files_are_not_called_clouds(tmp_path: Path):
    beside = tmp_path / ".gridless"
    beside.mkdir()
    (beside / "files.json").write_text("{}")
    assert [cache.what for cache in caches([tmp_path])] == ["hashes"]


def test_caches_are_removed_and_other_files_stay(data: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["clean", str(data / "data"), str(data / "cache"), "--yes", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [cache["what"] for cache in facts["caches"]] == ["clouds", "pack", "geometry"]
    assert facts["bytes"] > 0
    assert left(data) == MINE
    assert not list((data / "cache").iterdir())
    assert main(["clean", str(data / "data"), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["caches"] == []


def test_a_pack_that_is_being_written_stays(data: Path):
    pack = data / "data" / ".gridless" / "pack-0123"
    with locked(pack / ".lock", pack):
        assert main(["clean", str(data / "data"), "--yes"]) == 0
        assert (pack / "pack.json").is_file()
    gl.data.Pack(pack)


def test_a_pack_can_be_named_itself(data: Path):
    pack = data / "data" / ".gridless" / "pack-0123"
    (pack / "notes.txt").unlink()
    assert main(["clean", str(pack), "--yes"]) == 0
    assert not pack.exists()
