"""The mean over cells in plain torch: the specification."""

from __future__ import annotations

import torch
from torch import Tensor


def voxel_mean(features: Tensor, cell: Tensor, cells: int) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(features.dtype, torch.float32)
    kept = cell >= 0
    at = cell[kept].long()
    count = torch.bincount(at, minlength=cells)
    total = torch.zeros(cells, features.shape[1], dtype=wide, device=features.device)
    total = total.index_add(0, at, features[kept].to(wide))
    return (total / count.clamp(min=1)[:, None]).to(features.dtype), count
