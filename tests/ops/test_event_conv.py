"""The event convolution: one function in two forms, on every backend, cut into packets or not."""

from __future__ import annotations

import pytest
import torch
from streams import cut, of, stream, ugly
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

import gridless as gl
from gridless.geometry import causal, lif
from gridless.geometry.causal import Link, link
from gridless.geometry.taps import offsets
from gridless.ops.event_conv import autograd, event_conv, event_conv_step, event_gather, reference
from gridless.ops.event_conv.neighbourhoods import Neighbourhoods

KERNELS = [(3, 2), ("cross5", 1), (1, 1), (3, 1)]
SETTINGS = {"decay_time": 100.0, "threshold": 0.8, "reset": -0.5}
DECAY = 50.0
Q, V, P = 3, 4, 5


def crowd() -> gl.Events:
    """Enough events for ties on every pixel; fewer under the interpreter."""
    return stream((4, 0, 8), (3, 3), span=90) if gl.backends.interpreting() else stream()


def pair(events, stride):
    """A source and a target that a kernel can join, on the CPU."""
    with gl.use_backend("cpu"):
        return (events, events) if stride == 1 else (events, lif(events, 3, stride, **SETTINGS))


def parameters(source, kernel, dtype=torch.float64, device="cpu", seed=1, temporal=V):
    """features, weight, rate, bias."""
    random = torch.Generator().manual_seed(seed)
    taps = len(offsets(kernel))
    shapes = (len(source), Q), (taps, temporal, Q, P), (taps, temporal), (P,)
    values = [
        torch.rand(s, generator=random, dtype=torch.float64) - (0.5 if k != 2 else -0.05) for k, s in enumerate(shapes)
    ]
    return [v.to(device, dtype).requires_grad_() for v in values]


def run(source, target, kernel, stride, values, edges=None):
    """The result and the gradients of all four parameters, for a fixed gradient of the result."""
    values = [v.detach().requires_grad_() for v in values]
    out = event_conv(*values, source, target, kernel, stride, DECAY, edges)
    seed = torch.Generator().manual_seed(3)
    grad = torch.randn(out.shape, generator=seed, dtype=torch.float64).to(out)
    return [out.detach(), *torch.autograd.grad(out, values, grad)]


def straight(source, target, kernel, stride, values):
    """The formula, edge by edge, in Python."""
    features, weight, rate, bias = (v.detach() for v in values)
    out = bias.repeat(len(target), 1)
    for i in range(len(target)):
        until = i if target is source else int(target.cause[i])
        for u, offset in enumerate(offsets(kernel)):
            wanted = target.pixel[i] * stride + torch.tensor(offset)
            for j in range(until + 1):
                if torch.equal(source.pixel[j], wanted.int()) and source.example[j] == target.example[i]:
                    age = float(target.time[i] - source.time[j]) / DECAY
                    for v in range(rate.shape[1]):
                        out[i] += torch.exp(-rate[u, v] * age) * features[j] @ weight[u, v]
    return out


@pytest.mark.parametrize("form", ["scan", "edges"])
def test_is_the_formula(device, form):
    source, target = pair(stream((7, 0, 12), (5, 3)), 2)
    values = parameters(source, 3)
    expected = straight(source, target, 3, 2, values)
    source, target, values = source.to(device), target.to(device), [v.to(device) for v in values]
    edges = causal(source, target, 3, 2) if form == "edges" else None
    torch.testing.assert_close(event_conv(*values, source, target, 3, 2, DECAY, edges).cpu(), expected)


@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
def test_scan_and_edges_are_one_function(device, kernel, stride):
    source, target = pair(crowd(), stride)
    with gl.use_backend("reference"):
        expected = run(source, target, kernel, stride, parameters(source, kernel))
    moved = source.to(device)
    target = moved if target is source else target.to(device)
    values = parameters(source, kernel, device=device)
    scan = run(moved, target, kernel, stride, values)
    edges = run(moved, target, kernel, stride, values, causal(moved, target, kernel, stride))
    for a, b, c in zip(scan, edges, expected):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(a.cpu(), c, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ugly())
