"""The operators of the point convolution, and their gradients.

Operators take tensors and plain numbers. The backend travels with them by name, so that a backward pass runs where its
forward pass ran.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.operator import operator, without_autocast
from gridless.ops.point_conv.edge_function import EdgeFunction, compute_dtype
from gridless.structures import Edges

Numbers = tuple[int, list[float], float, float, bool, bool]


def numbers(function: EdgeFunction) -> Numbers:
    """The function of an edge as arguments of an operator; its dimension is that of the coordinates."""
    return function.kind, list(function.table), function.width, function.radius, function.falloff, function.normalise


def _on(backend: str, where: Tensor) -> Any:
    return backends.module_of("gridless.ops.point_conv", backend, where.device)


def _function(coords: Tensor, kind: int, table: list[float], width: float, radius: float, *flags: bool) -> EdgeFunction:
    return EdgeFunction(kind, tuple(table), width, coords.shape[1], radius, *flags)


def _filled(like: Tensor, grads: tuple[Tensor | None, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Operators return tensors: an empty one stands for a gradient that nobody wants."""
    first, second = grads
    return like.new_empty(0) if first is None else first, like.new_empty(0) if second is None else second


# Gradients of the convolution.


def _fake_conv_backward(grad, features, weight, inverse, bs, bt, sc, tc, k, t, w, r, f, n, need_f, need_w, backend):  # type: ignore[no-untyped-def]
    none = grad.new_empty(0)
    return torch.empty_like(features) if need_f else none, weight.new_empty(weight.shape) if need_w else none.clone()


