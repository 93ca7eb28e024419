"""Batch normalisation of the first rows of a ragged batch, with the ReLU before or after it.

    z = max(x, 0) if `before` else x          over the first `count` rows:
    mean, var = of z, per channel             (var divided by the number of rows)
    h = (z - mean) / sqrt(var + eps) * weight + bias
    y = max(h, 0) if `after` else h           and 0 in the rows from `count` on

`count` is a number that stays on the device, so that a captured graph serves batches of different sizes. Statistics
are made in float32 (float64 for float64 input). No row at all gives mean 0, variance 0. Deterministic. Nothing but x
and the statistics is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.ops.batch_norm import reference
from gridless.ops.operator import operator

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def batch_norm(
    x: Tensor,
    count: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-3,
    before: bool = False,
    after: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """x (S, C), count () int64, weight and bias (C): y (S, C), mean (C), and variance divided by rows - 1 (C).

    `eps` is added to the variance; `before` and `after` say where the ReLU is. Differentiable once, in x, weight and
    bias; the statistics that are returned carry no gradient.
    """
    if x.ndim != 2 or x.dtype not in FLOATS:
        raise ValueError(f"batch_norm: x must be floating point (rows, channels), not {x.dtype} {tuple(x.shape)}")
    if count.ndim != 0 or count.dtype != torch.int64 or count.device != x.device:
        raise ValueError(
            f"batch_norm: count must be one int64 on {x.device}, "
            f"not {count.dtype} {tuple(count.shape)} on {count.device}"
        )
    if (weight is None) != (bias is None):
        raise ValueError("batch_norm: give both weight and bias, or neither")
    for name, value in (("weight", weight), ("bias", bias)):
        if value is not None and value.shape != x.shape[1:]:
            raise ValueError(f"batch_norm: {name} must be ({x.shape[1]},), not {tuple(value.shape)}")
    y, mean, _, unbiased = _norm(x, count, weight, bias, eps, before, after)
    return y, mean, unbiased


def track(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float,
) -> None:
    """Move `running_mean` and `running_var` (C) by `momentum` towards `mean` and `var` (C), and count the batch in
    `tracked` (), unless `count` () says that it had no row."""
    for name, value in (("var", var), ("running_mean", running_mean), ("running_var", running_var)):
        if value.shape != mean.shape or value.device != mean.device:
            found = f"{tuple(value.shape)} on {value.device}"
            raise ValueError(f"track: {name} must be {tuple(mean.shape)} on {mean.device}, not {found}")
    for name, value in (("count", count), ("tracked", tracked)):
        if value.ndim != 0 or value.dtype != torch.int64 or value.device != mean.device:
            found = f"{value.dtype} {tuple(value.shape)} on {value.device}"
            raise ValueError(f"track: {name} must be one int64 on {mean.device}, not {found}")
    run = _track if torch.compiler.is_compiling() else _run_track
    run(mean, var, count, running_mean, running_var, tracked, momentum)


def _fake_backward(grad, x, count, weight, bias, mean, scale, before, after):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), mean.new_empty(2, mean.shape[0])


@operator("batch_norm_backward", _fake_backward)
def _norm_backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    scale: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of x (S, C), and of bias and weight (2, C)."""
    package = implementation(reference, x.device)
    return package.backward(grad.contiguous(), x.contiguous(), count, weight, bias, mean, scale, before, after)


def _fake(x, count, weight, bias, eps, before, after):  # type: ignore[no-untyped-def]
    wide = x.new_empty(x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))
    return torch.empty_like(x), wide, wide.clone(), wide.clone()


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, count, weight, bias, _, ctx.before, ctx.after = inputs
    _, mean, scale, unbiased = output
    ctx.save_for_backward(x, count, weight, bias, mean, scale)
    ctx.mark_non_differentiable(mean, scale, unbiased)
    # The statistics have no gradient: None is quicker than zeros.
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grad: Tensor | None, *_: Any) -> tuple:
    if grad is None:
        return (None,) * 7
    x, count, weight, bias, mean, scale = ctx.saved_tensors
    dx, (d_bias, d_weight) = _norm_backward(grad, x, count, weight, bias, mean, scale, ctx.before, ctx.after)
    if weight is None or bias is None:
        return dx, None, None, None, None, None, None
    return dx, None, d_weight.to(weight.dtype), d_bias.to(bias.dtype), None, None, None


@operator("batch_norm", _fake, _save, _differentiate)
def _norm(
    x: Tensor, count: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, before: bool, after: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """y, mean, 1 / sqrt(var + eps), unbiased variance."""
    return implementation(reference, x.device).forward(x.contiguous(), count, weight, bias, eps, before, after)


def _run_track(
    mean: Tensor,
    var: Tensor,
    count: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    tracked: Tensor,
    momentum: float,
) -> None:
    implementation(reference, mean.device).track(mean, var, count, running_mean, running_var, tracked, momentum)


_TRACKED = ("running_mean", "running_var", "tracked")
_track = torch.library.custom_op("gridless::track_statistics", _run_track, mutates_args=_TRACKED)
_track.register_fake(lambda *given: None)
