"""The operators of the point convolution, and their gradients.

Eager code hands `Neighbours` over as they are. Operators that torch traces take tensors and plain numbers. The backend
travels with them by name, so that a backward pass runs where its forward pass ran.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gridless import backends
from gridless.ops.operator import eager, operator, traced, without_autocast
from gridless.ops.point_conv.contract import CoordGradients, Neighbours, PointConvBackend
from gridless.ops.point_conv.edge_function import EdgeFunction, compute_dtype

# `Neighbours` as arguments of an operator: six tensors and six numbers.
_NEAR = (
    "Tensor splits, Tensor source, Tensor? back_splits, Tensor? back_source, Tensor source_coords, "
    "Tensor target_coords, SymInt kind, float[] table, float width, float radius, bool falloff, bool normalise"
)
_NEEDS = "bool need_source, bool need_target, str backend) -> (Tensor, Tensor)"


def _flat(near: Neighbours) -> tuple:
    """Neighbours as arguments of an operator; the dimension of the function is that of the coordinates."""
    kind, table, width, _, radius, falloff, normalise = near.function
    edges = near.splits, near.source, near.back_splits, near.back_source
    ends = near.source_coords, near.target_coords
    return *edges, *ends, kind, list(table), width, radius, falloff, normalise


def _near(numbers: Sequence[Any]) -> Neighbours:
    splits, source, back_splits, back_source, *ends, kind, table, width, radius, falloff, normalise = numbers
    function = EdgeFunction(kind, tuple(table), width, ends[0].shape[1], radius, falloff, normalise)
    return Neighbours(splits, source, back_splits, back_source, ends[0], ends[1], function)


def _on(backend: str, where: Tensor) -> PointConvBackend:
    return backends.module_of("gridless.ops.point_conv", backend, where.device)


def _filled(like: Tensor, grads: CoordGradients) -> tuple[Tensor, Tensor]:
    """Operators return tensors: an empty one stands for a gradient that is not needed."""
    first, second = grads
    return like.new_empty(0) if first is None else first, like.new_empty(0) if second is None else second


# The convolution.


def conv(
    features: Tensor, weight: Tensor, bias: Tensor | None, near: Neighbours, transform_first: bool, backend: str
) -> Tensor:
    if traced(features):
        return _traced_conv(features, weight, bias, *_flat(near), transform_first, backend)[0]
    ends = near.source_coords, near.target_coords
    # Inputs that need no gradient are not passed to the autograd function (saves 1 us each).
    if not (ends[0].requires_grad or ends[1].requires_grad or forward_ad._current_level >= 0):
        ends = None, None
    return _eager_conv(features, weight, bias, *ends, near, transform_first, backend)


@without_autocast
def _forward(
    features: Tensor, weight: Tensor, bias: Tensor | None, source_coords: Tensor | None, target_coords: Tensor | None,
    near: Neighbours, transform_first: bool, backend: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    bias = bias if bias is None else bias.contiguous()
    return _on(backend, features).conv(features, weight.contiguous(), bias, near, transform_first)


@eager("point_conv_backward")
@without_autocast
def _backward(
    grad: Tensor, features: Tensor, weight: Tensor, source_coords: Tensor, target_coords: Tensor, inverse: Tensor,
    near: Neighbours, needs: Sequence[bool], backend: str,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of features, weight, bias and both coordinates, those that are needed. Coordinates are in `near` too:
    here autograd sees that the gradients depend on them, and refuses a second derivative."""
    d_features = d_weight = d_bias = d_source = d_target = None
    module, grad, weight = _on(backend, grad), grad.contiguous(), weight.contiguous()
    if needs[0] or needs[1] or needs[2]:
        d_features, d_weight, d_bias = module.conv_backward(grad, features, weight, inverse, near, *needs[:3])
    if needs[3] or needs[4]:
        d_source, d_target = module.conv_coords_backward(grad, features, weight, inverse, near, needs[3], needs[4])
    return d_features, d_weight, d_bias, d_source, d_target


