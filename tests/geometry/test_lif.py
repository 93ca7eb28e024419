"""Leaky integrate-and-fire: the same spikes from every backend, batch and packet."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from streams import cut, of, stream, ugly

import gridless as gl
from gridless.geometry import LIFMemory, lif, lif_step
from gridless.geometry.lif import decay_tables

SETTINGS = {"decay_time": 100.0, "threshold": 0.8, "reset": -0.5}


def same(a: gl.Events, b: gl.Events) -> bool:
    a, b = a.cpu(), b.cpu()
    fields = all(torch.equal(getattr(a, f), getattr(b, f)) for f in ("pixel", "time", "splits", "cause"))
    return fields and a.sensor == b.sensor and a.num_parent == b.num_parent


def reference(events: gl.Events, **settings) -> gl.Events:
    with gl.use_backend("reference"):
        return lif(events.cpu(), **SETTINGS | settings)


def test_an_event_adds_one_in_all_shared_by_the_pixels_it_reaches(device):
    # 8 x 8 pixels: even coordinates reach one output pixel, odd ones two, odd ones at the far border one.
    for pixel, reached in (((2, 2), 1), ((1, 2), 2), ((3, 3), 4), ((7, 7), 1), ((7, 3), 2), ((0, 0), 1)):
        _, memory = lif_step(of([pixel], [0]).to(device), None, **SETTINGS | {"threshold": 9.0})
        assert int((memory.potential > 0).sum()) == reached
        assert memory.potential.max() == 1 / reached
        assert float(memory.potential.sum()) == 1


def test_fires_above_the_threshold_and_not_at_it(device):
    events = of([(2, 2)] * 3, [0, 0, 0]).to(device)
    assert lif(events, decay_time=10.0, threshold=2.0, reset=0.0).cause.tolist() == [2]
    assert lif(events, decay_time=10.0, threshold=1.5, reset=0.0).cause.tolist() == [1]
    assert lif(events, decay_time=10.0, threshold=0.5, reset=-0.75).cause.tolist() == [0, 2]


def test_potentials_leak_with_the_decay_time(device):
    events = of([(2, 2), (2, 2)], [0, 700]).to(device)
    _, memory = lif_step(events, None, decay_time=1000.0, threshold=5.0, reset=0.0)
    assert float(memory.potential[0, 1, 1]) == pytest.approx(1 + np.exp(-0.7), rel=3e-7)
    assert int(memory.time[0, 1, 1]) == 700


def test_fired_events_are_ordered_by_cause_then_row_by_row(device):
    fired = lif(of([(3, 3), (5, 1)], [4, 4]).to(device), decay_time=10.0, threshold=0.1, reset=0.0)
    assert fired.pixel.tolist() == [[1, 1], [2, 1], [1, 2], [2, 2], [2, 0], [3, 0], [2, 1], [3, 1]]
    assert fired.cause.tolist() == [0] * 4 + [1] * 4
    assert fired.time.tolist() == [4] * 8
    assert fired.polarity is None
    assert fired.sensor == (4, 4)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (3, 1), (1, 1), (5, 2), (5, 3), (1, 2)])
def test_every_backend_fires_the_same_events(device, kernel, stride):
    events = stream()
    expected = reference(events, kernel=kernel, stride=stride)
    assert len(expected)
    assert same(lif(events.to(device), kernel, stride, **SETTINGS), expected)


@pytest.mark.parametrize("name", ugly())
def test_awkward_streams_fire_the_same_events(device, name):
    events = ugly()[name]
    assert same(lif(events.to(device), **SETTINGS), reference(events))


@pytest.mark.parametrize("sizes", [(1,), (7, 50), (33,), (1000,)])
def test_how_a_stream_is_cut_does_not_matter(device, sizes):
    if sizes == (1,) and device.type == "cpu" and gl.backends.interpreting():
        pytest.skip("too slow under the interpreter")
    for events in (stream((150,), span=900), ugly()["silence"]):
        whole, end = lif_step(events.to(device), None, **SETTINGS)
        memory, at, parts = None, 0, []
        for packet in cut(events, sizes):
            fired, memory = lif_step(packet.to(device), memory, **SETTINGS)
            parts.append((fired.pixel, fired.cause + at))
            at += len(packet)
        assert torch.equal(torch.cat([p for p, _ in parts]), whole.pixel)
        assert torch.equal(torch.cat([c for _, c in parts]), whole.cause)
        assert torch.equal(memory.potential, end.potential)
        assert torch.equal(memory.time, end.time)


def test_a_batch_fires_what_its_recordings_fire_alone(device):
    events = stream((40, 0, 90, 3))
    alone = [lif(events.examples[i].to(device), **SETTINGS).cpu() for i in range(4)]
    assert same(lif(events.to(device), **SETTINGS), gl.collate(alone))


def test_padding_fires_nothing(device):
    events = stream((40, 25))
    padded = gl.collate([events.examples[0], events.examples[1]], bucket="power_of_two")
    assert padded.padding
    fired = lif(padded.to(device), **SETTINGS)
    assert torch.equal(fired.cause.cpu(), reference(events).cause)
    assert fired.num_parent == len(padded)


def test_the_memory_given_is_left_as_it_was(device):
    memory = LIFMemory.start((7, 6), 2, 3, str(device))
    lif_step(stream().to(device), memory, **SETTINGS)
    assert not memory.potential.any()


@pytest.mark.parametrize("decay_time", [0.01, 1.0, 777.5, 64000.0, 3e7])
def test_the_table_is_the_exponential(decay_time):
    coarse, fine, bits = decay_tables(decay_time)
    age = np.unique(np.geomspace(1, 60 * decay_time + 2, 5000).astype(np.int64))
    decay = coarse[np.minimum(age >> bits, len(coarse) - 1)] * fine[age & (2**bits - 1)]
    exact = np.exp(-age / decay_time)
    near = age < 31 * decay_time
    assert decay.dtype == np.float32
    np.testing.assert_allclose(decay[near], exact[near], rtol=2e-7)
    np.testing.assert_allclose(decay[~near], 0, atol=1e-13)


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"kernel": 2}, "odd"), ({"stride": 0}, "stride"), ({"decay_time": 0}, "decay_time"), ({"reset": 3}, "reset")],
)
def test_impossible_settings_are_refused(settings, word):
    with pytest.raises(ValueError, match=word):
        lif(stream(), **SETTINGS | settings)


def test_a_memory_of_another_stream_is_refused():
    with pytest.raises(ValueError, match=r"lif: .*potential"):
        lif_step(stream((5,)), LIFMemory.start((9, 9)), **SETTINGS)


def test_events_out_of_order_are_refused_by_row():
    with pytest.raises(ValueError, match="row 1 of recording 0"):
        lif(of([(0, 0), (1, 1)], [5, 4]), **SETTINGS)


def test_real_recordings_fire_the_same_events(backend, device, shared_data):
    import io
    import lzma

    path = shared_data / "nmnist_small_train.npz.xz"
    if not path.is_file():
        pytest.skip(f"there is no {path.name}")
    with lzma.open(path) as file:
        pack = np.load(io.BytesIO(file.read()))
    steps = pack["dt"].astype(np.int64)[: int(pack["offsets"][1])]
    steps[steps == 255] = pack["dt_big"][: int((steps == 255).sum())]
    rows = slice(0, 400 if backend == "gpu" and device.type == "cpu" else 1500)
    pixels = np.stack([pack["x"][: len(steps)], pack["y"][: len(steps)]], 1)
    events = of(pixels[rows].astype(np.int32), np.cumsum(steps)[rows], (34, 34))
    settings = {"decay_time": 2000.0, "threshold": 1.5, "reset": -3.0}
    assert same(lif(events.to(device), **settings), reference(events, **settings))


def test_a_memory_may_lie_in_another_order(device):
    events = stream((150,), span=900).to(device)
    _, memory = lif_step(events, None, **SETTINGS)
    turned = LIFMemory(*(x.transpose(1, 2).contiguous().transpose(1, 2) for x in memory))
    (fired, after), (wanted, wanted_after) = (lif_step(events, m, **SETTINGS) for m in (turned, memory))
    assert same(fired, wanted)
    assert torch.equal(after.potential, wanted_after.potential)


def test_a_default_dtype_of_64_bits_fires_the_same_events(device):
    events, before = stream().to(device), torch.get_default_dtype()
    expected = lif(events, **SETTINGS)
    torch.set_default_dtype(torch.float64)
    try:
        assert same(lif(events, **SETTINGS), expected)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_potentials_that_are_not_finite_fire_as_in_the_reference(device, bad):
    events = stream((40,), (6, 6))
    memory = LIFMemory.start((6, 6))
    memory.potential[0, 1, 1] = bad
    with gl.use_backend("reference"):
        expected, after = lif_step(events, memory, threshold=0.8, reset=-0.5)
    fired, left = lif_step(events.to(device), LIFMemory(*(x.to(device) for x in memory)), threshold=0.8, reset=-0.5)
    assert torch.equal(fired.cause.cpu(), expected.cause)
    torch.testing.assert_close(left.potential.cpu(), after.potential, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("setting", ["decay_time", "threshold", "reset"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_settings_that_are_not_finite_are_refused_by_name(setting, bad):
    with pytest.raises(ValueError, match=f"{setting}.*{bad}"):
        lif(stream((4,), (3, 3)), **{setting: bad})
