"""The registered operators, and their gradients.

Operators take tensors and plain numbers. The backend travels with them by name, so that a backward pass runs where its
forward pass ran.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.point_conv.kernel import EdgeKernel, compute_dtype
from gridless.structures import Edges

Numbers = tuple[int, list[float], float, float, bool, bool]


def numbers(kernel: EdgeKernel) -> Numbers:
    """The kernel as arguments of an operator; its dimension is that of the coordinates."""
    return kernel.kind, list(kernel.table), kernel.width, kernel.radius, kernel.falloff, kernel.normalise


def _on(backend: str, where: Tensor) -> Any:
    return backends.module_of("gridless.ops.point_conv", backend, where.device)


def _kernel(coords: Tensor, kind: int, table: list[float], width: float, radius: float, *flags: bool) -> EdgeKernel:
    return EdgeKernel(kind, tuple(table), width, coords.shape[1], radius, *flags)


@torch.library.custom_op("gridless::point_conv", mutates_args=())
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
    kernel = _kernel(source_coords, kind, table, width, radius, falloff, normalise)
    with torch.autocast(features.device.type, enabled=False):
        return _on(backend, features).conv(
            features, weight.contiguous(), bias, splits, source, source_coords, target_coords, kernel, transform_first
        )


@conv.register_fake
def _(features, weight, bias, splits, source, bs, bt, sc, tc, kind, table, width, radius, falloff, normalise, *rest):  # type: ignore[no-untyped-def]
    targets = splits.shape[0] - 1
    inverse = features.new_empty(targets if normalise else 0, dtype=compute_dtype(features.dtype))
    return features.new_empty(targets, weight.shape[2]), inverse


@torch.library.custom_op("gridless::point_conv_backward", mutates_args=())
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
    kernel = _kernel(source_coords, kind, table, width, radius, falloff, normalise)
    with torch.autocast(grad.device.type, enabled=False):
        grads = _on(backend, grad).conv_backward(
            grad.contiguous(),
            features,
            weight.contiguous(),
            inverse,
            back_splits,
            back_source,
            source_coords,
            target_coords,
            kernel,
            need_features,
            need_weight,
        )
    return _filled(grad, *grads)


@_conv_backward.register_fake
def _(grad, features, weight, inverse, bs, bt, sc, tc, kind, table, width, radius, f, n, need_f, need_w, backend):  # type: ignore[no-untyped-def]
    none = grad.new_empty(0)
    return torch.empty_like(features) if need_f else none, weight.new_empty(weight.shape) if need_w else none.clone()


@torch.library.custom_op("gridless::point_conv_coords_backward", mutates_args=())
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
    kernel = _kernel(source_coords, kind, table, width, radius, falloff, normalise)
    with torch.autocast(grad.device.type, enabled=False):
        grads = _on(backend, grad).conv_coords_backward(
            grad.contiguous(),
            features,
            weight.contiguous(),
            inverse,
            splits,
            source,
            back_splits,
            back_source,
            source_coords,
            target_coords,
            kernel,
            need_source,
            need_target,
        )
    return _filled(grad, *grads)


@_conv_coords_backward.register_fake
def _(grad, features, weight, inverse, s, j, bs, bt, source_coords, target_coords, k, t, w, r, f, n, need_s, need_t, b):  # type: ignore[no-untyped-def]
    none = grad.new_empty(0)
    return (
        torch.empty_like(source_coords) if need_s else none,
        torch.empty_like(target_coords) if need_t else none.clone(),
    )


@torch.library.custom_op("gridless::edge_sums", mutates_args=())
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
    kernel = _kernel(source_coords, kind, table, width, radius, falloff, normalise)
    return _on(backend, target_coords).edge_sums(splits, source, source_coords, target_coords, kernel)


@edge_sums.register_fake
def _(splits, source, bs, bt, source_coords, target_coords, kind, table, width, radius, falloff, normalise, backend):  # type: ignore[no-untyped-def]
    targets, dim = target_coords.shape
    return target_coords.new_empty(targets, len(table) // dim), target_coords.new_empty(targets if normalise else 0)


@torch.library.custom_op("gridless::edge_sums_backward", mutates_args=())
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
    kernel = _kernel(source_coords, kind, table, width, radius, falloff, normalise)
    grads = _on(backend, grad).edge_sums_backward(
        grad.contiguous(),
        sums,
        inverse,
        splits,
        source,
        back_splits,
        back_source,
        source_coords,
        target_coords,
        kernel,
        need_source,
        need_target,
    )
    return _filled(grad, *grads)


@_edge_sums_backward.register_fake
def _(grad, sums, inverse, s, j, bs, bt, source_coords, target_coords, k, t, w, r, f, n, need_s, need_t, b):  # type: ignore[no-untyped-def]
    none = grad.new_empty(0)
    return (
        torch.empty_like(source_coords) if need_s else none,
        torch.empty_like(target_coords) if need_t else none.clone(),
    )


@torch.library.custom_op("gridless::transpose_edges", mutates_args=())
def transpose(splits: Tensor, source: Tensor, num_source: int, padding: int) -> tuple[Tensor, Tensor]:
    """The transposed edges, for graphs that are compiled before anyone has asked for them."""
    back = Edges(splits, source, num_source, padding=padding).transpose()
    return back.splits, back.source


@transpose.register_fake
def _(splits, source, num_source, padding):  # type: ignore[no-untyped-def]
    return splits.new_empty(num_source + 1), torch.empty_like(source)


def _filled(like: Tensor, *grads: Tensor | None) -> tuple[Tensor, Tensor]:
    first, second = (like.new_empty(0) if g is None else g for g in grads)
    return first, second


# Autograd.


def _save_conv(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    features, weight, _, splits, source, back_splits, back_source, source_coords, target_coords = inputs[:9]
    ctx.save_for_backward(
        features, weight, output[1], splits, source, back_splits, back_source, source_coords, target_coords
    )
    ctx.numbers, ctx.backend = inputs[9:15], inputs[16]
    ctx.set_materialize_grads(False)


def _backward_conv(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    features, weight, inverse, splits, source, back_splits, back_source, source_coords, target_coords = (
        ctx.saved_tensors
    )
    d_features = d_weight = d_bias = d_source = d_target = None
    need = ctx.needs_input_grad
    if grad is not None:
        coords = (source_coords, target_coords)
        if need[0] or need[1]:
            back = (back_splits, back_source)
            f, w = _conv_backward(
                grad, features, weight, inverse, *back, *coords, *ctx.numbers, need[0], need[1], ctx.backend
            )
            d_features, d_weight = f if need[0] else None, w if need[1] else None
        if need[2]:
            d_bias = grad.sum(0)
        if need[7] or need[8]:
            s, t = _conv_coords_backward(
                grad, features, weight, inverse, splits, source, back_splits, back_source, *coords, *ctx.numbers,
                need[7], need[8], ctx.backend,
            )  # fmt: skip
            d_source, d_target = s if need[7] else None, t if need[8] else None
    return d_features, d_weight, d_bias, None, None, None, None, d_source, d_target, *(None,) * 8


def _save_sums(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:6])
    ctx.numbers, ctx.backend = inputs[6:12], inputs[12]
    ctx.set_materialize_grads(False)


def _backward_sums(ctx: Any, grad: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    d_source = d_target = None
    need_source, need_target = ctx.needs_input_grad[4:6]
    if grad is not None and (need_source or need_target):
        s, t = _edge_sums_backward(grad, *ctx.saved_tensors, *ctx.numbers, need_source, need_target, ctx.backend)
        d_source, d_target = s if need_source else None, t if need_target else None
    return None, None, None, None, d_source, d_target, *(None,) * 7


def _no_second(ctx: Any, *grads: Any) -> Any:
    raise NotImplementedError(
        "the fast backends have first derivatives only: for second ones run under gl.use_backend('reference')"
    )


conv.register_autograd(_backward_conv, setup_context=_save_conv)
edge_sums.register_autograd(_backward_sums, setup_context=_save_sums)
for _op in (_conv_backward, _conv_coords_backward, _edge_sums_backward):
    _op.register_autograd(_no_second)
