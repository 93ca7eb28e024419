"""Searches on integer coordinates, over all backends."""

from __future__ import annotations

import itertools

import pytest
import torch

import gridless as gl
from gridless.geometry.voxels import (
    RepeatedSite,
    coarsen,
    strided_taps,
    submanifold_taps,
    tap_search,
    taps_between,
    transposed_taps,
    voxelise,
)
from gridless.geometry.voxels.window import Window, sites_seeing
from gridless.structures import TapEdges, Voxels, collate, pad


def some_sites(dim: int, count: int = 40, low: int = -3, high: int = 4, seed: int = 0) -> torch.Tensor:
    """Distinct sites of two examples, in no order."""
    generator = torch.Generator().manual_seed(seed)
    where = torch.randint(low, high, (count, dim), generator=generator)
    sites = torch.cat([torch.randint(0, 2, (count, 1), generator=generator), where], 1).unique(dim=0)
    return sites[torch.randperm(len(sites), generator=generator)]


def by_hand(source, target, kernel, stride, padding, dilation) -> list[list[int]]:
    rows = {tuple(site): row for row, site in enumerate(source.tolist())}
    table = []
    for example, *site in target.tolist():
        row = []
        for k in itertools.product(*map(range, kernel)):
            axes = zip(site, k, stride, padding, dilation, strict=True)
            row.append(rows.get((example, *(x * s - p + d * n for x, n, s, p, d in axes)), -1))
        table.append(row)
    return table


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_target_sees_the_source_of_each_tap(device, dim, dtype):
    sites = some_sites(dim).to(device, dtype)
    kernel, stride, padding, dilation = ([3, 2, 1, 2][:dim], [1, 2, 1, 3][:dim], [1, 0, 2, 1][:dim], [2, 1, 1, 2][:dim])
    edges = taps_between(sites, sites, kernel, stride, padding, dilation)
    assert edges.table.tolist() == by_hand(sites, sites, kernel, stride, padding, dilation)


def test_a_submanifold_neighbourhood_is_its_own_transpose_with_opposite_taps(device):
    sites = some_sites(3).to(device)
    edges = submanifold_taps(sites)
    assert edges.symmetric
    assert edges.table[:, 13].tolist() == list(range(len(sites)))
    other = taps_between(sites, sites, 3, 1, 1)
    assert torch.equal(edges.transpose().table, other.transpose().table)
    assert not submanifold_taps(sites, 2).symmetric


def dense_sites(kernel, stride, padding, dilation, shape, sites, transposed=False) -> list[list[int]]:
    dim = len(shape)
    grid = torch.zeros(2, 1, *shape)
    grid[(sites[:, 0], torch.zeros_like(sites[:, 0]), *sites[:, 1:].T)] = 1
    name = f"conv{'_transpose' if transposed else ''}{dim}d"
    weight = torch.ones(1, 1, *[kernel] * dim)
    out = getattr(torch.nn.functional, name)(grid, weight, stride=stride, padding=padding, dilation=dilation)
    return (out[:, 0] > 0).nonzero().tolist()


