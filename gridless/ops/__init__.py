"""What the network differentiates: each op is a folder with its contract, a reference and the fast backends.

`FlopCounterMode(custom_mapping=gl.ops.FLOPS)` of torch.utils.flop_counter counts the products of convolutions, too.
"""

from gridless.ops.operator import FLOPS

__all__ = ["FLOPS"]
