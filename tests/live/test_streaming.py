"""The trained network is the one that runs: engine = session = batch forward, however the stream is cut."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from live import CONFIGURATIONS, KINDS, assert_close, assert_session_is_batch, batch, blocks, busy, network, packed

import gridless as gl
from gridless.live import Engine, Session, loop, stream
from gridless.models import events as networks
from gridless.nn import PolarityConv, VoxelMean
from gridless.training import load_recipe


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_engine_equals_the_batch_at_every_event_of_every_level(name, head):
    model = network(name, head=head, duration=30_000)
    events = busy("plain", tuple(model.config["sensor"]), 8000)
    geometry, levels, logits = batch(model, events)
    assert len(levels[-1]) > 0
    engine = stream(model, blocks(model))
    engine(events)
    for k, features in enumerate(levels):
        fired, mine = engine.features(f"blocks.{k}")
        assert torch.equal(fired.pixel, geometry[model.streams[k]].pixel)
        assert torch.equal(fired.time, geometry[model.streams[k]].time)
        assert_close(mine, features, 1e-5)
    assert_close(engine.predict(), logits, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_adversarial_streams_in_packets_of_any_size(kind):
    model = network("n_mnist", head="stream", width=8, threshold=1.0, reset=-1.0)
    events = busy(kind, (34, 34), 700)
    geometry, levels, _ = batch(model, events)
    with torch.no_grad():
        answers = model.predictions(geometry)
    for size in (1, 7, 64, 700):
        engine = stream(model, blocks(model))
        got, fired = [], [[] for _ in levels]
        for a in range(0, len(events), size):
            got += [p.logits for p in engine.push(events[a : a + size])]
            for k in range(len(levels)):
                fired[k].append(engine.features(f"blocks.{k}")[1])
        for mine, features in zip(fired, levels, strict=True):
            assert_close(torch.cat(mine), features, 1e-5)
        assert len(got) == len(answers)
        if got:
            assert_close(torch.stack(got), answers, 1e-5)


@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_the_session_in_float64_equals_the_batch_to_twelve_digits(head):
    model = network("n_mnist", head=head, width=4, duration=30_000, threshold=1.0, reset=-1.0).double()
    events = busy("plain", (34, 34), 300)
    assert_session_is_batch(model, events, 37)


def test_channels_that_are_no_multiple_of_eight_are_exact_too():
    model = network("n_mnist", head="stream", width=5, levels=2, threshold=1.0, reset=-1.0)
    events = busy("plain", (34, 34), 600)
    _, levels, logits = batch(model, events)
    engine = stream(model, ["blocks.1"])
    engine(events)
    assert_close(engine.features("blocks.1")[1], levels[1], 1e-5)
    assert_close(engine.predict(), logits, 1e-5)


def test_windows_tumble_and_each_ends_with_the_batch_prediction_of_the_session():
    model = network("n_mnist", head="voxel", width=8, duration=4_000)
    events = busy("plain", (34, 34), 1200)
    engine, session = stream(model), Session(model)
    mine = list(engine.push(events))
    theirs = [p for a in range(0, len(events), 50) for p in session.push(events[a : a + 50])]
    assert [p.time for p in mine] == [p.time for p in theirs]
    assert len(mine) >= 4
    for a, b in zip(mine, theirs, strict=True):
        assert_close(a.logits, b.logits, 1e-5)
    # The first window saw exactly the events of its duration.
    first = int(events.time[0])
    inside = events[: int((events.time < first + 4_000).sum())]
    assert_close(mine[0].logits, batch(model, inside)[2], 1e-5)


def test_windows_without_events_are_passed_over():
    model = network("n_mnist", head="voxel", width=8, duration=4_000)
    events = busy("long silence", (34, 34), 400)
    predictions = list(stream(model).push(events))
    assert len(predictions) < 20
    times = [p.time for p in predictions]
    assert times == sorted(times)


@pytest.mark.parametrize(("levels", "pooled"), [(3, 0), (3, 2), (2, 0), (4, 1)])
def test_a_voxel_head_of_any_depth_answers_at_any_moment(levels, pooled):
    """Empty, sparse and full windows; grids with odd sides; a head with nothing to merge."""
    model = network(
        "n_mnist", head="voxel", width=8, duration=10**6, levels=levels, pooled=pooled, threshold=0.5, reset=-0.5
    )
    events = busy("plain", (34, 34), 2000)
    engine, session = stream(model), Session(model)
    assert_close(engine.predict(), session.predict(), 1e-5)
    for a, b in ((0, 20), (20, 150), (150, 2000)):
        engine(events[a:b])
        session(events[a:b])
        assert_close(engine.predict(), session.predict(), 1e-5)
    assert_close(engine.predict(), batch(model, events)[2], 1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_windows_and_features_of_the_voxel_head_are_those_of_a_session(kind):
    model = network("n_cars", sensor=(34, 27), width=5, levels=3, duration=4_000, threshold=0.6)
    events = busy(kind, (34, 27), 400)
    engine, session = stream(model, blocks(model)), Session(model, blocks(model))
    for a in range(0, 400, 90):
        mine, theirs = list(engine.push(events[a : a + 90])), list(session.push(events[a : a + 90]))
        assert [p.time for p in mine] == [p.time for p in theirs]
        for p, q in zip(mine, theirs, strict=True):
            assert_close(p.logits, q.logits, 1e-5)
        for name in blocks(model):
            assert_close(engine.features(name)[1], session.features(name)[1], 1e-5)
        assert_close(engine.predict(), session.predict(), 1e-5)


def test_shipped_counts_answer_every_100_ms_as_for_all_events_so_far():
    model = gl.load("n-cars")
    assert model.config == load_recipe("n-cars").make_model().config
    events = busy("plain", (120, 100), 2000)
    events = gl.Events(events.pixel, 12 * events.time, events.polarity, events.splits, events.sensor)
    engine = stream(model)
    predictions = list(engine.push(events))
    assert [p.time - int(events.time[0]) for p in predictions] == [100_000, 200_000]
    with torch.no_grad():
        for p in predictions:
            so_far = events[: int((events.time < p.time).sum())]
            assert_close(p.logits, model(model.plan(so_far))[0], 1e-5)
        geometry = model.plan(events)
        assert_close(engine.predict(), model(geometry)[0], 1e-5)
    assert model.cost(geometry)["total"] == pytest.approx(
        2 + model.about["cost"]["multiply-adds of a prediction"] / 2000
    )


@pytest.mark.parametrize("kind", ["outside", "back in time", "before the last", "padded"])
@pytest.mark.parametrize("make", [Engine, Session])
def test_a_bad_packet_is_refused_whole_and_leaves_the_stream_as_it_was(kind, make):
    model = network("n_mnist", head="stream", width=8)
    events = busy("plain", (34, 34), 300)
    engine = make(model)
    engine(events[:200])
    before = engine.state_dict()
    bad = events[200:]
    pixel, time = bad.pixel.clone(), bad.time.clone()
    if kind == "outside":
        pixel[31, 0] = 34
    elif kind == "back in time":
        time[31] = time[30] - 1
    elif kind == "before the last":
        time -= time[0] - events.time[199] + 1
    padding = 3 * (kind == "padded")
    splits = torch.tensor([0, len(time) - padding])
    bad = gl.Events(pixel, time, bad.polarity, splits, bad.sensor, padding=padding).trusted()
    with pytest.raises(ValueError, match=r"event 31|event 0|3 rows of padding"):
        engine(bad)
    after = engine.state_dict()
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_arrays_are_packets_whatever_their_fields_and_records_too():
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1, threshold=0.5, reset=-0.5)
    events = busy("plain", (34, 34), 300)
    expected = [p.logits for p in stream(model).push(events)]
    fields = (
        [("x", "<u2"), ("y", "<i2"), ("p", "i1"), ("t", "<u4")],
        [("t", "<i8"), ("x", "<i4"), ("y", "<u1"), ("p", "?")],
    )
    for names in fields:
        array = np.empty(300, np.dtype(names, align=True))
        array["t"], (array["x"], array["y"]), array["p"] = events.time, events.pixel.T, events.polarity
        engine = stream(model)
        got = [p.logits for k in range(0, 300, 3) for p in engine.push(array[k : k + 3])]
        assert len(got) == len(expected)
        assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
        engine.reset()
        answers = [engine(record) for record in array]
        assert torch.equal([a for a in answers if a is not None][-1], expected[-1])
        before = engine.state_dict()
        for name, value, message in (
            ("x", 34, r"row 0 .*\(34, "),
            ("t", 1, r"event 0 .* 1 us"),
        ):
            bad = array[-1:].copy()
            bad[name] = value
            with pytest.raises(ValueError, match=message):
                engine(bad)
        assert all(torch.equal(before[k], v) for k, v in engine.state_dict().items())
    array = np.zeros(2, fields[0])
    array["t"] = 10**6
    array["p"] = -1, 1
    assert engine.events_seen == 300
    engine(array)
    assert engine.events_seen == 302
    array["p"] = 3
    with pytest.raises(ValueError, match="polarity 3"):
        engine(array)


@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_a_call_gives_the_newest_of_the_predictions_that_a_packet_brings(head):
    model = network("n_mnist", head=head, width=8, levels=2, pooled=1, threshold=0.5, reset=-0.5, duration=2000)
    events = busy("plain", (34, 34), 300)
    one, other = stream(model), stream(model)
    brought = [0]
    for packet in (events[:100], events[100:103], events[103:]):
        predictions, newest = list(one.push(packet)), other(packet)
        assert torch.equal(newest, predictions[-1].logits) if predictions else newest is None
        brought.append(len(predictions))
    assert max(brought) > 2


FIELDS = {
    "signed polarity": ([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "i1")], (-1, 1)),
    "dv": ([("timestamp", "<i8"), ("x", "<i2"), ("y", "<i2"), ("polarity", "i1")], (0, 1)),
    "faery": ([("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")], (False, True)),
    "big-endian": ([("x", ">u2"), ("y", ">u2"), ("p", ">i2"), ("t", ">u4")], (0, 1)),
    "small": ([("t", "<u4"), ("x", "u1"), ("y", "i1"), ("p", "u1")], (0, 1)),
}


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("make", [Engine, Session])
def test_one_record_is_a_packet_wherever_an_array_of_it_is(fields, make):
    events = busy("plain", (34, 34), 12)
    types, (off, on) = FIELDS[fields]
    # Times that 32 bits hold without a sign.
    columns = dict(zip("xy", events.pixel.T, strict=True)) | dict.fromkeys(("t", "timestamp"), events.time + 2**31)
    columns |= dict.fromkeys(("p", "on", "polarity"), np.where(events.polarity, on, off))
    array = np.empty(12, types)
    for name in array.dtype.names:
        array[name] = columns[name]
    model = network("n_mnist", head="stream", width=4, levels=1, pooled=0, threshold=0.2, reset=-0.5)
    whole, apart = make(model), make(model)
    whole(array)
    for k, record in enumerate(array):
        apart(record if k % 2 else np.array(record))
    assert apart({"x": [], "y": [], "t": [], "p": []}) is None
    assert apart.events_seen == 12
    assert_close(apart.predict(), whole.predict(), 1e-6)
    assert float(whole.predict().abs().max()) > 0


@pytest.mark.parametrize("make", [Engine, Session])
def test_events_are_read_however_their_tensors_lie_and_whatever_byte_is_true(make):
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1, threshold=0.5, reset=-0.5)
    events = busy("plain", (34, 34), 300)
    expected = make(model)(events)
    lying = torch.stack([events.pixel[:, 0], events.pixel[:, 1]]).T
    true = (255 * events.polarity.to(torch.uint8)).view(torch.bool)
    assert torch.equal(make(model)(replace(events, pixel=lying)), expected)
    assert torch.equal(make(model)(replace(events, polarity=true)), expected)
    array = np.empty(300, [("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("p", "?")])
    array["t"], (array["x"], array["y"]) = events.time, events.pixel.T
    array.view(np.uint8).reshape(300, -1)[:, -1] = true.view(torch.uint8)
    engine = make(model)
    engine(array[:100])
    assert_close(engine(array[100:]), expected, 1e-6)


class Frames(torch.nn.Module):
    """The means of three frames, as they are."""

    def __init__(self) -> None:
        super().__init__()
        plan = self.plan = gl.Plan()
        camera = plan.events((1, 1))
        self.first = PolarityConv(plan.causal(camera, camera, 1), 2)
        self.means = VoxelMean(camera, camera, 3, 3000)

    def forward(self, geometry, memory=None):
        return self.means(self.first(geometry, memory), geometry, memory).flatten(1)


def test_an_event_at_the_edge_of_a_frame_is_in_the_one_that_begins():
    model, none = Frames().eval(), [0] * 7
    events = {"x": none, "y": none, "t": [5, 1004, 1005, 2004, 2005, 3004, 3005], "p": [0, 1, 1, 0, 1, 1, 0]}
    (mine,), (expected,) = Engine(model).push(events), Session(model).push(events)
    assert mine.time == expected.time == 3005
    assert_close(mine.logits, expected.logits, 1e-6)


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("make", [Engine, Session])
def test_negative_times_are_refused(make, head):
    engine = make(network("n_mnist", head=head, width=4, levels=1, duration=10**6))
    events = busy("plain", (34, 34), 20)
    early = gl.Events(events.pixel, events.time - 10**6, events.polarity, events.splits, events.sensor)
    with pytest.raises(ValueError, match=r"event 0 .*negative"):
        engine(early)
    assert engine.events_seen == 0
    assert repr(engine).endswith("pixels, 0 events so far)")


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("make", [Engine, Session])
def test_times_beyond_all_measure_are_refused_by_index(make, head):
    engine = make(network("n_mnist", head=head, width=4, levels=1, duration=1000))
    events = busy("plain", (34, 34), 20)
    engine(events)
    time = events.time + torch.where(torch.arange(20) < 7, 2**60 - 50_000, 2**60)
    time[7] = 2**60
    with pytest.raises(ValueError, match=f"event 7 .*{2**60} us"):
        engine(gl.Events(events.pixel, time, events.polarity, events.splits, events.sensor))
    assert engine.events_seen == 20


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_network_of_the_paper_lives_in_27_megabytes(name, head):
    assert stream(network(name, head=head, duration=10**6)).memory_bytes < 27_000_000


def test_reset_is_as_new_and_memory_is_constant():
    model = network("n_mnist", head="stream", width=8)
    events = busy("plain", (34, 34), 800)
    engine = stream(model)
    size = engine.memory_bytes
    first = [p.logits for p in engine.push(events)]
    engine.reset()
    again = [p.logits for p in engine.push(events)]
    assert engine.memory_bytes == size
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_long_stream_ends_where_a_fresh_engine_fed_its_end_does():
    """Decay times are short against the last packet, so that both have forgotten what came before it."""
    model = network("n_mnist", head="stream", width=8, decay_time=50.0, threshold=0.4, reset=-0.5)
    g = np.random.default_rng(0)
    long, fresh = stream(model), stream(model, blocks(model))
    for k in range(20):
        n = 10_000
        t = k * 100_000 + np.sort(g.integers(0, 100_000, n))
        events = packed(g.integers(0, 34, n), g.integers(0, 34, n), t, g.random(n) < 0.5, (34, 34))
        long(events)
    fresh(events)
    assert min(len(fresh.features(name)[1]) for name in blocks(model)) > 100
    assert_close(long.predict(), fresh.predict(), 1e-5)


@pytest.mark.parametrize("make", [Session, stream])
def test_what_cannot_run_live_says_so_and_what_to_do(make):
    with pytest.raises(ValueError, match=r"model.eval\(\)"):
        make(networks.n_mnist(head="stream"))
    with pytest.raises(ValueError, match="form='scan'"):
        make(network("n_mnist", head="stream", form="edges"))
    with pytest.raises(ValueError, match="duration="):
        make(network("n_mnist"))
    with pytest.raises(TypeError, match="PointResNet"):
        make(gl.models.point_resnet_small(4).eval())
    with pytest.raises(ValueError, match=r"sensor .*\(34, 34\)"):
        make(network("n_mnist", head="stream"))(busy("plain", (20, 20), 10))


@pytest.mark.slow
def test_a_module_in_training_mode_is_named():
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    model.head.dropout.train()
    with pytest.raises(ValueError, match=r"'head\.dropout'"):
        stream(model)


def test_an_array_that_cannot_be_written_to_compiles_nothing():
    model = network("n_mnist", head="stream", width=8, levels=2, pooled=1)
    array = busy("plain", (34, 34), 300).numpy()
    one, other = stream(model), stream(model)
    one(array[:100])
    known = len(loop.unpack.signatures)
    other(np.frombuffer(array[:100].tobytes(), array.dtype))
    assert len(loop.unpack.signatures) == known
    assert torch.equal(one.predict(), other.predict())


@pytest.mark.slow
@pytest.mark.parametrize("make", [stream, Session])
def test_what_torch_compile_made_runs_as_what_it_was_made_of(make):
    model = network("n_mnist", head="stream", width=4, levels=1, pooled=0, threshold=0.5)
    events = busy("plain", (34, 34), 100)
    one, other = make(model), make(torch.compile(model, backend="eager"))
    assert torch.equal(one(events), other(events))


def test_real_recordings_are_exact(shared_data):
    import sys

    sys.path.insert(0, str(shared_data))
    try:
        import read
    finally:
        sys.path.pop(0)
    data = read.events(shared_data / "nmnist_small_train.npz.xz")
    model = network("n_mnist", head="voxel", duration=400_000)
    engine = stream(model, blocks(model))
    for i in (0, 500):
        a, b = data["offsets"][i : i + 2]
        events = packed(data["x"][a:b], data["y"][a:b], data["t"][a:b], data["p"][a:b], (34, 34))
        _, levels, logits = batch(model, events)
        engine.reset()
        engine(events)
        for k, features in enumerate(levels):
            assert_close(engine.features(f"blocks.{k}")[1], features, 1e-5)
        assert_close(engine.predict(), logits, 1e-5)


@pytest.mark.parametrize(("make", "size"), [(Engine, 400), (Session, 20)])
def test_another_thread_may_ask_while_one_pushes(make, size):
    model = network("n_mnist", head="voxel", width=8, levels=2, pooled=0, threshold=1.0, duration=5_000)
    events = busy("plain", (34, 34), 20 * size)
    live, ended, asked = make(model), threading.Event(), []

    def pushed():
        live.reset()
        predictions = [p for a in range(0, len(events), size) for p in live.push(events[a : a + size])]
        return torch.stack([*(p.logits for p in predictions), live.predict()])

    def ask():
        while not ended.wait(0.0005):
            asked.append(live.predict())

    expected = pushed()
    thread = threading.Thread(target=ask)
    thread.start()
    try:
        got = [pushed() for _ in range(3)]
    finally:
        ended.set()
        thread.join()
    assert asked
    assert all(torch.equal(one, expected) for one in got)
