"""The event networks: their sizes, their two heads, and the same numbers batch by batch and packet by packet."""

from __future__ import annotations

import inspect
import math
import pickle
import pydoc
import re

import pytest
import torch
from streams import cut, of, stream

import gridless as gl
from gridless.models import EventResNet, asl_dvs, build, cifar10_dvs, mnist_dvs, n_caltech101, n_cars, n_mnist
from gridless.models.events import Keywords

SMALL = {"width": 4, "levels": 2, "pooled": 0, "decay_time": 100.0, "threshold": 0.6, "reset": -0.3}


def small(**options) -> EventResNet:
    torch.manual_seed(0)
    return EventResNet(3, (9, 7), **SMALL | options)


def recordings() -> list[gl.Events]:
    return [stream((n,), (9, 7), span=2000, seed=n) for n in (150, 80, 200)]


@pytest.mark.parametrize(
    ("size", "parameters", "digest"),
    [
        (n_mnist, 1_849_490, "da928187290244b1"),
        (mnist_dvs, 1_890_466, "c239dc7b4def64d4"),
        (cifar10_dvs, 1_890_466, "38b2fad9230ea238"),
        (n_caltech101, 7_432_414, "aa19125cc8f21a18"),
        (asl_dvs, 7_412_368, "900b10361204fcd4"),
    ],
)
def test_sizes_are_those_of_the_paper(size, parameters, digest):
    model = size()
    assert sum(p.numel() for p in model.parameters()) == parameters
    assert model.plan.digest == digest, "weights of other thresholds have the same shapes"


def test_decay_times_stay_those_that_weights_were_trained_with():
    model = small(head="stream")
    times = {name: layer.decay_time for name, layer in model.named_modules() if hasattr(layer, "decay_time")}
    assert times == {
        "downs.0.conv": 100.0,
        "downs.1.conv": 200.0,
        "blocks.0.cross": 200.0,
        "blocks.0.point": 800.0,
        "blocks.1.cross": 400.0,
        "blocks.1.point": 1600.0,
        "head.means.0.mean": 1600.0,
        "head.means.1.mean": 1600.0,
    }


def test_sizes_take_every_option_of_the_network():
    arguments = inspect.signature(EventResNet).parameters
    assert ["classes", "sensor", *Keywords.__annotations__] == list(arguments)
    assert n_mnist(levels=2, pooled=1, rates="ones").config["rates"] == "ones"


@pytest.mark.parametrize(
    "size", [gl.models.event_resnet, n_mnist, mnist_dvs, cifar10_dvs, n_caltech101, asl_dvs, n_cars]
)
def test_help_names_every_option(size):
    text = pydoc.render_doc(size)
    assert [name for name in Keywords.__annotations__ if not re.search(rf"\b{name}\b", text)] == []


def test_a_network_called_with_events_says_what_it_expects():
    model = small()
    events = of([(0, 0)] * 3, [1, 2, 3], (9, 7))
    for x in (events, events.pixel):
        with pytest.raises(TypeError, match=r"Geometry.*model\(model\.plan\(x\)\)"):
            model(x)


def test_streams_and_voxels_shrink_as_in_the_paper():
    model = n_caltech101()
    assert [s.sensor for s in model.streams] == [(59, 44), (30, 22), (15, 11), (8, 6), (4, 3)]
    head = model.head
    assert [m.frames for m in (head.mean, *(merge.mean for merge in head.merges))] == [4, 2, 1]
    assert [b.cross.decay_time for b in model.blocks] == [2000, 4000, 8000, 16000, 32000]
    assert [b.point.decay_time for b in model.blocks] == [8000, 16000, 32000, 64000, 128000]
    assert [d.conv.decay_time for d in model.downs] == [1000, 2000, 4000, 8000, 16000]


