"""The convolution layers read a plan's geometry and call the operator with it."""

from __future__ import annotations

import copy

import pytest
import torch

import gridless as gl
from gridless.nn import Bottleneck, DepthwiseConv, FeaturelessConv, KernelPoints, Monomials, PointConv


@pytest.fixture
def plan():
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.3)
    coarse = plan.rejection_sample(near)
    down = plan.ball(cloud, coarse, 0.4)
    return plan, near, down, plan.transpose(down)


def geometry_of(plan, points=150):
    torch.manual_seed(0)
    return plan(torch.rand(points, 3))


def test_a_layer_is_the_operator_on_the_edges_it_names(plan):
    plan, _, down, _ = plan
    geometry, layer = geometry_of(plan), PointConv(down, 6, 4)
    features = torch.randn(150, 6)
    coords = geometry[down.source].coords, geometry[down.target].coords
    expected = gl.point_conv(
        features, layer.weight, layer.bias, geometry[down], *coords, 0.4, Monomials(3, 2), "linear", True
    )
    assert torch.equal(layer(features, geometry), expected)


def test_a_depthwise_layer_has_one_kernel_for_each_channel(plan):
    plan, _, down, _ = plan
    geometry, layer = geometry_of(plan), DepthwiseConv(down, 6)
    dense = PointConv(down, 6, 6)
    with torch.no_grad():
        layer.bias.normal_()
        dense.weight.copy_(torch.diag_embed(layer.weight))
        dense.bias.copy_(layer.bias)
    features = torch.randn(150, 6)
    torch.testing.assert_close(layer(features, geometry), dense(features, geometry))
    assert layer.weight.abs().max() <= (3 / 10) ** 0.5
    assert repr(layer) == "DepthwiseConv(N01, 6, Monomials(dim=3, order=2), radius=0.4, falloff='linear')"


def test_down_and_up_again_has_the_shapes_of_the_clouds(plan):
    plan, near, down, up = plan
    geometry = geometry_of(plan)
    features = FeaturelessConv(near, 8)(geometry)
    coarse = PointConv(down, 8, 16, basis=KernelPoints(3))(features, geometry)
    fine = PointConv(up, 16, 2, falloff=None, normalise=False, bias=False)(coarse, geometry)
    assert features.shape == (150, 8)
    assert coarse.shape == (len(geometry[down.target]), 16)
    assert fine.shape == (150, 2)
    assert fine.isfinite().all()


def test_weights_begin_within_glorots_bounds(plan):
    _, near, *_ = plan
    torch.manual_seed(0)
    conv, first = PointConv(near, 32, 64), FeaturelessConv(near, 64)
    for weight, bound in ((conv.weight, (6 / (10 * (32 + 64))) ** 0.5), (first.weight, (6 / (10 + 64)) ** 0.5)):
        assert 0.9 * bound < weight.abs().max() <= bound
        assert weight.mean().abs() < 0.1 * bound
    assert not conv.bias.any()
    assert not first.bias.any()


def test_edges_without_a_radius_need_one(plan):
    plan, near, *_ = plan
    nearest = plan.nearest(near.source, near.source, 5)
    with pytest.raises(ValueError, match="radius="):
        PointConv(nearest, 3, 3)
    geometry = geometry_of(plan, 40)
    assert PointConv(nearest, 3, 3, radius=0.5)(torch.randn(40, 3), geometry).shape == (40, 3)


def test_settings_of_a_layer_are_checked_when_it_is_built(plan):
    plan, near, _, _ = plan
    for edges in ("N00", near.source):
        for layer in (lambda e: PointConv(e, 4, 8), lambda e: FeaturelessConv(e, 4), lambda e: DepthwiseConv(e, 4)):
            with pytest.raises(TypeError, match=r"Conv: edges.*plan\.ball"):
                layer(edges)
    with pytest.raises(ValueError, match=r"PointConv: falloff.*'linear'.*'lin'"):
        PointConv(near, 4, 8, falloff="lin")
    with pytest.raises(ValueError, match=r"PointConv: order.*gather_first, transform_first.*'x'"):
        PointConv(near, 4, 8, order="x")
    with pytest.raises(ValueError, match=r"N00.*3 dimensions.*Monomials\(dim=2, order=2\)"):
        PointConv(near, 4, 8, basis=Monomials(2, 2))
    with pytest.raises(TypeError, match=r"basis.*gl\.nn\.Monomials.*'monomials'"):
        PointConv(near, 4, 8, basis="monomials")


