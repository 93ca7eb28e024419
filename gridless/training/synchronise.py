"""Batch statistics over all processes, so that several devices compute what one would."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce

from gridless.nn.norm import BatchNorm
from gridless.structures import Geometry


class SynchronisedBatchNorm(BatchNorm):
    """`BatchNorm` whose training statistics are those of the rows of all processes together."""

    def forward(self, features: Tensor, geometry: Geometry | None = None) -> Tensor:
        if not self.training or not torch.distributed.is_initialized():
            return super().forward(features, geometry)
        flat = features.reshape(-1, self.channels)
        flat = flat.relu() if self.relu == "before" else flat
        count = torch.tensor(flat.shape[0], device=flat.device)
        if self.cloud is not None and geometry is not None:
            count = geometry[self.cloud].splits[-1]
        real = (torch.arange(flat.shape[0], device=flat.device) < count)[:, None]
        x = torch.where(real, flat, 0.0).to(torch.promote_types(flat.dtype, torch.float32))
        sums = all_reduce(torch.cat([x.sum(0), count.to(x.dtype)[None]]))
        total = sums[-1].detach().clamp(min=1)
        centred = torch.where(real, x - sums[:-1] / total, 0.0)
        var = all_reduce(centred.square().sum(0)) / total
        with torch.no_grad():
            self.running_mean += self.momentum * (sums[:-1] / total - self.running_mean)
            self.running_var += self.momentum * (var * total / (total - 1).clamp(min=1) - self.running_var)
            self.num_batches_tracked += 1
        y = centred * (var + self.eps).rsqrt()
        if self.weight is not None and self.bias is not None:
            y = torch.where(real, y * self.weight + self.bias, 0.0)
        y = y.relu() if self.relu == "after" else y
        return y.to(features.dtype).reshape(features.shape)


def synchronise(model: nn.Module) -> None:
    """Make every `BatchNorm` of a network a synchronised one, in place; parameters and state stay."""
    for module in model.modules():
        if type(module) is BatchNorm:
            module.__class__ = SynchronisedBatchNorm
