"""Statistics of normalisations, estimated anew from training batches for the weights as they are now."""

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
    """Estimate the running statistics of every normalisation of a network anew: the mean over `batches`.

    Running statistics lag behind the weights, by hundreds of steps with the paper's momentum, and those of averaged
    weights belong to other networks. After a short training, or for averaged weights, call

    >>> gl.training.update_statistics(model, (geometry for geometry, label in loader))

    Nothing else changes: modes, momenta, counts of batches, gradients and random numbers stay. Normalisations see the
    statistics of each batch, as in training; dropout is off, as in use. No batches leave everything as it was.

    Args:
        model: the network; layers of torch with running statistics count as ours do.
        batches: what the network is called with; of a tuple or list its first entry, of a `Batch` its geometry.
        forward: called with the network and a batch instead.
        keep: names of parts of the network whose statistics stay.
    """
    norms: list[Any] = [module for name, module in model.named_modules() if _is_estimated(name, module, keep)]
    modes = [(module, module.training) for module in model.modules()]
    settings = [(norm, norm.momentum, norm.num_batches_tracked.clone()) for norm in norms]
    # Layers of these networks draw nothing in evaluation; others might.
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
    """Let the next batch, the first one being `number` 0, have as much weight as each before it."""
    norm.training = True
    if isinstance(norm, BatchNorm):
        # Counted on the device: batches without rows do not count.
        norm.momentum = None
        if number == 0:
            norm.num_batches_tracked.zero_()
    else:
        norm.momentum = 1 / (number + 1)


def _forward(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Batch):
        return model(batch.geometry)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)
