"""The ball search: the same edges as SciPy's tree, in every backend, to the last bit."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from clouds import crowded
from scipy.spatial import cKDTree

import gridless as gl
from gridless.structures import Cloud, Edges

DTYPES = [torch.float32, torch.float64]


def cloud(sizes: list[int], dim: int, dtype: torch.dtype, seed: int, device: torch.device | str = "cpu") -> Cloud:
    generator = torch.Generator().manual_seed(seed)
    coords = torch.rand(sum(sizes), dim, dtype=dtype, generator=generator)
    return Cloud(coords, torch.tensor([0, *sizes]).cumsum(0)).to(device)


def rows(edges: Edges) -> list[list[int]]:
    splits, source = edges.splits.tolist(), edges.source.tolist()
    return [source[a:b] for a, b in pairwise(splits)]


def scipy_rows(source: Cloud, target: Cloud, radius: float) -> list[list[int]]:
    """Neighbours by SciPy in double precision, example by example."""
    lists: list[list[int]] = []
    xs, ys = source.splits.tolist(), target.splits.tolist()
    for (a, b), (c, d) in zip(pairwise(xs), pairwise(ys), strict=True):
        x, y = source.coords[a:b].double().cpu().numpy(), target.coords[c:d].double().cpu().numpy()
        if a == b or c == d:
            lists += [[] for _ in range(d - c)]
        else:
            lists += [sorted(j + a for j in row) for row in cKDTree(x).query_ball_point(y, radius)]
    return lists


def same(a: Edges, b: Edges) -> bool:
    return torch.equal(a.splits.cpu(), b.splits.cpu()) and torch.equal(a.source.cpu(), b.source.cpu())


def reference(source: Cloud, target: Cloud, radius: float, limit: int | None = None) -> Edges:
    x = source.cpu()
    with gl.use_backend("reference"):
        return gl.ball(x, x if target is source else target.cpu(), radius, limit)


@pytest.mark.parametrize(
    ("dim", "dtype"), [(1, torch.float32), (2, torch.float64), (3, torch.float32), (8, torch.float32)]
)
def test_finds_what_scipy_finds(backend: str, device: torch.device, dim: int, dtype: torch.dtype) -> None:
    source, target = cloud([60, 0, 150, 3], dim, dtype, 0, device), cloud([20, 4, 40, 0], dim, dtype, 1, device)
    radius = 0.25 * dim**0.5
    assert rows(gl.ball(source, target, radius)) == scipy_rows(source, target, radius)
    assert rows(gl.ball(source, source, radius)) == scipy_rows(source, source, radius)


@pytest.mark.parametrize("radius", [0.02, 0.2, 2.0])
def test_large_examples_are_found_as_small_ones_are(radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    from gridless.geometry.ball import cpu

    source, target = cloud([900, 5, 400], 3, torch.float32, 0), cloud([300, 400, 0], 3, torch.float32, 1)
    whole = gl.ball(source, target, radius), gl.ball(source, source, radius)
    monkeypatch.setattr(cpu, "SMALL", 64)
    counted = gl.ball(source, target, radius), gl.ball(source, source, radius)
    assert same(whole[0], counted[0])
    assert same(whole[1], counted[1])
    monkeypatch.setattr(cpu, "_PART", 64)
    parts = gl.ball(source, target, radius), gl.ball(source, source, radius)
    assert same(whole[0], parts[0])
    assert same(whole[1], parts[1])
    assert rows(whole[0]) == scipy_rows(source, target, radius)


def test_threads_do_not_change_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    from gridless.geometry.ball import cpu

    source = cloud([900, 600, 0, 700, 800], 3, torch.float32, 0)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = gl.ball(source, source, 0.2)
        torch.set_num_threads(4)
        assert same(gl.ball(source, source, 0.2), one)
        monkeypatch.setattr(cpu, "SMALL", 64)
        monkeypatch.setattr(cpu, "_PART", 64)
        assert same(gl.ball(source, source, 0.2), one)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_backend_agrees_at_the_radius(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    """On a lattice most pairs lie at the radius, where one rounding more or less would show."""
    side = torch.arange(6, dtype=dtype) / 10
    lattice = Cloud.of(torch.cartesian_prod(side, side, side)).to(device)
    for radius in (0.1, 0.2, 0.1 * 2**0.5, 0.1 * 3**0.5, 0.3):
        edges = gl.ball(lattice, lattice, radius)
        assert same(edges, reference(lattice, lattice, radius))


def test_the_radius_is_inside(backend: str, device: torch.device) -> None:
    x = Cloud.of(torch.tensor([[0.0], [1.0], [2.0], [3.5]])).to(device)
    assert rows(gl.ball(x, x, 1.0)) == [[0, 1], [0, 1, 2], [1, 2], [3]]


UGLY = {
    "equal": torch.ones(70, 3),
    "single": torch.zeros(1, 3),
    "a far point": torch.cat([torch.rand(60, 3), torch.full((1, 3), 1e30)]),
    "two far clusters": torch.cat([torch.rand(50, 3), torch.rand(50, 3) + 1e6]),
    "a line": torch.stack([torch.linspace(0, 1, 100), torch.zeros(100), torch.zeros(100)], 1),
    "powers of two": 2.0 ** torch.arange(-60, 60, dtype=torch.float32)[:, None].expand(-1, 3),
    "far from the origin": torch.rand(100, 3) + 4096,
    "the whole range": torch.tensor([[-3.4e38] * 3, [3.4e38] * 3, [0.0] * 3, [0.3] * 3]).repeat(20, 1),
}


@pytest.mark.parametrize("name", UGLY)
def test_ugly_clouds(backend: str, device: torch.device, name: str) -> None:
    x = Cloud.of(UGLY[name].contiguous()).to(device)
    for radius in (0.01, 0.5):
        assert same(gl.ball(x, x, radius), reference(x, x, radius))
        assert same(gl.ball(x, x, radius, limit=3), reference(x, x, radius, limit=3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_limit_keeps_the_nearest(backend: str, device: torch.device, dtype: torch.dtype) -> None:
    x = cloud([40, 90], 3, dtype, 3, device)
    edges = gl.ball(x, x, 0.5, limit=4)
    assert edges.limit == 4
    assert not edges.symmetric
    points = x.coords.double().cpu()
    for i, (full, nearest) in enumerate(zip(rows(gl.ball(x, x, 0.5)), rows(edges), strict=True)):
        order = sorted(full, key=lambda j: ((points[j] - points[i]).square().sum().item(), j))
        assert nearest == sorted(order[:4])


@pytest.mark.parametrize("name", crowded(1))
def test_a_limit_cuts_crowded_clouds_as_the_reference_does(name: str) -> None:
    x = Cloud.of(crowded()[name])
    y = Cloud.of(x.coords[::50].clone())
    for radius, limit in ((0.02, 5), (0.3, 16), (0.3, 10**30)):
        if name in ("line", "outlier") or limit < 100:
            assert same(gl.ball(x, y, radius, limit=limit), reference(x, y, radius, limit=limit))
    assert same(gl.ball(x, x, 0.1, limit=9), reference(x, x, 0.1, limit=9))


def test_the_kernel_gives_points_that_are_not_finite_no_edges() -> None:
    from gridless.geometry.ball import cpu

    dense = Cloud.of(torch.zeros(300, 3))
    gl.ball(dense, dense, 0.2)
    x = torch.rand(300, 3)
    x[17:290] = torch.nan
    points = Cloud.of(x)
    splits, source = cpu.ball(points, points, 0.2, None)
    counts = splits.diff()
    assert (counts[17:290] == 0).all()
    assert (counts[:17] > 0).all()
    assert len(source) == splits[-1]


def test_ties_go_to_the_smaller_index(backend: str, device: torch.device) -> None:
    x = Cloud.of(torch.tensor([[0.0], [1.0], [-1.0], [1.0], [0.0]])).to(device)
    assert rows(gl.ball(x, x, 1.0, limit=3))[0] == [0, 1, 4]


def test_a_limit_that_is_not_reached_changes_nothing(backend: str, device: torch.device) -> None:
    x = cloud([50], 3, torch.float32, 4, device)
    assert same(gl.ball(x, x, 0.2, limit=50), gl.ball(x, x, 0.2))


def test_edges_say_what_they_are() -> None:
    x, y = cloud([30], 3, torch.float32, 0), cloud([20], 3, torch.float32, 1)
    assert gl.ball(x, x, 0.3).symmetric
    crossed = gl.ball(x, y, 0.3)
    assert not crossed.symmetric
    assert crossed.limit is None
    assert (crossed.num_source, crossed.num_target) == (30, 20)
    crossed.check()


def test_nothing_in_nothing_out(backend: str, device: torch.device) -> None:
    none = Cloud(torch.zeros(0, 3), torch.tensor([0, 0, 0])).to(device)
    edges = gl.ball(none, none, 1.0)
    assert edges.splits.tolist() == [0]
    assert len(edges) == 0
    batch = Cloud(torch.zeros(0, 3), torch.tensor([0])).to(device)
    assert len(gl.ball(batch, batch, 1.0)) == 0


# Bad input.


@pytest.mark.parametrize("limit", [0, -1, 2.5])
def test_refuses_limits(limit: object) -> None:
    x = cloud([5], 3, torch.float32, 0)
    with pytest.raises(ValueError, match="limit"):
        gl.ball(x, x, 0.5, limit=limit)
    assert torch.equal(gl.ball(x, x, 0.5, limit=np.int64(2)).source, gl.ball(x, x, 0.5, limit=2).source)


@pytest.mark.parametrize("examples", [1, 8])
def test_refuses_more_edges_than_int32_before_they_are_allocated(examples: int) -> None:
    size = 50_000 if examples == 1 else 17_000
    x = Cloud(torch.zeros(size * examples, 1), torch.arange(examples + 1) * size)
    with pytest.raises(ValueError, match=f"{size * size * examples} edges"):
        gl.ball(x, x, 1.0)


VECTORS = """
import torch, gridless as gl
torch.manual_seed(0)
x = gl.Cloud.of([torch.rand(900, 3), torch.rand(90, 3)])
e = gl.ball(x, x, 0.2)
print(len(e), int((e.source.long() * torch.arange(len(e))).sum()), int(e.splits.sum()))
"""


@pytest.mark.slow
def test_vectors_of_any_machine_find_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Kernels for a plain CPU, without AVX, give what those for this one give."""
    exec(VECTORS, {})
    output = capsys.readouterr().out
    name = "x86-64" if os.uname().machine in ("x86_64", "AMD64") else "generic"
    plain = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", VECTORS], env={**os.environ, **plain}, capture_output=True, text=True, check=True
    )
    assert run.stdout == output
    assert all(int(n) > 300 for n in output.split())


