"""Rejection sampling."""

from __future__ import annotations

import pytest
import torch
from clouds import crowded, lattice, scattered, ugly
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless.geometry.rejection import doubtful_depth


def reference(cloud: gl.Cloud, *args, **kwargs) -> gl.Cloud:
    with gl.use_backend("reference"):
        return gl.rejection_sample(cloud, *args, **kwargs)


def ball(cloud: gl.Cloud, radius: float) -> gl.Edges:
    """By the reference, which compiles nothing."""
    with gl.use_backend("reference"):
        return gl.ball(cloud, cloud, radius)


def assert_same(samples: gl.Cloud, wanted: gl.Cloud) -> None:
    samples = samples.cpu()
    assert torch.equal(samples.parent_index, wanted.parent_index)
    assert torch.equal(samples.splits, wanted.splits)
    assert torch.equal(samples.coords, wanted.coords)
    assert samples.parent_index.dtype == torch.int64
    assert samples.num_parent == wanted.num_parent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 3, 8])
def test_every_backend_keeps_the_points_of_the_reference(backend, device, dim, dtype):
    cloud = ugly(dim, dtype)
    # 0.25 apart are neighbours on the lattice: inclusive, exactly at the radius.
    radius = 0.25 * max(dim - 2, 1)
    near = ball(cloud, radius)
    wanted = reference(cloud, near)
    assert_same(gl.rejection_sample(cloud.to(device), near.to(device)), wanted)
    assert_same(gl.rejection_sample(cloud.to(device), radius=radius), wanted)


@pytest.mark.parametrize("dim", [1, 3, 5])
def test_distances_are_to_the_closest_sample_in_reach(backend, device, dim):
    cloud = ugly(dim, torch.float64)
    radius = 0.3 * dim**0.5
    near = ball(cloud, radius).to(device)
    for sample in (
        gl.rejection_sample(cloud.to(device), near, distance=True).cpu(),
        gl.rejection_sample(cloud.to(device), radius=radius, distance=True).cpu(),
    ):
        assert sample.distance.shape == (len(cloud),)
        for e in range(cloud.num_examples):
            a, b = cloud.splits[e : e + 2].tolist()
            c, d = sample.splits[e : e + 2].tolist()
            if a < b:
                wanted = (cloud.coords[a:b, None] - sample.coords[None, c:d]).norm(dim=2).min(1).values
                torch.testing.assert_close(sample.distance[a:b], wanted)
    assert gl.rejection_sample(cloud.to(device), near).distance is None


def test_no_two_samples_are_neighbours_and_every_point_has_one(backend, device):
    cloud = gl.Cloud.of([scattered(400, 3), lattice(200, 3)]).to(device)
    sample = gl.rejection_sample(cloud, radius=0.25)
    assert gl.ball(sample, sample, 0.25).counts.tolist() == [1] * len(sample)
    assert gl.ball(sample, cloud, 0.25).counts.min() >= 1


def test_samples_come_in_index_order_and_know_their_parents(backend, device):
    cloud = gl.Cloud.of([scattered(100, 3), scattered(50, 3, seed=1)]).to(device)
    sample = gl.rejection_sample(cloud, radius=0.4)
    assert (sample.parent_index.diff() > 0).all()
    assert torch.equal(sample.coords, cloud.coords[sample.parent_index])
    assert torch.equal(cloud.example[sample.parent_index], sample.example)
    assert sample.num_parent == 150


def test_edges_need_not_be_symmetric_nor_hold_the_point_itself(backend, device):
    cloud = gl.Cloud.of(scattered(4, 3)).to(device)
    # 0 rejects 2; 1 nothing; 3 rejects 1, which was kept before.
    near = gl.Edges(torch.tensor([0, 1, 1, 1, 2]), torch.tensor([2, 1]), 4).to(device)
    assert gl.rejection_sample(cloud, near, distance=True).parent_index.tolist() == [0, 1, 3]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.sampled_from([0.1, 0.25, 0.6]), st.integers(0, 9))