def test_edges_are_cut_after_four_decay_times():
    lines = str(n_mnist(form="edges").plan).splitlines()
    assert len(lines) == 1 + 3 * 4
    assert lines[2] == "N01 = causal(X0, X1, kernel=3, stride=2, window=8000.0)"
    assert lines[4] == "N11b = causal(X1, X1, kernel=1, stride=1, window=64000.0)"
    assert len(n_mnist().plan.steps) == 4


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("form", ["scan", "edges"])
def test_a_network_trains(head, form):
    model = small(head=head, form=form, dropout=0.0)
    geometry = gl.collate([model.plan(r) for r in recordings()])
    label = torch.tensor([0, 1, 2])
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for _ in range(12):
        loss, logits = model.loss(geometry, label)
        optimiser.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        optimiser.step()
        losses.append(float(loss.detach()))
    assert logits.shape == (3, 3)
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("fires", ["some", "none"])
def test_recordings_that_fire_nothing_still_train(head, fires):
    model = small(head=head)
    quiet = [of([(3, 3)], [3], (9, 7)), stream((0,), (9, 7))]
    examples = [*recordings()[:1], *quiet] if fires == "some" else quiet
    geometry = gl.collate([model.plan(e) for e in examples])
    assert (len(geometry["X2"]) > 0) == (fires == "some")
    loss, logits = model.loss(geometry, torch.arange(len(examples)))
    loss.backward()
    assert logits.isfinite().all()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert all(b.isfinite().all() for b in model.buffers())
    assert model.eval()(geometry).isfinite().all()


