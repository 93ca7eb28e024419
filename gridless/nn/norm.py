"""Batch normalisation over the rows of a ragged batch."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gridless.ops.batch_norm import Running, batch_norm, reference
from gridless.structures import Cloud, Events, Geometry, points_of


class BatchNorm(_BatchNorm):
    """y = (x - mean) / sqrt(var + eps) * weight + bias, per channel, over the rows of the whole batch.

    `BatchNorm(channels)` normalises (..., channels), every row counting; `BatchNorm(channels, cloud)` normalises the
    rows of the cloud of that name, and is called with the geometry: `norm(features, geometry)`. Padding rows then do
    not count, and come out as 0. No rows at all leave the statistics alone; one row has variance 0.

    Otherwise as torch.nn.BatchNorm1d (same state), with the defaults of the paper's networks: running statistics keep
    0.99 of their value (momentum 0.01 in torch's convention), eps 1e-3. The first 1 / momentum batches are averaged
    instead: batch n has the weight max(momentum, 1 / n), so that statistics are of use after a few steps. A `momentum`
    of None averages all batches, and one of 0 leaves the statistics alone. The number of batches is read from the
    device once after a state is loaded; nothing else waits for it.

    `relu` is "before" for norm(relu(x)) and "after" for relu(norm(x)); without `affine` there is no weight and no bias.
    Weight, bias and statistics are made on `device` and of `dtype`.

    If `synchronised` is set (see `synchronise`), statistics are over the rows of all processes.
    """

    synchronised = False
    track_running_stats = True
    # At least so many batches were averaged; exactly so many while their number on the device has this version.
    _batches, _version = 0, -1
    _captured = False
    __constants__: ClassVar = []
    __jit_unused_properties__: ClassVar = ["num_features"]

    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        channels: int,
        cloud: str | None = None,
        momentum: float | None = 0.01,
        eps: float = 1e-3,
        affine: bool = True,
        relu: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        # Not as torch's begins, with `num_features`.
        nn.Module.__init__(self)
        if isinstance(channels, str):
            raise TypeError(f"BatchNorm: channels must be a number, not {channels!r}. Call BatchNorm(channels, cloud).")
        if channels < 1:
            raise ValueError(f"BatchNorm: channels must be positive, not {channels}")
        if relu not in (None, "before", "after"):
            raise ValueError(f"BatchNorm: relu must be 'before', 'after' or None, not {relu!r}")
        self.channels, self.cloud, self.momentum, self.eps, self.relu = channels, cloud, momentum, eps, relu
        self.affine = affine
        self.weight = nn.Parameter(torch.ones(channels, device=device, dtype=dtype)) if affine else None
        self.bias = nn.Parameter(torch.zeros(channels, device=device, dtype=dtype)) if affine else None
        self.register_buffer("running_mean", torch.zeros(channels, device=device, dtype=dtype))
        self.register_buffer("running_var", torch.ones(channels, device=device, dtype=dtype))
        self.register_buffer("num_batches_tracked", torch.tensor(0, device=device))

    @property
    def num_features(self) -> int:
        """Refused by TypeError: torch's SyncBatchNorm and others ask for it to put a layer in this one's place."""
        raise TypeError(
            "BatchNorm: layers of torch do not support padding and relu. Call gl.nn.synchronise(model) instead of "
            "sync_batchnorm=True or convert_sync_batchnorm."
        )

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name != "num_features"]

    def forward(self, features: Tensor, geometry: Geometry | None = None) -> Tensor:
        if isinstance(features, Geometry):
            raise TypeError("BatchNorm: the first argument is no tensor. Call norm(features, geometry).")
        if features.ndim < 2 or features.shape[-1] != self.channels:
            raise ValueError(f"BatchNorm: features must be (rows, {self.channels}), not {tuple(features.shape)}")
        if self.cloud is not None and geometry is None:
            raise ValueError(
                f"BatchNorm over the points of {self.cloud}: the geometry is missing. Call norm(features, geometry)."
            )
        padded = None
        if self.cloud is not None and geometry is not None:
            cloud = points_of("BatchNorm", features, geometry, self.cloud)
            padded = cloud if cloud.padding else None
        # A view is a node of the backward pass, and costs as much as a small kernel.
        flat = features if features.ndim == 2 else features.reshape(-1, self.channels)
        # torch's own takes less of the host, but refuses a single row, knows no padding, and needs the momentum ahead.
        ours = self.training and (padded is not None or flat.shape[0] < 2 or self._of_all())
        momentum = None if ours else self._momentum()
        if ours or (momentum is None and not torch.compiler.is_compiling()):
            y = self._over_real_rows(flat, padded)
        else:
            y = self._over_all_rows(flat, padded, momentum)
        return y if features.ndim == 2 else y.reshape(features.shape)

    def _of_all(self) -> bool:
        return self.synchronised and torch.distributed.is_initialized()

    def _running(self) -> Running | None:
        """Running statistics that a batch moves, and the momentum; None if it moves none."""
        if not self.track_running_stats or self.momentum == 0:
            return None
        return self.running_mean, self.running_var, self.num_batches_tracked, self.momentum or 0.0

    def _momentum(self) -> float | None:
        """The weight of the next batch; None where only the device knows it."""
        if not self.training or self._running() is None:
            return 0.0
        floor = self.momentum or 0.0
        if torch.compiler.is_compiling():
            return None
        if self.num_batches_tracked.device.type == "cpu":
            return max(floor, 1 / (1 + int(self.num_batches_tracked)))
        if floor * self._batches >= 1:
            return floor
        # Replays of a captured graph are not counted here.
        self._captured |= torch.cuda.is_current_stream_capturing()
        if self._captured:
            return None
        if self._version != self.num_batches_tracked._version:
            self._batches = int(self.num_batches_tracked)
        self._batches += 1
        return max(floor, 1 / self._batches)

    def _forget(self) -> None:
        """The number of batches is read anew."""
        self._batches, self._version, self._captured = 0, -1, False

    def reset_running_stats(self) -> None:
        self._forget()
        super().reset_running_stats()

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*arguments)

    def _over_real_rows(self, x: Tensor, padded: Cloud | Events | None) -> Tensor:
        """Normalised by the statistics of the rows that the splits count; their number stays on the device."""
        self._version = -1
        count = None if padded is None else padded.splits[-1]
        relu = self.relu == "before", self.relu == "after"
        arguments = x, count, self.weight, self.bias, self.eps, *relu, self._running()
        if self._of_all():
            return reference.forward(*arguments, add=_OverProcesses.apply)[0]
        return batch_norm(*arguments)

    def _over_all_rows(self, x: Tensor, padded: Cloud | Events | None, momentum: float | None) -> Tensor:
        """Normalised by the statistics of all rows in training, and by the running ones otherwise."""
        real = None
        if padded is not None:
            real = (torch.arange(x.shape[0], device=x.device) < padded.splits[-1])[:, None]
            # Padding is zeroed for the gradient of the weight, as zero times NaN is NaN.
            x = torch.where(real, x, 0.0) if torch.is_grad_enabled() else x
        x = x.relu() if self.relu == "before" else x
        running = self._running() if self.training else None
        if not self.training:
            y = self._normalised(x, self.running_mean, self.running_var, 0.0)
        elif running is None:
            y = self._normalised(x, None, None, 0.0)
        elif momentum is not None:
            y = self._normalised(x, *running[:2], momentum)
            self.num_batches_tracked.add_(1)
            self._version = self.num_batches_tracked._version
        else:
            # A momentum of 1 turns zeros into the statistics of this batch.
            mean, var = torch.zeros(2, self.channels, dtype=self.running_mean.dtype, device=x.device)
            y = self._normalised(x, mean, var, 1.0)
            reference.track(torch.stack([mean, mean, var]), reference.counted(x, None), running)
        y = y.relu() if self.relu == "after" else y
        return y if real is None else torch.where(real, y, 0.0)

    def _normalised(self, x: Tensor, mean: Tensor | None, var: Tensor | None, momentum: float) -> Tensor:
        cudnn = torch.backends.cudnn.enabled
        return torch.batch_norm(x, self.weight, self.bias, mean, var, self.training, momentum, self.eps, cudnn)

    def extra_repr(self) -> str:
        cloud = "" if self.cloud is None else f", cloud={self.cloud}"
        relu = "" if self.relu is None else f", relu={self.relu!r}"
        return f"{self.channels}{cloud}, momentum={self.momentum}, eps={self.eps}{relu}"


class _OverProcesses(torch.autograd.Function):
    """The sum over all processes, whose gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return _OverProcesses.apply(grad)


def synchronise(model: nn.Module) -> None:
    """Let every `BatchNorm` of a network take the statistics of all processes, so that they compute what one would."""
    for module in model.modules():
        if isinstance(module, BatchNorm):
            module.synchronised = True