def test_how_a_batch_is_cut_does_not_matter(sizes, radius, seed):
    parts = [lattice(n, 2, seed=seed + i) for i, n in enumerate(sizes)]
    whole = gl.rejection_sample(gl.Cloud.of(parts), radius=radius)
    for i, part in enumerate(parts):
        alone = gl.rejection_sample(gl.Cloud.of(part), radius=radius)
        assert torch.equal(whole.examples[i].coords, alone.coords)


def test_radii_far_from_the_extent_are_no_trouble(backend, device):
    cloud = gl.Cloud.of(scattered(100, 3) * 1e4)
    for radius in (1e-12, 1e-3, 1e6, 1e15):
        assert_same(gl.rejection_sample(cloud.to(device), radius=radius), reference(cloud, radius=radius))


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
def test_a_point_far_away_does_not_change_the_others(backend, device, dim):
    near = scattered(200, dim)
    both = torch.cat([near, torch.full((1, dim), 1e5)])
    samples = gl.rejection_sample(gl.Cloud.of(both).to(device), radius=0.2, distance=True).cpu()
    assert_same(samples, reference(gl.Cloud.of(both), radius=0.2))
    assert torch.equal(samples.parent_index[:-1], reference(gl.Cloud.of(near), radius=0.2).parent_index)
    torch.testing.assert_close(samples.distance, reference(gl.Cloud.of(both), radius=0.2, distance=True).distance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", crowded(1))
def test_crowded_clouds_keep_the_points_of_the_reference(name, dtype):
    cloud = gl.Cloud.of(crowded(500)[name].to(dtype))
    for radius in (0.005, 0.1):
        assert_same(gl.rejection_sample(cloud, radius=radius), reference(cloud, radius=radius))


@pytest.mark.parametrize("name", ["outlier", "extreme outlier"])
def test_points_far_away_do_not_crowd_the_others_into_one_cell(name):
    import numpy as np

    from gridless.geometry.rejection import cpu

    x = crowded(3000)[name].numpy()
    cell, shape = np.empty((len(x), 3), np.int64), np.empty(3, np.int64)
    cpu._cells(x, 0.05, cell, shape)
    assert shape.tolist() == [0, 0, 0]
    places = [cpu._place(*one, shape, 8191) for one in cell]
    assert np.bincount(places).max() < 20


def test_huge_coordinates_are_no_trouble(backend, device):
    cloud = gl.Cloud.of((scattered(50, 3, torch.float64) * 2 - 1) * 1.7e308)
    assert_same(gl.rejection_sample(cloud.to(device), radius=1e150), reference(cloud, radius=1e150))


def test_coordinates_keep_their_gradient(backend, device):
    coords = scattered(30, 3).to(device).requires_grad_()
    sample = gl.rejection_sample(gl.Cloud(coords, torch.tensor([0, 30], device=device)), radius=0.3)
    sample.coords.sum().backward()
    assert torch.equal(coords.grad.sum(1).nonzero()[:, 0], sample.parent_index)


def test_either_edges_or_a_radius():
    cloud = gl.Cloud.of(scattered(5, 3))
    with pytest.raises(ValueError, match="near and radius"):
        gl.rejection_sample(cloud)
    with pytest.raises(ValueError, match="near and radius"):
        gl.rejection_sample(cloud, gl.ball(cloud, cloud, 0.1), radius=0.1)


def test_deeper_than_doubt_goes_no_sample_depends_on_what_is_missing(backend, device):
    x = scattered(600, 3) * torch.tensor([30.0, 4.0, 1.0])
    cloud = gl.Cloud.of(x, index=torch.arange(600)).to(device)
    near = gl.ball(cloud, cloud, 0.7)
    depth = torch.minimum(cloud.coords[:, 0], 30 - cloud.coords[:, 0]).double()
    depth_limit = doubtful_depth(near, depth, 0.2, 0.7)
    with gl.use_backend("reference"):
        assert depth_limit == doubtful_depth(near.cpu(), depth.cpu(), 0.2, 0.7)
    assert 0.7 < depth_limit < 10
    samples = set(gl.rejection_sample(cloud, near).rows["index"].tolist())
    again = set(gl.rejection_sample(cloud[depth > 0.2], radius=0.7).rows["index"].tolist())
    deep = set(cloud.rows["index"][depth > depth_limit].tolist())
    assert samples & deep == again & deep
