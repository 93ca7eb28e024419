"""Checks and types that several operations share."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.structures.rows import shape_in_words

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def autocast(
    device: str, features: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features and parameters in the dtype of autocast; coordinates keep theirs."""
    if not torch.is_autocast_enabled(device) or not features.is_floating_point() or features.dtype == torch.float64:
        return features, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def check_rows(what: str, features: Tensor, num_source: int) -> None:
    """Refuse features that are not (num_source, channels) of floating point."""
    dtype, shape = features.dtype, features.shape
    if dtype not in FLOATS:
        raise TypeError(f"{what}: features must be floating point, not {dtype}. Use .float().")
    if len(shape) != 2 or shape[0] != num_source:
        raise ValueError(
            f"{what}: the edges have {num_source} sources, so features must be ({num_source}, channels), "
            f"not {shape_in_words(features)}"
        )


def check_parameters(
    what: str, weight: Tensor, bias: Tensor | None, device: torch.device, features: Tensor | None = None
) -> None:
    """Refuse a bias of another size, tensors of different dtypes, and those that are not on the device of the edges."""
    if bias is not None and bias.shape != weight.shape[-1:]:
        raise ValueError(f"{what}: bias must be ({weight.shape[-1]},), not {tuple(bias.shape)}")
    dtype = weight.dtype
    for name, tensor in (("features", features), ("weight", weight), ("bias", bias)):
        if tensor is None:
            continue
        if tensor.dtype != dtype:
            raise TypeError(f"{what}: weight is {dtype}, {name} {tensor.dtype}. Convert one, or use torch.autocast.")
        if tensor.device != device:
            raise ValueError(f"{what}: {name} is on {tensor.device}, the edges on {device}. Use .to(...).")
