"""Batch normalisation of the first rows of a ragged batch, with the ReLU before or after it.

    z = max(x, 0) if `before` else x          over the first `count` rows:
    mean, var = of z, per channel             (var divided by the number of rows)
    h = (z - mean) / sqrt(var + eps) * weight + bias
    y = max(h, 0) if `after` else h           and 0 in the rows from `count` on

`count` is a number that stays on the device, so that a captured graph serves batches of different sizes; without it all
rows count. Statistics are made in float32 (float64 for float64 input). No row at all gives mean 0, variance 0, and
leaves running statistics alone. Deterministic. Nothing but x and the statistics is kept for the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.ops.batch_norm import reference
from gridless.ops.batch_norm.reference import Running
from gridless.ops.checks import FLOATS
from gridless.ops.operator import by_reference, eager, operator, traced


def batch_norm(
    x: Tensor,
    count: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-3,
    before: bool = False,
    after: bool = False,
    running: Running | None = None,
) -> Tensor:
    """x (S, C), count () int64, weight and bias (C): y (S, C).

    `eps` is added to the variance; `before` and `after` say where the ReLU is. `running`, a mean (C), a variance (C), a
    number of batches () int64 and a momentum, is moved in place: the mean and the variance, divided by rows - 1, of
    this batch have the weight max(momentum, 1 / (batches + 1)). Differentiable once, in x, weight and bias.
    """
    if x.ndim != 2 or x.dtype not in FLOATS:
        raise ValueError(f"batch_norm: x must be floating point (rows, channels), not {x.dtype} {tuple(x.shape)}")
    if (weight is None) != (bias is None):
        raise ValueError("batch_norm: weight or bias is missing. Give both or neither.")
    _check_numbers(x, ("count", count), ("the number of batches", running and running[2]))
    running_values = () if running is None else (("the running mean", running[0]), ("the running variance", running[1]))
    for name, value in (("weight", weight), ("bias", bias), *running_values):
        if value is not None and (value.shape != x.shape[1:] or value.device != x.device):
            actual = f"{tuple(value.shape)} on {value.device}"
            raise ValueError(f"batch_norm: {name} must be ({x.shape[1]},) on {x.device}, not {actual}")
    for name, value in running_values:
        if not value.is_contiguous():
            raise ValueError(f"batch_norm: {name} is written to but not contiguous. Pass .contiguous().")
    if by_reference(x):
        return reference.forward(x.contiguous(), count, weight, bias, eps, before, after, running)[0]
    if not traced(x):
        return _run(x, count, weight, bias, eps, before, after, running)
    y, statistics = _norm(x, count, weight, bias, eps, before, after)
    reference.track(statistics, reference.counted(x, count), running)
    return y


def _check_numbers(x: Tensor, *named: tuple[str, Tensor | None]) -> None:
    for name, value in named:
        if value is not None and (value.ndim != 0 or value.dtype != torch.int64 or value.device != x.device):
            actual = f"{value.dtype} {tuple(value.shape)} on {value.device}"
            raise ValueError(f"batch_norm: {name} must be one int64 on {x.device}, not {actual}")


def _dense(*parameters: Tensor | None) -> list[Tensor | None]:
    return [p if p is None else p.contiguous() for p in parameters]


def _fake_backward(grad, x, count, weight, bias, statistics, before, after):  # type: ignore[no-untyped-def]
    like = statistics[0] if weight is None else weight
    return torch.empty_like(x), torch.empty_like(like), torch.empty_like(like)


@operator("batch_norm_backward", _fake_backward)
def _norm_backward(
    grad: Tensor,
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    before: bool,
    after: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    package, (weight, bias) = implementation(reference, x.device), _dense(weight, bias)
    return package.backward(grad.contiguous(), x.contiguous(), count, weight, bias, statistics, before, after)


def _fake(x, count, weight, bias, eps, before, after):  # type: ignore[no-untyped-def]
    return torch.empty_like(x), x.new_empty(3, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32))


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    x, count, weight, bias, _, ctx.before, ctx.after, *running = inputs
    ctx.save_for_backward(x, count, weight, bias, output[1])
    ctx.others = (None,) * (3 + len(running))


def _save_traced(ctx: Any, inputs: tuple, output: tuple) -> None:
    _save(ctx, inputs, output)
    ctx.mark_non_differentiable(output[1])


def _differentiate(ctx: Any, grad: Tensor, *_: Any) -> tuple:
    x, count, weight, *rest = ctx.saved_tensors
    dx, d_weight, d_bias = _norm_backward(grad, x, count, weight, *rest, ctx.before, ctx.after)
    return dx, None, *((None, None) if weight is None else (d_weight, d_bias)), *ctx.others


def _forward(
    x: Tensor,
    count: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    before: bool,
    after: bool,
    running: Running | None = None,
) -> tuple[Tensor, Tensor]:
    package, (weight, bias) = implementation(reference, x.device), _dense(weight, bias)
    return package.forward(x.contiguous(), count, weight, bias, eps, before, after, running)


_run = eager("batch_norm", _save, _differentiate, first=True)(_forward)


@operator("batch_norm", _fake, _save_traced, _differentiate)
def _norm(
    x: Tensor, count: Tensor | None, weight: Tensor | None, bias: Tensor | None, eps: float, before: bool, after: bool
) -> tuple[Tensor, Tensor]:
    return _forward(x, count, weight, bias, eps, before, after)
