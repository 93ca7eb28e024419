"""Sparse convolutions of 1 to 4 dimensions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from gridless.compat.rows import sum_rows, take_rows
from gridless.compat.spconv.core import ConvAlgo
from gridless.compat.spconv.pytorch import ops
from gridless.compat.spconv.pytorch.core import (
    ImplicitGemmIndiceData,  # noqa: F401 (spconv's own file has it, too)
    IndiceData,
    SparseConvTensor,
    by_axes,
    expand_nd,
)
from gridless.compat.spconv.pytorch.functional import LAYERS, convolve
from gridless.compat.spconv.pytorch.modules import (
    SparseConvolutionBase,
    SparseModule,  # noqa: F401 (spconv's own file has it, too)
)

# One number for all axes, or one for each.
Axes = int | list[int] | tuple[int, ...]


class SparseConvolution(SparseConvolutionBase):
    """A sparse convolution. The public classes below choose `ndim`, `subm`, `transposed` and `inverse`.

    - Submanifold layers keep their sites and ignore stride and padding: the kernel's middle entry, kernel // 2, is
      the site itself.
    - Others give every site that sees an input, in lexicographic order.
    - Inverse layers go back from the output of the layer with their `indice_key` to its input.
    - A site may be there more than once. Submanifold layers then see the row itself at the middle tap, and the first
      row of each other site. Other convolutions add up the rows of a site, and inverse layers repeat them.
    - Kernel size 1 multiplies by `weight.view(C_in, C_out)`, which is not the transpose of (C_out, C_in).

    Args:
        bias: whether there is a bias, which is added also on a CPU.
        indice_key: layers of one key share their neighbourhoods.
        algo, fp32_accum, large_kernel_fast_algo: without effect. Sums of float16 are taken in float32.
        record_voxel_count: keep the largest number of outputs in a buffer.
        act_type, act_alpha, act_beta: activations fused into the layer, which are refused.
    """

    ndim: int
    bias: nn.Parameter | None

    def __init__(
        self,
        ndim: int,
        in_channels: int,
        out_channels: int,
        kernel_size: Axes = 3,
        stride: Axes = 1,
        padding: Axes = 0,
        dilation: Axes = 1,
        groups: int = 1,
        bias: bool = True,
        subm: bool = False,
        output_padding: Axes = 0,
        transposed: bool = False,
        inverse: bool = False,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        act_type: Any = None,
        act_alpha: float = 0,
        act_beta: float = 0,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(name)
        if groups != 1:
            raise AssertionError(f"SparseConvolution: groups is {groups}. Only 1 is supported.")
        if act_type is not None and getattr(act_type, "name", "None_") != "None_":
            raise NotImplementedError(f"SparseConvolution: act_type is {act_type}. Put the activation after the layer.")
        self.ndim, self.in_channels, self.out_channels, self.groups = ndim, in_channels, out_channels, groups
        self.kernel_size, self.stride = expand_nd(ndim, kernel_size), expand_nd(ndim, stride)
        self.padding, self.dilation = expand_nd(ndim, padding), expand_nd(ndim, dilation)
        self.output_padding = expand_nd(ndim, output_padding)
        self.subm, self.transposed, self.inverse = subm, transposed, inverse
        taps = math.prod(self.kernel_size)
        self.conv1x1 = taps == 1 and (subm or math.prod(self.stride) == 1)
        if self.conv1x1 and not subm and any(self.padding):
            raise AssertionError(f"SparseConvolution: padding is {self.padding}. With kernel size 1 it must be 0.")
        self.indice_key, self.record_voxel_count = indice_key, record_voxel_count
        fast = taps <= (128 if large_kernel_fast_algo else 32)
        self.algo = algo or (ConvAlgo.MaskImplicitGemm if fast else ConvAlgo.Native)
        self.fp32_accum = fp32_accum
        self.act_type, self.act_alpha, self.act_beta = act_type, act_alpha, act_beta
        if record_voxel_count and not subm and not inverse:
            self.register_buffer("max_num_voxels_during_training", torch.zeros(1, dtype=torch.int32, device=device))
            self._register_load_state_dict_pre_hook(self._add_voxel_count)
        self.weight_shape = [out_channels, *self.kernel_size, in_channels]
        self.weight = nn.Parameter(torch.empty(self.weight_shape, device=device, dtype=dtype))
        self.register_parameter("bias", None)
        if bias:
            self.bias = nn.Parameter(torch.empty(out_channels, device=device, dtype=dtype))
        self.reset_parameters()
        LAYERS.add(self)

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        LAYERS.add(self)

    def reset_parameters(self) -> None:
        """Draws weight and bias from -b to b, b = 1 / sqrt(C_in taps), as torch's convolutions do."""
        bound = 1 / math.sqrt(self.in_channels * math.prod(self.kernel_size))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        text += f", padding={self.padding}, dilation={self.dilation}, output_padding={self.output_padding}"
        return text + (", bias=False" if self.bias is None else "") + f", algo={self.algo}"

    def _add_voxel_count(self, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """Checkpoints of layers without `record_voxel_count` load, too."""
        state.setdefault(prefix + "max_num_voxels_during_training", torch.zeros(1, dtype=torch.int32))

    def is_inverseable(self) -> bool:
        return self.indice_key is not None and not self.subm

    def get_max_num_voxels(self) -> Tensor | None:
        """The largest number of outputs so far, with `record_voxel_count`."""
        return getattr(self, "max_num_voxels_during_training", None)

    def forward(self, x: SparseConvTensor, add_input: SparseConvTensor | None = None) -> SparseConvTensor:
        if not isinstance(x, SparseConvTensor):
            raise AssertionError(f"{type(self).__name__}: the input is {type(x).__name__}, not SparseConvTensor.")
        if x.features.shape[1] != self.in_channels:
            channels = x.features.shape[1]
            raise AssertionError(f"{type(self).__name__}: {channels} channels in, {self.in_channels} expected.")
        if self.conv1x1:
            return self._pointwise(x)
        data, is_new = self._neighbourhoods(x)
        sites, shape = data.out_indices, data.out_spatial_shape
        if self.inverse:
            sites, shape = data.indices, data.spatial_shape
        out = x.replace_feature(self._convolve(x.features, data))
        out.indices, out.spatial_shape, out.indice_dict = sites, list(shape), dict(x.indice_dict)
        if is_new and self.indice_key is not None:
            out.indice_dict[self.indice_key] = data
        count = self.get_max_num_voxels()
        if count is not None:
            ops.maximum_value_int_(count, len(sites))
        return out if add_input is None else out + add_input

    def _convolve(self, features: Tensor, data: IndiceData) -> Tensor:
        taps, repeats = data.taps, data.repeats
        if self.inverse:
            features = convolve(features, self.weight, self.bias, taps.transpose(), self)
            return features if repeats is None else take_rows(features, repeats.site)
        if repeats is None:
            return convolve(features, self.weight, self.bias, taps, self)
        if not self.subm:
            features = sum_rows(features, repeats.site, len(repeats.first))
            return convolve(features, self.weight, self.bias, taps, self)
        first = take_rows(features, repeats.first)
        out = take_rows(convolve(first, self.weight, self.bias, taps, self), repeats.site)
        middle = self.weight[(slice(None), *(side // 2 for side in self.kernel_size))]
        difference = features - take_rows(first, repeats.site)
        return out + (difference.to(out.dtype) @ middle.t().to(out.dtype)).to(out.dtype)

    def _pointwise(self, x: SparseConvTensor) -> SparseConvTensor:
        features = x.features @ self.weight.view(self.in_channels, self.out_channels)
        return x.replace_feature(features if self.bias is None else features + self.bias.to(features.dtype))

    def _neighbourhoods(self, x: SparseConvTensor) -> tuple[IndiceData, bool]:
        """The neighbourhoods of this layer, and whether they were not yet known to the tensor."""
        data = x.find_indice_pair(self.indice_key)
        if self.inverse:
            return self._check_inverse(x, data), False
        if data is not None:
            return self._check_shared(x, data), False
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, self.output_padding)
        kind = {"subm": self.subm, "transpose": self.transposed}
        return ops.find_row_neighbours(x.indices, x.spatial_shape, self.algo, *settings, **kind), True

    def _check_shared(self, x: SparseConvTensor, data: IndiceData) -> IndiceData:
        if not self.subm or not data.is_subm:
            raise AssertionError(
                f"spconv: indice_key {self.indice_key!r} exists. Only submanifold layers may share it."
            )
        if self.algo != data.algo:
            raise AssertionError(f"spconv: layers of indice_key {self.indice_key!r} have different algo.")
        expected = {"kernel_size": data.ksize, "dilation": data.dilation, "spatial_shape": data.spatial_shape}
        here = {"kernel_size": self.kernel_size, "dilation": self.dilation, "spatial_shape": x.spatial_shape}
        self._compare(expected | {"sites": len(data.indices)}, here | {"sites": len(x.indices)})
        return data

    def _check_inverse(self, x: SparseConvTensor, data: IndiceData | None) -> IndiceData:
        if data is None or data.is_subm:
            problem = f"indice_key {self.indice_key!r} is of no strided convolution or pooling before it"
            raise AssertionError(f"{type(self).__name__}: {problem}.")
        expected = {"kernel_size": data.ksize, "spatial_shape": data.out_spatial_shape, "sites": len(data.out_indices)}
        here = {"kernel_size": self.kernel_size, "spatial_shape": x.spatial_shape, "sites": len(x.indices)}
        self._compare(expected, here)
        return data

    def _compare(self, expected: dict[str, Any], here: dict[str, Any]) -> None:
        for what, value in expected.items():
            if here[what] != value:
                raise ValueError(
                    f"{type(self).__name__}: indice_key {self.indice_key!r} has {what} {value}, here {here[what]}. "
                    "Use another key."
                )


class _Sparse(SparseConvolution):
    """A convolution to every site that sees an input; see `SparseConvolution`."""

    axes: int
    is_transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Axes,
        stride: Axes = 1,
        padding: Axes = 0,
        dilation: Axes = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        record_voxel_count: bool = False,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.axes, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            transposed=self.is_transposed, indice_key=indice_key, algo=algo, fp32_accum=fp32_accum,
            record_voxel_count=record_voxel_count, large_kernel_fast_algo=large_kernel_fast_algo, name=name,
        )  # fmt: skip


class _Transpose(_Sparse):
    """A transposed convolution: its outputs are all sites that an input reaches; see `SparseConvolution`."""

    is_transposed = True


class _SubM(SparseConvolution):
    """A convolution from sites to the same sites."""

    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Axes,
        stride: Axes = 1,
        padding: Axes = 0,
        dilation: Axes = 1,
        groups: int = 1,
        bias: bool = True,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.axes, in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, True,
            indice_key=indice_key, algo=algo, fp32_accum=fp32_accum, large_kernel_fast_algo=large_kernel_fast_algo,
            name=name,
        )  # fmt: skip


class _Inverse(SparseConvolution):
    """A convolution from the outputs of the layer with its key back to that layer's inputs."""

    axes: int

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Axes,
        indice_key: str,
        bias: bool = True,
        algo: ConvAlgo | None = None,
        fp32_accum: bool | None = None,
        large_kernel_fast_algo: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.axes, in_channels, out_channels, kernel_size, bias=bias, inverse=True, indice_key=indice_key,
            algo=algo, fp32_accum=fp32_accum, large_kernel_fast_algo=large_kernel_fast_algo, name=name,
        )  # fmt: skip


SparseConv1d, SparseConv2d, SparseConv3d, SparseConv4d = by_axes(_Sparse, "SparseConv")
SparseConvTranspose1d, SparseConvTranspose2d, SparseConvTranspose3d, SparseConvTranspose4d = by_axes(
    _Transpose, "SparseConvTranspose"
)
SparseInverseConv1d, SparseInverseConv2d, SparseInverseConv3d, SparseInverseConv4d = by_axes(
    _Inverse, "SparseInverseConv"
)
SubMConv1d, SubMConv2d, SubMConv3d, SubMConv4d = by_axes(_SubM, "SubMConv")

DEFAULT_SPARSE_CONV_TYPES = {
    SparseConv1d, SparseConv2d, SparseConv3d, SparseConv4d,
    SparseConvTranspose1d, SparseConvTranspose2d, SparseConvTranspose3d, SparseConvTranspose4d,
    SparseInverseConv1d, SparseInverseConv2d, SparseInverseConv3d, SparseInverseConv4d,
    SubMConv1d, SubMConv2d, SubMConv3d, SubMConv4d,
}  # fmt: skip