def test_awkward_streams(device, name):
    events = ugly()[name]
    if gl.backends.interpreting():
        events = events[:12]
    for stride in (2, 1):
        source, target = pair(events, stride)
        kernel = 3 if stride == 2 else "cross5"
        with gl.use_backend("reference"):
            expected = run(source, target, kernel, stride, parameters(source, kernel))
        moved = source.to(device)
        target = moved if target is source else target.to(device)
        values = parameters(source, kernel, device=device)
        for edges in (None, causal(moved, target, kernel, stride)):
            results = run(moved, target, kernel, stride, values, edges)
            for a, b in zip(results, expected):
                assert a.isfinite().all()
                torch.testing.assert_close(a.cpu(), b, rtol=1e-10, atol=1e-10)


def test_single_precision_is_as_good_as_it_can_be(device):
    source, target = pair(crowd(), 2)
    with gl.use_backend("reference"):
        exact = run(source, target, 3, 2, parameters(source, 3))
    values = parameters(source, 3, torch.float32, device)
    source, target = source.to(device), target.to(device)
    for edges in (None, causal(source, target, 3, 2)):
        for a, b in zip(run(source, target, 3, 2, values, edges), exact):
            assert a.dtype == torch.float32
            torch.testing.assert_close(a.cpu().double(), b, rtol=1e-5, atol=1e-5 * float(b.abs().max()))


def test_autocast_changes_nothing(backend, device):
    if backend == "reference":
        pytest.skip("torch's own products follow autocast")
    source, target = pair(crowd(), 2)
    values = parameters(source, 3, torch.float32, device)
    source, target = source.to(device), target.to(device)
    expected = run(source, target, 3, 2, values)
    with torch.autocast(device.type, torch.bfloat16):
        results = run(source, target, 3, 2, values)
    for a, b in zip(results, expected):
        assert torch.equal(a, b)


@pytest.mark.parametrize("form", ["scan", "edges"])
def test_gradients_are_derivatives(device, form):
    source, target = pair(stream((4, 0, 7), (4, 3)), 2)
    values = parameters(source, 3, device=device, temporal=2)
    source, target = source.to(device), target.to(device)
    edges = causal(source, target, 3, 2) if form == "edges" else None
    assert torch.autograd.gradcheck(
        lambda *v: event_conv(*v, source, target, 3, 2, DECAY, edges), values, fast_mode=True
    )


