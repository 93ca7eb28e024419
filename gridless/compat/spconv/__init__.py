"""spconv's interface over our tap convolution: the same names, arguments, weights and results, also on a CPU.

    import gridless.compat.spconv.pytorch as spconv         # or gl.compat.enable(), then import spconv.pytorch

Checkpoints of spconv 2 load. Weights are (C_out, kernel..., C_in). Indices are int32 with the batch in column 0. New
sites are in lexicographic order (batch, first axis, ...); spconv's own order is that of a hash table. A site may occur
more than once; see `SparseConvolution`. Results have the same bits in every run.
"""

from gridless.compat.spconv import constants
from gridless.compat.spconv.core import AlgoHint, ConvAlgo

# The release whose interface this is.
__version__ = "2.3.8"
SPCONV_VERSION_NUMBERS = [2, 3, 8]

__all__ = ["SPCONV_VERSION_NUMBERS", "AlgoHint", "ConvAlgo", "__version__", "constants"]
