"""The convolution and its gradients, tile by tile, over what a backend offers: gather, and its transpose.

A (S', U, V, Q) is U V times as large as the features, so it is never whole: a tile of taps is gathered, multiplied by
its part of the weight, and dropped. With g the gradient of the result, B = g weight^T that of A:

    d weight = A^T g,   d features = gather^T B,   d rate = <B, d A / d rate>

A backend has `gather(features, rate, walk)`, which returns A as a matrix (S', U V Q), and, given the gradient of that
matrix, `scatter(grad, features, rate, walk, wanted, total)`, which returns the gradients of the features, if `wanted`
(added to `total`, where that is given), and of the rate. All tensors are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridless.backends import backend_for, implementation
from gridless.geometry.causal import Link
from gridless.structures import Edges

# A tile may always have so many elements, and otherwise as many as the larger of features and result; and always so
# many temporal taps of a tap, because each tile walks the streams again.
SMALL_TILE = 2**24
TOGETHER = 4


@dataclass(frozen=True)
class Walk:
    """What the kernels walk: the two streams, their edges if they are written out, and which taps are meant."""

    link: Link
    decay_time: float
    edges: Edges | None = None
    first_tap: int = 0


def convolve(
    features: Tensor,
    weight: Tensor,
    rate: Tensor,
    bias: Tensor | None,
    link: Link,
    decay_time: float,
    edges: Edges | None,
    transform_first: bool,
) -> Tensor:
    """bias + sum over u and v of A_uv weight_uv: (S', P)."""
    if backend_for(features.device) != "reference":
        function = _Transform if transform_first else _Convolve
        return function.apply(features, weight, rate, bias, Walk(link, decay_time, edges))
    backend = implementation("gridless.ops.event_conv", features.device)
    if transform_first:
        moved = torch.einsum("sq,uvqp->suvp", features, weight).flatten(1)
        walked = backend.gather(moved, rate, link, decay_time, edges).unflatten(3, weight.shape[:2] + weight.shape[3:])
        out = torch.einsum("tuvuvp->tp", walked)
    else:
        out = backend.gather(features, rate, link, decay_time, edges).flatten(1) @ weight.flatten(0, 2)
    return out if bias is None else out + bias


def gather(features: Tensor, rate: Tensor, link: Link, decay_time: float) -> Tensor:
    """A (S', U, V, Q)."""
    if backend_for(features.device) == "reference":
        return implementation("gridless.ops.event_conv", features.device).gather(features, rate, link, decay_time)
    return _Gather.apply(features, rate, Walk(link, decay_time))


class _Tile(NamedTuple):
    """Part of the taps: its walk, its rate (u, v), and its rows of the weight (U V Q, P), or None for all."""

    walk: Walk
    rate: Tensor
    rows: slice | None


def _tiles(walk: Walk, rate: Tensor, channels: int, room: int) -> list[_Tile]:
    """Tiles whose part of A has at most `room` (S', Q) matrices: whole taps, or parts of one."""
    taps, temporal = rate.shape
    if 0 < taps * temporal <= room:
        return [_Tile(walk, rate, None)]
    tiles = []
    for u0, u1 in _even(taps, room // max(temporal, 1)):
        part = replace(walk, link=walk.link._replace(offsets=walk.link.offsets[u0:u1]), first_tap=u0)
        for v0, v1 in [(0, temporal)] if (u1 - u0) * temporal <= room else _halves(temporal, room):
            rows = slice((u0 * temporal + v0) * channels, ((u1 - 1) * temporal + v1) * channels)
            tiles.append(_Tile(part, rate[u0:u1, v0:v1], rows))
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


def _room(features: Tensor, walk: Walk, temporal: int, out_channels: int) -> int:
    targets, channels = len(walk.link.target), features.shape[1]
    allowed = max(SMALL_TILE, features.numel(), targets * out_channels)
    return max(allowed // max(targets * channels, 1), min(temporal, TOGETHER))


def _dense(x: Tensor) -> Tensor:
    return x if x.is_contiguous() else x.contiguous()


def _without_autocast(function: Callable[..., Any]) -> Callable[..., Any]:
    """The products have the type of the walks."""

    @wraps(function)
    def run(ctx: Any, first: Tensor, *others: Any) -> Any:
        if not torch.is_autocast_enabled(first.device.type):
            return function(ctx, first, *others)
        with torch.autocast(first.device.type, enabled=False):
            return function(ctx, first, *others)

    return run


class _Convolve(torch.autograd.Function):
    @staticmethod
    @_without_autocast
    def forward(ctx: Any, features: Tensor, weight: Tensor, rate: Tensor, bias: Tensor | None, walk: Walk) -> Tensor:
        taps, temporal, channels, out_channels = ctx.shape = weight.shape
        features, rate = _dense(features), _dense(rate)
        matrix = weight.reshape(taps * temporal * channels, out_channels)
        ctx.save_for_backward(features, matrix, rate)
        ctx.backend = backend = implementation("gridless.ops.event_conv", features.device)
        ctx.tiles = tiles = _tiles(walk, rate, channels, _room(features, walk, temporal, out_channels))
        out = None
        for part, tile, rows in tiles:
            gathered = backend.gather(features, tile, part)
            kernel = matrix if rows is None else matrix[rows]
            out = torch.mm(gathered, kernel) if out is None else out.addmm_(gathered, kernel)
            del gathered
        if out is None:
            out = features.new_zeros(len(walk.link.target), out_channels)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    @_without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, matrix, rate = ctx.saved_tensors
        wants_features, wants_weight, wants_rate, wants_bias, _ = ctx.needs_input_grad
        grad, backend, tiles = _dense(grad), ctx.backend, ctx.tiles
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
        d_bias = grad.sum(0) if wants_bias else None
        d_weight = d_matrix.view(ctx.shape) if wants_weight else None
        return d_features, d_weight, d_rate if wants_rate else None, d_bias, None


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat([part.view(-1) for part in parts]).view(like.shape) if parts else torch.zeros_like(like)


class _Transform(torch.autograd.Function):
    """The same in the other order: the P channels of features weight_uv are walked, one v of one tap at a time."""

    @staticmethod
    @_without_autocast
    def forward(ctx: Any, features: Tensor, weight: Tensor, rate: Tensor, bias: Tensor | None, walk: Walk) -> Tensor:
        features, rate = _dense(features), _dense(rate)
        ctx.save_for_backward(features, weight, rate)
        ctx.walk, ctx.backend = walk, implementation("gridless.ops.event_conv", features.device)
        out = features.new_zeros(len(walk.link.target), weight.shape[3])
        for u, v, part, one in _each(walk, rate):
            out += ctx.backend.gather(features @ weight[u, v], one, part)
        return out if bias is None else out.add_(bias)

    @staticmethod
    @once_differentiable
    @_without_autocast
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, rate = ctx.saved_tensors
        wanted, grad = ctx.needs_input_grad, _dense(grad)
        d_features, d_weight, d_rate = torch.zeros_like(features), torch.zeros_like(weight), torch.zeros_like(rate)
        for u, v, part, one in _each(ctx.walk, rate):
            d_moved, d_rate[u, v] = ctx.backend.scatter(grad, features @ weight[u, v], one, part, True, None)
            d_features.addmm_(d_moved, weight[u, v].t())
            d_weight[u, v] = features.t() @ d_moved
        found = d_features, d_weight, d_rate, grad.sum(0) if wanted[3] else None, None
        return tuple(g if want else None for g, want in zip(found, wanted, strict=True))


def _each(walk: Walk, rate: Tensor) -> Iterator[tuple[int, int, Walk, Tensor]]:
    """Every u and v, with the walk and the rate (1, 1) of that one."""
    for u, v in product(*map(range, rate.shape)):
        part = replace(walk, link=walk.link._replace(offsets=walk.link.offsets[u : u + 1]), first_tap=u)
        yield u, v, part, rate[u : u + 1, v : v + 1].contiguous()


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, rate: Tensor, walk: Walk) -> Tensor:
        backend = implementation("gridless.ops.event_conv", features.device)
        features, rate = _dense(features), _dense(rate)
        ctx.save_for_backward(features, rate)
        ctx.walk, ctx.backend = walk, backend
        return backend.gather(features, rate, walk).view(len(walk.link.target), *rate.shape, features.shape[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        features, rate = ctx.saved_tensors
        inner = _dense(grad).view(len(grad), rate.numel() * features.shape[1])
        return *ctx.backend.scatter(inner, features, rate, ctx.walk, ctx.needs_input_grad[0], None), None