def test_derivatives_that_there_are_not_are_refused_by_name(backend, device):
    if backend == "reference":
        pytest.skip("torch differentiates the reference in any way")
    source = stream((9,), (4, 3)).to(device)
    values = parameters(source, 3, device=device, temporal=2)

    def conv(features):
        return event_conv(features, *values[1:], source, source, 3, 1, DECAY)

    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match=r"event_conv.*forward-mode"):
        conv(forward_ad.make_dual(values[0].detach(), torch.ones_like(values[0])))
    with pytest.raises(NotImplementedError, match=r"event_conv.*torch\.func"):
        torch.func.jvp(conv, (values[0].detach(),), (torch.ones_like(values[0]),))
    (first,) = torch.autograd.grad(conv(values[0]).square().sum(), values[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"use_backend\('reference'\)"):
        first.sum().backward()


def test_the_gather_alone_has_gradients_too(device):
    source = stream((4, 0, 7), (4, 3)).to(device)
    features, _, rate, _ = parameters(source, 1, device=device)
    assert torch.autograd.gradcheck(lambda f, r: event_gather(f, r, source, DECAY), (features, rate), fast_mode=True)


def test_tiles_do_not_change_the_result(device, monkeypatch):
    source, target = pair(crowd(), 2)
    values = parameters(source, 3, device=device)
    source, target = source.to(device), target.to(device)
    for edges in (None, causal(source, target, 3, 2)):
        whole = run(source, target, 3, 2, values, edges)
        for room in (1, 3, 9, 20):
            with monkeypatch.context() as patches:
                patches.setattr(autograd, "_room", lambda *_, room=room: room)
                tiled = run(source, target, 3, 2, values, edges)
            for a, b in zip(tiled, whole):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("taps", "temporal", "room", "largest"),
    [
        (9, 4, 36, 36), (9, 4, 35, 20), (9, 4, 12, 12), (9, 4, 3, 2), (9, 4, 1, 1), (9, 4, 7, 4), (5, 1, 2, 2),
        (2, 11, 9, 8), (2, 1, 1, 1), (1, 1, 1, 1), (0, 4, 9, 0), (3, 0, 4, 0),
    ],
)  # fmt: skip
def test_tiles_are_all_of_the_weight_once_and_none_is_larger_than_its_room(monkeypatch, taps, temporal, room, largest):
    source = stream((4, 0, 7), (4, 3))
    link = Link(source, source, torch.arange(len(source)), tuple((u, 0) for u in range(taps)), 1)
    monkeypatch.setattr(autograd, "_room", lambda *_: room)
    rate, weight = torch.arange(float(taps * temporal)).view(taps, temporal), torch.zeros(taps, temporal, Q, P)
    tiles = autograd._tiles(Neighbourhoods(link, DECAY), rate, weight)
    rows = [range(taps * temporal * Q)[slice(None) if tile.rows is None else tile.rows] for tile in tiles]
    assert [row for part in rows for row in part] == list(range(taps * temporal * Q))
    assert torch.equal(torch.cat([tile.rate.flatten() for tile in tiles] or [rate.flatten()]), rate.flatten())
    for tile, part in zip(tiles, rows):
        first = tile.near.first_tap
        assert tile.near.link.offsets == link.offsets[first : first + len(tile.rate)]
        assert tile.rate.numel() * Q == len(part)
    assert max((tile.rate.numel() for tile in tiles), default=0) == largest


