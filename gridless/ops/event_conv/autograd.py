"""The convolution and its gradients, tile by tile, over what a backend offers: gather, and its transpose.

A (S', U, V, Q) is U V times as large as the features, so it is never whole: a tile of taps is gathered, multiplied by
its part of the weight, and dropped. With g the gradient of the result, B = g weight^T that of A:

    d weight = A^T g,   d features = gather^T B,   d rate = <B, d A / d rate>

A backend has `gather(features, rate, walk)`, and `scatter(grad, features, rate, walk, total)`, which adds the gradient
of the features to `total` (unless it is None) and returns that of the rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gridless.backends import backend_for, implementation
from gridless.geometry.causal import Link
from gridless.structures import Edges

# A tile may always have so many elements, and otherwise as many as the larger of features and result.
SMALL_TILE = 2**25


@dataclass(frozen=True)
class Walk:
    """What the kernels walk: the two streams, their edges if they are written out, and which taps are meant."""

    link: Link
    decay_time: float
    edges: Edges | None = None
    first_tap: int = 0


def convolve(
    features: Tensor, weight: Tensor, rate: Tensor, link: Link, decay_time: float, edges: Edges | None
) -> Tensor:
    """sum over u and v of A_uv weight_uv: (S', P)."""
    if backend_for(features.device) == "reference":
        gathered = implementation("gridless.ops.event_conv", features.device).gather(
            features, rate, link, decay_time, edges
        )
        return gathered.flatten(1) @ weight.flatten(0, 2)
    return _Convolve.apply(features, weight, rate, Walk(link, decay_time, edges))


def gather(features: Tensor, rate: Tensor, link: Link, decay_time: float) -> Tensor:
    """A (S', U, V, Q)."""
    if backend_for(features.device) == "reference":
        return implementation("gridless.ops.event_conv", features.device).gather(features, rate, link, decay_time)
    return _Gather.apply(features, rate, Walk(link, decay_time))


def _tiles(walk: Walk, rate: Tensor, room: int) -> Iterator[tuple[slice, slice, Walk]]:
    """Ranges of u and v whose part of A has at most `room` (S', Q) matrices, with the walk of those taps."""
    taps, temporal = rate.shape
    us, vs = _even(taps, room // temporal), _even(temporal, room)
    for u0, u1 in us:
        for v0, v1 in vs:
            part = walk.link._replace(offsets=walk.link.offsets[u0:u1])
            yield slice(u0, u1), slice(v0, v1), replace(walk, link=part, first_tap=u0)


def _even(size: int, most: int) -> list[tuple[int, int]]:
    """Ranges of about equal length, of at most `most`, or of one."""
    if not size:
        return []
    parts = -(-size // max(most, 1))
    step = -(-size // parts)
    return [(a, min(a + step, size)) for a in range(0, size, step)]


def _room(features: Tensor, walk: Walk, out_channels: int) -> int:
    rows = len(walk.link.target) * features.shape[1]
    allowed = max(SMALL_TILE, features.numel(), len(walk.link.target) * out_channels)
    return max(allowed // max(rows, 1), 1)


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, rate: Tensor, walk: Walk) -> Tensor:
        backend = implementation("gridless.ops.event_conv", features.device)
        features, weight, rate = (x.detach().contiguous() for x in (features, weight, rate))
        ctx.save_for_backward(features, weight, rate)
        ctx.walk, ctx.backend = walk, backend
        out = None
        for taps, vs, part in _tiles(walk, rate, _room(features, walk, weight.shape[3])):
            gathered = backend.gather(features, rate[taps, vs].contiguous(), part).flatten(1)
            kernel = weight[taps, vs].flatten(0, 2)
            out = gathered @ kernel if out is None else out.addmm_(gathered, kernel)
        return out if out is not None else features.new_zeros(len(walk.link.target), weight.shape[3])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        features, weight, rate = ctx.saved_tensors
        walk, backend = ctx.walk, ctx.backend
        wants_features, wants_weight, wants_rate, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        d_features = torch.zeros_like(features) if wants_features else None
        d_weight, d_rate = torch.zeros_like(weight), torch.zeros_like(rate)
        for taps, vs, part in _tiles(walk, rate, _room(features, walk, weight.shape[3])):
            tile = rate[taps, vs].contiguous()
            kernel = weight[taps, vs]
            if wants_weight:
                gathered = backend.gather(features, tile, part).flatten(1)
                d_weight[taps, vs] = (gathered.T @ grad).view(kernel.shape)
                del gathered
            if wants_features or wants_rate:
                inner = (grad @ kernel.flatten(0, 2).T).view(-1, *kernel.shape[:3])
                d_rate[taps, vs] = backend.scatter(inner, features, tile, part, d_features)
        return d_features, d_weight if wants_weight else None, d_rate if wants_rate else None, None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, rate: Tensor, walk: Walk) -> Tensor:
        backend = implementation("gridless.ops.event_conv", features.device)
        features, rate = features.detach().contiguous(), rate.detach().contiguous()
        ctx.save_for_backward(features, rate)
        ctx.walk, ctx.backend = walk, backend
        return backend.gather(features, rate, walk)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, None]:
        features, rate = ctx.saved_tensors
        total = torch.zeros_like(features) if ctx.needs_input_grad[0] else None
        d_rate = ctx.backend.scatter(grad.contiguous(), features, rate, ctx.walk, total)
        return total, d_rate, None