def test_what_a_layer_cannot_convolve_is_refused_in_its_words(plan):
    plan, near, _, _ = plan
    geometry, layer = geometry_of(plan), PointConv(near, 6, 8)
    with pytest.raises(ValueError, match=r"features.*\b3\b.*\b6\b"):
        layer(torch.rand(150, 3), geometry)
    with pytest.raises(TypeError, match=r"features.*NoneType"):
        layer(None, geometry)
    points = torch.rand(150, 3)
    for wrong, actual in ((None, "None"), (points.numpy(), "an array"), (points, "a tensor"), ([points], "a list")):
        with pytest.raises(TypeError, match=rf"Geometry.* {actual}.*model\.plan"):
            layer(torch.rand(150, 6), wrong)


def test_a_layer_survives_copying_and_its_state_reloading(plan):
    plan, near, *_ = plan
    geometry, layer = geometry_of(plan), PointConv(near, 3, 3)
    features = torch.randn(150, 3)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.zero_()
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(features, geometry), layer(features, geometry))
    assert sorted(layer.state_dict()) == ["bias", "weight"]


def test_layers_are_made_where_and_of_what_type_they_are_asked_for(plan):
    _, near, _, _ = plan
    events = gl.Plan()
    stream = events.events((8, 8))
    seen = events.causal(stream, stream)
    for kind, *given in (
        (PointConv, near, 4, 8), (FeaturelessConv, near, 8), (DepthwiseConv, near, 8), (gl.nn.BatchNorm, 8),
        (gl.nn.EventConv, seen, 4, 8), (gl.nn.PolarityConv, seen, 8),
    ):  # fmt: skip
        layer = kind(*given, device="meta", dtype=torch.float64)
        assert {(p.device.type, p.dtype) for p in layer.parameters()} == {("meta", torch.float64)}
        assert next(torch.nn.utils.skip_init(kind, *given).parameters()).device.type == "cpu"


def test_the_printed_layer_says_what_it_does(plan):
    _, _, down, _ = plan
    assert repr(PointConv(down, 3, 4)) == (
        "PointConv(N01, 3, 4, Monomials(dim=3, order=2), radius=0.4, falloff='linear')"
    )


@pytest.mark.slow
def test_a_network_compiles_whole(plan):
    plan, near, down, _ = plan
    first, second = FeaturelessConv(near, 4), PointConv(down, 4, 3)

    def forward(geometry):
        return second(first(geometry), geometry)

    geometry = geometry_of(plan, 60)
    out = torch.compile(forward, fullgraph=True, backend="aot_eager")(geometry)
    assert torch.equal(out, forward(geometry))


def test_a_batch_is_its_examples_side_by_side(plan):
    plan, near, down, _ = plan
    first, second = FeaturelessConv(near, 4), PointConv(down, 4, 3)
    clouds = [torch.rand(n, 3) for n in (30, 1, 50)]
    alone = torch.cat([second(first(g), g) for g in map(plan, clouds)])
    batch = plan(gl.Cloud.of(clouds))
    torch.testing.assert_close(second(first(batch), batch), alone)


def test_a_shortcut_over_two_levels_is_refused():
    plan = gl.Plan()
    fine = plan.points(dim=3)
    middle = plan.rejection_sample(plan.ball(fine, fine, 0.2))
    coarse = plan.rejection_sample(plan.ball(middle, middle, 0.4))
    block = gl.nn.DownBlock(plan.ball(fine, coarse, 0.6), 2, 4)
    back = gl.nn.DownBlock(plan.transpose(plan.ball(fine, middle, 0.3)), 2, 4)
    geometry = plan(torch.rand(100, 3))
    points = len(geometry[middle])
    with pytest.raises(ValueError, match=f"features.*100 rows.*X2.*{points} points"):
        block(torch.rand(100, 2), geometry)
    with pytest.raises(ValueError, match=r"X0.*sample"):
        back(torch.rand(points, 2), geometry)


def test_a_bottleneck_drops_features_in_training_alone(plan):
    plan, near, _, _ = plan
    geometry, features = geometry_of(plan), torch.randn(150, 6)
    with pytest.raises(ValueError, match=r"out_channels.*multiple of 4.*6"):
        Bottleneck(near, 6, 6)
    block = Bottleneck(near, 6, 16, dropout=0.25)
    assert 0.2 < (block(features, geometry) == 0).float().mean() < 0.3
    assert (block.eval()(features, geometry) == 0).sum() == 0
