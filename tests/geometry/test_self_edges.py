"""Neighbourhoods without the point itself."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.structures import pad

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def cloud_of(sizes: list[int], device: str = "cpu") -> gl.Cloud:
    g = torch.Generator().manual_seed(0)
    return gl.Cloud.of([torch.rand(n, 3, generator=g) for n in sizes]).to(device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_cloud_in_itself_loses_the_diagonal_and_nothing_else(device):
    cloud = cloud_of([40, 0, 3], device)
    near = gl.ball(cloud, cloud, 0.3)
    edges = gl.geometry.without_self(near)
    dense = near.to("cpu").to_scipy().toarray()
    dense[range(len(cloud)), range(len(cloud))] = 0
    assert (edges.to("cpu").to_scipy().toarray() == dense).all()
    assert len(edges) == len(near) - len(cloud)
    assert edges.symmetric


@pytest.mark.parametrize("device", DEVICES)
def test_a_sample_loses_the_edges_to_the_points_it_was_taken_from(device):
    cloud = cloud_of([40, 5], device)
    sample = gl.farthest_sample(cloud, 0.25)
    near = gl.ball(cloud, sample, 0.4)
    edges = gl.geometry.without_self(near, sample)
    dense = near.to("cpu").to_scipy().toarray()
    dense[range(len(sample)), sample.parent_index.cpu()] = 0
    assert (edges.to("cpu").to_scipy().toarray() == dense).all()
    assert not edges.symmetric


def test_padding_stays_behind_the_edges():
    cloud = cloud_of([12, 7])
    padded = pad(gl.ball(cloud, cloud, 0.4), [64, 512])
    edges = gl.geometry.without_self(padded)
    alone = gl.geometry.without_self(gl.ball(cloud, cloud, 0.4))
    assert edges.padding == padded.padding
    assert edges.splits[: len(cloud) + 1].equal(alone.splits)
    assert edges.source[: len(alone)].equal(alone.source)


def test_edges_to_another_cloud_are_refused():
    cloud, sample = cloud_of([40]), gl.farthest_sample(cloud_of([30]), 10)
    with pytest.raises(ValueError, match=r"without_self: .*10 points of 30"):
        gl.geometry.without_self(gl.ball(cloud, sample, 0.4), sample)
    with pytest.raises(ValueError, match=r"40 sources .*10 targets"):
        gl.geometry.without_self(gl.ball(cloud, sample, 0.4))


def test_a_line_without_self_edges_reaches_as_far_as_its_search():
    plan = gl.Plan()
    points = plan.points(3)
    near = plan.without_self(plan.ball(points, points, 0.4))
    assert plan.reach([near]) == pytest.approx(0.8)
    drawn = plan.random_sample(points, 0.5)
    assert drawn == "X1"
    with pytest.raises(ValueError, match="random_sample"):
        plan.reach()
