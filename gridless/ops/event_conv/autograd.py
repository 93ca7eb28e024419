"""The convolution and its gradients, tile by tile, over what a backend offers: gather, and its transpose.

A (S', U, V, Q) is U V times as large as the features, so it is never whole: a tile of taps is gathered, multiplied by
its part of the weight, and dropped. With g the gradient of the result, B = g weight^T that of A:

    d weight = A^T g,   d features = gather^T B,   d rate = <B, d A / d rate>

A backend is an `EventConvBackend`. All tensors are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gridless.backends import backend_for, module_of, uncompiled
from gridless.geometry.causal import Link
from gridless.ops.event_conv import reference
from gridless.ops.event_conv.neighbourhoods import EventConvBackend, Neighbourhoods, at_one_pixel
from gridless.ops.operator import eager, operator, traced, without_autocast
from gridless.structures import Edges, Events

# A tile may always have so many elements, and otherwise as many as the larger of features and result; and always so
# many temporal taps of a tap, because each tile walks the streams again.
SMALL_TILE = 2**24
TOGETHER = 4


def convolve(
    features: Tensor,
    weight: Tensor | None,
    rate: Tensor,
    bias: Tensor | None,
    link: Link,
    decay_time: float,
    edges: Edges | None = None,
    anywhere: bool = False,
) -> Tensor:
    """bias + sum over u and v of A_uv weight_uv: (S', P); without a weight, A itself, (S', U V Q).

    Anywhere: as if all events of the one stream were at one pixel.
    """
    name = backend_for(features.device)
    if edges is not None:
        return _along_edges(features, weight, rate, bias, link, decay_time, edges)
    if name != "reference" and traced(features, weight, rate, bias):
        return _traced(features, weight, rate, bias, *_parts(link, anywhere), decay_time, name)
    if anywhere:
        one = at_one_pixel(link.source)
        link = link._replace(source=one, target=one)
    if name == "reference":
        return _by_reference(features, weight, rate, bias, link, decay_time)
    return _eager(features, weight, rate, bias, Neighbourhoods(link, decay_time), _module(name, features))


def _module(name: str, where: Tensor) -> EventConvBackend:
    return module_of("gridless.ops.event_conv", name, where.device)


def _by_reference(
    features: Tensor, weight: Tensor | None, rate: Tensor, bias: Tensor | None, link: Link, decay_time: float,
    edges: Edges | None = None,
) -> Tensor:  # fmt: skip
    gathered = reference.gather(features, rate, link, decay_time, edges).flatten(1)
    if weight is None:
        return gathered
    out = gathered @ weight.flatten(0, 2)
    return out if bias is None else out + bias


# The form of edges is torch's own sparse products on every device.
_along_edges = uncompiled(_by_reference)


class _TapTile(NamedTuple):
    """Part of the taps: its neighbourhoods, its rate (u, v), and its rows of the weight (U V Q, P), or None for all."""

    near: Neighbourhoods
    rate: Tensor
    rows: slice | None


def _tiles(near: Neighbourhoods, rate: Tensor, weight: Tensor) -> list[_TapTile]:
    """Tiles whose part of A has room: whole taps, or parts of one."""
    (taps, temporal), channels, room = rate.shape, weight.shape[2], _room(near, weight)
    if 0 < taps * temporal <= room:
        return [_TapTile(near, rate, None)]
    tiles = []
    for u0, u1 in _even(taps, room // max(temporal, 1)):
        part = replace(near, link=near.link._replace(offsets=near.link.offsets[u0:u1]), first_tap=u0)
        for v0, v1 in [(0, temporal)] if (u1 - u0) * temporal <= room else _halves(temporal, room):
            rows = slice((u0 * temporal + v0) * channels, ((u1 - 1) * temporal + v1) * channels)
            tiles.append(_TapTile(part, rate[u0:u1, v0:v1], rows))
    return tiles


def _even(size: int, most: int) -> list[tuple[int, int]]:
    """Ranges of about equal length, of at most `most`, or of one."""
    if not size:
        return []
    parts = -(-size // max(most, 1))
    step = -(-size // parts)
    return [(a, min(a + step, size)) for a in range(0, size, step)]


def _halves(size: int, most: int) -> list[tuple[int, int]]:
    """Ranges of a power of two, of at most `most`: what fits lanes."""
    step = 1 << (max(most, 1).bit_length() - 1)
    return [(a, min(a + step, size)) for a in range(0, size, step)]


def _room(near: Neighbourhoods, weight: Tensor) -> int:
    """The (S', Q) matrices of A that a tile may have."""
    (_, temporal, channels, width), sources, targets = weight.shape, len(near.link.source), len(near.link.target)
    allowed = max(SMALL_TILE, sources * channels, targets * width)
    return max(allowed // max(targets * channels, 1), min(temporal, TOGETHER))


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


@without_autocast
def _forward(
    features: Tensor,
    weight: Tensor | None,
    rate: Tensor,
    bias: Tensor | None,
    near: Neighbourhoods,
    backend: EventConvBackend,
) -> Tensor:
    features, rate = _dense(features), _dense(rate)
    if weight is None:
        return backend.gather(features, rate, near)
    matrix, out = weight.flatten(0, 2), None
    for part, tile, rows in _tiles(near, rate, weight):
        gathered = backend.gather(features, tile, part)
        theta = matrix if rows is None else matrix[rows]
        out = torch.mm(gathered, theta) if out is None else out.addmm_(gathered, theta)
        del gathered
    if out is None:
        out = features.new_zeros(len(near.link.target), weight.shape[3])
    return out if bias is None else out.add_(bias)


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


@eager("event_conv_backward")
@without_autocast
def _backward(
    grad: Tensor, features: Tensor, weight: Tensor | None, rate: Tensor, near: Neighbourhoods,
    backend: EventConvBackend, wanted: tuple[bool, ...],
) -> Gradients:  # fmt: skip
    """Gradients of features, weight, rate and bias: those that are wanted."""
    grad, features, rate = _dense(grad), _dense(features), _dense(rate)
    d_bias = grad.sum(0) if wanted[3] else None
    if weight is None:
        d_features, d_rate = backend.scatter(grad, features, rate, near, wanted[0], None)
        return d_features, None, d_rate if wanted[2] else None, d_bias
    wants_features, wants_weight, wants_rate, _ = wanted
    matrix, tiles = weight.flatten(0, 2), _tiles(near, rate, weight)
    d_features, d_rates = None, []
    d_matrix = torch.empty_like(matrix) if wants_weight and len(tiles) != 1 else matrix
    for part, tile, rows in tiles:
        if wants_weight:
            gathered = backend.gather(features, tile, part)
            if rows is None:
                d_matrix = torch.mm(gathered.t(), grad)
            else:
                torch.mm(gathered.t(), grad, out=d_matrix[rows])
            del gathered
        if wants_features or wants_rate:
            inner = torch.mm(grad, (matrix if rows is None else matrix[rows]).t())
            d_features, turned = backend.scatter(inner, features, tile, part, wants_features, d_features)
            d_rates.append(turned)
            del inner
    if wants_features and d_features is None:
        d_features = torch.zeros_like(features)
    d_rate = d_rates[0] if len(d_rates) == 1 else _joined(d_rates, rate)
    d_weight = d_matrix.view(weight.shape) if wants_weight else None
    return d_features, d_weight, d_rate if wants_rate else None, d_bias


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.view(-1) for part in parts]).view(like.shape) if parts else torch.zeros_like(like)


