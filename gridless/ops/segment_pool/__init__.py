"""Maximum and mean over each example of ragged rows, which leave the cloud, and the way back.

    segment_max(F, splits)[b, c]  = max  of F[s, c] over s in splits[b] .. splits[b + 1] - 1
    segment_mean(F, splits)[b, c] = mean of F[s, c] over the same rows
    segment_spread(F, splits, rows)[s, c] = F[b, c] for the same rows s

Examples without rows give 0. Rows after splits[-1] are padding and belong to no example: they are not read, and their
gradient is 0; the spread gives them 0. The gradient of a maximum goes to the first row that holds it; a NaN counts as
the largest value. float16 and bfloat16 are summed in float32. All are deterministic, and can be differentiated twice.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.ops.checks import FLOATS
from gridless.ops.operator import by_reference, operator
from gridless.ops.segment_pool import reference
from gridless.ops.segment_pool.reference import over


def segment_max(features: Tensor, splits: Tensor) -> Tensor:
    """The largest feature of each example: features (S, C), splits (B + 1) to (B, C)."""
    _check(features, splits, "segment_max")
    maxima = reference.segment_max(features.contiguous(), splits) if by_reference(features) else _max(features, splits)
    return maxima[0]


def segment_mean(features: Tensor, splits: Tensor) -> Tensor:
    """The mean feature of each example: features (S, C), splits (B + 1) to (B, C)."""
    _check(features, splits, "segment_mean")
    return reference.segment_mean(features.contiguous(), splits) if by_reference(features) else _mean(features, splits)


def segment_spread(values: Tensor, splits: Tensor, rows: int) -> Tensor:
    """The values of each row's example: values (B, C), splits (B + 1) to (rows, C); 0 for rows after splits[-1]."""
    _check(values, splits, "segment_spread")
    if len(values) != len(splits) - 1:
        raise ValueError(
            f"segment_spread: {len(values)} rows of values for {len(splits) - 1} examples. Pass one row each."
        )
    return reference.segment_spread(values, splits, rows) if by_reference(values) else _spread(values, splits, rows)


def _check(features: Tensor, splits: Tensor, what: str) -> None:
    if features.ndim != 2:
        raise ValueError(f"{what}: features must be (rows, channels), not {tuple(features.shape)}")
    if features.dtype not in FLOATS:
        raise TypeError(f"{what}: features must be floating point, not {features.dtype}. Convert with .float().")
    if splits.ndim != 1 or splits.dtype != torch.int64 or splits.shape[0] < 1:
        raise ValueError(f"{what}: splits must be int64 (examples + 1), not {splits.dtype} {tuple(splits.shape)}")
    if splits.device != features.device:
        raise ValueError(f"{what}: splits on {splits.device}, features on {features.device}. Put both on one device.")


def _fake_max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    shape = (splits.shape[0] - 1, features.shape[1])
    return features.new_empty(shape), splits.new_empty(shape)


def _save_max(ctx, inputs, output) -> None:
    ctx.rows = inputs[0].shape[0]
    ctx.save_for_backward(output[1])


def _max_backward(ctx, grad: Tensor, _) -> tuple[Tensor, None]:
    # Rows are distinct within a column, except the spare one that collects the empty examples: no two writes race.
    (row,) = ctx.saved_tensors
    return grad.new_zeros(ctx.rows + 1, grad.shape[1]).scatter_(0, row, grad)[:-1], None


@operator("segment_max", _fake_max, _save_max, _max_backward)
def _max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    """Values (B, C), and the row each came from (B, C) int64, the number of rows where there is none."""
    return implementation(reference, features.device).segment_max(features.contiguous(), splits.contiguous())


def _fake_mean(features: Tensor, splits: Tensor) -> Tensor:
    return features.new_empty(splits.shape[0] - 1, features.shape[1])


def _save_mean(ctx, inputs, output) -> None:
    features, splits = inputs
    ctx.rows = features.shape[0]
    ctx.save_for_backward(splits)


def _mean_backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
    (splits,) = ctx.saved_tensors
    return _spread(over(grad, splits.diff()), splits, ctx.rows), None


@operator("segment_mean", _fake_mean, _save_mean, _mean_backward)
def _mean(features: Tensor, splits: Tensor) -> Tensor:
    return implementation(reference, features.device).segment_mean(features.contiguous(), splits.contiguous())


def _fake_spread(values: Tensor, splits: Tensor, rows: int) -> Tensor:
    return values.new_empty(rows, values.shape[1])


def _save_spread(ctx, inputs, output) -> None:
    ctx.save_for_backward(inputs[1])


def _spread_backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
    # Times the size of an example, float16 would overflow too soon.
    (splits,) = ctx.saved_tensors
    wide = grad.to(torch.promote_types(grad.dtype, torch.float32))
    return (_mean(wide, splits) * splits.diff()[:, None]).to(grad.dtype), None, None


@operator("segment_spread", _fake_spread, _save_spread, _spread_backward)
def _spread(values: Tensor, splits: Tensor, rows: int) -> Tensor:
    return reference.segment_spread(values, splits, rows)
