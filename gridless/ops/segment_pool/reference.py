"""Segment pooling in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def segment_max(features: Tensor, splits: Tensor) -> tuple[Tensor, Tensor]:
    shape = (len(splits) - 1, features.shape[1])
    value, row = features.new_zeros(shape), splits.new_full(shape, len(features))
    for i, (a, b) in enumerate(zip(splits.tolist(), splits.tolist()[1:])):
        if a < b:
            value[i], row[i] = features[a:b].max(0)
            row[i] += a
    return value, row


def segment_mean(features: Tensor, splits: Tensor) -> Tensor:
    wide = torch.promote_types(features.dtype, torch.float32)
    value = features.new_zeros(len(splits) - 1, features.shape[1])
    for i, (a, b) in enumerate(zip(splits.tolist(), splits.tolist()[1:])):
        if a < b:
            value[i] = features[a:b].to(wide).mean(0)
    return value