# In eager code.


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.rest = inputs[4:]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_backward(grad, *ctx.saved_tensors, *ctx.rest, ctx.needs_input_grad[:4]), None, None


_eager = eager("event_conv", _save, _differentiate)(_forward)


# Operators for torch.compile: they take tensors and plain numbers, and make the neighbourhoods anew.


def _parts(link: Link, anywhere: bool) -> tuple:
    """Neighbourhoods as tensors and numbers: what `_NEAR` names, less the decay time."""
    source, target = link.source, link.target
    numbers = [*source.sensor, source.padding, *target.sensor, target.padding, link.stride, int(target is source)]
    numbers.append(int(anywhere))
    streams = source.pixel, source.time, source.splits, target.pixel, target.time, target.splits, link.until
    return *streams, numbers, [x for offset in link.offsets for x in offset]


_NEAR = (
    "Tensor pixel, Tensor time, Tensor splits, Tensor target_pixel, Tensor target_time, Tensor target_splits, "
    "Tensor until, SymInt[] numbers, SymInt[] offsets, float decay_time"
)


def _near(
    pixel: Tensor, time: Tensor, splits: Tensor, target_pixel: Tensor, target_time: Tensor, target_splits: Tensor,
    until: Tensor, numbers: list[int], offsets: list[int], decay_time: float,
) -> Neighbourhoods:  # fmt: skip
    width, height, padding, target_width, target_height, target_padding, stride, same, anywhere = numbers
    facts: dict[str, Any] = {"polarity": None, "sensor": (width, height), "padding": padding}
    source = target = Events.made(pixel=pixel, time=time, splits=splits, **facts)
    if anywhere:
        source = target = at_one_pixel(source)
    elif not same:
        facts |= {"sensor": (target_width, target_height), "padding": target_padding}
        facts |= {"cause": until, "num_parent": len(source)}
        target = Events.made(pixel=target_pixel, time=target_time, splits=target_splits, **facts)
    link = Link(source, target, until, tuple(zip(offsets[::2], offsets[1::2], strict=True)), stride)
    return Neighbourhoods(link, decay_time)


