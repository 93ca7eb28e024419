"""Earlier events in a pixel window: by arrival, with ties and borders, the same from every backend."""

from __future__ import annotations

import pytest
import torch
from streams import of, stream, ugly

import gridless as gl
from gridless.geometry import causal, lif
from gridless.geometry.causal import by_pixel
from gridless.geometry.taps import offsets

KERNELS = [(3, 2), ("cross5", 1), (1, 1), (3, 1), (5, 2)]
SETTINGS = {"decay_time": 100.0, "threshold": 0.8, "reset": -0.5}


def pair(events, kernel, stride):
    """A source and a target that a kernel can join, on the CPU."""
    if stride == 1:
        return events, events
    with gl.use_backend("cpu"):
        return events, lif(events, 3 if kernel == 5 else kernel, stride, **SETTINGS)


def brute(source, target, kernel, stride, window):
    """Row (target, tap) to its sources, straight from the definition."""
    tables = []
    pixels, times, examples = source.pixel.tolist(), source.time.tolist(), source.example.tolist()
    for i, ((x, y), t, b) in enumerate(zip(target.pixel.tolist(), target.time.tolist(), target.example.tolist())):
        until = i if target is source else int(target.cause[i])
        for dx, dy in offsets(kernel):
            wanted = [x * stride + dx, y * stride + dy]
            rows = [j for j in range(until + 1) if pixels[j] == wanted and examples[j] == b and t - times[j] <= window]
            tables.append(rows)
    return tables


def test_kernels_are_counted_row_by_row():
    assert offsets(3) == ((-1, -1), (0, -1), (1, -1), (-1, 0), (0, 0), (1, 0), (-1, 1), (0, 1), (1, 1))
    assert offsets("cross5") == ((0, -2), (0, -1), (-2, 0), (-1, 0), (0, 0), (1, 0), (2, 0), (0, 1), (0, 2))
    assert offsets(1) == ((0, 0),)


@pytest.mark.parametrize("window", [0, 40, None])
@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
def test_edges_are_those_of_the_definition(device, kernel, stride, window):
    source, target = pair(stream((40, 0, 60)), kernel, stride)
    expected = brute(source, target, kernel, stride, 2**62 if window is None else window)
    moved = source.to(device)
    edges = causal(moved, moved if target is source else target.to(device), kernel, stride, window).cpu()
    assert edges.num_target == len(target) * len(offsets(kernel))
    assert edges.num_source == len(source)
    assert [edges.source[a:b].tolist() for a, b in zip(edges.splits, edges.splits[1:])] == expected


@pytest.mark.parametrize("name", ugly())
def test_awkward_streams(device, name):
    events = ugly()[name]
    moved = events.to(device)
    fired = lif(moved, **SETTINGS)
    with gl.use_backend("reference"):
        local = lif(events, **SETTINGS)
        expected = causal(events, local, 3, 2, 50), causal(local, local, "cross5", 1)
    edges = causal(moved, fired, 3, 2, 50), causal(fired, fired, "cross5", 1)
    for a, b in zip(edges, expected):
        assert torch.equal(a.splits.cpu(), b.splits)
        assert torch.equal(a.source.cpu(), b.source)


def test_arrival_decides_between_equal_times(device):
    events = of([(1, 1), (1, 1), (1, 1)], [5, 5, 5]).to(device)
    assert causal(events, events, 1, 1).source.tolist() == [0, 0, 1, 0, 1, 2]


def test_collated_examples_are_one_batch(device):
    events = stream((30, 0, 50)).to(device)
    parts = [events.examples[i] for i in range(3)]
    fired = [lif(p, **SETTINGS) for p in parts]
    edges = gl.collate([causal(p, f, 3, 2, 60).cpu() for p, f in zip(parts, fired)])
    whole = lif(events, **SETTINGS)
    batch = causal(events, whole, 3, 2, 60)
    assert torch.equal(edges.splits, batch.splits.cpu())
    assert torch.equal(edges.source, batch.source.cpu())


def test_runs_hold_every_event_of_a_pixel_in_order(device):
    events = stream((30, 0, 50))
    order, splits = by_pixel(events.to(device))
    width, height = events.sensor
    cell = (events.example * height + events.pixel[:, 1]) * width + events.pixel[:, 0]
    for c, (a, b) in enumerate(zip(splits.tolist(), splits.tolist()[1:])):
        assert order[a:b].tolist() == (cell == c).nonzero().flatten().tolist()


def test_padding_sees_nothing(device):
    events = stream((20, 13))
    padded = gl.collate([events.examples[0], events.examples[1]], bucket="power_of_two").to(device)
    assert padded.padding
    edges = causal(padded, padded, "cross5", 1, 50)
    with gl.use_backend("reference"):
        expected = causal(events, events, "cross5", 1, 50)
    assert torch.equal(edges.source.cpu(), expected.source)


def test_what_does_not_fit_together_is_refused():
    events = stream((20,))
    fired = lif(events, **SETTINGS)
    with pytest.raises(ValueError, match=r"stride .* 7 x 6"):
        causal(events, fired, 3, 1)
    with pytest.raises(ValueError, match=r"20 events.* 10"):
        causal(events[:10], fired, 3, 2)
    with pytest.raises(ValueError, match=r"causal: .*causes"):
        causal(events, events[:10], 3, 1)
    with pytest.raises(ValueError, match=r"window .*-1"):
        causal(events, events, 3, 1, -1)
    with pytest.raises(ValueError, match=r"kernel .*cross4"):
        causal(events, events, "cross4", 1)
