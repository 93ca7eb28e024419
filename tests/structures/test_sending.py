"""A geometry comes out of another process as it went in, with one tensor for all."""

from __future__ import annotations

import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import gridless as gl
from gridless.structures import sending


def geometry(points: int, seed: int = 0) -> gl.Geometry:
    generator = torch.Generator().manual_seed(seed)
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    plan.ball(cloud, plan.rejection_sample(plan.ball(cloud, cloud, 0.3)), 0.4)
    coords = torch.rand(points, 3, generator=generator)
    rows: dict[str, Any] = {
        "colour": torch.rand(points, 3, generator=generator).half(),
        "is_ground": coords[:, 2] < 0.5,
        "label": torch.arange(points),
        "none": torch.empty(points, 0),
    }
    return plan(gl.Cloud.of(coords, **rows))


def is_same(a: gl.Geometry, b: gl.Geometry) -> bool:
    pairs = list(zip(a.tensors(), b.tensors(), strict=True))
    return [*a] == [*b] and all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)


class Geometries(Dataset):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> tuple[gl.Geometry, int]:
        return geometry((0, 1, 7, 80, 300)[i], i), i


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_what_workers_make_arrives_as_it_was(context):
    loader = DataLoader(Geometries(), batch_size=None, num_workers=2, multiprocessing_context=context)
    for i, (value, number) in enumerate(loader):
        assert number == i
        assert is_same(value, Geometries()[i][0])
        if len(value["X0"]):
            assert len({x.untyped_storage().data_ptr() for x in value.tensors()}) == 1


def test_a_tensor_that_is_there_twice_is_one():
    cloud = gl.Cloud.of(torch.rand(4, 3))
    sent = pickle.loads(ForkingPickler.dumps(gl.Geometry({"A": cloud, "B": cloud})))
    assert sent["A"] is sent["B"]
    assert torch.equal(sent["A"].coords, cloud.coords)


@pytest.mark.parametrize("kind", ["shared", "gradients", "large"])
def test_others_are_sent_tensor_by_tensor(kind, monkeypatch):
    coords = torch.rand(5, 3)
    if kind == "large":
        monkeypatch.setattr(sending, "_LARGEST", 32)
    elif kind == "shared":
        coords.share_memory_()
    else:
        coords.requires_grad_()
    value = gl.Geometry({"X0": gl.Cloud.of(coords)})
    sent = pickle.loads(ForkingPickler.dumps(value))
    assert torch.equal(sent["X0"].coords, coords)
    assert sent["X0"].coords.requires_grad == (kind == "gradients")
    with torch.no_grad():
        coords += 1
    if kind == "shared":
        assert torch.equal(sent["X0"].coords, coords)


def test_plain_pickles_are_as_before():
    value = geometry(20)
    assert is_same(pickle.loads(pickle.dumps(value)), value)
