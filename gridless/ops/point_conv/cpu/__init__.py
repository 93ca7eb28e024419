"""The point convolution in Numba: the functions of `PointConvBackend`."""

from gridless.ops.point_conv.cpu.convolution import conv, conv_backward, edge_sums
from gridless.ops.point_conv.cpu.coords import conv_coords_backward, edge_sums_backward

__all__ = ["conv", "conv_backward", "conv_coords_backward", "edge_sums", "edge_sums_backward"]
