"""Layers on events: what they take and remember, and under torch.compile."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import gridless as gl
from gridless.nn import DownConv, EventConv, LeakyMean, PolarityConv, VoxelMean, VoxelMerge
from tests.streams import of, stream

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
    with pytest.raises(ValueError, match=f"temporal.*{temporal}"):
        PolarityConv(plan.causal(camera, camera), 4, temporal=temporal)
    with pytest.raises(ValueError, match=r"rates.*'spread', 'ones'.*'even'"):
        PolarityConv(plan.causal(camera, camera), 4, rates="even")


def test_weights_begin_within_glorots_bound_over_taps_and_decays():
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    near = plan.causal(camera, camera, 3)
    torch.manual_seed(0)
    # PolarityConv: only input channels count once for each decay, as in the authors' bound.
    for layer, fans in (
        (EventConv(near, 20, 30, 8), 9 * 8 * (20 + 30)),
        (PolarityConv(near, 300, 8), 9 * (2 * 8 + 300)),
    ):
        assert 0.999 < layer.weight.abs().max() / (6 / fans) ** 0.5 <= 1


def test_a_merge_is_a_strided_convolution_of_a_grid_extended_to_even_sides():
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    torch.manual_seed(0)
    merge = VoxelMerge(VoxelMean(camera, camera, 2), 3, 4).eval().double()
    nn.init.normal_(merge.conv.bias)
    for norm, number in ((merge.norm, 1.0), (merge.mean_norm, 2.0)):
        nn.init.constant_(norm.bias, number)
    for sides in ((3, 5, 7), (2, 5, 6), (3, 4, 6), (4, 4, 4)):
        grid, (t, h, w) = torch.randn(2, *sides, 3).double(), sides
        even = grid.new_zeros(2, t + t % 2, h + h % 2, w + w % 2, 3)
        even[:, :t, :h, :w] = grid
        wanted = merge.conv(even.permute(0, 4, 1, 2, 3)).permute(0, 2, 3, 4, 1).relu()
        mean = torch.randn_like(wanted)
        torch.testing.assert_close(merge(grid, mean), merge.norm(wanted) + merge.mean_norm(mean))


def test_edges_that_are_not_of_events_are_refused():
    plan = gl.Plan()
    points, events = plan.points(name="points"), plan.events((8, 8), name="events")
    for near in (plan.ball(points, points, 0.1), events):
        with pytest.raises(TypeError, match=r"EventConv: near.*plan\.causal"):
            gl.nn.EventConv(near, 2, 2)


@pytest.mark.slow
def test_a_network_compiles_whole():
    """Values and gradients are those of eager code."""
    torch.manual_seed(0)
    model = Network(None)
    geometry = model.plan(stream((60, 0, 41), SENSOR))

    def loss(forward):
        out = forward(geometry)
        return out, torch.autograd.grad(out.square().sum(), list(model.parameters()))

    out, grads = loss(torch.compile(model, fullgraph=True, backend="aot_eager"))
    expected, wanted = loss(model)
    assert torch.equal(make_fx(lambda: model(geometry))()(), expected)
    assert torch.equal(out, expected)
    assert out.abs().max() > 0
    for grad, right in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, right)
        assert right.abs().max() > 0


def test_a_window_begins_at_the_first_event_of_its_stream():
    """After packets without one, and of a batch for each stream by itself."""
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    mean = VoxelMean(camera, camera, 2, duration=1000)
    early, late = of([(1, 1)] * 3, [100, 150, 700], SENSOR), of([(2, 3)] * 3, [5000, 5100, 5600], SENSOR)
    nothing, values = of([], [], SENSOR), torch.randn(3, 4)
    memory: dict = {}
    mean(values[:0], plan(gl.collate([nothing, nothing])), memory)
    mean(values, plan(gl.collate([early, nothing])), memory)
    out = mean(values, plan(gl.collate([nothing, late])), memory)
    assert torch.equal(out, torch.cat([mean(values, plan(events)) for events in (early, late)]))

    waiting: dict = {}
    mean(values[:0], plan(nothing), waiting)
    mean.restart(waiting)
    assert torch.equal(mean(values, plan(late), waiting), mean(values, plan(late)))


def test_means_of_a_window_are_summed_in_float32():
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    mean = VoxelMean(camera, camera, 1, duration=10**6)
    values, geometry = torch.full((20_000, 1), 10.1).half(), plan(of([(0, 0)] * 20_000, range(20_000), SENSOR))
    memory: dict = {}
    assert torch.equal(mean(values, geometry, memory), mean(values, geometry))
    assert mean(values, geometry, memory).dtype == torch.float16


def test_leaky_means_take_features_of_any_precision():
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    mean, events = LeakyMean(camera, 100.0), stream((20,), SENSOR)
    values = torch.randn(20, 3)
    assert torch.equal(mean(values.double(), plan(events)), mean(values, plan(events)))
    assert torch.equal(mean(values.double(), plan(events), {}), mean(values, plan(events), {}))


@pytest.mark.parametrize("fit", [False, True])
def test_a_batch_without_recordings_has_no_counts(fit):
    camera = gl.Plan().events(SENSOR)
    none = torch.zeros(0, dtype=torch.int64)
    events = gl.Events(none.view(0, 2).int(), none, none.bool(), torch.zeros(1, dtype=torch.int64), SENSOR)
    assert gl.nn.LeakyCount(camera, 2, [100.0], fit=fit)(gl.Geometry({"X0": events})).shape == (0, 1, 3, 3, 2)


def test_a_down_convolution_drops_features_in_training_alone():
    plan = gl.Plan()
    camera = plan.events(SENSOR)
    torch.manual_seed(0)
    down, geometry = DownConv(plan.causal(camera, camera), None, 16, 100.0, dropout=0.25), plan(stream((100,), SENSOR))
    nn.init.constant_(down.norm.bias, 9.0)
    assert 0.2 < (down(None, geometry) == 0).float().mean() < 0.3
    assert (down.eval()(None, geometry) == 0).sum() == 0