@pytest.mark.parametrize("radius", ["a", None, True, [0.1]])
def test_refuses_radii_that_are_no_numbers(radius: object) -> None:
    cloud = gl.Cloud.of(torch.rand(4, 3))
    with pytest.raises(TypeError, match=r"ball: radius "):
        gl.ball(cloud, cloud, radius)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_very_many_targets_of_few_sources_are_found_on_a_gpu():
    """More blocks of targets than the second side of a CUDA grid has room for."""
    source, target = torch.rand(40, 3), torch.rand(2_200_000, 3)
    edges = gl.ball(gl.Cloud.of(source.cuda()), gl.Cloud.of(target.cuda()), 0.1).cpu()
    wanted = gl.ball(gl.Cloud.of(source), gl.Cloud.of(target), 0.1)
    assert torch.equal(edges.splits, wanted.splits)
    assert torch.equal(edges.source, wanted.source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e3, -1e6, 5e6])
def test_points_far_from_the_origin_have_the_neighbours_of_the_reference(backend, device, far, dtype):
    generator = torch.Generator().manual_seed(0)
    coords = (torch.rand(400, 3, generator=generator, dtype=torch.float64) * 8 + far).to(dtype)
    edges = gl.ball(gl.Cloud.of(coords.to(device)), gl.Cloud.of(coords.to(device)), 1.0).cpu()
    with gl.use_backend("reference"):
        wanted = gl.ball(gl.Cloud.of(coords), gl.Cloud.of(coords), 1.0)
    assert torch.equal(edges.splits, wanted.splits)
    assert torch.equal(edges.source, wanted.source)


def test_a_search_far_from_the_origin_looks_at_few_points():
    """float32 is as coarse as half the radius there: what is looked at may be twice as far away, and no more."""
    from gridless.geometry.ball.cpu import numbers

    radius, _, _, eps = numbers(1.0, torch.float32)
    assert 1 < radius + eps * 5e6 < 2
