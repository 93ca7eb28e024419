"""The point convolution in Triton: the functions of `PointConvBackend`."""

from gridless.ops.point_conv.gpu.convolution import (
    conv,
    conv_backward,
    conv_coords_backward,
    edge_sums,
    edge_sums_backward,
)

__all__ = ["conv", "conv_backward", "conv_coords_backward", "edge_sums", "edge_sums_backward"]
