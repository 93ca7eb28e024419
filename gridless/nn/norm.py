"""Batch normalisation over the rows of a ragged batch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gridless.ops.batch_norm import batch_norm, track
from gridless.structures import Geometry


class BatchNorm(nn.Module):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, per channel, over the rows of the whole batch.

    `BatchNorm(channels)` normalises (..., channels), every row counting; `BatchNorm(channels, cloud)` normalises the
    rows of the cloud of that name, and is called with the geometry: `norm(features, geometry)`. Padding rows then do
    not count, and come out as 0. No rows at all leave the statistics alone; one row has variance 0.

    Otherwise as torch.nn.BatchNorm1d (same state), with the defaults of the paper's networks: running statistics keep
    0.99 of their value (momentum 0.01 in torch's convention), eps 1e-3. Nothing waits for the device.

    `relu` is "before" for norm(relu(x)) and "after" for relu(norm(x)); on the GPU it then costs nothing.
    """

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        channels: int,
        cloud: str | None = None,
        momentum: float = 0.01,
        eps: float = 1e-3,
        affine: bool = True,
        relu: str | None = None,
    ) -> None:
        super().__init__()
        if channels < 1:
            raise ValueError(f"BatchNorm: channels must be positive, not {channels}")
        if relu not in (None, "before", "after"):
            raise ValueError(f"BatchNorm: relu must be 'before', 'after' or None, not {relu!r}")
        self.channels, self.cloud, self.momentum, self.eps, self.relu = channels, cloud, momentum, eps, relu
        self.weight = nn.Parameter(torch.ones(channels)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, features: Tensor, geometry: Geometry | None = None) -> Tensor:
        if features.ndim < 2 or features.shape[-1] != self.channels:
            raise ValueError(f"BatchNorm: features must be (rows, {self.channels}), not {tuple(features.shape)}")
        if self.cloud is not None and geometry is None:
            raise ValueError(f"BatchNorm over the points of {self.cloud} is called as norm(features, geometry)")
        if self.training and features.numel() and features.is_cuda:
            return self._fused(features, geometry)
        features = features.relu() if self.relu == "before" else features
        y = self._normalise(features, geometry)
        return y.relu() if self.relu == "after" else y

    def _normalise(self, features: Tensor, geometry: Geometry | None) -> Tensor:
        flat = features.reshape(-1, self.channels)
        if flat.shape[0] == 0:
            # Still a function of the parameters, so that their gradient is 0 rather than missing.
            return features if self.weight is None or self.bias is None else features * self.weight + self.bias
        if not self.training:
            y = functional.batch_norm(flat, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        elif self.cloud is not None and geometry is not None and geometry[self.cloud].padding:
            y = self._masked(flat, geometry[self.cloud].splits[-1])
        elif flat.shape[0] == 1:
            y = self._masked(flat, torch.ones((), dtype=torch.int64, device=flat.device))
        else:
            self.num_batches_tracked += 1
            y = functional.batch_norm(
                flat, self.running_mean, self.running_var, self.weight, self.bias, True, self.momentum, self.eps
            )
        return y.reshape(features.shape)

    def _fused(self, features: Tensor, geometry: Geometry | None) -> Tensor:
        """With its ReLU in one op, over as many rows as the splits say, or over all."""
        flat = features.reshape(-1, self.channels)
        if self.cloud is not None and geometry is not None:
            count = geometry[self.cloud].splits[-1]
        else:
            count = torch.full((), flat.shape[0], dtype=torch.int64, device=flat.device)
        y, mean, var = batch_norm(
            flat, count, self.weight, self.bias, self.eps, self.relu == "before", self.relu == "after"
        )
        self._track(mean, var, count)
        return y.reshape(features.shape)

    def _track(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        track(mean, var, count, self.running_mean, self.running_var, self.num_batches_tracked, self.momentum)

    def _masked(self, x: Tensor, count: Tensor) -> Tensor:
        """Over the first `count` rows, a number that stays on the device."""
        real = (torch.arange(x.shape[0], device=x.device) < count)[:, None]
        wide = torch.where(real, x, 0.0).to(torch.promote_types(x.dtype, torch.float32))
        divisor = count.clamp(min=1)
        mean = wide.sum(0) / divisor
        centred = torch.where(real, wide - mean, 0.0)
        var = centred.square().sum(0) / divisor
        self._track(mean.detach(), var.detach() * (divisor / (divisor - 1).clamp(min=1)), count)
        y = centred * (var + self.eps).rsqrt()
        if self.weight is not None and self.bias is not None:
            y = torch.where(real, y * self.weight + self.bias, 0.0)
        return y.to(x.dtype)

    def extra_repr(self) -> str:
        cloud = "" if self.cloud is None else f", cloud={self.cloud}"
        relu = "" if self.relu is None else f", relu={self.relu!r}"
        return f"{self.channels}{cloud}, momentum={self.momentum}, eps={self.eps}{relu}"
