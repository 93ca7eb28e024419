"""Pooling of sparse tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.compat.rows import take_rows
from gridless.compat.spconv.core import ConvAlgo
from gridless.compat.spconv.pytorch import ops
from gridless.compat.spconv.pytorch.conv import Axes
from gridless.compat.spconv.pytorch.core import IndiceData, SparseConvTensor, by_axes, expand_nd
from gridless.compat.spconv.pytorch.functional import max_pool
from gridless.compat.spconv.pytorch.modules import SparseModule


class SparsePool(SparseModule):
    """Reduces the inputs that each output sees; outputs are those of a convolution with the same settings.

    Args:
        stride: the kernel size where it is None.
        indice_key: keeps the neighbourhoods for an inverse convolution.
        subm: keep the sites.
        algo: without effect.
        record_voxel_count: keep the largest number of outputs in a buffer.
    """

    def __init__(
        self,
        ndim: int,
        kernel_size: Axes = 3,
        stride: Axes | None = 1,
        padding: Axes = 0,
        dilation: Axes = 1,
        indice_key: str | None = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.ndim, self.kernel_size = ndim, expand_nd(ndim, kernel_size)
        self.stride = list(self.kernel_size) if stride is None else expand_nd(ndim, stride)
        self.padding, self.dilation = expand_nd(ndim, padding), expand_nd(ndim, dilation)
        self.indice_key, self.subm, self.record_voxel_count = indice_key, subm, record_voxel_count
        self.algo = algo or ConvAlgo.MaskImplicitGemm
        if record_voxel_count and not subm:
            self.register_buffer("max_num_voxels_during_training", torch.zeros(1, dtype=torch.int32))

    def extra_repr(self) -> str:
        text = f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, dilation={self.dilation}"
        return f"{text}, algo={self.algo}"

    def get_max_num_voxels(self) -> Tensor | None:
        """The largest number of outputs so far, with `record_voxel_count`."""
        return getattr(self, "max_num_voxels_during_training", None)

    def forward(self, x: SparseConvTensor) -> SparseConvTensor:
        if self.indice_key is not None and self.indice_key in x.indice_dict:
            raise ValueError(f"{type(self).__name__}: indice_key {self.indice_key!r} exists. Use another key.")
        settings = (self.kernel_size, self.stride, self.padding, self.dilation, [0] * self.ndim)
        data = ops.find_neighbours(x.indices, x.spatial_shape, self.algo, *settings, self.subm)
        out = x.replace_feature(self.reduce(x.features, data))
        out.indices, out.spatial_shape = data.out_indices, list(data.out_spatial_shape)
        out.indice_dict = dict(x.indice_dict)
        if self.indice_key is not None:
            out.indice_dict[self.indice_key] = data
        count = self.get_max_num_voxels()
        if count is not None:
            ops.maximum_value_int_(count, len(out.indices))
        return out

    def reduce(self, features: Tensor, data: IndiceData) -> Tensor:
        raise NotImplementedError


class SparseMaxPool(SparsePool):
    """The largest feature of those that an output sees, or 0 if all are negative, as in spconv.

    The gradient goes to one of equal ones.
    """

    def reduce(self, features: Tensor, data: IndiceData) -> Tensor:
        return max_pool(features, data.taps)


class SparseAvgPool(SparsePool):
    """The mean of the features that an output sees: sites that do not exist do not count."""

    def reduce(self, features: Tensor, data: IndiceData) -> Tensor:
        edges = data.taps.edges
        # Sums of 16-bit floats are taken in 32 bits.
        rows = take_rows(features, edges.source)
        rows = rows if rows.dtype == torch.float64 else rows.float()
        if not len(rows):
            return features.new_zeros(edges.num_target, features.shape[1])
        return torch.segment_reduce(rows, "mean", offsets=edges.splits, axis=0, unsafe=True).to(features.dtype)


class _Sized(SparsePool):
    """A pooling of `axes` axes; its stride is the kernel size where it is left out."""

    axes: int

    def __init__(
        self,
        kernel_size: Axes,
        stride: Axes | None = None,
        padding: Axes = 0,
        dilation: Axes = 1,
        indice_key: str | None = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(
            self.axes, kernel_size, stride, padding, dilation, indice_key, False, algo, record_voxel_count, name
        )


class _MaxPool(_Sized, SparseMaxPool):
    __doc__ = SparseMaxPool.__doc__


class _AvgPool(_Sized, SparseAvgPool):
    __doc__ = SparseAvgPool.__doc__


SparseMaxPool1d, SparseMaxPool2d, SparseMaxPool3d, SparseMaxPool4d = by_axes(_MaxPool, "SparseMaxPool")
SparseAvgPool1d, SparseAvgPool2d, SparseAvgPool3d, SparseAvgPool4d = by_axes(_AvgPool, "SparseAvgPool")


ALL_POOL_LAYERS = {
    SparseMaxPool1d, SparseMaxPool2d, SparseMaxPool3d, SparseMaxPool4d,
    SparseAvgPool1d, SparseAvgPool2d, SparseAvgPool3d, SparseAvgPool4d,
}  # fmt: skip


class SparseGlobalMaxOrAvgPool(SparseModule):
    """Reduces all features of each example, to a plain tensor."""

    def __init__(self, is_mean: bool, name: str | None = None) -> None:
        super().__init__(name)
        self.is_mean = is_mean

    def forward(self, x: SparseConvTensor) -> Tensor:
        parts = [x.features[x.indices[:, 0] == example] for example in range(x.batch_size)]
        # spconv returns the first channel of the mean, and networks that use it expect that.
        return torch.stack([part.mean(0)[0] if self.is_mean else part.max(0)[0] for part in parts])


class SparseGlobalAvgPool(SparseGlobalMaxOrAvgPool):
    """The mean of channel 0 of each example (B), as spconv 2.3 computes it: other channels are dropped."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(True, name)


class SparseGlobalMaxPool(SparseGlobalMaxOrAvgPool):
    """The largest feature of each example and channel: (B, C)."""

    def __init__(self, name: str | None = None) -> None:
        super().__init__(False, name)