WINDOWS = [(3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (3, 2, 2, 2), (5, 3, 2, 1), (1, 2, 0, 1)]


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("settings", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_new_sites_are_those_of_the_reference(device, dim, settings, dtype):
    """With a border and without, near the origin and far from it, behind it and across it."""
    shape = [4, 3, 2, 2][:dim]
    sites = (torch.rand(2, *shape, generator=torch.Generator().manual_seed(2)) < 0.3).nonzero().to(device, dtype)
    window = Window.of(*settings, dim)
    for moved, border in ((0, shape), (-3, None), (-2, shape), (1 << 29, None), (2, [1 << 16] * dim)):
        here = sites + moved
        extent = None if border is None else window.extent("", border)
        new = sites_seeing("", here, window, extent)
        with gl.use_backend("reference"):
            expected = sites_seeing("", here, window, extent)
        assert torch.equal(new, expected)
        assert new.dtype == dtype


def test_new_sites_may_be_none(device):
    sites = torch.tensor([[0, 1, 3], [1, 3, 3]], device=device)
    for given in (sites, sites.int()):
        new, edges = strided_taps(given, 1, 4, 0, shape=[5, 5])
        assert (tuple(new.shape), new.dtype, edges.num_target) == ((0, 3), given.dtype, 0)


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("window", WINDOWS)
def test_new_sites_are_those_of_a_dense_convolution_in_order(device, dim, window):
    # Interpreted, the time goes by targets.
    shape = ([5, 4, 3] if gl.backends.interpreting() else [7, 6, 5])[:dim]
    sites = (torch.rand(2, *shape, generator=torch.Generator().manual_seed(1)) < 0.3).nonzero()
    sites = sites[torch.randperm(len(sites))]
    targets, edges = strided_taps(sites.to(device), *window, shape=shape)
    assert targets.tolist() == dense_sites(*window, shape, sites)
    assert (edges.num_source, edges.num_target) == (len(sites), len(targets))
    assert bool((edges.table >= 0).any(1).all())
    targets, edges = transposed_taps(sites.to(device), *window, shape=shape)
    assert targets.tolist() == dense_sites(*window, shape, sites, transposed=True)
    assert bool((edges.table >= 0).any(1).all())


@pytest.mark.parametrize("step", [1, 2, 8, 64])
def test_sites_on_a_coarse_lattice_find_each_other(device, step):
    """A hash table may hold neighbouring cells side by side; here only one cell of each row of `step` is taken."""
    axes = [torch.zeros(1).long(), *[torch.arange(3 if gl.backends.interpreting() else 12)] * 3]
    sites = torch.cartesian_prod(*axes) * step
    found = submanifold_taps(sites.to(device), 3, step).table
    assert torch.equal(found, submanifold_taps((sites // step).to(device), 3).table)
    for example in (-4, 5):
        moved = sites + torch.tensor([example, -7, -7, -7])
        assert torch.equal(submanifold_taps(moved.to(device), 3, step).table, found)


def test_without_a_shape_there_is_no_border(device):
    targets, edges = strided_taps(torch.tensor([[0, -5, 0]], device=device), 3, 2, 1)
    assert targets.tolist() == [[0, -3, 0], [0, -2, 0]]
    assert edges.table.argmax(1).tolist() == [7, 1]


def test_the_transpose_keeps_every_tap(device):
    sites = some_sites(2).to(device)
    _, edges = strided_taps(sites, 3, 2, 1)
    back = edges.transpose()
    there = {(i, j, k) for i, row in enumerate(edges.table.tolist()) for k, j in enumerate(row) if j >= 0}
    assert there == {(i, j, k) for j, row in enumerate(back.table.tolist()) for k, i in enumerate(row) if i >= 0}
    assert back.transpose() is edges


@pytest.mark.parametrize("far", [2**31 - 8, 2**40, 2**58])
def test_sites_far_apart_do_not_collide(device, far):
    near = some_sites(3, 12)
    away = torch.tensor([0, far, far, far])
    sites = torch.cat([near, near + away, near - away]).to(device)
    edges = submanifold_taps(sites)
    assert edges.table.tolist() == by_hand(sites, sites, [3] * 3, [1] * 3, [1] * 3, [1] * 3)
    targets, _ = strided_taps(sites, 2, 2)
    half = torch.cat([sites[:, :1], sites[:, 1:].div(2, rounding_mode="floor")], 1)
    assert torch.equal(targets, half.unique(dim=0))


def test_coordinates_at_the_limits_of_32_bits(device):
    limit = 2**31 - 1
    sites = torch.tensor([[0, limit], [0, limit - 1], [0, -limit - 1], [0, -limit]], dtype=torch.int32, device=device)
    assert submanifold_taps(sites).table.tolist() == [[1, 0, -1], [-1, 1, 0], [-1, 2, 3], [2, 3, -1]]
    with pytest.raises(ValueError, match=r"transposed_taps.*int64"):
        transposed_taps(sites, 2, 2)


def test_coordinates_that_overflow_are_refused(device):
    with pytest.raises(ValueError, match=r"submanifold_taps.*9223372036854775807"):
        submanifold_taps(torch.tensor([[0, 2**63 - 1, 0]], device=device))


def test_a_site_is_there_once(device):
    with pytest.raises(ValueError, match=r"\[1, 2, 3\]"):
        submanifold_taps(torch.tensor([[1, 2, 3], [0, 2, 3], [1, 2, 3]], device=device))


def test_no_sites_and_one(device):
    none = torch.zeros(0, 4, dtype=torch.int32, device=device)
    assert submanifold_taps(none).table.shape == (0, 27)
    targets, edges = strided_taps(none, 2, 2, shape=[4, 4, 4])
    assert targets.shape == (0, 4)
    assert edges.table.shape == (0, 8)
    one = torch.tensor([[3, -1, 5, 0]], device=device)
    assert (submanifold_taps(one).table >= 0).sum() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.zeros(3, 4), 3), "float32"),
        ((torch.zeros(3, 6, dtype=torch.int64), 3), r"\(3, 6\)"),
        ((torch.zeros(1, 4, dtype=torch.int64), 0), "kernel.*0"),
        ((torch.zeros(1, 4, dtype=torch.int64), [3, 3]), "kernel.*3"),
    ],
)
def test_what_is_no_search_is_refused(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        submanifold_taps(*arguments)


def test_a_table_that_points_nowhere_is_refused():
    with pytest.raises(ValueError, match=r"5.*3"):
        TapEdges(torch.tensor([[0, 5]]), 3)


def test_pairs_and_plain_edges_are_the_same_edges(device):
    edges = submanifold_taps(some_sites(2).to(device))
    splits, target, source = edges.pairs
    tap = torch.repeat_interleave(splits.diff())
    assert torch.equal(edges.table[target.long(), tap], source)
    assert len(source) == int((edges.table >= 0).sum()) == len(edges.edges)
    assert torch.equal(edges.edges.counts, (edges.table >= 0).sum(1))


def test_a_batch_of_searches_is_the_search_of_the_batch(device):
    clouds = [gl.Cloud.of(torch.rand(30, 3, generator=torch.Generator().manual_seed(s))) for s in (0, 1)]
    each = [voxelise(cloud.to(device), 0.25) for cloud in clouds]
    whole = voxelise(collate(clouds).to(device), 0.25)
    assert torch.equal(collate(each).sites, whole.sites)
    tables = [tap_search(voxels, voxels) for voxels in each]
    edges = tap_search(whole, whole)
    assert torch.equal(collate(tables).table, edges.table)
    padded = pad(edges, "power_of_two")
    assert int(padded.table[len(edges) :].max()) < 0
    assert torch.equal(padded.table[: len(edges)], edges.table)


def test_voxels_are_grid_samples_that_know_their_cells(device):
    cloud = gl.Cloud.of(torch.rand(200, 3) * 4 - 2).to(device)
    voxels = voxelise(cloud, 0.5)
    assert isinstance(voxels, Voxels)
    assert torch.equal(voxels.coords, gl.grid_sample(cloud, 0.5).coords)
    assert torch.equal(voxels.cell, (voxels.coords.double() / 0.5).floor().long())
    coarse = coarsen(voxels)
    assert coarse.side == 1.0
    assert torch.equal(coarse.sites, strided_taps(voxels.sites, 2, 2)[0])
    assert torch.equal(coarse.cell, (coarse.coords.double() / 1.0).floor().long())
    assert (voxelise(cloud, 0.5, "mean").cell == voxels.cell).all()


@pytest.mark.parametrize(
    "search", [submanifold_taps, lambda x: strided_taps(x, 2, 2), lambda x: transposed_taps(x, 2, 2)]
)
def test_a_site_that_is_there_twice_is_refused(search):
    sites = some_sites(3)
    search(sites[:0])
    with pytest.raises(RepeatedSite, match="occurs twice"):
        search(torch.cat([sites, sites[3:4]]))
