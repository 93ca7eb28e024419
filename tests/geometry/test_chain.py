"""Lines of a plan that run in one call give what they give one by one."""

from __future__ import annotations

import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from clouds import crowded, scattered
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl
from gridless.geometry.chain import cpu as chain


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


def assert_same(geometry: gl.Geometry, wanted: gl.Geometry) -> None:
    assert list(geometry) == list(wanted)
    for name, value in wanted.items():
        for leaf, expected in value.leaves().items():
            got = geometry[name].leaves()[leaf]
            if isinstance(expected, torch.Tensor):
                assert torch.equal(got, expected), f"{name}.{leaf}"
                assert got.dtype == expected.dtype
            else:
                assert got == expected, f"{name}.{leaf}"


@pytest.mark.parametrize(("dim", "dtype"), [(3, torch.float32), (3, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize("points", [1, 2, 300])
def test_a_cloud_gets_the_geometry_of_the_reference(dim, dtype, points):
    plan, x = network(dim), scattered(points, dim, dtype)
    geometry = plan(x)
    assert_same(geometry, one_by_one(plan, x))
    assert all(value.is_checked for value in geometry.values())


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
    x = scattered(500, 3) * 0.3
    wanted = one_by_one(network(), x)
    monkeypatch.setattr(chain, "_FIRST", 128)
    assert_same(network()(x), wanted)
    monkeypatch.setattr(chain, "_MOST", 1024)
    assert_same(network()(x), wanted)


def test_memory_that_an_unusual_cloud_needed_is_not_kept():
    def unusual() -> list[bool]:
        lines = plan._lines_at_once()
        return [memory.unusual for memory in lines.memories.__dict__.values()] if lines else []

    plan = network()
    assert len(plan(scattered(2200, 3) * 0.01)["N00"]) == 2200**2
    assert unusual() == [True]
    plan(scattered(50, 3))
    assert unusual() == [False]


def given_as(kind: str, x: torch.Tensor) -> object:
    """The same points as a caller may have them."""
    wide = torch.cat([x, x], 1)
    return {
        "tensor": x,
        "strided": wide[:, : x.shape[1]],
        "fortran": x.T.contiguous().T,
        "array": x.numpy(),
        "columns of an array": wide.numpy()[:, : x.shape[1]],
        "block": x[None].numpy(),
        "batch of one": x[None],
        "cloud": gl.Cloud.of(x),
        "cloud with rows": gl.Cloud.of(x, label=torch.arange(len(x))),
    }[kind]


def outcome(plan: gl.Plan, x: object) -> gl.Geometry | Exception:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plan(x)
        except ValueError as error:
            return error


KINDS = ["tensor", "strided", "fortran", "array", "columns of an array", "block", "batch of one", "cloud"]
KINDS += ["cloud with rows"]
UGLY = [0.0, -0.0, 0.2, float("nan"), float("inf"), 1e19, 3e38, 1e-40]


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(0, 59), st.integers(0, 2), st.sampled_from(UGLY)), max_size=3),
    st.booleans(),
)
def test_whatever_points_are_given_as_lines_at_once_say_what_lines_one_by_one_say(kind, dtype, points, ugly, twice):
    x = scattered(points, 3, dtype)
    x = torch.cat([x, x]) if twice else x
    for row, axis, value in ugly:
        x[row % max(len(x), 1) : row % max(len(x), 1) + 1, axis] = value
    at_once, one_at_a_time = network(), network()
    one_at_a_time._lines_at_once = lambda: None  # type: ignore[method-assign]
    wanted, result = outcome(one_at_a_time, given_as(kind, x)), outcome(at_once, given_as(kind, x))
    if isinstance(wanted, gl.Geometry) and isinstance(result, gl.Geometry):
        assert_same(result, wanted)
    else:
        assert (type(result), str(result)) == (type(wanted), str(wanted))


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64])
def test_points_of_another_type_or_shape_are_refused_as_they_are_in_a_cloud(dtype):
    plan = network()
    with pytest.raises(TypeError, match="float32 or float64"):
        plan(scattered(5, 3).to(dtype))
    for x in (scattered(5, 2), scattered(5, 2).numpy()):
        with pytest.raises(ValueError, match=r"3 dimensions.* 2"):
            plan(x)


def test_a_geometry_shares_the_memory_of_the_points_and_stays_without_gradients():
    plan, x = network(), scattered(30, 3)
    first = plan(x)["X0"]
    assert first.coords.data_ptr() == x.data_ptr()
    x.requires_grad_()
    assert not first.coords.requires_grad


def test_threads_that_share_a_plan_do_not_share_its_memory():
    plan, clouds = network(), [scattered(200, 3, seed=seed) for seed in range(24)]
    wanted = [plan(x) for x in clouds]
    with ThreadPoolExecutor(4) as threads:
        for geometry, expected in zip(threads.map(plan, clouds * 8), wanted * 8, strict=True):
            assert_same(geometry, expected)


def test_rows_follow_the_points():
    plan, x = network(), scattered(300, 3)
    cloud = gl.Cloud.of(x, label=torch.arange(300), normal=x, directions="normal")
    geometry = plan(cloud)
    assert_same(geometry, one_by_one(plan, cloud))
    coarse = geometry["X2"]
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


def test_pickles_hold_what_a_structure_has_and_no_more():
    plan, x = network(), scattered(300, 3)
    geometry = plan(x)
    again = pickle.loads(pickle.dumps(geometry))
    assert_same(again, geometry)
    assert len(pickle.dumps(geometry["X1"])) < 16 * len(geometry["X1"].coords) + 4000
