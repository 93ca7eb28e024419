"""The GPU searches and samplers return what the reference returns, to the bit.

On a CUDA device the kernels run there; under TRITON_INTERPRET=1 they run on the CPU.
"""

from __future__ import annotations

import os

import pytest
import torch
from clouds import crowded, lattice, scattered, ugly

import gridless as gl
from gridless.structures import pad
from gridless.structures.edges import transpose

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
HERE = INTERPRET or torch.cuda.is_available()
DEVICE = "cpu" if INTERPRET else "cuda"

runs_here = pytest.mark.skipif(not HERE, reason="no CUDA device, and TRITON_INTERPRET is not set")

KINDS = [(3, torch.float32), (3, torch.float64), (1, torch.float32), (2, torch.float64), (8, torch.float32)]


def cloud_of(dim: int, dtype: torch.dtype, sizes: tuple[int, ...] = (24, 0, 1, 12), seed: int = 0) -> gl.Cloud:
    """Scattered, empty, single, and a lattice with duplicates and equal distances; far from the origin at the end."""
    generator = torch.Generator().manual_seed(seed)
    parts = [torch.rand(n, dim, generator=generator, dtype=dtype) for n in sizes]
    parts[-1] = (parts[-1] * 4).round() / 4
    parts.append(torch.rand(5, dim, generator=generator, dtype=dtype) + 1000)
    return gl.Cloud.of(parts)


def both(function):
    """Results of the reference on the CPU and of the GPU backend on its device."""
    with gl.use_backend("reference"):
        want = function(lambda x: x)
    with gl.use_backend("gpu"):
        return want, function(lambda x: x.to(DEVICE)).to("cpu")


def same_edges(function) -> gl.Edges:
    want, edges = both(function)
    assert torch.equal(edges.splits, want.splits)
    assert torch.equal(edges.source, want.source)
    return want


def same_sample(function) -> gl.Cloud:
    want, samples = both(function)
    assert torch.equal(samples.parent_index, want.parent_index)
    assert torch.equal(samples.splits, want.splits)
    assert torch.equal(samples.coords, want.coords)
    if want.distance is not None:
        torch.testing.assert_close(samples.distance, want.distance)
    return want


