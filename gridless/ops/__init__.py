"""The differentiable operations: each is a folder with its contract, a reference and the fast backends.

The ops are functions of this module: `gl.ops.point_conv(...)`. They hide the folders of the same names, which
`from gridless.ops.point_conv import ...` still finds.

`FlopCounterMode(custom_mapping=gl.ops.FLOPS)` of torch.utils.flop_counter counts the products of convolutions, too.
"""

from gridless.ops.batch_norm import batch_norm
from gridless.ops.edge_max import edge_max
from gridless.ops.event_conv import event_conv, event_conv_step, event_gather, event_gather_step
from gridless.ops.leaky_sum import leaky_sum
from gridless.ops.operator import FLOPS
from gridless.ops.point_conv import featureless_conv, point_conv
from gridless.ops.segment_pool import segment_max, segment_mean, segment_spread
from gridless.ops.tap_conv import tap_conv
from gridless.ops.voxel_mean import voxel_mean

__all__ = [
    "FLOPS",
    "batch_norm",
    "edge_max",
    "event_conv",
    "event_conv_step",
    "event_gather",
    "event_gather_step",
    "featureless_conv",
    "leaky_sum",
    "point_conv",
    "segment_max",
    "segment_mean",
    "segment_spread",
    "tap_conv",
    "voxel_mean",
]