@operator("point_conv_backward", _fake_conv_backward)
@without_autocast
def _conv_backward(
    grad: Tensor,
    features: Tensor,
    weight: Tensor,
    inverse: Tensor,
    back_splits: Tensor,
    back_source: Tensor,
    source_coords: Tensor,
    target_coords: Tensor,
    kind: int,
    table: list[float],
    width: float,
    radius: float,
    falloff: bool,
    normalise: bool,
    need_features: bool,
    need_weight: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    function = _function(source_coords, kind, table, width, radius, falloff, normalise)
    back = (back_splits, back_source)
    grads = _on(backend, grad).conv_backward(
        grad.contiguous(), features, weight.contiguous(), inverse, *back, source_coords, target_coords, function,
        need_features, need_weight,
    )  # fmt: skip
    return _filled(grad, grads)


def _fake_coords(source_coords: Tensor, target_coords: Tensor, need_source: bool, need_target: bool) -> tuple:
    return tuple(
        torch.empty_like(x) if need else x.new_empty(0)
        for x, need in ((source_coords, need_source), (target_coords, need_target))
    )


def _fake_conv_coords_backward(grad, f, w, i, s, j, bs, bt, source, target, k, t, x, r, o, n, need_s, need_t, backend):  # type: ignore[no-untyped-def]
    return _fake_coords(source, target, need_s, need_t)


@operator("point_conv_coords_backward", _fake_conv_coords_backward)
@without_autocast
def _conv_coords_backward(
    grad: Tensor,
    features: Tensor,
    weight: Tensor,
    inverse: Tensor,
    splits: Tensor,
    source: Tensor,
    back_splits: Tensor | None,
    back_source: Tensor | None,
    source_coords: Tensor,
    target_coords: Tensor,
    kind: int,
    table: list[float],
    width: float,
    radius: float,
    falloff: bool,
    normalise: bool,
    need_source: bool,
    need_target: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    function = _function(source_coords, kind, table, width, radius, falloff, normalise)
    edges = (splits, source, back_splits, back_source)
    grads = _on(backend, grad).conv_coords_backward(
        grad.contiguous(), features, weight.contiguous(), inverse, *edges, source_coords, target_coords, function,
        need_source, need_target,
    )  # fmt: skip
    return _filled(source_coords, grads)


# The convolution.


def _fake_conv(features, weight, bias, splits, source, bs, bt, sc, tc, k, t, width, radius, falloff, normalise, *rest):  # type: ignore[no-untyped-def]
    targets = splits.shape[0] - 1
    inverse = features.new_empty(targets if normalise else 0, dtype=compute_dtype(features.dtype))
    return features.new_empty(targets, weight.shape[-1]), inverse


def _save_conv(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    features, weight, _, *geometry = inputs[:9]
    ctx.save_for_backward(features, weight, output[1], *geometry)
    ctx.numbers, ctx.backend = inputs[9:15], inputs[16]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward_conv(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    d_features = d_weight = d_bias = d_source = d_target = None
    need = ctx.needs_input_grad
    if grad is not None:
        features, weight, inverse, splits, source, *back, source_coords, target_coords = ctx.saved_tensors
        coords = (source_coords, target_coords)
        # First: torch's sum takes memory of its own, twice that of the features for 128 channels.
        if need[2]:
            d_bias = grad.sum(0)
        if need[0] or need[1]:
            f, w = _conv_backward(
                grad, features, weight, inverse, *back, *coords, *ctx.numbers, need[0], need[1], ctx.backend
            )
            d_features, d_weight = f if need[0] else None, w if need[1] else None
        if need[7] or need[8]:
            s, t = _conv_coords_backward(
                grad, features, weight, inverse, splits, source, *back, *coords, *ctx.numbers, need[7], need[8],
                ctx.backend,
            )  # fmt: skip
            d_source, d_target = s if need[7] else None, t if need[8] else None
    return d_features, d_weight, d_bias, None, None, None, None, d_source, d_target, *(None,) * 8


@operator("point_conv", _fake_conv, _save_conv, _backward_conv)
@without_autocast
def conv(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    splits: Tensor,
    source: Tensor,
    back_splits: Tensor | None,
    back_source: Tensor | None,
    source_coords: Tensor,
    target_coords: Tensor,
    kind: int,
    table: list[float],
    width: float,
    radius: float,
    falloff: bool,
    normalise: bool,
    transform_first: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    function = _function(source_coords, kind, table, width, radius, falloff, normalise)
    return _on(backend, features).conv(
        features, weight.contiguous(), bias, splits, source, source_coords, target_coords, function, transform_first
    )


# The sums of the edge values.


def _fake_sums_backward(grad, sums, inverse, s, j, bs, bt, source, target, k, t, w, r, f, n, need_s, need_t, backend):  # type: ignore[no-untyped-def]
    return _fake_coords(source, target, need_s, need_t)


@operator("edge_sums_backward", _fake_sums_backward)
def _edge_sums_backward(
    grad: Tensor,
    sums: Tensor,
    inverse: Tensor,
    splits: Tensor,
    source: Tensor,
    back_splits: Tensor | None,
    back_source: Tensor | None,
    source_coords: Tensor,
    target_coords: Tensor,
    kind: int,
    table: list[float],
    width: float,
    radius: float,
    falloff: bool,
    normalise: bool,
    need_source: bool,
    need_target: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    function = _function(source_coords, kind, table, width, radius, falloff, normalise)
    edges = (splits, source, back_splits, back_source)
    grads = _on(backend, grad).edge_sums_backward(
        grad.contiguous(), sums, inverse, *edges, source_coords, target_coords, function, need_source, need_target
    )
    return _filled(grad, grads)


def _fake_sums(splits, source, bs, bt, sc, target_coords, kind, table, width, radius, falloff, normalise, backend):  # type: ignore[no-untyped-def]
    targets, dim = target_coords.shape
    return target_coords.new_empty(targets, len(table) // dim), target_coords.new_empty(targets if normalise else 0)


def _save_sums(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.numbers, ctx.backend = inputs[6:12], inputs[12]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward_sums(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    d_source = d_target = None
    need_source, need_target = ctx.needs_input_grad[4:6]
    if grad is not None and (need_source or need_target):
        s, t = _edge_sums_backward(grad, *ctx.saved_tensors, *ctx.numbers, need_source, need_target, ctx.backend)
        d_source, d_target = s if need_source else None, t if need_target else None
    return None, None, None, None, d_source, d_target, *(None,) * 7


@operator("edge_sums", _fake_sums, _save_sums, _backward_sums)
def edge_sums(
    splits: Tensor,
    source: Tensor,
    back_splits: Tensor | None,
    back_source: Tensor | None,
    source_coords: Tensor,
    target_coords: Tensor,
    kind: int,
    table: list[float],
    width: float,
    radius: float,
    falloff: bool,
    normalise: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    function = _function(source_coords, kind, table, width, radius, falloff, normalise)
    return _on(backend, target_coords).edge_sums(splits, source, source_coords, target_coords, function)


@torch.library.custom_op("gridless::transpose_edges", mutates_args=())
def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    """The transposed edges, for graphs that are compiled before anyone has asked for them."""
    back = Edges(splits, source, num_source, padding=padding).transpose()
    return back.splits, back.source


@transpose.register_fake
def _(splits, source, num_source, padding):  # type: ignore[no-untyped-def]
    return splits.new_empty(num_source + 1), torch.empty_like(source)