# 24 sources, 30 targets, 9 x 8 taps. Room for as many numbers as SMALL_TILE, the features or the result have, and at
# least four temporal taps.
@pytest.mark.parametrize(
    ("small", "channels", "width", "room"),
    [(0, 1, 1, 4), (0, 1, 7, 7), (0, 40, 7, 4), (30 * 3 * 6, 3, 5, 6), (0, 5, 40, 8), (30 * 2 * 100, 2, 1, 100)],
)
def test_what_is_gathered_at_once_is_no_larger_than_features_and_result(monkeypatch, small, channels, width, room):
    source, target = stream((24,), (6, 6)), stream((30,), (6, 6))
    near = Neighbourhoods(Link(source, target, torch.zeros(30, dtype=torch.int64), offsets(3), 1), DECAY)
    monkeypatch.setattr(autograd, "SMALL_TILE", small)
    assert autograd._room(near, torch.zeros(9, 8, channels, width)) == room
    # With fewer targets, the features decide.
    few = Neighbourhoods(Link(source, target[:3], torch.zeros(3, dtype=torch.int64), offsets(3), 1), DECAY)
    assert autograd._room(few, torch.zeros(9, 2, channels, 1)) == max(small // (3 * channels), 8)
    # No target, and a kernel of two temporal taps.
    none = Neighbourhoods(Link(source[:0], target[:0], torch.zeros(0, dtype=torch.int64), offsets(3), 1), DECAY)
    assert autograd._room(none, torch.zeros(9, 2, channels, width)) == max(small, 2)


def test_features_rates_and_gradients_may_lie_in_memory_in_any_way(device):
    source, target = pair(crowd(), 2)
    values = parameters(source, 3, device=device)
    source, target = source.to(device), target.to(device)
    for edges in (None, causal(source, target, 3, 2)):
        results = []
        for change in (torch.Tensor.contiguous, lambda x: x.mT.contiguous().mT):
            given = [change(v.detach()).requires_grad_() if v.dim() == 2 else v for v in values]
            out = event_conv(*given, source, target, 3, 2, DECAY, edges)
            upper = torch.arange(out.numel(), dtype=out.dtype, device=out.device).view(out.shape)
            results.append([out.detach(), *torch.autograd.grad(out, given, change(upper))])
        for a, b in zip(*results):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("room", [36, 20])
def test_a_gradient_does_not_depend_on_which_others_are_wanted(device, monkeypatch, room):
    source, target = pair(stream((4, 0, 8), (3, 3), span=90), 2)
    values = parameters(source, 3, device=device)
    source, target = source.to(device), target.to(device)
    monkeypatch.setattr(autograd, "_room", lambda *_: room)
    _, *whole = run(source, target, 3, 2, values)
    before = [v.detach().clone() for v in values]
    for wanted in ([0], [1], [2], [3], [0, 1], [1, 2, 3]):
        given = [v.detach().requires_grad_(k in wanted) for k, v in enumerate(values)]
        out = event_conv(*given, source, target, 3, 2, DECAY)
        grad = torch.randn(out.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(out)
        for k, gradient in zip(wanted, torch.autograd.grad(out, [given[k] for k in wanted], grad)):
            torch.testing.assert_close(gradient, whole[k], rtol=1e-12, atol=1e-12)
    assert all(torch.equal(a, b) for a, b in zip(before, values))


@pytest.mark.parametrize("enough", [1, 3])
def test_taps_that_share_a_program_do_not_change_the_result(backend, device, monkeypatch, enough):
    """With enough programs, each of them walks back along several taps, one after the other."""
    if backend != "gpu":
        pytest.skip("only the GPU kernels divide taps among programs")
    from gridless.ops.event_conv import gpu

    source, target = pair(crowd(), 2)
    values = parameters(source, 3, device=device)
    source, target = source.to(device), target.to(device)
    whole = run(source, target, 3, 2, values)
    monkeypatch.setattr(gpu, "_groups", lambda taps, _: min(enough, taps))
    for room in (36, 12):
        monkeypatch.setattr(autograd, "_room", lambda *_, room=room: room)
        for a, b in zip(run(source, target, 3, 2, values), whole):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_torchs_counter_counts_the_products():
    source, target = pair(stream(), 2)
    values = parameters(source, 3)
    with gl.use_backend("cpu"), FlopCounterMode(display=False, custom_mapping=gl.ops.FLOPS) as counter:
        run(source, target, 3, 2, values)
    # Forward, for the features, and for the weight.
    assert counter.get_total_flops() == 3 * 2 * len(target) * values[1].numel()


@pytest.mark.parametrize(("kernel", "stride"), KERNELS)
def test_transforming_while_updating_gives_the_same_numbers(kernel, stride):
    source, target = pair(crowd(), stride)
    values = [v.detach() for v in parameters(source, kernel)]
    joined = link(source, target, kernel, stride)
    out = reference.transform_while_updating(*values, joined, DECAY)
    torch.testing.assert_close(out, event_conv(*values, source, target, kernel, stride, DECAY))


def test_a_window_leaves_out_what_is_older(device):
    events = of([(1, 1), (1, 1)], [0, 101]).to(device)
    values = parameters(events, 1, device=device)
    wide = event_conv(*values, events, events, 1, 1, DECAY, causal(events, events, 1, 1, 101))
    narrow = event_conv(*values, events, events, 1, 1, DECAY, causal(events, events, 1, 1, 100))
    torch.testing.assert_close(wide, event_conv(*values, events, events, 1, 1, DECAY))
    assert not torch.allclose(wide[1], narrow[1])


@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), ("cross5", 1)])
@pytest.mark.parametrize("sizes", [(13, 40), (1000,)])
def test_how_a_stream_is_cut_does_not_change_a_bit(backend, device, kernel, stride, sizes):
    exact = backend != "reference"
    few = gl.backends.interpreting()
    for events in (stream((20 if few else 120,), span=900), ugly()["silence"][: 12 if few else None]):
        source, target = pair(events, stride)
        values = [v.detach() for v in parameters(source, kernel, device=device)]
        moved = source.to(device)
        whole = event_conv(*values, moved, moved if target is source else target.to(device), kernel, stride, DECAY)
        memory, state, at, parts = None, None, 0, []
        for packet in cut(events, sizes):
            packet = packet.to(device)
            fired = packet
            if stride == 2:
                fired, state = gl.geometry.lif_step(packet, state, 3, 2, **SETTINGS)
            own = values[0][at : at + len(packet)]
            out, memory = event_conv_step(own, *values[1:], packet, fired, kernel, stride, DECAY, memory)
            parts.append(out)
            at += len(packet)
        torch.testing.assert_close(torch.cat(parts), whole, rtol=1e-12, atol=1e-12)
        _, end = event_conv_step(
            *values, moved, moved if target is source else target.to(device), kernel, stride, DECAY
        )
        assert torch.equal(end.time, memory.time)
        torch.testing.assert_close(memory.trace, end.trace, rtol=1e-12, atol=1e-12)
        if exact:
            assert torch.equal(memory.trace, end.trace)


