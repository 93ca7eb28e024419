"""Networks of users run live as they are: engine = session = the whole recording at once, however it is cut."""

from __future__ import annotations

import pytest
import torch
from live import KINDS, assert_close, busy, settled
from topologies import (
    FAST,
    SENSOR,
    TOPOLOGIES,
    Drawn,
    FadingCounts,
    Gates,
    JoinedGrids,
    NothingFires,
    SkipsAcrossLevels,
    TwoBranches,
    WideStride,
)
from torch import nn
from torch.nn import functional

import gridless as gl
from gridless.live import Session, stream

pytestmark = pytest.mark.slow


def logits(predictions) -> torch.Tensor:
    return torch.stack([p.logits for p in predictions]) if predictions else torch.zeros(0, 1)


def run(live, events, size):
    predictions = [p for a in range(0, len(events), size) for p in live.push(events[a : a + size])]
    return [p.time for p in predictions], logits(predictions), live.predict()


def compare(model, events, sizes=(1, 13, 10**6)):
    """The engine in packets of each size against the session in one."""
    times, expected, now = run(Session(model), events, 10**6)
    for size in sizes:
        at, predicted, then = run(stream(model), events, size)
        # These answer when they are asked, after each packet.
        if type(model) not in (TwoBranches, FadingCounts):
            assert at == times
            if at:
                assert_close(predicted, expected, 1e-5)
        assert_close(then, now, 1e-5)
    return times


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", TOPOLOGIES)
def test_the_engine_equals_the_session_on_adversarial_streams_in_packets_of_any_size(make, kind):
    times = compare(settled(make), busy(kind, SENSOR, 300))
    assert times or kind in ("one time", "long silence")


