"""Networks as after training, streams that try to break them, and what the whole recording at once gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

import gridless as gl
from gridless.live import Session
from gridless.live.operations import OPERATIONS
from gridless.models import events as networks
from gridless.models.events import StreamHead
from gridless.nn.events import EventConv
from gridless.nn.norm import BatchNorm

CONFIGURATIONS = ["n_mnist", "mnist_dvs", "cifar10_dvs", "n_caltech101", "asl_dvs", "n_cars"]


def network(name: str, **options) -> networks.EventResNet:
    """A network of the paper, as after training."""
    torch.manual_seed(7)
    return trained(getattr(networks, name)(**options))


def trained(model: networks.EventResNet) -> networks.EventResNet:
    """The network as after training: no parameter or statistic at its starting value."""
    _unsettle(model)
    model.eval()
    if isinstance(model.head, StreamHead):
        # Its statistics are those of what it sees, or else logits would be small differences of large numbers.
        model.head.norm.train().momentum = 1.0
        with torch.no_grad():
            model(model.plan(busy("plain", tuple(model.config["sensor"]), 4000)))
    return model.eval()


def settled(make: Callable[[], torch.nn.Module], seed: int = 7) -> torch.nn.Module:
    """Any network as after training, with statistics that are not at their starting value."""
    torch.manual_seed(seed)
    model = make()
    _unsettle(model)
    return model.eval()


def _unsettle(model: torch.nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, BatchNorm | torch.nn.BatchNorm1d):
            layer.running_mean.normal_(0, 0.1)
            layer.running_var.uniform_(0.5, 2)
            layer.weight.data.uniform_(0.5, 1.5)
        if isinstance(layer, EventConv):
            layer.log_rate.data += torch.randn_like(layer.log_rate) * 0.3
        bias = getattr(layer, "bias", None)
        if isinstance(bias, torch.nn.Parameter):
            bias.data.normal_(0, 0.1)


def packed(x, y, t, p, sensor) -> gl.Events:
    pixel = torch.from_numpy(np.stack([x, y], 1).astype(np.int32))
    return gl.Events(
        pixel,
        torch.from_numpy(np.asarray(t, np.int64)),
        torch.from_numpy(np.asarray(p, bool)),
        torch.tensor([0, len(t)]),
        sensor,
    )


def busy(kind: str, sensor: tuple[int, int], count: int = 1500) -> gl.Events:
    """Streams that try to break something."""
    g = np.random.default_rng(3)
    w, h = sensor
    # Crowded enough that events reach the deepest level of a large sensor.
    x = g.normal(w / 2, 6, count).clip(0, w - 1).astype(int)
    y = g.normal(h / 2, 6, count).clip(0, h - 1).astype(int)
    t = np.sort(g.integers(0, 20_000, count))
    p = g.random(count) < 0.5
    if kind == "one time":
        t[:] = 5
    elif kind == "one pixel":
        x[:], y[:] = w // 2 | 1, h // 2 | 1
    elif kind == "borders":
        x, y = np.where(g.random(count) < 0.5, 0, w - 1), np.where(g.random(count) < 0.5, 0, h - 1)
        side = g.random(count) < 0.5
        x, y = np.where(side, x, g.integers(0, w, count)), np.where(side, g.integers(0, h, count), y)
    elif kind == "bursts":
        t = np.sort(g.integers(0, 10, count) * 1_000_000 + g.integers(0, 300, count))
    elif kind == "long silence":
        t[count // 2 :] += 40 * 24 * 3600 * 1_000_000
    elif kind == "far future":
        t += 2**41 + 12345
    return packed(x, y, t, p, sensor)


KINDS = ["one time", "one pixel", "borders", "bursts", "long silence", "far future", "plain"]


def blocks(model) -> list[str]:
    """The names of the blocks at the end of each level."""
    return [f"blocks.{k}" for k in range(len(model.blocks))]


def batch(model, events):
    with torch.no_grad():
        geometry = model.plan(events)
        return geometry, model.trunk(geometry), model(geometry)[0]


def assert_close(a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    assert a.shape == b.shape
    if a.numel():
        assert torch.isfinite(b).all()
        assert float((a - b).abs().max()) <= tolerance * max(float(b.abs().max()), 1e-6)


def assert_session_is_batch(model, events, packet: int) -> list[torch.Tensor]:
    """In float64, at every event of every level and at the end; the features of the levels."""
    _, levels, logits = batch(model, events)
    session = Session(model, blocks(model))
    fired = [[] for _ in levels]
    for a in range(0, len(events), packet):
        session(events[a : a + packet])
        for name, mine in zip(blocks(model), fired, strict=True):
            mine.append(session.features(name)[1])
    for mine, features in zip(fired, levels, strict=True):
        assert_close(torch.cat(mine), features, 1e-12)
    assert_close(session.predict(), logits, 1e-12)
    return levels


def compile_only(names: Iterable[str]) -> None:
    """Compile the loop of this process with these operations only, which takes a fraction of the time.

    The call comes before the first stream. A row of any other operation raises `KeyError`.
    """
    for name in set(OPERATIONS) - {*names}:
        del OPERATIONS[name]