def test_memory_has_nothing_where_no_target_looks(device):
    events = stream((30 if gl.backends.interpreting() else 120,))
    source, target = pair(events, 2)
    values = [v.detach().to(device) for v in parameters(source, 3)]
    _, memory = event_conv_step(*values, source.to(device), target.to(device), 3, 2, DECAY)
    used = memory.trace.abs().sum((2, 3)) > 0
    # An even pixel feeds the middle tap of its axis, an odd one the two outer ones.
    per_pixel = used.view(6, 7, 9).sum(2)
    assert int(per_pixel[2, 2]) <= 1
    assert int(per_pixel.max()) <= 4


def test_padding_gives_the_bias_and_takes_no_gradient(device):
    events = stream((5, 4))
    padded = gl.collate([events.examples[0], events.examples[1]], bucket="power_of_two").to(device)
    values = parameters(padded, "cross5", device=device)
    results = run(padded, padded, "cross5", 1, values)
    edges = run(padded, padded, "cross5", 1, values, causal(padded, padded, "cross5", 1))
    for out in (results, edges):
        torch.testing.assert_close(out[0][9:], values[3].detach().expand(len(padded) - 9, -1))
        assert not out[1][9:].any()


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads):
    source, target = pair(stream((300, 200)), 2)
    values = parameters(source, 3, torch.float32)
    one = run(source, target, 3, 2, values)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        for a, b in zip(one, run(source, target, 3, 2, values)):
            assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_what_does_not_fit_is_refused_by_name():
    events = stream((20,))
    f, w, r, b = parameters(events, 1)
    with pytest.raises(ValueError, match=r"features.*\(20.*\(5"):
        event_conv(f[:5], w, r, b, events, events, 1, 1)
    with pytest.raises(ValueError, match=r"weight.*\(9 taps"):
        event_conv(f, w, r, b, events, events, 3, 1)
    with pytest.raises(ValueError, match=r"rate.*\("):
        event_conv(f, w, r[:, :1], b, events, events, 1, 1)
    with pytest.raises(ValueError, match=r"bias.*\(1,\)"):
        event_conv(f, w, r, b[:1], events, events, 1, 1)
    with pytest.raises(TypeError, match=r"event_conv: .*torch\.float64.*torch\.float32"):
        event_conv(f.float(), w, r, b, events, events, 1, 1)
    with pytest.raises(TypeError, match=r"features.*float16"):
        event_conv(f.half(), w, r, b, events, events, 1, 1)
    with pytest.raises(ValueError, match=r"decay_time.*0\.0"):
        event_conv(f, w, r, b, events, events, 1, 1, 0.0)
    with pytest.raises(ValueError, match="target, tap"):
        event_conv(f, w, r, b, events, events, 1, 1, 9.0, causal(events, events, 3, 1))
    memory = event_conv_step(f, w, r, b, events, events, 1, 1)[1]
    with pytest.raises(ValueError, match="memory"):
        event_conv_step(f, w, r, b, events, events, 1, 1, 9.0, memory._replace(trace=memory.trace[:3]))