@pytest.fixture(params=["all pairs", "grid"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "grid":
        from gridless.geometry.ball import gpu as ball_gpu
        from gridless.geometry.nearest import gpu as nearest_gpu

        monkeypatch.setattr(ball_gpu, "ALL_PAIRS", 0)
        monkeypatch.setattr(nearest_gpu, "ON_CHIP", 0)
    return request.param


@runs_here
@pytest.mark.parametrize(("dim", "dtype"), KINDS)
def test_ball_of_a_cloud_in_itself(search: str, dim: int, dtype: torch.dtype):
    cloud = cloud_of(dim, dtype)
    radius = 0.25 * dim**0.5
    assert len(same_edges(lambda on: gl.ball(on(cloud), on(cloud), radius))) > 40


@runs_here
@pytest.mark.parametrize("limit", [None, 3])
def test_ball_between_two_clouds(search: str, limit: int | None):
    source, target = cloud_of(3, torch.float32), cloud_of(3, torch.float32, (9, 2, 1, 40), seed=1)
    assert len(same_edges(lambda on: gl.ball(on(source), on(target), 0.5, limit))) > 20


@runs_here
def test_ball_of_more_sources_than_a_word_has_bits():
    cloud = cloud_of(2, torch.float32, (70, 33, 32, 31))
    assert len(same_edges(lambda on: gl.ball(on(cloud), on(cloud), 0.3))) > 500


@runs_here
@pytest.mark.parametrize(("dim", "dtype"), KINDS[1:4])
def test_ball_of_a_very_large_cloud_in_itself(monkeypatch: pytest.MonkeyPatch, dim: int, dtype: torch.dtype):
    from gridless.geometry.ball import gpu as ball_gpu
    from gridless.geometry.ball import grid_gpu

    monkeypatch.setattr(ball_gpu, "ALL_PAIRS", 0)
    monkeypatch.setattr(grid_gpu, "_LARGE", 0)
    cloud = cloud_of(dim, dtype)
    padded = pad(cloud, [len(cloud) + 3])
    assert len(same_edges(lambda on: gl.ball(on(padded), on(padded), 0.25 * dim**0.5))) > 40


@runs_here
def test_ball_where_many_columns_share_the_places_of_a_table(monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.ball import gpu as ball_gpu
    from gridless.geometry.ball import grid_gpu

    monkeypatch.setattr(ball_gpu, "ALL_PAIRS", 0)
    monkeypatch.setattr(grid_gpu, "_MOST", 8)
    cloud = cloud_of(3, torch.float32, (24, 0, 1, 8))
    assert len(same_edges(lambda on: gl.ball(on(cloud), on(cloud), 0.3))) > 50


@runs_here
def test_ball_far_beyond_the_cloud_and_far_apart(search: str):
    source = gl.Cloud.of(torch.tensor([[0.0, 0, 0], [1e6, -1e6, 0], [1e6, -1e6, 0.5], [0.2, 0, 0]]))
    target = gl.Cloud.of(torch.tensor([[-50.0, 0, 0], [1e6, -1e6, 0.25], [0.1, 0, 0], [3e30, 0, 0]]))
    assert same_edges(lambda on: gl.ball(on(source), on(target), 1.0)).counts.tolist() == [0, 2, 2, 0]


@runs_here
def test_ball_of_a_flat_cloud(search: str):
    coords = cloud_of(3, torch.float32).coords.clone()
    coords[:, 1] = 0.5
    cloud = gl.Cloud.of(coords)
    assert len(same_edges(lambda on: gl.ball(on(cloud), on(cloud), 0.4))) > 40


@runs_here
def test_padding_rows_have_no_edges_and_are_not_sampled(search: str):
    cloud = cloud_of(3, torch.float32, (7, 3))
    padded = pad(cloud, [20])
    assert padded.padding == 5
    edges = same_edges(lambda on: gl.ball(on(padded), on(padded), 0.5))
    assert edges.counts[-5:].tolist() == [0] * 5
    same_edges(lambda on: gl.nearest(on(padded), on(padded), 2))
    same_sample(lambda on: gl.rejection_sample(on(padded), on(edges)))
    same_sample(lambda on: gl.farthest_sample(on(padded), 3))


@runs_here
@pytest.mark.parametrize(("dim", "dtype"), KINDS[:2])
def test_nearest(search: str, dim: int, dtype: torch.dtype):
    source, target = cloud_of(dim, dtype), cloud_of(dim, dtype, (5, 2, 1, 4), seed=1)
    same_edges(lambda on: gl.nearest(on(source), on(target), 4))


@runs_here
def test_nearest_ends_where_points_became_not_finite(monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.nearest import gpu as nearest_gpu

    monkeypatch.setattr(nearest_gpu, "ON_CHIP", 0)
    # In large steps: the interpreter takes a quarter of a second for each of the ninety that there are.
    larger = nearest_gpu._larger
    monkeypatch.setattr(nearest_gpu, "_larger", lambda radius, _, dtype: larger(radius, 1e3, dtype))
    cloud = gl.Cloud.of(torch.rand(20, 3)).to(DEVICE)
    nearest_gpu.search(cloud, cloud, 3)
    cloud.coords[4:] = torch.nan
    with pytest.raises(ValueError, match="not finite"):
        nearest_gpu.search(cloud, cloud, 5)


@runs_here
def test_nearest_where_every_example_has_enough():
    source = cloud_of(3, torch.float32, (20, 9, 40))
    same_edges(lambda on: gl.nearest(on(source), on(source), 5))


@runs_here
@pytest.mark.parametrize("limit", [None, 3])
@pytest.mark.parametrize("distance", [False, True])
def test_rejection_sample(limit: int | None, distance: bool):
    # The interpreter takes ten seconds for chains of rejections in larger clouds.
    cloud = cloud_of(3, torch.float32, (24, 0, 1, 12) if INTERPRET else (60, 0, 1, 30))
    near = gl.ball(cloud, cloud, 0.4, limit)
    sample = same_sample(lambda on: gl.rejection_sample(on(cloud), on(near), distance=distance))
    assert 5 < len(sample) < len(cloud)


@runs_here
def test_rejection_sample_by_radius():
    cloud = cloud_of(2, torch.float64)
    same_sample(lambda on: gl.rejection_sample(on(cloud), radius=0.3, distance=True))


@runs_here
def test_rejection_sample_refuses_edges_between_examples():
    cloud = gl.Cloud.of([torch.rand(2, 3), torch.rand(2, 3)]).to(DEVICE)
    strange = gl.Edges(torch.tensor([0, 1, 2, 3, 4]), torch.tensor([2, 1, 2, 3]), 4).to(DEVICE)
    with gl.use_backend("gpu"), pytest.raises(ValueError, match="different examples"):
        gl.rejection_sample(cloud, strange)


@runs_here
@pytest.mark.parametrize("size", [6, 0.4])
@pytest.mark.parametrize("memory", [False, True])
def test_farthest_sample(size: int | float, memory: bool, monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.farthest import gpu as farthest_gpu

    if memory:
        monkeypatch.setattr(farthest_gpu, "_ON_CHIP", 0)
        monkeypatch.setattr(farthest_gpu, "_MANY", 1 << 30)
        monkeypatch.setattr(farthest_gpu, "_share", lambda *_: 0)
    cloud = cloud_of(3, torch.float32)
    same_sample(lambda on: gl.farthest_sample(on(cloud), size))


@runs_here
def test_farthest_sample_by_programs_that_agree_in_memory(monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.farthest import gpu as farthest_gpu

    monkeypatch.setattr(farthest_gpu, "_ON_CHIP", 0)
    monkeypatch.setattr(farthest_gpu, "_MANY", 1 << 30)
    # The interpreter runs programs one after the other: there, one must hold the example.
    monkeypatch.setattr(farthest_gpu, "_share", lambda *_: 2048)
    cloud = cloud_of(3, torch.float32, (40, 0, 7) if INTERPRET else (9000, 0, 7))
    same_sample(lambda on: gl.farthest_sample(on(cloud), 9))


@pytest.fixture
def in_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small clouds are sampled as large ones are: several blocks, tiles of blocks and chunks of samples."""
    from gridless.geometry.farthest import gpu as farthest_gpu

    for name, value in (("_ON_CHIP", 0), ("_MANY", 1), ("_BLOCK", 4), ("_TILE", 32), ("_CHUNK", 4)):
        monkeypatch.setattr(farthest_gpu, name, value)


@runs_here
@pytest.mark.parametrize(("dim", "dtype"), [(1, torch.float32), (3, torch.float32), (2, torch.float64)])
def test_farthest_sample_in_rounds(in_rounds: None, dim: int, dtype: torch.dtype):
    cloud = ugly(dim, dtype, 30)
    same_sample(lambda on: gl.farthest_sample(on(cloud), [1, 5, 1, 30, 12, 9, 2, 3][: cloud.num_examples]))


@runs_here
def test_farthest_sample_in_rounds_of_padded_and_overflowing_clouds(in_rounds: None):
    padded = pad(cloud_of(3, torch.float32, (7, 20)), [40])
    same_sample(lambda on: gl.farthest_sample(on(padded), 12, start=3))
    far = gl.Cloud.of((scattered(30, 3) - 0.5) * 3e38)
    same_sample(lambda on: gl.farthest_sample(on(far), 30, start=3))


@runs_here
def test_farthest_sample_in_rounds_of_crowded_clouds(in_rounds: None):
    clouds = crowded(20)
    names = ("repeated", "rounded", "extreme outlier")
    cloud = gl.Cloud.of([*(clouds[name] for name in names), lattice(20, 3)])
    same_sample(lambda on: gl.farthest_sample(on(cloud), 10))


@pytest.mark.skipif(INTERPRET or not torch.cuda.is_available(), reason="programs that wait for each other need a GPU")
@pytest.mark.parametrize("name", [*crowded(1), "lattice", "scattered"])
def test_programs_that_share_an_example_take_the_points_of_the_reference(name: str):
    make = {"lattice": lambda n: lattice(n, 3), "scattered": lambda n: scattered(n, 3)}
    x = make[name](20_000) if name in make else crowded(20_000)[name]
    for cloud in (gl.Cloud.of(x), gl.Cloud.of([x, x[:9000], x[:5]])):
        same_sample(lambda on, cloud=cloud: gl.farthest_sample(on(cloud), 700, start=2))


@runs_here
@pytest.mark.parametrize("reject", [False, True])
def test_approximate_farthest_sample(reject: bool):
    cloud = cloud_of(3, torch.float32, (40, 0, 1, 20))
    near = gl.ball(cloud, cloud, 0.4)
    same_sample(lambda on: gl.farthest_sample(on(cloud), 0.7, near=on(near), reject=reject))


@runs_here
def test_transpose():
    source, target = cloud_of(3, torch.float32), cloud_of(3, torch.float32, (9, 2, 1, 40), seed=1)
    edges = gl.ball(source, target, 0.5)
    same_edges(lambda on: transpose(on(edges)))
    same_edges(lambda on: transpose(pad(on(edges), [1000])))


@runs_here
def test_facts_refuse_what_is_not_finite_and_name_it():
    from gridless.geometry.gpu_common import facts

    points = [torch.rand(3, 2), torch.tensor([[0.0, 1.0], [torch.nan, 0.0]])]
    with pytest.raises(ValueError, match="row 1 of example 1"):
        facts(gl.Cloud.of(points).to(DEVICE), "ball: source")
    values = facts(gl.Cloud.of([points[0] * 0 + 2, -torch.ones(5, 2)]).to(DEVICE), "ball: source")
    assert (values.smallest, values.largest, values.low[:2], values.high[:2]) == (3, 5, (-1, -1), (2, 2))


@runs_here
@pytest.mark.parametrize("longest", [150, 5000])
def test_rows_are_sorted_however_long(longest: int):
    from gridless.geometry.gpu_common import sort_long

    generator = torch.Generator().manual_seed(0)
    # The search sorts those of up to 64.
    rows = [torch.arange(n).int() for n in (0, 1, 40)]
    rows += [torch.randperm(n, generator=generator).int() + 7 for n in (65, 0, 150, 128)]
    splits, values = torch.tensor([0] + [len(r) for r in rows]).cumsum(0).to(DEVICE), torch.cat(rows).to(DEVICE)
    ordered = sort_long(splits, values, values.clone(), longest).cpu()
    assert torch.equal(ordered, torch.cat([r.sort().values for r in rows]))


def u_net_plan(dim: int, levels: int = 2) -> gl.Plan:
    plan = gl.Plan()
    cloud, radius = plan.points(dim=dim), 0.2
    for _ in range(levels):
        near = plan.ball(cloud, cloud, radius)
        coarse = plan.rejection_sample(near)
        plan.transpose(plan.ball(cloud, coarse, radius))
        # Rows of a ball that the points were not sampled by.
        plan.ball(cloud, cloud, 1.5 * radius)
        plan.ball(cloud, coarse, 1.5 * radius)
        cloud, radius = coarse, 2 * radius
    return plan


def assert_same_geometry(geometry: gl.Geometry, want: gl.Geometry) -> None:
    for name, value in want.items():
        for (_, a), (_, b) in zip(geometry[name].to("cpu").parts(), value.parts(), strict=True):
            assert a.dtype == b.dtype
            assert torch.equal(a, b), name


@runs_here
def test_balls_of_samples_are_rows_of_the_ball_they_were_sampled_by():
    plan = u_net_plan(2)
    batch = cloud_of(2, torch.float32, (40, 0, 1, 30))
    want, geometry = both(lambda on: plan(on(pad(batch, [len(batch) + 3]))))
    assert_same_geometry(geometry, want)
    # And what a search finds.
    with gl.use_backend("reference"):
        assert torch.equal(gl.ball(want["X0"], want["X1"], 0.2).source, want["N01"].source)
        assert torch.equal(gl.ball(want["X1"], want["X2"], 0.4).splits, want["N12"].splits)


@runs_here
def test_a_plan_gives_room_for_what_it_found_last_and_runs_again_where_that_is_too_little(
    search: str, monkeypatch: pytest.MonkeyPatch
):
    from gridless.geometry.chain import gpu as chain_gpu

    monkeypatch.setattr(chain_gpu, "_SPARE", 1)
    there_was_room: list[bool] = []
    at_once = chain_gpu.GpuChain._at_once

    def noted(*given):
        result = at_once(*given)
        there_was_room.append(result is not None)
        return result

    monkeypatch.setattr(chain_gpu.GpuChain, "_at_once", noted)
    plan = u_net_plan(3, levels=1 if INTERPRET and search == "grid" else 2)
    points = torch.rand(14, 3, generator=torch.Generator().manual_seed(0))
    clouds = [
        cloud_of(3, torch.float32, (6, 0, 1, 4)),
        cloud_of(3, torch.float32, (6, 0, 1, 4)),
        gl.Cloud.of(0.2 * points),  # more edges
        gl.Cloud.of(3 * points),  # more samples
        gl.Cloud.of(3 * points[:12], label=torch.arange(12)),
        gl.Cloud.of(3 * points[:2]),
        gl.Cloud.of(points[:6]),  # more than twice as many points: nothing is guessed
    ]
    for cloud in clouds:
        want, geometry = both(lambda on, cloud=cloud: plan(on(cloud)))
        assert_same_geometry(geometry, want)
    assert there_was_room == [True, False, False, True, True]


@runs_here
def test_a_plan_remembers_what_the_cloud_before_the_last_needed(monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.chain import gpu as chain_gpu

    monkeypatch.setattr(chain_gpu, "_SPARE", 1)
    ran: list[dict] = []
    run = chain_gpu.GpuChain.run
    monkeypatch.setattr(chain_gpu.GpuChain, "run", lambda *given: ran.append(run(*given)) or ran[-1])
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    plan.ball(cloud, cloud, 0.4)
    points = torch.rand(30, 3, generator=torch.Generator().manual_seed(0))
    edges = []
    with gl.use_backend("gpu"):
        for scale in (1.0, 1.4, 1.0):
            edges.append(len(plan((scale * points).to(DEVICE))["N00"]))
    assert edges[0] == edges[2] > 1.3 * edges[1] + 1
    assert [len(calls) for calls in ran] == [0, 1, 1]


@runs_here
def test_large_searches_refuse_points_that_are_not_finite_and_name_them(monkeypatch: pytest.MonkeyPatch):
    from gridless.geometry.ball import gpu as ball_gpu

    monkeypatch.setattr(ball_gpu, "ALL_PAIRS", 0)
    good = torch.rand(9, 3, generator=torch.Generator().manual_seed(0))
    bad = good.clone()
    bad[4, 2] = torch.inf
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    plan.ball(cloud, cloud, 0.3)
    with gl.use_backend("gpu"):
        plan(good.to(DEVICE))
        for call in (
            lambda: plan(bad.to(DEVICE)),  # in the room that the last cloud needed
            lambda: gl.ball(gl.Cloud.of(bad.to(DEVICE)), gl.Cloud.of(good.to(DEVICE)), 0.3),
            lambda: gl.ball(gl.Cloud.of(good.to(DEVICE)), gl.Cloud.of(bad.to(DEVICE)), 0.3),
        ):
            with pytest.raises(ValueError, match="row 4 of example 0"):
                call()