@pytest.mark.parametrize("make", TOPOLOGIES)
def test_the_session_in_float64_equals_the_whole_recording(make):
    model = settled(make).double()
    events = busy("plain", SENSOR, 400)
    events = events[: int((events.time < events.time[0] + 3_999).sum())]
    session = Session(model)
    rows = logits([p for a in range(0, len(events), 41) for p in session.push(events[a : a + 41])])
    with torch.no_grad():
        whole = model(model.plan(events))
    assert_close(session.predict(), whole[-1], 1e-12)
    if len(whole) > 1:
        assert_close(rows, whole, 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_networks_drawn_at_random_are_exact(seed):
    model = settled(lambda: Drawn(seed))
    compare(model, busy("borders" if seed % 3 == 0 else "plain", model.plan_sensor, 250), (1, 60, 250))


def test_what_does_not_decay_is_remembered_for_ever():
    model = settled(NothingFires)
    model.first.log_rate.data[:] = -float("inf")
    compare(model, busy("long silence", SENSOR, 300))


def test_a_gap_of_days_leaves_what_a_new_stream_has():
    model = settled(SkipsAcrossLevels)
    events = busy("plain", SENSOR, 300)
    later = gl.Events(events.pixel, events.time + 10**12, events.polarity, events.splits, events.sensor)
    one, new = stream(model), stream(model)
    one(events)
    assert_close(logits(list(one.push(later))), logits(list(new.push(later))), 1e-5)


def test_an_output_for_every_event_is_a_prediction_after_each():
    model = settled(WideStride)
    events = busy("plain", SENSOR, 300)
    with torch.no_grad():
        geometry = model.plan(events)
        rows = model(geometry)
    engine = stream(model)
    predictions = list(engine.push(events))
    assert [p.time for p in predictions] == geometry["X1"].time.tolist()
    assert_close(logits(predictions), rows, 1e-5)
    assert torch.equal(engine.predict(), predictions[-1].logits)
    assert float(stream(model).predict().abs().max()) == 0


def test_pooled_answers_come_with_each_packet():
    model = settled(TwoBranches)
    events = busy("plain", SENSOR, 200)
    engine = stream(model)
    predictions = [prediction for a in range(0, 200, 50) for prediction in engine.push(events[a : a + 50])]
    assert [p.time for p in predictions] == events.time[49::50].tolist()
    with torch.no_grad():
        assert_close(predictions[-1].logits, model(model.plan(events))[0], 1e-5)


class DenseCounts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.plan = gl.Plan()
        self.count = gl.nn.LeakyCount(self.plan.events(SENSOR), 4, (700.0,), every=2000)
        self.dense, self.norm = gl.nn.Dense(2, 5), nn.LayerNorm(5)

    def forward(self, geometry, memory=None):
        return self.norm(self.dense(self.count(geometry, memory))).relu().mean((1, 2, 3))


def test_a_dense_layer_takes_counts_in_the_batch_as_it_does_live():
    model, events = settled(DenseCounts), busy("plain", SENSOR, 300)
    assert compare(model, events)
    engine = stream(model)
    engine(events)
    with torch.no_grad():
        assert_close(engine.predict(), model(model.plan(events))[0], 1e-5)


def test_print_shows_the_program():
    text = str(stream(settled(Gates)))
    assert "X1 = lif(X0, kernel=3, stride=2, decay_time=3000, threshold=0.6, reset=-0.4)" in text
    assert "first = convolve(polarity, source=X0, kernel=7, stride=2)" in text
    assert "after every event of X1" in text


def test_features_are_those_of_the_modules_that_were_named():
    model = settled(SkipsAcrossLevels)
    events = busy("plain", SENSOR, 200)
    for make in (stream, Session):
        live = make(model, features=["first", "norm"])
        live(events)
        with torch.no_grad():
            geometry = model.plan(events)
        fired, rows = live.features("first")
        assert torch.equal(fired.pixel, geometry["X1"].pixel)
        assert rows.shape == (len(fired), 11)
        assert live.features("norm")[1].shape == (len(geometry["X2"]), 25)
        with pytest.raises(ValueError, match=r"features=\['second'\]"):
            live.features("second")
        # None before the first packet, and none of a packet without events.
        live(events[200:])
        for nothing in (make(model, features=["first"]), live):
            fired, rows = nothing.features("first")
            assert (fired.sensor, rows.shape) == (geometry["X1"].sensor, (0, 11))
    with pytest.raises(ValueError, match="'frist'"):
        stream(model, features="frist")


def test_state_continues_bit_for_bit_in_any_network():
    for make in TOPOLOGIES:
        model, events = settled(make), busy("plain", SENSOR, 300)
        one, other = stream(model), stream(model)
        one(events[:151])
        other.load_state_dict(one.state_dict())
        one(events[151:])
        other(events[151:])
        assert torch.equal(one.predict(), other.predict())


def changed(y):
    y.add_(1)
    functional.relu(y, inplace=True)
    z = y
    z *= 2
    return y - z.tanh() / 2


def gated(y):
    a, b = y.split([4, 12], 1)
    z = torch.cat([functional.elu(b), a], 1)
    z -= 1
    return functional.dropout(z, training=False)


def copied(y):
    z, exact = y.clone(), y.double()
    y.mul_(2).sub_(1)
    return (y.div_(3) + z * exact).float()


@pytest.mark.parametrize("act", [changed, gated, copied])
def test_values_that_are_changed_in_place_are_the_new_ones_wherever_they_are_used(act):
    model = settled(WideStride)
    model.act = Called(act)
    times = compare(model, busy("plain", SENSOR, 300))
    assert times


class OneLevel(nn.Module):
    """A level whose features change before the last."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        x0 = plan.events(SENSOR)
        self.x1 = plan.lif(x0, **FAST)
        self.down, self.last = gl.nn.PolarityConv(plan.causal(x0, self.x1, 3, 2), 6), gl.nn.Last(self.x1)


class Placed(OneLevel):
    """Tables by pixel, whose axes are counted from the end, and constants made of constants."""

    def __init__(self) -> None:
        super().__init__()
        self.row, self.column = nn.Embedding(9, 6), nn.Parameter(torch.randn(11, 6))
        self.temperature, self.mean = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.rand(6))

    def forward(self, geometry, memory=None):
        pixel = geometry[self.x1].pixel.long()
        y = self.down(geometry, memory) + self.row(pixel[:, -1]) + self.column[pixel[:, -2]]
        y = (y - self.mean.softmax(0)) / (functional.relu(self.mean) + 1) * self.temperature.exp()
        return self.last(y, geometry, memory)


def test_axes_of_pixels_may_be_counted_from_the_end_and_constants_be_computed():
    model = settled(Placed)
    assert compare(model, busy("plain", SENSOR, 300))


class Parts(OneLevel):
    """Channels in parts of several sizes, and a table whose first row is that of no pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.randn(1 + 11 * 9, 6))

    def forward(self, geometry, memory=None):
        x, y = geometry[self.x1].pixel.long().unbind(1)
        values = self.down(geometry, memory) + self.place.index_select(0, 9 * x + y + 1)
        one, two, three = values.split([1, 2, 3], 1)
        four, left = values.split(4, -1)
        _, middle, end = values.chunk(4, 1)
        return self.last(torch.cat([one, -two, 2 - three, four, left / 3, middle, end], 1), geometry, memory)


