"""Statistics of normalisations, re-estimated from training batches for the current weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from gridless.nn.norm import BatchNorm
from gridless.training.batch import Batch


@torch.no_grad()
def update_statistics(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] | None = None,
    keep: Sequence[str] = (),
) -> None:
    """Re-estimate the running statistics of every normalisation of a network: the mean over `batches`.

    Running statistics lag behind the weights, by hundreds of steps with the paper's momentum. Those of
    averaged weights are averages over other networks. After a short training, or for averaged weights, call

    >>> gl.training.update_statistics(model, (geometry for geometry, label in loader))

    Modes, momenta, batch counts, gradients and the random state stay. Normalisations use the statistics of each batch,
    as in training; dropout is off, as in evaluation. Without batches the function is a no-op.

    Args:
        model: the network, with normalisations of torch or of gridless.
        batches: inputs of the network. It gets the first entry of a tuple or list, and the geometry of a `Batch`.
        forward: forward(model, batch), called instead of the network.
        keep: names of parts of the network whose statistics stay.
    """
    norms: list[Any] = [module for name, module in model.named_modules() if _is_estimated(name, module, keep)]
    modes = [(module, module.training) for module in model.modules()]
    settings = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    # Custom layers may draw random numbers even in evaluation mode.
    devices = {tensor.get_device() for tensor in model.parameters() if tensor.is_cuda}
    try:
        with torch.random.fork_rng(sorted(devices)):
            model.eval()
            for number, batch in enumerate(batches):
                for norm in norms:
                    _prepare(norm, number)
                (forward or _forward)(model, batch)
    finally:
        for module, mode in modes:
            module.training = mode
        for norm, momentum, count in settings:
            norm.momentum = momentum
            norm.num_batches_tracked.copy_(count)


def _is_estimated(name: str, module: nn.Module, keep: Sequence[str]) -> bool:
    tracked = isinstance(module, _NormBase) and module.running_mean is not None
    return tracked and not any(name == part or name.startswith(f"{part}.") for part in keep)


def _prepare(norm: Any, number: int) -> None:
    """Set the momentum so that batch `number` (from 0) gets the same weight as each batch before it."""
    norm.training = True
    if isinstance(norm, BatchNorm):
        # The layer counts batches on the device, and skips batches without rows.
        norm.momentum = None
        if number == 0:
            norm.num_batches_tracked.zero_()
    else:
        norm.momentum = 1 / (number + 1)


def _forward(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Batch):
        return model(batch.geometry)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)
