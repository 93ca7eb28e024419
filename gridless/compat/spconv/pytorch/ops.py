"""Sizes of outputs, and neighbourhoods as spconv's tables."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gridless.compat.spconv.core import AlgoHint, ConvAlgo
from gridless.compat.spconv.pytorch.core import IndiceData
from gridless.geometry.voxels import strided_taps, submanifold_taps, transposed_taps

__all__ = [
    "AlgoHint",
    "ConvAlgo",
    "find_neighbours",
    "get_conv_output_size",
    "get_deconv_output_size",
    "get_indice_pairs",
]


def get_conv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:
    """The extent of the output of a convolution; a kernel of -1 covers the axis."""
    axes = zip(input_size, kernel_size, stride, padding, dilation, strict=True)
    return [1 if k == -1 else (size + 2 * p - d * (k - 1) - 1) // s + 1 for size, k, s, p, d in axes]


def get_deconv_output_size(
    input_size: Sequence[int],
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
) -> list[int]:
    """The extent of the output of a transposed convolution."""
    axes = zip(input_size, kernel_size, stride, padding, dilation, output_padding, strict=True)
    return [(size - 1) * s - 2 * p + d * (k - 1) + 1 + extra for size, k, s, p, d, extra in axes]


def find_neighbours(
    indices: Tensor,
    spatial_shape: list[int],
    algo: ConvAlgo,
    ksize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    out_padding: list[int],
    subm: bool = False,
    transpose: bool = False,
) -> IndiceData:
    """The neighbourhoods of a convolution or pooling."""
    if subm:
        out, shape, taps = indices, spatial_shape, submanifold_taps(indices, ksize, dilation)
    elif transpose:
        shape = get_deconv_output_size(spatial_shape, ksize, stride, padding, dilation, out_padding)
        out, taps = transposed_taps(indices, ksize, stride, padding, dilation, out_padding, spatial_shape)
    else:
        shape = get_conv_output_size(spatial_shape, ksize, stride, padding, dilation)
        if min(shape) <= 0:
            raise ValueError(f"spconv: the output of shape {spatial_shape} has shape {shape}. Use a larger input.")
        out, taps = strided_taps(indices, ksize, stride, padding, dilation, spatial_shape)
    settings = (algo, ksize, stride, dilation, padding)
    return IndiceData(out, indices, taps, spatial_shape, shape, subm, *settings)


def get_indice_pairs(
    indices: Tensor,
    batch_size: int,
    spatial_shape: list[int],
    algo: ConvAlgo,
    ksize: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    out_padding: list[int],
    subm: bool = False,
    transpose: bool = False,
    num_out_act_bound: int = -1,
) -> tuple[Tensor, Tensor, Tensor]:
    """(output indices, pairs (2, taps, N), pairs of each tap (taps)), int32."""
    data = find_neighbours(
        indices, list(spatial_shape), algo, ksize, stride, padding, dilation, out_padding, subm, transpose
    )
    return data.out_indices, data.indice_pairs, data.indice_pair_num


def maximum_value_int_(ten: Tensor, value: int) -> None:
    """Raises every entry of `ten` to at least `value`, in place."""
    with torch.no_grad():
        ten.clamp_(min=value)
