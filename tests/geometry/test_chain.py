"""Lines of a plan that run in one call give what they give one by one."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from clouds import crowded, scattered
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless.geometry import chain


def network(dim: int = 3) -> gl.Plan:
    """Searches and samplings, with a search among them that no chain runs."""
    plan = gl.Plan()
    cloud = plan.points(dim=dim)
    near = plan.ball(cloud, cloud, 0.2)
    coarse = plan.rejection_sample(near)
    plan.nearest(cloud, coarse, 2)
    plan.ball(cloud, coarse, 0.3)
    plan.ball(coarse, cloud, 0.3, limit=2)
    near = plan.ball(coarse, coarse, 0.4)
    coarser = plan.rejection_sample(near)
    plan.ball(cloud, coarser, 0.5)
    plan.ball(coarse, coarser, 0.5)
    return plan


def one_by_one(plan: gl.Plan, x: object) -> gl.Geometry:
    with gl.use_backend("reference"):
        return plan(x)


def assert_same(found: gl.Geometry, wanted: gl.Geometry) -> None:
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        for leaf, expected in value.leaves().items():
            got = found[name].leaves()[leaf]
            if isinstance(expected, torch.Tensor):
                assert torch.equal(got, expected), f"{name}.{leaf}"
                assert got.dtype == expected.dtype
            else:
                assert got == expected, f"{name}.{leaf}"


@pytest.mark.parametrize(("dim", "dtype"), [(3, torch.float32), (3, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize("points", [1, 2, 300])
def test_a_cloud_gets_the_geometry_of_the_reference(dim, dtype, points):
    plan, x = network(dim), scattered(points, dim, dtype)
    found = plan(x)
    assert_same(found, one_by_one(plan, x))
    assert all(value.is_checked for value in found.values())


@pytest.mark.parametrize("name", crowded(1))
def test_crowded_clouds_get_the_geometry_of_the_reference(name):
    plan, x = network(), crowded(400)[name]
    assert_same(plan(x), one_by_one(plan, x))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 400), st.sampled_from([0.01, 0.3, 3.0]), st.integers(0, 99))
def test_memory_is_found_whatever_was_run_before(points, scale, seed):
    plan, x = network(), scattered(points, 3, seed=seed) * scale
    assert_same(plan(x), one_by_one(plan, x))


def test_memory_that_is_too_small_grows(monkeypatch):
    plan, x = network(), scattered(500, 3) * 0.3
    wanted = one_by_one(plan, x)
    results = chain._Results

    def small(x, lines):
        made = results(x, lines)
        made.sources = made.sources[:128]
        return made

    monkeypatch.setattr(chain, "_kept", threading.local())
    monkeypatch.setattr(chain, "_Results", small)
    assert_same(plan(x), wanted)
    monkeypatch.setattr(chain, "_kept", threading.local())
    monkeypatch.setattr(chain, "_MOST", 1024)
    assert_same(plan(x), wanted)


def test_rows_follow_the_points():
    plan, x = network(), scattered(300, 3)
    cloud = gl.Cloud.of(x, label=torch.arange(300), normal=x, directions="normal")
    found = plan(cloud)
    assert_same(found, one_by_one(plan, cloud))
    coarse = found["X2"]
    assert torch.equal(coarse.rows["normal"], coarse.coords)
    assert coarse.directions == ("normal",)


def test_lines_that_are_written_later_are_run():
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.2)
    plan(scattered(50, 3))
    few = plan.rejection_sample(near)
    assert few in plan(scattered(50, 3))


def test_batches_and_gradients_go_line_by_line():
    plan, x = network(), scattered(200, 3)
    merged = gl.collate([plan(x[:120]), plan(x[120:])])
    assert_same(plan(gl.Cloud.of([x[:120], x[120:]])), merged)
    assert plan(x.clone().requires_grad_())["X1"].coords.requires_grad


def test_points_that_are_not_finite_are_named():
    x = scattered(20, 3)
    x[13, 1] = torch.nan
    with pytest.raises(ValueError, match="row 13 of example 0"):
        network()(x)


def test_pickles_hold_what_a_structure_has_and_no_more():
    plan, x = network(), scattered(300, 3)
    found = plan(x)
    again = pickle.loads(pickle.dumps(found))
    assert_same(again, found)
    assert len(pickle.dumps(found["X1"])) < 16 * len(found["X1"].coords) + 4000
