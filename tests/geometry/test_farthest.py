"""Iterative farthest points, and random points."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from clouds import crowded, lattice, scattered, ugly

import gridless as gl


def reference(cloud: gl.Cloud, *args, **kwargs) -> torch.Tensor:
    with gl.use_backend("reference"):
        return gl.farthest_sample(cloud, *args, **kwargs).parent_index


@pytest.mark.parametrize("size", [1, 7, 1000, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 3, 8])
def test_every_backend_takes_the_points_of_the_reference(backend, device, dim, dtype, size):
    cloud = ugly(dim, dtype, points=50)
    sample = gl.farthest_sample(cloud.to(device), size).cpu()
    assert torch.equal(sample.parent_index, reference(cloud, size))
    assert torch.equal(sample.coords, cloud.coords[sample.parent_index])
    assert sample.num_parent == len(cloud)


@pytest.mark.parametrize("reject", [False, True])
@pytest.mark.parametrize("search", ["ball", "nearest"])
@pytest.mark.parametrize("dim", [1, 3])
def test_the_approximation_takes_the_points_of_the_reference(backend, device, dim, search, reject):
    cloud = ugly(dim)
    with gl.use_backend("reference"):
        near = gl.ball(cloud, cloud, 0.3) if search == "ball" else gl.nearest(cloud, cloud, 5)
    for size in (1, 20, 0.6, 1000):
        sample = gl.farthest_sample(cloud.to(device), size, near=near.to(device), reject=reject).cpu()
        assert torch.equal(sample.parent_index, reference(cloud, size, near=near, reject=reject))


def test_each_sample_is_the_farthest_from_those_before_it():
    x = scattered(200, 3, torch.float64)
    taken = gl.farthest_sample(gl.Cloud.of(x), 50, start=17).parent_index
    assert taken[0] == 17
    distance = torch.cdist(x, x)
    for i in range(1, 50):
        closest = distance[:, taken[:i]].min(1).values
        assert closest[taken[i]] == closest.max()


@pytest.mark.parametrize("points", [1000, 20_000])
def test_large_clouds_agree_with_the_reference(points):
    cloud = gl.Cloud.of([scattered(points, 3), lattice(points // 2, 3)])
    assert torch.equal(gl.farthest_sample(cloud, 60).parent_index, reference(cloud, 60))


@pytest.mark.parametrize("name", crowded(1))
def test_crowded_clouds_agree_with_the_reference(name):
    cloud = gl.Cloud.of(crowded(3000)[name])
    assert torch.equal(gl.farthest_sample(cloud, 0.7, start=5).parent_index, reference(cloud, 0.7, start=5))


def test_the_queue_of_a_large_cloud_agrees_with_the_reference():
    cloud = gl.Cloud.of([scattered(6000, 3), lattice(5000, 3)])
    near = gl.nearest(cloud, cloud, 12)
    for reject in (False, True):
        order = gl.farthest_sample(cloud, 1200, near=near, reject=reject).parent_index
        assert torch.equal(order, reference(cloud, 1200, near=near, reject=reject))


def test_no_point_is_taken_twice_even_where_all_are_equal(backend, device):
    cloud = gl.Cloud.of([torch.zeros(9, 3), lattice(300, 3)]).to(device)
    order = gl.farthest_sample(cloud, 300).parent_index.tolist()
    assert order[:9] == list(range(9))
    assert sorted(order) == list(range(309))


def test_start_is_a_row_of_every_example(backend, device):
    cloud = gl.Cloud.of([scattered(9, 3), scattered(0, 3), scattered(30, 3)])
    with gl.use_backend("reference"):
        searched = gl.ball(cloud, cloud, 0.3)
    for near in (None, searched):
        sample = gl.farthest_sample(cloud.to(device), 4, start=5, near=None if near is None else near.to(device)).cpu()
        assert sample.parent_index[[0, 4]].tolist() == [5, 14]
        assert torch.equal(sample.parent_index, reference(cloud, 4, start=5, near=near))


def test_algorithm_5_is_rejection_sampling_and_then_the_queue():
    cloud = gl.Cloud.of([scattered(300, 3), lattice(100, 3)])
    near = gl.ball(cloud, cloud, 0.25)
    rejected = gl.rejection_sample(cloud, near, distance=True)
    sample = gl.farthest_sample(cloud, 90, near=near, reject=True)
    for e in range(2):
        first = rejected.parent_index[rejected.splits[e] : rejected.splits[e + 1]]
        mine = sample.parent_index[sample.splits[e] : sample.splits[e + 1]]
        assert len(first) < 90
        assert torch.equal(mine[: len(first)], first)
        # The first of the queue is the point farthest from the samples of the rejection.
        closest = rejected.distance[cloud.splits[e] : cloud.splits[e + 1]].clone()
        assert rejected.distance[mine[len(first)]] == closest.max()


def test_rejection_that_keeps_too_many_is_cut_to_size(backend, device):
    cloud = gl.Cloud.of(scattered(200, 3)).to(device)
    near = gl.ball(cloud, cloud, 0.1)
    rejected = gl.rejection_sample(cloud, near).parent_index
    order = gl.farthest_sample(cloud, 20, near=near, reject=True).parent_index
    assert len(rejected) > 20
    assert torch.equal(order, rejected[:20])


@pytest.mark.parametrize(
    ("size", "counts"),
    [(4, [4, 0, 1, 4]), (0.5, [5, 0, 1, 4]), (1.0, [10, 0, 1, 7]), (0, [0] * 4), ([3, 5, 0, 9], [3, 0, 0, 7])],
)
def test_sizes_are_numbers_fractions_or_one_for_each_example(backend, device, size, counts):
    cloud = gl.Cloud.of([scattered(10, 3), scattered(0, 3), scattered(1, 3), scattered(7, 3)]).to(device)
    for sample in (gl.farthest_sample, gl.random_sample):
        assert sample(cloud, size).sizes.tolist() == counts


def test_a_fraction_is_not_rounded_up_by_its_rounding_error():
    assert gl.farthest_sample(gl.Cloud.of(scattered(100, 3)), 0.07).sizes.tolist() == [7]


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_matter(threads):
    cloud = gl.Cloud.of([scattered(n, 3, seed=n) for n in (900, 10, 0, 700, 1300, 600)])
    near = gl.ball(cloud, cloud, 0.2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        exact = gl.farthest_sample(cloud, 20).parent_index
        queue = gl.farthest_sample(cloud, 200, near=near).parent_index
        rejected = gl.rejection_sample(cloud, near).parent_index
        in_grid = gl.rejection_sample(cloud, radius=0.2).parent_index
    finally:
        torch.set_num_threads(before)
    assert torch.equal(exact, reference(cloud, 20))
    assert torch.equal(queue, reference(cloud, 200, near=near))
    with gl.use_backend("reference"):
        assert torch.equal(rejected, gl.rejection_sample(cloud, near).parent_index)
    assert torch.equal(rejected, in_grid)


def test_distances_that_overflow_are_no_trouble(backend, device):
    cloud = gl.Cloud.of((scattered(40, 3) - 0.5) * 3e38)
    sample = gl.farthest_sample(cloud.to(device), 40).cpu()
    assert torch.equal(sample.parent_index, reference(cloud, 40))


def test_random_samples_are_distinct_and_stay_in_their_example():
    cloud = gl.Cloud.of([scattered(50, 3), scattered(0, 3), scattered(30, 3)])
    sample = gl.random_sample(cloud, 20, generator=torch.Generator().manual_seed(1))
    assert len(set(sample.parent_index.tolist())) == 40
    assert torch.equal(cloud.example[sample.parent_index], sample.example)
    assert torch.equal(cloud.coords[sample.parent_index], sample.coords)
    again = gl.random_sample(cloud, 20, generator=torch.Generator().manual_seed(1))
    other = gl.random_sample(cloud, 20, generator=torch.Generator().manual_seed(2))
    assert torch.equal(again.parent_index, sample.parent_index)
    assert not torch.equal(other.parent_index, sample.parent_index)


def test_random_samples_are_uniform():
    cloud = gl.Cloud.of([scattered(6, 3)] * 3000)
    counts = torch.bincount(gl.random_sample(cloud, 2).parent_index % 6, minlength=6)
    # 1000 each, standard deviation 26.
    assert (counts - 1000).abs().max() < 160


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_samples_drawn_by_a_seed_are_the_same_alone_in_a_batch_and_in_any_order(device, dtype):
    clouds = [scattered(50, 3).to(dtype), scattered(30, 3).to(dtype) * 2]
    batch = gl.Cloud.of(clouds).to(device)
    sample = gl.random_sample(batch, 0.4, seed=5).to("cpu")
    for cloud, drawn in zip(clouds, sample.examples):
        assert drawn.coords.equal(gl.random_sample(gl.Cloud.of(cloud), 0.4, seed=5).coords)
        order = torch.randperm(len(cloud))
        assert drawn.coords.equal(gl.random_sample(gl.Cloud.of(cloud[order]), 0.4, seed=5).coords)
    assert not sample.coords.equal(gl.random_sample(batch, 0.4, seed=6).to("cpu").coords)


def test_samples_drawn_by_a_seed_are_uniform():
    cloud = gl.Cloud.of(torch.rand(3000, 6, 3, generator=torch.Generator().manual_seed(0)))
    counts = torch.bincount(gl.random_sample(cloud, 2, seed=1).parent_index % 6, minlength=6)
    # 1000 each, standard deviation 26.
    assert (counts - 1000).abs().max() < 160


def test_a_seed_beside_a_generator_is_refused():
    with pytest.raises(ValueError, match="seed is 1"):
        gl.random_sample(gl.Cloud.of(scattered(10, 3)), 3, torch.Generator(), seed=1)


@pytest.mark.parametrize("size", [-1, 1.5, 0.0, float("nan"), "many", None, True, [1, 2, 3], [1.5, 2.5], [-1, 2]])
def test_sizes_that_make_no_sense_are_refused(size):
    cloud = gl.Cloud.of([scattered(10, 3)] * 2)
    for sample in (gl.farthest_sample, gl.random_sample):
        with pytest.raises((ValueError, TypeError), match=r"size|fraction"):
            sample(cloud, size)


def test_numbers_of_numpy_are_numbers():
    cloud = gl.Cloud.of(scattered(10, 3))
    for size in (
        np.int64(3),
        np.uint8(3),
        np.array(3),
        np.array([3]),
        np.float32(0.3),
        np.float64(0.3),
        np.float16(0.3),
    ):
        taken = gl.farthest_sample(cloud, size, start=np.int64(1)).parent_index
        assert torch.equal(taken, gl.farthest_sample(cloud, 3, start=1).parent_index)
        assert len(gl.random_sample(cloud, size)) == 3


@pytest.mark.parametrize("start", [-1, 10, 0.5, None, True])
def test_start_must_be_a_row(start):
    with pytest.raises(ValueError, match="start"):
        gl.farthest_sample(gl.Cloud.of([scattered(30, 3), scattered(10, 3)]), 3, start=start)


def test_rejection_needs_edges_and_begins_in_index_order():
    cloud = gl.Cloud.of(scattered(30, 3))
    with pytest.raises(ValueError, match=r"reject=True.* near"):
        gl.farthest_sample(cloud, 3, reject=True)
    with pytest.raises(ValueError, match=r"farthest_sample: .*reject=True"):
        gl.farthest_sample(cloud, 3, start=2, near=gl.ball(cloud, cloud, 0.1), reject=True)


def test_a_fraction_is_rounded_up():
    cloud = gl.Cloud.of([torch.rand(7, 3), torch.rand(0, 3)])
    assert gl.farthest_sample(cloud, 1e-12).sizes.tolist() == [1, 0]
