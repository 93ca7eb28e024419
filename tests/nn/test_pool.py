"""Pooling layers: from a cloud of the plan to one row per example."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.nn.pool import MaxPool, MeanPool, Spread
from tests.streams import of


@pytest.mark.parametrize("layer", [MaxPool, MeanPool])
def test_a_padded_batch_pools_as_its_examples_do(layer):
    plan = gl.Plan()
    pool = layer(plan.points(dim=3))
    clouds = [torch.rand(n, 3) for n in (5, 1, 9)]
    features = [torch.randn(len(c), 6) for c in clouds]
    alone = torch.cat([pool(f, plan(c)) for f, c in zip(features, clouds)])
    batch = gl.collate([plan(c) for c in clouds], bucket="power_of_two")
    padded = torch.full((16, 6), 1e9)
    padded[:15] = torch.cat(features)
    torch.testing.assert_close(pool(padded, batch), alone)


def test_a_layer_shows_its_cloud():
    assert repr(MaxPool("X3")) == "MaxPool(X3)"


def test_spread_rows_are_those_of_the_example_and_so_are_their_gradients():
    plan = gl.Plan()
    spread = Spread(plan.points(dim=3))
    batch = gl.collate([plan(torch.rand(n, 3)) for n in (5, 1, 9)], bucket="power_of_two")
    values = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    out = spread(values, batch)
    example = torch.repeat_interleave(torch.arange(3), torch.tensor([5, 1, 9]))
    torch.testing.assert_close(out, torch.cat([values[example], values.new_zeros(1, 6)]))
    weight = torch.randn(16, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((out * weight).sum(), values)
    torch.testing.assert_close(gradient, torch.zeros_like(values).index_add(0, example, weight[:15]))


def test_values_of_other_examples_are_not_spread():
    plan = gl.Plan()
    spread = Spread(plan.points(dim=3))
    batch = gl.collate([plan(torch.rand(n, 3)) for n in (5, 1)])
    with pytest.raises(ValueError, match=r"segment_spread.*3 rows.*2 examples"):
        spread(torch.rand(3, 6), batch)


@pytest.mark.parametrize("points", [7_000, 70_000])
def test_large_examples_are_spread_in_float16(points):
    plan = gl.Plan()
    spread = Spread(plan.points(dim=3))
    values = torch.full((2, 2), 10.0, dtype=torch.float16, requires_grad=True)
    out = spread(values, plan(gl.Cloud.of([torch.zeros(points, 3), torch.zeros(5, 3)])))
    assert out.dtype == torch.float16
    assert out.unique().tolist() == [10.0]
    (gradient,) = torch.autograd.grad(out, values, torch.full_like(out, 0.5))
    assert torch.equal(gradient, gradient.new_tensor([[points / 2] * 2, [2.5] * 2]))


def test_spread_values_are_those_given_and_their_gradient_is_the_sum():
    plan = gl.Plan()
    spread = Spread(plan.points(dim=3))
    batch = gl.collate([plan(torch.rand(n, 3)) for n in (49, 70_000)], bucket="power_of_two")
    values = torch.tensor([[0.1, 3e38], [0.7, -1e-38]], requires_grad=True)
    out = spread(values, batch)
    assert torch.equal(out[:49], values[:1].expand(49, -1))
    assert torch.equal(out[49:70_049], values[1:].expand(70_000, -1))
    assert (out[70_049:] == 0).all()
    weight = torch.full_like(out, 2.0)
    weight[70_049:] = torch.nan
    (gradient,) = torch.autograd.grad(out, values, weight)
    assert gradient.tolist() == [[98.0, 98.0], [140_000.0, 140_000.0]]


def test_a_mean_over_packets_outlives_what_float16_can_count():
    plan = gl.Plan()
    pool = MeanPool(plan.events((4, 4)))
    geometry = plan(of([(0, 0)] * 70_000, range(70_000), (4, 4)))
    memory: dict = {}
    means = [pool(torch.full((70_000, 1), float(i)).half(), geometry, memory) for i in range(3)]
    assert [float(mean) for mean in means] == [0.0, 0.5, 1.0]
    assert means[-1].dtype == torch.float16


@pytest.mark.parametrize("layer", [MaxPool, MeanPool])
def test_packets_pool_as_the_whole_recording_does(layer):
    plan = gl.Plan()
    pool = layer(plan.events((4, 4)))
    events, features = of([(0, 0)] * 9, range(9), (4, 4)), -1 - torch.rand(9, 3)
    memory: dict = {}
    parts = [pool(features[a:b], plan(events[a:b]), memory) for a, b in ((0, 0), (0, 4), (4, 4), (4, 9))]
    assert parts[0].tolist() == [[0, 0, 0]]
    assert torch.equal(parts[2], parts[1])
    torch.testing.assert_close(parts[3], pool(features, plan(events)))


@pytest.mark.parametrize("layer", [MaxPool, MeanPool])
def test_features_of_another_cloud_are_refused(layer):
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    near = plan.ball(cloud, cloud, 0.5)
    coarse = plan.rejection_sample(near)
    geometry = plan(torch.rand(50, 3))
    points = len(geometry[coarse])
    with pytest.raises(ValueError, match=f"{layer.__name__}: features.*50.*X1.*{points}"):
        layer(coarse)(torch.rand(50, 2), geometry)
    with pytest.raises(TypeError, match=f"{layer.__name__}: N00.*edges"):
        layer(near)(torch.rand(50, 2), geometry)
