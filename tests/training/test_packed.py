"""Training sets on disk: the same batches, and the same trained weights, as in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from killing import KillAfter, Killed, assert_same

import gridless as gl
from gridless.data import MovingGlyphs, Shapes
from gridless.structures import Structure
from gridless.training.examples import TrainingSet, block
from gridless.training.loader import Loader
from gridless.training.packed import PackedSet
from gridless.training.recipe import load_recipe


def same(a: Structure, b: Structure) -> bool:
    return all(torch.equal(x, y) for (_, x), (_, y) in zip(a.parts(), b.parts(), strict=True))


@pytest.fixture(scope="module")
def clouds(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSet, PackedSet]:
    shapes = Shapes(24, points=64)
    packed = gl.data.pack(shapes, tmp_path_factory.mktemp("clouds") / "p", progress=False)
    memory = TrainingSet.of(block(shapes.coords), shapes.labels, shapes.class_names)
    return memory, PackedSet.of_pack(packed, keep="disk")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainingSet, PackedSet]:
    glyphs = MovingGlyphs(16)
    packed = gl.data.pack(glyphs, tmp_path_factory.mktemp("recordings") / "p", progress=False)
    events = gl.collate([glyphs[i][0] for i in range(len(glyphs))])
    memory = TrainingSet.of(events, glyphs.labels, glyphs.class_names)
    return memory, PackedSet.of_pack(packed, keep="disk")


@pytest.mark.parametrize("kind", ["clouds", "recordings"])
def test_batches_are_those_of_memory(kind: str, request: pytest.FixtureRequest):
    memory, disk = request.getfixturevalue(kind)
    assert list(disk.class_names) == list(memory.class_names)
    assert (len(disk), disk.even) == (len(memory), memory.even)
    index = torch.randperm(len(memory))[:7]
    assert same(disk.cut(index), memory.cut(index))
    assert same(disk.take(index).cut(torch.tensor([2, 0])), memory.take(index).cut(torch.tensor([2, 0])))
    assert torch.equal(disk.take(index).labels, memory.labels[index])


def test_the_first_points_alone_are_read(clouds: tuple[TrainingSet, PackedSet]):
    memory, disk = clouds
    index = torch.tensor([5, 1])
    assert same(disk.first(10).cut(index), memory.first(10).cut(index))
    assert same(disk.first(10).take(index).cut(torch.tensor([1])), memory.first(10).take(index).cut(torch.tensor([1])))


@pytest.mark.parametrize("kind", ["clouds", "recordings"])
def test_a_small_set_moves_to_memory_and_a_large_one_stays_on_disk(kind: str, request, capsys, monkeypatch):
    memory, disk = request.getfixturevalue(kind)
    auto = PackedSet.of_pack(disk.pack)
    monkeypatch.setattr("gridless.training.packed.PIECE", 200)
    moved = auto.to("cpu")
    assert type(moved) is TrainingSet
    assert same(moved.examples, memory.examples)
    assert "in the memory of cpu" in capsys.readouterr().err
    monkeypatch.setattr("gridless.training.packed.MOST_ON_CPU", 1000)
    assert isinstance(auto.to("cpu"), PackedSet)
    assert "on disk" in capsys.readouterr().err
    with pytest.raises(ValueError, match="'tape'"):
        PackedSet.of_pack(disk.pack, keep="tape")


@pytest.mark.slow
def test_a_network_trained_from_disk_has_the_same_weights(clouds: tuple[TrainingSet, PackedSet], tmp_path: Path):
    from gridless.tasks import load_task
    from gridless.training.loop import train

    memory, disk = clouds
    changes = {"epochs": 2, "batch_size": 8, "points": 64, "model__classes": len(memory.class_names)}
    recipe = load_recipe("shapes", changes)
    task = load_task(recipe.task_name)
    for name, data in (("memory", memory), ("disk", disk)):
        train(recipe, task, data, data, tmp_path / name)
    a, b = (gl.load(tmp_path / name / "weights").state_dict() for name in ("memory", "disk"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.slow
def test_a_run_from_disk_that_was_killed_goes_on_to_the_weights_of_memory(
    clouds: tuple[TrainingSet, PackedSet], tmp_path: Path, one_thread: None
):
    from gridless.training.run import run

    memory, disk = clouds
    model = {"model__classes": len(memory.class_names), "model__width": 8}
    recipe = load_recipe("shapes", {"epochs": 2, "batch_size": 8, "points": 64, **model})
    settings = {"device": "cpu", "checkpoint_steps": 1, "progress": False}
    run(recipe, memory, memory, tmp_path / "memory", **settings)
    with pytest.raises(Killed):
        run(recipe, disk, memory, tmp_path / "disk", callbacks=[KillAfter(4)], **settings)
    run(recipe, disk, memory, tmp_path / "disk", resume=True, **settings)
    assert_same(tmp_path / "memory", tmp_path / "disk")


def test_processes_read_shares_of_a_pack_that_make_up_the_batch(clouds: tuple[TrainingSet, PackedSet]):
    memory, disk = clouds
    recipe = load_recipe("shapes", {"points": 64})
    model: Any = recipe.changed(model__classes=len(memory.class_names)).make_model()
    settings = {"shuffle": True, "seed": 3}
    # Coordinates tell examples apart.
    seen: list[list[list[float]]] = []
    for data, rank, world in ((memory, 0, 1), (disk, 0, 2), (disk, 1, 2)):
        batches = Loader(data, model.plan, 8, rank=rank, world=world, **settings)
        seen.append([batch.geometry[model.cloud].coords[::64, 0].tolist() for batch in batches])
    for whole, *shares in zip(*seen, strict=True):
        assert [len(share) for share in shares] == [4, 4]
        assert sorted(whole) == sorted(shares[0] + shares[1])
