"""Sizes of outputs, and neighbourhoods as spconv's tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.compat.spconv.core import AlgoHint, ConvAlgo
from gridless.compat.spconv.pytorch import functional
from gridless.compat.spconv.pytorch.core import IndiceData, Repeats
from gridless.compat.spconv.pytorch.functional import indice_maxpool
from gridless.geometry.voxels import RepeatedSite, strided_taps, submanifold_taps, transposed_taps

__all__ = [
    "AlgoHint",
    "ConvAlgo",
    "find_neighbours",
    "find_row_neighbours",
    "first_rows",
    "get_conv_output_size",
    "get_deconv_output_size",
    "get_indice_pairs",
    "get_indice_pairs_implicit_gemm",
    "indice_conv",
    "indice_maxpool",
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
    if -1 in kernel_size:
        raise ValueError("spconv: a transposed convolution has no kernel of -1, which covers the axis.")
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
    """The neighbourhoods of a convolution or pooling. Sites that are there twice are refused."""
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
    return IndiceData(out, indices, taps, None, spatial_shape, shape, subm, *settings)


@backends.uncompiled
def find_row_neighbours(
    indices: Tensor, spatial_shape: list[int], algo: ConvAlgo, *settings: list[int], subm: bool, transpose: bool
) -> IndiceData:
    """The neighbourhoods of a convolution, also where sites are there more than once."""
    try:
        return find_neighbours(indices, spatial_shape, algo, *settings, subm=subm, transpose=transpose)
    except RepeatedSite:
        sites, repeats = first_rows(indices)
    data = find_neighbours(sites, spatial_shape, algo, *settings, subm=subm, transpose=transpose)
    data.repeats, data.indices = repeats, indices
    if subm:
        data.out_indices = indices
    return data


def first_rows(indices: Tensor) -> tuple[Tensor, Repeats]:
    """The distinct sites in lexicographic order, and the rows that have them."""
    sites, site = indices.unique(dim=0, return_inverse=True)
    row = torch.arange(len(indices), device=indices.device)
    first = row.new_full((len(sites),), len(row)).scatter_reduce_(0, site, row, "amin")
    return sites, Repeats(first, site)


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


def get_indice_pairs_implicit_gemm(
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
    is_train: bool = True,
    alloc: Any = None,
    timer: Any = None,
    num_out_act_bound: int = -1,
    direct_table: bool = True,
    do_sort: bool = True,
) -> tuple[Any, ...]:
    """(output indices, pairs of each tap (taps), source of each tap and output (taps, M), output of each tap and source
    (taps, N)), int32, -1 where there is none. The last is empty if `is_train` is False.

    Five empty lists stand for masks and orders, which only spconv's own kernels read.
    """
    shape = [int(side) for side in spatial_shape]
    data = find_neighbours(indices, shape, algo, ksize, stride, padding, dilation, out_padding, subm, transpose)
    backward = data.pair_bwd if is_train else indices.new_empty(0)
    return data.out_indices, data.indice_pair_num, data.pair_fwd, backward, [], [], [], [], []


def indice_conv(
    features: Tensor,
    filters: Tensor,
    indice_pairs: Tensor,
    indice_pair_num: Tensor,
    num_activate_out: int,
    inverse: bool = False,
    subm: bool = False,
    algo: ConvAlgo = ConvAlgo.Native,
    timer: Any = None,
    bias: Tensor | None = None,
) -> Tensor:
    """`functional.indice_conv`, or another of its functions with `inverse` or `subm`."""
    convolution = functional.indice_subm_conv if subm else functional.indice_conv
    convolution = functional.indice_inverse_conv if inverse else convolution
    return convolution(features, filters, indice_pairs, indice_pair_num, num_activate_out, bias=bias)


def maximum_value_int_(ten: Tensor, value: int) -> None:
    """Raises every entry of `ten` to at least `value`, in place."""
    with torch.no_grad():
        ten.clamp_(min=value)