def test_channels_may_be_cut_into_parts_of_any_size_and_tables_begin_anywhere():
    assert compare(settled(Parts), busy("plain", SENSOR, 300))


class Named(OneLevel):
    """Layers called with the names of what they take; one channel that goes with all; a product with a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.matrix = nn.Linear(6, 1), nn.Parameter(torch.rand(2, 6))

    def forward(self, geometry, memory=None):
        y = self.down(geometry=geometry, memory=memory)
        y = y + gl.nn.events.polarity_features(geometry["X0"])[geometry[self.x1].cause] @ self.matrix
        y = self.gate(input=y) - y * self.gate(y).sigmoid()
        return self.last(values=y.flatten(1), geometry=geometry, memory=memory)


class PolarityFirst(OneLevel):
    """Polarities, by a name that is not this file's, before any layer."""

    def forward(self, geometry, memory=None):
        polarity = gl.nn.events.polarity_features(geometry["X0"])
        return self.last(polarity[geometry[self.x1].cause], geometry, memory)


@pytest.mark.parametrize("make", [Named, PolarityFirst])
def test_layers_and_functions_may_be_called_in_other_ways(make):
    assert compare(settled(make), busy("plain", SENSOR, 300))


def test_grids_that_are_joined_are_seen_where_any_of_them_has_events():
    for seed in range(3):
        model = settled(JoinedGrids, seed)
        for kind in ("one pixel", "bursts"):
            assert compare(model, busy(kind, SENSOR, 300))


def test_voxels_that_the_forward_does_not_use_make_no_windows():
    model = settled(WideStride)
    model.unused = gl.nn.VoxelMean(model.down.near.target, model.down.near.source, 2, 1000)
    compare(model, busy("plain", SENSOR, 300))


class Called(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Cumulative(nn.Module):
    def forward(self, x):
        return x.cumsum(1)


def test_the_session_runs_what_the_engine_refuses():
    model = settled(WideStride)
    model.act = Cumulative()
    with pytest.raises(TypeError, match=r"act\.cumsum .*Session"):
        stream(model)
    events = busy("plain", SENSOR, 300)
    with torch.no_grad():
        rows = model(model.plan(events))
    session = Session(model)
    predictions = [p for a in range(0, 300, 7) for p in session.push(events[a : a + 7])]
    assert_close(logits(predictions), rows, 1e-5)


class Branching(WideStride):
    def forward(self, geometry, memory=None):
        rows = super().forward(geometry, memory)
        return rows if len(rows) > 3 else torch.cat([row[None] for row in rows] or [rows])


def test_the_session_runs_a_forward_that_looks_at_shapes():
    model, events = settled(Branching), busy("plain", SENSOR, 300)
    with pytest.raises(TypeError, match=r"cannot be read .*Session"):
        stream(model)
    for features in ([], ["down"]):
        session = Session(model, features)
        predictions = [p for a in range(0, 300, 7) for p in session.push(events[a : a + 7])]
        with torch.no_grad():
            assert_close(logits(predictions), model(model.plan(events)), 1e-5)
    fired, rows = session.features("down")
    assert (fired.sensor, rows.shape) == ((7, 6), (len(fired), 16))


def test_the_session_refuses_rows_of_no_stream_before_the_first_packet():
    model = settled(SkipsAcrossLevels)
    model.norm.register_forward_hook(lambda norm, args, out: out[1:])
    with pytest.raises(ValueError, match="'norm'"):
        Session(model, ["norm"])
    model = settled(WideStride)
    model.logits.register_forward_hook(lambda layer, args, out: torch.cat([out, out]))
    with pytest.raises(ValueError, match=r"rows.*gl\.nn\.Last"):
        Session(model)


def test_a_plan_of_points_is_refused():
    for make in (stream, Session):
        with pytest.raises(TypeError, match="event network"):
            make(gl.models.point_resnet_small(classes=2).eval())


class Explosive(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        self.events = plan.events((8, 8))
        for _ in range(4):
            self.events = plan.lif(self.events, 5, 1, decay_time=10.0, threshold=1.0, reset=0.0)
        self.column = nn.Embedding(8, 2)

    def forward(self, geometry, memory=None):
        return self.column(geometry[self.events].pixel[:, 0].long())


def test_streams_that_one_event_could_fill_are_refused():
    with pytest.raises(ValueError, match=r"390,625 events of X4.*Session"):
        stream(Explosive().eval())
