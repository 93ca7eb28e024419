"""The k nearest sources of each target."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clouds import crowded, lattice, repeated, scattered, ugly
from scipy.spatial import cKDTree

import gridless as gl
from gridless import structures


def reference(source: gl.Cloud, target: gl.Cloud, k: int) -> gl.Edges:
    with gl.use_backend("reference"):
        return gl.nearest(source.cpu(), target.cpu(), k)


@pytest.mark.parametrize("k", [1, 4, 33, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_every_backend_finds_the_edges_of_the_reference(backend, device, dim, dtype, k):
    cloud = ugly(dim, dtype, points=60)
    edges = gl.nearest(cloud.to(device), cloud.to(device), k).cpu()
    wanted = reference(cloud, cloud, k)
    assert torch.equal(edges.splits, wanted.splits)
    assert torch.equal(edges.source, wanted.source)
    assert edges.splits.dtype == torch.int64
    assert edges.source.dtype == torch.int32


@pytest.mark.parametrize("make", [scattered, lattice])
def test_sources_and_targets_may_be_different_clouds(backend, device, make):
    source = gl.Cloud.of([make(300, 3), make(5, 3, seed=1), make(7, 3, seed=2)])
    target = gl.Cloud.of([make(20, 3, seed=3), make(0, 3), make(9, 3, seed=4)])
    edges = gl.nearest(source.to(device), target.to(device), 6).cpu()
    wanted = reference(source, target, 6)
    assert torch.equal(edges.splits, wanted.splits)
    assert torch.equal(edges.source, wanted.source)
    assert (edges.num_source, edges.num_target, edges.limit) == (312, 29, 6)


def test_distances_are_those_of_scipy(backend, device):
    source, target = scattered(500, 3, torch.float64), scattered(100, 3, torch.float64, seed=1)
    edges = gl.nearest(gl.Cloud.of(source).to(device), gl.Cloud.of(target).to(device), 10).cpu()
    distance = (source[edges.source.long()] - target[edges.target.long()]).norm(dim=1).view(100, 10)
    wanted, _ = cKDTree(source.numpy()).query(target.numpy(), 10)
    np.testing.assert_allclose(distance.sort(1).values.numpy(), wanted, rtol=1e-12)


def test_sources_of_a_target_ascend(backend, device):
    cloud = gl.Cloud.of(scattered(200, 2)).to(device)
    source = gl.nearest(cloud, cloud, 7).source.view(200, 7)
    assert (source.diff(dim=1) > 0).all()


def test_equal_distances_go_to_the_smaller_index(backend, device):
    source = gl.Cloud.of(torch.tensor([[1.0], [-1.0], [1.0], [-1.0], [5.0]])).to(device)
    target = gl.Cloud.of(torch.tensor([[0.0]])).to(device)
    assert gl.nearest(source, target, 2).source.tolist() == [0, 1]
    assert gl.nearest(source, target, 3).source.tolist() == [0, 1, 2]


def test_an_example_with_fewer_points_gives_all_of_them(backend, device):
    source = gl.Cloud.of([scattered(3, 3), scattered(0, 3), scattered(9, 3)]).to(device)
    target = gl.Cloud.of([scattered(2, 3), scattered(4, 3), scattered(1, 3)]).to(device)
    edges = gl.nearest(source, target, 5)
    assert edges.counts.tolist() == [3, 3, 0, 0, 0, 0, 5]


def test_huge_and_tiny_coordinates_keep_the_order(backend, device):
    for scale in (1e-30, 1e15):
        cloud = gl.Cloud.of(scattered(100, 3, seed=5) * scale)
        edges = gl.nearest(cloud.to(device), cloud.to(device), 5).cpu()
        assert torch.equal(edges.source, reference(cloud, cloud, 5).source)


def test_one_large_cloud_is_searched_in_parts(monkeypatch):
    cloud = gl.Cloud.of(scattered(3000, 3))
    alone = gl.nearest(cloud, cloud, 8)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threaded = gl.nearest(cloud, cloud, 8)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone.source, threaded.source)
    assert torch.equal(alone.source, reference(cloud, cloud, 8).source)


@pytest.mark.parametrize("name", crowded(1))
def test_very_many_equal_distances_go_to_the_smaller_indices(name):
    cloud = gl.Cloud.of(crowded()[name])
    few = gl.Cloud.of(cloud.coords[::100].clone())
    for k in (1, 70):
        for target in (cloud, few):
            assert torch.equal(gl.nearest(cloud, target, k).source, reference(cloud, target, k).source)


def test_repeated_points_are_not_compared_with_one_another():
    """The work of a target is bounded, however many points are where it is."""
    from gridless.geometry.nearest import cpu

    for order in (slice(None), slice(None, None, -1)):
        x = repeated(20_000, 3).numpy()
        x = x[np.argsort(x[:, 0])][order].copy()
        splits, out = np.arange(len(x) + 1) * 8, np.empty(8 * len(x), np.int32)
        looked = cpu._rows(cpu._plant(x), len(x), x, True, 0, len(x), 8, np.float32(np.inf), 0, splits, out)
        assert looked < 40 * len(x)
        zero = np.flatnonzero((x == 0).all(1))
        assert (out.reshape(-1, 8)[zero] == zero[:8]).all()


def test_the_kernel_ends_where_nothing_is_finite():
    from gridless.geometry.nearest import cpu

    cloud = gl.Cloud.of(torch.full((500, 3), torch.nan))
    _, source = cpu.search(cloud, cloud, 70)
    assert 0 <= source.min() <= source.max() < 500


@pytest.mark.parametrize("k", [0, -1, 2.5, True, None])
def test_k_must_be_a_whole_number(k):
    cloud = gl.Cloud.of(scattered(5, 3))
    with pytest.raises(ValueError, match="nearest: k "):
        gl.nearest(cloud, cloud, k)
    edges = gl.nearest(cloud, cloud, np.int64(3))
    assert torch.equal(edges.source, gl.nearest(cloud, cloud, 3).source)
    assert type(edges.limit) is int


def test_k_may_be_any_whole_number():
    cloud = gl.Cloud.of(scattered(5, 3))
    assert gl.nearest(cloud, cloud, 10**30).counts.tolist() == [5] * 5


def test_more_edges_than_can_be_numbered_are_refused_before_they_are_allocated(monkeypatch):
    cloud = gl.Cloud.of(torch.zeros(1, 1).expand(2**17, 1))
    with pytest.raises(ValueError, match=str(structures.MAX_EDGES)):
        gl.nearest(cloud, cloud, 2**14)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_very_many_targets_of_few_sources_are_found_on_a_gpu():
    """More blocks of targets than the second side of a CUDA grid has room for."""
    source, target = torch.rand(300, 3), torch.rand(70_000, 3)
    edges = gl.nearest(gl.Cloud.of(source.cuda()), gl.Cloud.of(target.cuda()), 2).cpu()
    wanted = gl.nearest(gl.Cloud.of(source), gl.Cloud.of(target), 2)
    assert torch.equal(edges.source, wanted.source)