def _fake_backward(grad, features, weight, rate, *rest):  # type: ignore[no-untyped-def]
    wants, inputs = rest[-2], (features, weight, rate)
    gradients = [x.new_empty(x.shape) if want else grad.new_empty(0) for x, want in zip(inputs, wants, strict=False)]
    return *gradients, grad.new_empty(grad.shape[1] if wants[3] else 0)


def _backward_flops(grad, features, weight, rate, *rest, **_):  # type: ignore[no-untyped-def]
    wants_features, wants_weight, wants_rate, _ = rest[-2]
    return (wants_weight + (wants_features or wants_rate)) * _product(grad[0], weight)


def _product(targets: int, weight: Sequence[int] | None) -> int:
    """Floating-point operations of A Theta: like torch, only products of matrices count."""
    return 0 if weight is None else 2 * targets * math.prod(weight)


@operator(
    "event_conv_backward",
    _fake_backward,
    flops=_backward_flops,
    schema=f"(Tensor grad, Tensor features, Tensor? weight, Tensor rate, {_NEAR}, bool[] wanted, str backend) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def _traced_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    features, weight, rate, *near, wanted, backend = arguments
    gradients = _backward(grad, features, weight, rate, _near(*near), _module(backend, grad), tuple(wanted))
    # Operators return tensors: an empty one stands for a gradient that is not needed.
    return tuple(x if want and x is not None else grad.new_empty(0) for x, want in zip(gradients, wanted, strict=True))


def _fake(features, weight, rate, bias, pixel, time, splits, target_pixel, *rest):  # type: ignore[no-untyped-def]
    width = rate.numel() * features.shape[1] if weight is None else weight.shape[3]
    return features.new_empty(target_pixel.shape[0], width)


def _save_traced(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:3], *inputs[4:11])
    ctx.rest, ctx.backend = inputs[11:14], inputs[14]


def _differentiate_traced(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:4])
    arguments: Any = (*ctx.saved_tensors, *ctx.rest, wanted, ctx.backend)
    gradients = _traced_backward(grad, *arguments)
    return *(x if want else None for x, want in zip(gradients, wanted, strict=True)), *(None,) * 11


def _flops(features, weight, *rest, out_shape, **_):  # type: ignore[no-untyped-def]
    return _product(out_shape[0], weight)


@operator(
    "event_conv",
    _fake,
    _save_traced,
    _differentiate_traced,
    flops=_flops,
    schema=f"(Tensor features, Tensor? weight, Tensor rate, Tensor? bias, {_NEAR}, str backend) -> Tensor",
)
def _traced(features: Tensor, *arguments: Any) -> Tensor:
    weight, rate, bias, *near, backend = arguments
    return _forward(features, weight, rate, bias, _near(*near), _module(backend, features))
