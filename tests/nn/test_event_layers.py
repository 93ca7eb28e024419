"""Layers on events under torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import gridless as gl
from gridless.nn import EventConv, LeakyMean, PolarityConv
from tests.streams import stream

SENSOR = (6, 5)


class Network(nn.Module):
    """A first layer on polarity, one at a stride, one in place, and the mean of the stream so far."""

    def __init__(self, window: float | None) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        camera = plan.events(SENSOR)
        coarse = plan.lif(camera, decay_time=500.0, threshold=0.2, reset=-0.2)
        self.first = PolarityConv(plan.causal(camera, coarse, 3, 2, window), 4, temporal=2, decay_time=300.0)
        near = plan.causal(coarse, coarse, "cross5", 1, window)
        self.second = EventConv(near, 4, 3, temporal=2, decay_time=300.0)
        self.third = EventConv(near, 3, 3, temporal=1, decay_time=900.0, bias=False)
        self.mean = LeakyMean(coarse, 1000.0)

    def forward(self, geometry: gl.Geometry) -> torch.Tensor:
        features = self.first(geometry).relu()
        return self.mean(self.third(self.second(features, geometry), geometry), geometry)


@pytest.mark.parametrize("temporal", [0, -1, 2.5])
def test_a_number_of_decays_that_cannot_be_is_refused(temporal):
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    with pytest.raises(ValueError, match="temporal must be a whole number of decays, 1 or more, not"):
        PolarityConv(plan.causal(camera, camera), 4, temporal=temporal)


@pytest.mark.parametrize("window", [None, 800.0])
def test_a_network_compiles_whole(window):
    """By scan, and along edges: values and gradients are those of eager code."""
    torch.manual_seed(0)
    model = Network(window)
    geometry = model.plan(stream((60, 0, 41), SENSOR))

    def loss(forward):
        out = forward(geometry)
        return out, torch.autograd.grad(out.square().sum(), list(model.parameters()))

    out, grads = loss(torch.compile(model, fullgraph=True, backend="aot_eager"))
    expected, wanted = loss(model)
    assert torch.equal(make_fx(lambda: model(geometry))()(), expected)
    assert torch.equal(out, expected)
    assert out.abs().max() > 0
    for found, right in zip(grads, wanted, strict=True):
        torch.testing.assert_close(found, right)
        assert right.abs().max() > 0
