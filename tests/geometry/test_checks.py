"""Every search and every sampler refuses bad input before any kernel runs."""

from __future__ import annotations

import pytest
import torch
from clouds import scattered

import gridless as gl

SEARCHES = {"ball": lambda s, t: gl.ball(s, t, 0.2), "nearest": lambda s, t: gl.nearest(s, t, 4)}
SAMPLERS = {
    "rejection": lambda x: gl.rejection_sample(x, radius=0.1),
    "farthest": lambda x: gl.farthest_sample(x, 3),
    "random": lambda x: gl.random_sample(x, 3),
    "grid": lambda x: gl.grid_sample(x, 0.1),
}
OVER_EDGES = {
    "rejection": lambda x, near: gl.rejection_sample(x, near),
    "farthest": lambda x, near: gl.farthest_sample(x, 5, near=near),
}
searches = pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
samplers = pytest.mark.parametrize("sample", SAMPLERS.values(), ids=SAMPLERS)
over_edges = pytest.mark.parametrize("sample", OVER_EDGES.values(), ids=OVER_EDGES)


def two(device: torch.device | str, bad: float | None = None) -> gl.Cloud:
    """Two examples of ten points, of which row 3 of the second may be bad."""
    x = scattered(20, 3)
    if bad is not None:
        x[13, 1] = bad
    return gl.Cloud(x, torch.tensor([0, 10, 20])).to(device)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@searches
def test_searches_name_points_that_are_not_finite(backend, device, search, value):
    bad, good = two(device, value), two(device)
    for source, target in ((bad, good), (good, bad), (bad, bad)):
        with pytest.raises(ValueError, match="row 3 of example 1"):
            search(source, target)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@samplers
def test_samplers_name_points_that_are_not_finite(backend, device, sample, value):
    with pytest.raises(ValueError, match="row 3 of example 1"):
        sample(two(device, value))


@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
@searches
def test_searches_refuse_points_that_become_not_finite_after_they_were_checked(search, value):
    x = scattered(300, 3)
    cloud, other = gl.Cloud.of(x), gl.Cloud.of(scattered(300, 3))
    search(cloud, cloud)
    x[17:290] = value
    for source, target in ((cloud, cloud), (cloud, other), (other, cloud)):
        with pytest.raises(ValueError, match="row 17 of example 0"):
            search(source, target)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_samplers_refuse_points_that_become_not_finite_after_they_were_checked(value):
    x = scattered(100, 3)
    cloud = gl.Cloud.of(x)
    near = gl.ball(cloud, cloud, 0.1)
    x[17:] = value
    for sample in (*SAMPLERS.values(), *(lambda x, s=s: s(x, near) for s in OVER_EDGES.values())):
        with pytest.raises(ValueError, match="row 17 of example 0"):
            sample(cloud)


@searches
def test_clouds_that_do_not_belong_together_are_refused(search):
    x, y = scattered(5, 3), gl.Cloud.of(scattered(5, 3))
    meta = gl.Cloud(x.to("meta"), torch.zeros(2, dtype=torch.int64, device="meta"))
    for other, error, message in (
        (gl.Cloud.of(scattered(5, 2)), ValueError, "dimensions"),
        (gl.Cloud.of(x.double()), TypeError, "float64"),
        (gl.Cloud.of([x] * 2), ValueError, "examples"),
        (meta, ValueError, "cpu.*meta"),
        (x, TypeError, r"Cloud\.of"),
    ):
        with pytest.raises(error, match=message):
            search(y, other)


@samplers
def test_samplers_take_clouds_alone(sample):
    with pytest.raises(TypeError, match=r"Cloud\.of"):
        sample(scattered(5, 3))


@over_edges
def test_edges_of_another_cloud_are_refused(backend, device, sample):
    cloud, other = gl.Cloud.of(scattered(5, 3)).to(device), gl.Cloud.of(scattered(6, 3)).to(device)
    with pytest.raises(ValueError, match=r"near .* 6 "):
        sample(cloud, gl.ball(other, other, 0.1))
    with pytest.raises(TypeError, match=r"near .*Edges.*float"):
        sample(cloud, 0.1)


@pytest.mark.parametrize("name", ["reference", "cpu"])
@over_edges
def test_edges_between_examples_are_refused(name, sample):
    one = gl.Cloud.of(scattered(20, 3))
    with gl.use_backend(name), pytest.raises(ValueError, match="different examples"):
        sample(two("cpu"), gl.ball(one, one, 10.0))


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf"), 1e-30, 1e30])
def test_a_radius_must_be_positive_and_have_a_square(radius):
    x = gl.Cloud.of(scattered(5, 3))
    for use in (lambda: gl.ball(x, x, radius), lambda: gl.rejection_sample(x, radius=radius)):
        with pytest.raises(ValueError, match="radius"):
            use()
