"""Maxima over neighbours, held to loops over points."""

from __future__ import annotations

import pytest
import torch

import gridless as gl


@pytest.fixture
def named() -> tuple[gl.Geometry, str, str, str]:
    """Geometry of a cloud of few points, with the names of all neighbours, of samples and of their neighbours."""
    plan = gl.Plan()
    points = plan.points()
    near = plan.nearest(points, points, 4)
    samples = plan.rejection_sample(plan.ball(points, points, 0.4))
    down = plan.nearest(points, samples, 4)
    # The second cloud has fewer points than neighbours are asked for.
    clouds = [torch.rand(30, 3, generator=torch.Generator().manual_seed(1)), torch.rand(2, 3)]
    return plan(gl.Cloud.of(clouds)), near, samples, down


def normed(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.batch_norm(x, None, None, layer.norm.weight, layer.norm.bias, True, eps=layer.norm.eps)


@pytest.mark.parametrize("which", ["near", "down"])
def test_features_pass_as_the_largest_of_the_neighbours_less_ones_own(which, named):
    geometry, near, samples, down = named
    edges = near if which == "near" else down
    layer = gl.nn.MaxBlock(edges, 5, 6, gain=1.5)
    features = torch.randn(32, 5)
    y = layer.dense(features)
    own = range(32) if which == "near" else geometry[samples].parent_index.tolist()
    splits, source = geometry[edges].splits.tolist(), geometry[edges].source.long()
    rows = [y[source[splits[i] : splits[i + 1]]].max(0).values - y[j] for i, j in enumerate(own)]
    torch.testing.assert_close(layer(features, geometry), normed(layer, torch.stack(rows)))


def test_a_sample_adds_its_own_features_to_the_maxima_of_its_neighbours(named):
    geometry, _, samples, down = named
    layer, features = gl.nn.MaxDown(down, 5, 6), torch.randn(32, 5)
    own = normed(layer, layer.shortcut(features)[geometry[samples].parent_index])
    torch.testing.assert_close(layer(features, geometry), own + layer.maxima(features, geometry))


@pytest.mark.parametrize("up", [None, 2])
def test_surroundings_are_maxima_over_the_edges_of_a_network_of_each(up, named):
    geometry, near, _, _ = named
    layer = gl.nn.Surroundings(near, 7, count=4, radius=0.3, up=up, gain=0.8)
    coords = geometry[near.target].coords
    splits, source = geometry[near].splits.tolist(), geometry[near].source.long()
    rows = []
    for i in range(len(coords)):
        there = coords[source[splits[i] : splits[i + 1]]]
        told = [(there - coords[i]) / 0.3, torch.ones(len(there), 1)]
        if up is not None:
            told.insert(1, there[:, up : up + 1])
        x = torch.cat(told, 1)
        rows.append(layer.edge(torch.nn.functional.pad(x, (0, 8 - x.shape[1]))).max(0).values)
    torch.testing.assert_close(layer(geometry), normed(layer, layer.expand(torch.stack(rows))))


def test_what_neighbours_tell_does_not_depend_on_where_the_cloud_is():
    torch.manual_seed(0)
    model = gl.models.point_max_net(3, width=8, depths=(1, 1), neighbours=4, spacing=0.3, up=None, lift=8).eval()
    points = torch.rand(40, 3)
    here, there = (model(model.plan(gl.Cloud.of(points + shift))) for shift in (0.0, 8.0))
    torch.testing.assert_close(here, there, atol=1e-5, rtol=1e-4)


def test_points_without_neighbours_have_no_surroundings_of_others():
    plan = gl.Plan()
    scan, asked = plan.points(name="scan"), plan.points(name="asked")
    layer = gl.nn.Surroundings(plan.ball(scan, asked, 0.3, limit=8), 7, count=8, radius=0.3).eval()
    torch.nn.init.uniform_(layer.norm.bias)
    apart = [(torch.rand(20, 3), torch.rand(9, 3)), (torch.rand(0, 3), torch.rand(4, 3)), (torch.rand(9, 3) + 2,) * 2]
    apart += [(torch.zeros(1, 3),) * 2]
    together = layer(plan({"scan": [a for a, _ in apart], "asked": [b for _, b in apart]}))
    alone = [layer(plan({"scan": a, "asked": b})) for a, b in apart]
    torch.testing.assert_close(together, torch.cat(alone))
    assert torch.equal(alone[1], layer.norm(torch.zeros(4, 7), plan({"scan": apart[1][0], "asked": apart[1][1]})))
    # One neighbour is one.
    assert not torch.allclose(alone[3][0], alone[1][0])


def test_surroundings_are_not_cut_short():
    plan = gl.Plan()
    points = plan.points()
    layer = gl.nn.Surroundings(plan.nearest(points, points, 5), 7, count=4, radius=0.3)
    with pytest.raises(ValueError, match="4 neighbours"):
        layer(plan(torch.rand(9, 3)))
    plan = gl.Plan()
    points = plan.points()
    layer = gl.nn.Surroundings(plan.ball(points, points, 0.3), 7, count=4, radius=0.3)
    with pytest.raises(ValueError, match=r"N00 .* 4 neighbours.*plan.nearest"):
        layer(plan(torch.rand(9, 3)))