def _save(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    features, weight, _, _, _, near, _, ctx.backend = inputs
    # Coordinates too: autograd then notices whether they were changed meanwhile.
    ctx.save_for_backward(features, weight, near.source_coords, near.target_coords)
    ctx.near = near
    ctx.inverse = output[1]


def _differentiate(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    grads = _backward(grad, *ctx.saved_tensors, ctx.inverse, ctx.near, ctx.needs_input_grad, ctx.backend)
    return *grads, None, None, None


_eager_conv = eager("point_conv", _save, _differentiate, first=True)(_forward)


# The convolution as operators.


def _fake_backward(grad: Tensor, features: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    needs, coords = rest[-2], rest[5:7]
    like = (features, weight, grad.new_empty(grad.shape[1:]), *coords)
    return tuple(x.new_empty(x.shape) if need else grad.new_empty(0) for x, need in zip(like, needs, strict=True))


def _backward_flops(grad, features, weight, inverse, splits, source, *rest, **_):  # type: ignore[no-untyped-def]
    """Floating-point operations of B and each product with it; for coordinates, of all <grad[i], F[j] Theta(m)>."""
    (terms, channels, *wide), needs = weight, rest[-2]
    product, total = math.prod(wide) * channels, 0
    if needs[0] or needs[1]:
        total += source[0] * grad[1] + (needs[0] + needs[1]) * features[0] * product
    if needs[3] or needs[4]:
        total += source[0] * channels + grad[0] * product
    return 2 * terms * total


@operator(
    "point_conv_backward",
    _fake_backward,
    flops=_backward_flops,
    schema=f"(Tensor grad, Tensor features, Tensor weight, Tensor inverse, {_NEAR}, bool[] needs, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def _traced_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, ...]:
    features, weight, inverse, *near, needs, backend = arguments
    grads = _backward(grad, features, weight, *near[4:6], inverse, _near(near), needs, backend)
    return tuple(grad.new_empty(0) if x is None else x for x in grads)


def _fake_conv(features: Tensor, weight: Tensor, bias: Any, splits: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    targets, normalise = splits.shape[0] - 1, rest[-3]
    inverse = features.new_empty(targets if normalise else 0, dtype=compute_dtype(features.dtype))
    return features.new_empty(targets, weight.shape[-1]), inverse


def _save_traced(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    features, weight, _, *near = inputs[:9]
    ctx.save_for_backward(features, weight, output[1], *near)
    ctx.numbers, ctx.backend = inputs[9:15], inputs[16]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)


def _differentiate_traced(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    need = ctx.needs_input_grad
    needs = [*need[:3], *need[7:9]]
    if grad is None or not any(needs):
        return (None,) * 17
    gradients = _traced_backward(grad, *ctx.saved_tensors, *ctx.numbers, needs, ctx.backend)
    grads = [x if need else None for x, need in zip(gradients, needs, strict=True)]
    return *grads[:3], None, None, None, None, *grads[3:], *(None,) * 8


def _flops(features, weight, bias, splits, source, *rest, **_):  # type: ignore[no-untyped-def]
    """Floating-point operations of both products, in the order taken; a depthwise Theta(m) is diagonal."""
    (terms, channels, *wide), transform_first = weight, rest[-2]
    rows, gathered = (features[0], *wide) if transform_first else (splits[0] - 1, channels)
    return 2 * terms * (source[0] * gathered + rows * channels * math.prod(wide))


@operator(
    "point_conv",
    _fake_conv,
    _save_traced,
    _differentiate_traced,
    flops=_flops,
    schema=f"(Tensor features, Tensor weight, Tensor? bias, {_NEAR}, bool transform_first, str backend) "
    "-> (Tensor, Tensor)",
)
def _traced_conv(features: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    weight, bias, *near, transform_first, backend = arguments
    return _forward(features, weight, bias, near[4], near[5], _near(near), transform_first, backend)


# The sums of the edge values.


def _fake_coords(*arguments: Any) -> tuple[Tensor, ...]:
    *_, source_coords, target_coords, _, _, _, _, _, _, need_source, need_target, _ = arguments
    needs = ((source_coords, need_source), (target_coords, need_target))
    return tuple(torch.empty_like(x) if need else x.new_empty(0) for x, need in needs)


@operator("edge_sums_backward", _fake_coords, schema=f"(Tensor grad, Tensor sums, Tensor inverse, {_NEAR}, {_NEEDS}")
def _edge_sums_backward(grad: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    sums, inverse, *near, need_source, need_target, backend = arguments
    module = _on(backend, grad)
    grads = module.edge_sums_backward(grad.contiguous(), sums, inverse, _near(near), need_source, need_target)
    return _filled(grad, grads)


def _fake_sums(*arguments: Any) -> tuple[Tensor, Tensor]:
    *_, target_coords, _, table, _, _, _, normalise, _ = arguments
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


def edge_sums(near: Neighbours, backend: str) -> Tensor:
    return _edge_sums(*_flat(near), backend)[0]


@operator("edge_sums", _fake_sums, _save_sums, _backward_sums, schema=f"({_NEAR}, str backend) -> (Tensor, Tensor)")
def _edge_sums(splits: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    *near, backend = splits, *arguments
    return _on(backend, splits).edge_sums(_near(near))
