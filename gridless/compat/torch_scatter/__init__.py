"""torch_scatter's functions by its names, with its arguments and its meaning, without a compiler.

Write `from gridless.compat.torch_scatter import scatter_mean`, or call `gl.compat.enable()` before
`import torch_scatter`. All dtypes of torch_scatter, CPU and GPU, gradients, `out=`, `dim_size=`, TorchScript.

Three differences: results have the same bits in every run, also on a GPU; the minimum or maximum of equal values is the
first; the gradient of `scatter_mul` is also correct for factors of 0.
"""

from gridless.compat.torch_scatter.composite import (
    scatter_log_softmax,
    scatter_logsumexp,
    scatter_softmax,
    scatter_std,
)
from gridless.compat.torch_scatter.scatter import (
    scatter,
    scatter_add,
    scatter_max,
    scatter_mean,
    scatter_min,
    scatter_mul,
    scatter_sum,
)
from gridless.compat.torch_scatter.segment_coo import (
    gather_coo,
    segment_add_coo,
    segment_coo,
    segment_max_coo,
    segment_mean_coo,
    segment_min_coo,
    segment_sum_coo,
)
from gridless.compat.torch_scatter.segment_csr import (
    gather_csr,
    segment_add_csr,
    segment_csr,
    segment_max_csr,
    segment_mean_csr,
    segment_min_csr,
    segment_sum_csr,
)

# The release whose interface this is.
__version__ = "2.1.2"

__all__ = [
    "gather_coo",
    "gather_csr",
    "scatter",
    "scatter_add",
    "scatter_log_softmax",
    "scatter_logsumexp",
    "scatter_max",
    "scatter_mean",
    "scatter_min",
    "scatter_mul",
    "scatter_softmax",
    "scatter_std",
    "scatter_sum",
    "segment_add_coo",
    "segment_add_csr",
    "segment_coo",
    "segment_csr",
    "segment_max_coo",
    "segment_max_csr",
    "segment_mean_coo",
    "segment_mean_csr",
    "segment_min_coo",
    "segment_min_csr",
    "segment_sum_coo",
    "segment_sum_csr",
]
