"""The operators of the point convolution, and their gradients.

Operators take tensors and plain numbers. The backend travels with them by name, so that a backward pass runs where its
forward pass ran.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.operator import operator, without_autocast
from gridless.ops.point_conv.contract import Backend, Gradients, Neighbours
from gridless.ops.point_conv.edge_function import EdgeFunction, compute_dtype
from gridless.structures import Edges

Numbers = tuple[int, list[float], float, float, bool, bool]

# `Neighbours` as arguments of an operator: six tensors and six numbers.
_NEAR = (
    "Tensor splits, Tensor source, Tensor? back_splits, Tensor? back_source, Tensor source_coords, "
    "Tensor target_coords, SymInt kind, float[] table, float width, float radius, bool falloff, bool normalise"
)
_NEEDS = "bool need_source, bool need_target, str backend) -> (Tensor, Tensor)"


def numbers(function: EdgeFunction) -> Numbers:
    """The function of an edge as arguments of an operator; its dimension is that of the coordinates."""
    return function.kind, list(function.table), function.width, function.radius, function.falloff, function.normalise


def _on(backend: str, where: Tensor) -> Backend:
    return backends.module_of("gridless.ops.point_conv", backend, where.device)


def _near(given: Sequence[Any]) -> Neighbours:
    kind, table, width, radius, falloff, normalise = given[6:]
    function = EdgeFunction(kind, tuple(table), width, given[4].shape[1], radius, falloff, normalise)
    return Neighbours._make((*given[:6], function))


def _filled(like: Tensor, grads: Gradients) -> tuple[Tensor, Tensor]:
    """Operators return tensors: an empty one stands for a gradient that is not needed."""
    first, second = grads
    return like.new_empty(0) if first is None else first, like.new_empty(0) if second is None else second


# Gradients of the convolution.


def _fake_conv_backward(grad: Tensor, features: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    none, (need_features, need_weight) = grad.new_empty(0), rest[-3:-1]
    return (
        torch.empty_like(features) if need_features else none,
        weight.new_empty(weight.shape) if need_weight else none.clone(),
    )


@operator(
    "point_conv_backward",
    _fake_conv_backward,
    schema=f"(Tensor grad, Tensor features, Tensor weight, Tensor inverse, {_NEAR}, "
    "bool need_features, bool need_weight, str backend) -> (Tensor, Tensor)",
)
@without_autocast
def _conv_backward(grad: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    features, weight, inverse, *near, need_features, need_weight, backend = given
    needs = (need_features, need_weight)
    grads = _on(backend, grad).conv_backward(
        grad.contiguous(), features, weight.contiguous(), inverse, _near(near), *needs
    )
    return _filled(grad, grads)


def _fake_coords(*given: Any) -> tuple[Tensor, ...]:
    *_, source_coords, target_coords, _, _, _, _, _, _, need_source, need_target, _ = given
    needs = ((source_coords, need_source), (target_coords, need_target))
    return tuple(torch.empty_like(x) if need else x.new_empty(0) for x, need in needs)


@operator(
    "point_conv_coords_backward",
    _fake_coords,
    schema=f"(Tensor grad, Tensor features, Tensor weight, Tensor inverse, {_NEAR}, {_NEEDS}",
)
@without_autocast
def _conv_coords_backward(grad: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    features, weight, inverse, *parts, need_source, need_target, backend = given
    near, needs = _near(parts), (need_source, need_target)
    grads = _on(backend, grad).conv_coords_backward(
        grad.contiguous(), features, weight.contiguous(), inverse, near, *needs
    )
    return _filled(near.source_coords, grads)


# The convolution.


def _fake_conv(features: Tensor, weight: Tensor, bias: Any, splits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    targets, normalise = splits.shape[0] - 1, rest[-3]
    inverse = features.new_empty(targets if normalise else 0, dtype=compute_dtype(features.dtype))
    return features.new_empty(targets, weight.shape[-1]), inverse


def _save_conv(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    features, weight, _, *near = inputs[:9]
    ctx.save_for_backward(features, weight, output[1], *near)
    ctx.numbers, ctx.backend = inputs[9:15], inputs[16]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _backward_conv(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    d_features = d_weight = d_bias = d_source = d_target = None
    need = ctx.needs_input_grad
    if grad is not None:
        given = (*ctx.saved_tensors, *ctx.numbers)
        # First: torch's sum takes memory of its own, twice that of the features for 128 channels.
        if need[2]:
            d_bias = grad.sum(0)
        if need[0] or need[1]:
            f, w = _conv_backward(grad, *given, need[0], need[1], ctx.backend)
            d_features, d_weight = f if need[0] else None, w if need[1] else None
        if need[7] or need[8]:
            s, t = _conv_coords_backward(grad, *given, need[7], need[8], ctx.backend)
            d_source, d_target = s if need[7] else None, t if need[8] else None
    return d_features, d_weight, d_bias, None, None, None, None, d_source, d_target, *(None,) * 8


@operator(
    "point_conv",
    _fake_conv,
    _save_conv,
    _backward_conv,
    schema=f"(Tensor features, Tensor weight, Tensor? bias, {_NEAR}, bool transform_first, str backend) "
    "-> (Tensor, Tensor)",
)
@without_autocast
def conv(features: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    weight, bias, *near, transform_first, backend = given
    return _on(backend, features).conv(features, weight.contiguous(), bias, _near(near), transform_first)


# The sums of the edge values.


@operator("edge_sums_backward", _fake_coords, schema=f"(Tensor grad, Tensor sums, Tensor inverse, {_NEAR}, {_NEEDS}")
def _edge_sums_backward(grad: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    sums, inverse, *near, need_source, need_target, backend = given
    module = _on(backend, grad)
    grads = module.edge_sums_backward(grad.contiguous(), sums, inverse, _near(near), need_source, need_target)
    return _filled(grad, grads)


def _fake_sums(*given: Any) -> tuple[Tensor, Tensor]:
    *_, target_coords, _, table, _, _, _, normalise, _ = given
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


@operator("edge_sums", _fake_sums, _save_sums, _backward_sums, schema=f"({_NEAR}, str backend) -> (Tensor, Tensor)")
def edge_sums(splits: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
    *near, backend = splits, *given
    return _on(backend, splits).edge_sums(_near(near))


@torch.library.custom_op("gridless::transpose_edges", mutates_args=())
def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    """The transposed edges, for graphs that are compiled before anyone has asked for them."""
    back = Edges(splits, source, num_source, padding=padding).transpose()
    return back.splits, back.source


@transpose.register_fake
def _(splits, source, num_source, padding):  # type: ignore[no-untyped-def]
    return splits.new_empty(num_source + 1), torch.empty_like(source)