@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_without_a_window_scan_and_edges_agree(head, monkeypatch):
    monkeypatch.setattr(gl.models.events, "WINDOW", 10**9)
    edges = small(head=head, form="edges").double().eval()
    scan = small(head=head).double().eval()
    scan.load_state_dict(edges.state_dict())
    batch = gl.collate(recordings())
    torch.testing.assert_close(scan(scan.plan(batch)), edges(edges.plan(batch)), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("head", ["voxel", "stream"])
def test_a_batch_is_its_recordings(head):
    model = small(head=head).double().eval()
    alone = torch.cat([model(model.plan(r)) for r in recordings()])
    collated = model(gl.collate([model.plan(r) for r in recordings()]))
    batch = model(model.plan(gl.collate(recordings())))
    torch.testing.assert_close(collated, alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(batch, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("form", ["scan", "edges"])
def test_padding_changes_nothing(head, form):
    model = small(head=head, form=form, dropout=0.0).double()
    examples = [model.plan(r) for r in recordings()]
    label = torch.tensor([0, 1, 2])
    results = []
    for bucket in (None, "power_of_two"):
        geometry = gl.collate(examples, bucket)
        assert bool(geometry["X1"].padding) == (bucket is not None)
        loss, logits = model.loss(geometry, label)
        results.append([logits, *torch.autograd.grad(loss, list(model.parameters()))])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("head", ["voxel", "stream"])
@pytest.mark.parametrize("sizes", [(1,), (7, 50), (500,)])
@pytest.mark.parametrize("more", [{}, {"pooled": 1}])
def test_packets_give_what_the_whole_recording_gives(head, sizes, more):
    model = small(head=head, duration=2500, **more).double().eval()
    events = stream((120,), (9, 7), span=2000, start=2**45)
    with torch.no_grad():
        whole = model(model.plan(events))
        memory, state = {}, None
        for packet in cut(events, sizes):
            geometry, state = model.plan.step(packet, state)
            logits = model(geometry, memory)
    torch.testing.assert_close(logits, whole, rtol=1e-12, atol=1e-12)


def test_a_prediction_after_every_event_is_that_of_the_recording_so_far():
    model = small(head="stream").double().eval()
    events = recordings()[0]
    geometry = model.plan(events)
    with torch.no_grad():
        every = model.predictions(geometry)
        assert len(every) == len(geometry["X2"])
        for row in (0, len(every) // 2):
            cause = int(geometry["X1"].cause[geometry["X2"].cause[row]])
            so_far = model.predictions(model.plan(events[: cause + 1]))
            torch.testing.assert_close(so_far[row], every[row], rtol=1e-12, atol=1e-12)


def test_a_stream_head_reads_the_mean_of_each_stream_up_to_what_fired_the_event():
    model = small(head="stream").double().eval()
    torch.nn.init.normal_(model.head.means[0].place)
    geometry = model.plan(recordings()[0])
    with torch.no_grad():
        every, levels = model.predictions(geometry), model.trunk(geometry)
        for row in (0, len(every) - 1):
            last, means = row, []
            for mean, features in reversed(list(zip(model.head.means, levels))):
                events = geometry[mean.stream]
                x, y = events.pixel[: last + 1].long().unbind(1)
                hidden = (mean.hidden(features[: last + 1]) + mean.place[y * events.sensor[0] + x]).relu()
                age = (events.time[last] - events.time[: last + 1]).double() / mean.mean.decay_time
                weight = torch.exp(-mean.mean.log_rate.exp()[0] * age)
                means.insert(0, (weight[:, None] * hidden).sum(0) / weight.sum())
                last = int(events.cause[last])
            rows = torch.cat(means).expand(len(every), -1)
            expected = model.head.logits(model.head.norm(rows, geometry))[0]
            torch.testing.assert_close(every[row], expected, rtol=1e-10, atol=1e-10)


def test_the_next_window_begins_where_the_last_one_ends():
    model = small(duration=1000).double().eval()
    events = stream((300,), (9, 7), span=2000)
    first = int((events.time < int(events.time[0]) + 1000).sum())
    with torch.no_grad():
        memory, state = {}, None
        geometry, state = model.plan.step(events[:first], state)
        torch.testing.assert_close(model(geometry, memory), model(model.plan(events)), rtol=1e-12, atol=1e-12)
        model.head.restart(memory)
        geometry, state = model.plan.step(events[first:], state)
        model(geometry, memory)
    voxels = memory[model.head.mean]
    assert int(voxels.start) == int(events.time[0]) + 1000
    inside = geometry["X1"].time < int(voxels.start) + 1000
    assert int(voxels.count.sum()) == int(inside.sum())


def test_a_voxel_head_that_waits_for_the_end_cannot_run_live():
    model = small().eval()
    geometry, _ = model.plan.step(recordings()[0])
    with pytest.raises(ValueError, match="duration"), torch.no_grad():
        model(geometry, {})


def test_frames_share_the_recording_equally():
    stream = gl.Plan().events((9, 7))
    events = of([(0, 0)] * 5, [100, 149, 150, 199, 399], (9, 7))
    mean = gl.nn.events.VoxelMean(stream, stream, 4)
    grid = mean(torch.arange(5.0)[:, None] + 1, gl.Geometry({"X0": events}))
    # The recording lasts 300 microseconds, to the end of the last one: frames of 75.
    assert grid.shape == (1, 4, 7, 9, 1)
    assert grid[0, :, 0, 0, 0].tolist() == [2.0, 4.0, 0.0, 5.0]


def test_rates_begin_spread_over_time_scales_or_at_one():
    spread, ones = small().blocks[0].point.rate, small(rates="ones").blocks[0].point.rate
    assert spread.shape == (1, 16)
    assert float(spread.min()) == pytest.approx(0.25)
    assert float(spread.max()) == pytest.approx(4.0)
    assert (ones == 1).all()


def test_shared_rates_are_those_of_every_tap_and_learn_together():
    model = small(rates="shared")
    conv, events = model.blocks[0].cross, recordings()[0]
    assert conv.log_rate.shape == (1, 4)
    assert conv.rate.shape == (9, 4)
    model(model.plan(events)).square().sum().backward()
    tied = conv.log_rate.grad.clone()
    other = small()
    other.load_state_dict({name: v.expand_as(other.state_dict()[name]) for name, v in model.state_dict().items()})
    other(other.plan(events)).square().sum().backward()
    torch.testing.assert_close(tied, other.blocks[0].cross.log_rate.grad.sum(0, keepdim=True))


def test_polarity_matters_and_none_is_refused():
    model = small().double().eval()
    events = recordings()[0]
    flipped = gl.Events(events.pixel, events.time, ~events.polarity, events.splits, events.sensor)
    assert not torch.allclose(model(model.plan(events)), model(model.plan(flipped)))
    silent = gl.Events(events.pixel, events.time, None, events.splits, events.sensor)
    with pytest.raises(ValueError, match="polarity"):
        model(model.plan(silent))


def test_a_network_is_rebuilt_from_its_config_and_pickles():
    model = small(head="stream", duration=5)
    again = build(model.config)
    again.load_state_dict(model.state_dict())
    assert again.plan == model.plan
    copy = pickle.loads(pickle.dumps(model))
    geometry = model.plan(recordings()[0])
    for other in (again, copy):
        torch.testing.assert_close(other.eval()(geometry), model.eval()(geometry))


def test_the_stream_network_for_cars_is_cheap():
    model = n_cars(head="stream")
    assert model.config["sensor"] == [120, 100]
    events = stream((4000,), (120, 100), span=100_000)
    parts = model.cost(model.plan(events))
    assert parts["total"] == pytest.approx(sum(v for k, v in parts.items() if k != "total"))
    assert parts["downs.0.conv"] > 0


def test_a_wrong_sensor_is_refused():
    with pytest.raises(ValueError, match=r"sensor.*\(8, 8\)"):
        small().plan(stream((5,), (8, 8)))


def test_decaying_counts_are_those_of_every_event_by_its_age():
    plan = gl.Plan()
    clock = plan.events((9, 7))
    layer = gl.nn.LeakyCount(clock, 2, (50.0, 4000.0)).double()
    events = gl.collate([*recordings(), recordings()[0][:0]])
    wanted = torch.zeros(events.num_examples, 1, 4, 5, 4, dtype=torch.float64)
    for b, one in enumerate(events.examples):
        for (x, y), time, on in zip(one.pixel.tolist(), one.time.tolist(), one.polarity.tolist(), strict=True):
            for k, decay_time in enumerate((50.0, 4000.0)):
                wanted[b, 0, y // 2, x // 2, 2 * on + k] += math.exp((time - int(one.time[-1])) / decay_time)
    torch.testing.assert_close(layer(plan(events)), wanted.log1p(), rtol=1e-11, atol=1e-11)
    padded = gl.collate([plan(one) for one in events.examples], bucket="power_of_two")
    torch.testing.assert_close(layer(padded), wanted.log1p(), rtol=1e-11, atol=1e-11)
    for size, decay_times in ((2, ()), (2.5, (50.0,))):
        with pytest.raises(ValueError, match=f"LeakyCount.*size.*{size}.*decay_times"):
            gl.nn.LeakyCount(clock, size, decay_times)


def test_decaying_counts_at_events_are_those_of_recordings_that_end_there():
    plan = gl.Plan()
    layer = gl.nn.LeakyCount(plan.events((9, 7)), 2, (50.0, 4000.0)).double()
    events = gl.collate(recordings())
    sizes = events.sizes.tolist()
    place = [sorted({0, size // 3, size // 2, size - 2}) for size in sizes]
    # A number may be repeated.
    place = torch.tensor([row + row[-1:] * (5 - len(row)) for row in place])
    counts = layer(plan(events), at=events.splits[:-1, None] + place)
    for b, one in enumerate(events.examples):
        for p, end in enumerate(place[b].tolist()):
            torch.testing.assert_close(counts[b, p], layer(plan(one[: end + 1]))[0, 0], rtol=1e-10, atol=1e-10)
    with pytest.raises(ValueError, match="LeakyCount: at"):
        layer(plan(events), {}, events.splits[:-1, None])


def test_decaying_counts_have_the_dtype_of_the_network_and_no_weights():
    plan = gl.Plan()
    network = torch.nn.Sequential(gl.nn.LeakyCount(plan.events((9, 7)), 2, (50.0,)), gl.nn.Dense(2, 3))
    assert list(network.state_dict()) == ["1.weight", "1.bias"]
    geometry = plan(recordings()[0])
    for kind in (torch.float32, torch.float64, torch.bfloat16):
        assert network.to(kind)(geometry).dtype == kind


def magnified(grid):
    """Result of `LeakyCount` with `fit` for counts (H, W, C), number by number."""
    high, wide = grid.shape[:2]
    cells = [(x, y) for y in range(high) for x in range(wide)]
    held = [(x, y) for x, y in cells if float(grid[y, x].max()) >= 0.05] or cells
    low, far = [min(side) for side in zip(*held, strict=True)], [max(side) for side in zip(*held, strict=True)]
    share = max((far[0] - low[0] + 1) / wide, (far[1] - low[1] + 1) / high)
    out = torch.zeros_like(grid)
    for x, y in cells:
        u = (low[0] + far[0]) / 2 + share * (x - (wide - 1) / 2)
        v = (low[1] + far[1]) / 2 + share * (y - (high - 1) / 2)
        for s, t in cells:
            out[y, x] += grid[t, s] * max(0, 1 - abs(u - s)) * max(0, 1 - abs(v - t))
    return out


def counted(events: gl.Events, fit: bool) -> torch.Tensor:
    plan = gl.Plan()
    layer = gl.nn.LeakyCount(plan.events(events.sensor), 1, (50.0, 4000.0), fit=fit).double()
    return layer(plan(events))[:, 0]


def test_counts_are_magnified_to_the_whole_grid_with_the_ratio_of_their_sides():
    one = recordings()[0]
    apart = [one, one[:0], one[:1], one[:2]]
    for events in (gl.collate(apart), *apart):
        wanted = torch.stack([magnified(grid.expm1()) for grid in counted(events, False)])
        torch.testing.assert_close(counted(events, True), wanted.log1p(), rtol=1e-11, atol=1e-11)
    # Wherever it was recorded: what is the same but for its place and an event long gone comes out the same.
    pixel = torch.tensor([[4, 2], [5, 2], [5, 3], [6, 4]], dtype=torch.int32)
    time, on = torch.tensor([90_000, 90_010, 90_020, 90_050]), torch.tensor([True, False, True, True])
    near = gl.Events(pixel, time, on, torch.tensor([0, 4]), (9, 7))
    far = gl.Events(pixel + 2, time, on, torch.tensor([0, 4]), (9, 7))
    gone = gl.Events(torch.cat([torch.zeros_like(pixel[:1]), pixel]), torch.cat([torch.tensor([0]), time]),
                     torch.cat([on[:1], on]), torch.tensor([0, 5]), (9, 7))  # fmt: skip
    torch.testing.assert_close(counted(far, True), counted(near, True), rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(counted(gone, True), counted(near, True), rtol=1e-6, atol=1e-9)
    assert not torch.allclose(counted(near, True), counted(near, False))


def test_no_recordings_are_no_grids():
    assert counted(recordings()[0][:0], True).shape == (1, 7, 9, 4)
    from gridless.nn.events import magnified as of_many

    assert of_many(torch.zeros(0, 7, 9, 4, dtype=torch.float64)).shape == (0, 7, 9, 4)


@pytest.mark.parametrize("fit", [False, True])
def test_a_network_of_decaying_counts_learns_from_them_and_is_rebuilt(fit):
    torch.manual_seed(0)
    model = gl.models.EventCounts(3, (9, 7), width=4, levels=2, size=2, decay_times=(50, 4000), fit=fit)
    events = gl.collate([*recordings(), recordings()[0][:0]])
    logits = model(model.plan(events))
    assert logits.shape == (events.num_examples, 3)
    torch.nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64)).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    again = gl.models.build(model.config)
    again.load_state_dict(model.state_dict())
    geometry = model.eval().plan(events)
    assert torch.equal(model(geometry), again.eval()(geometry))


def test_a_convolution_of_voxels_sees_the_pixels_around():
    torch.manual_seed(0)
    conv = gl.nn.VoxelConv(3, 3).double()
    grid = torch.zeros(1, 2, 5, 6, 3, dtype=torch.float64)
    grid[0, 1, 2, 3] = 1
    seen = (conv(grid) != 0).any(4)[0].nonzero()
    assert seen.amin(0).tolist() == [1, 1, 2]
    assert seen.amax(0).tolist() == [1, 3, 4]


@pytest.mark.parametrize("form", ["scan", "edges"])
def test_a_network_on_the_cpu_does_not_mind_another_default_device(form):
    model, events = small(form=form), recordings()
    with torch.device("meta"):
        model(model.plan(gl.collate(events, "power_of_two"))).sum().backward()
        assert gl.data.MovingGlyphs(1)[0][0].device.type == "cpu"
