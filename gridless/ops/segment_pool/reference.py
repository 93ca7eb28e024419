"""Segment pooling in plain torch: the specification."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor


def segment_max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    value, row = [features[:0]], [splits.new_zeros(0, features.shape[1])]
    for a, b in pairwise(splits.tolist()):
        part = features[a:b]
        if a < b:
            top, at = part.max(0, keepdim=True)
        else:
            top, at = part.sum(0, keepdim=True), splits.new_full((1, features.shape[1]), len(features) - a)
        value.append(top)
        row.append(at + a)
    return torch.cat(value), torch.cat(row)


def segment_mean(features: Tensor, splits: Tensor) -> Tensor:
    wide = torch.promote_types(features.dtype, torch.float32)
    value = [features[:0]]
    for a, b in pairwise(splits.tolist()):
        part = features[a:b].to(wide)
        value.append((part.mean(0, keepdim=True) if a < b else part.sum(0, keepdim=True)).to(features.dtype))
    return torch.cat(value)


def segment_spread(values: Tensor, splits: Tensor, rows: int) -> Tensor:
    padded = torch.cat([values, values.new_zeros(1, values.shape[1])])
    example = torch.searchsorted(splits[1:], torch.arange(rows, device=splits.device), right=True)
    return padded.index_select(0, example)


def over(values: Tensor, count: Tensor) -> Tensor:
    """Rows of values, each over its count, which float16 may have no number for."""
    wide = torch.promote_types(values.dtype, torch.float32)
    return (values.to(wide) / count.clamp(min=1)[:, None]).to(values.dtype)
