"""The convolution over taps: F'_i = sum over k of F_j Theta(k) + bias, j the source that target i sees at tap k.

It is the paper's operator with T indicator functions as its basis: an edge carries the number of its tap in place of
basis values. Submanifold, strided, transposed and inverse convolutions of voxels are this one, over different edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.checks import autocast, check_parameters, check_rows
from gridless.ops.tap_conv import reference, registered
from gridless.structures.tap_edges import TapEdges


def tap_conv(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges) -> Tensor:
    """F'_i = sum over the taps k at which target i has a source j of F_j Theta(k) + bias.

    Sums are kept in float32 (float64 for float64 features). A target without sources gets the bias. Under autocast
    features, weight and bias are converted to its dtype.

    features         (S, Q) float32, float64, bfloat16 or float16
    weight, bias     (T, Q, P), and (P) or None; of the same dtype
    edges            which source each target sees at each tap. The inverse convolution is one over `edges.transpose()`

    Returns (S', P). Differentiable in features, weight and bias, once and in reverse mode; for other derivatives use
    `gl.use_backend("reference")`. The same input gives the same bits.
    """
    if not isinstance(edges, TapEdges):
        raise TypeError(
            f"tap_conv: edges must be TapEdges, such as submanifold_taps(sites), not {type(edges).__name__}"
        )
    features, weight, bias = autocast(edges.device.type, features, weight, bias)
    _check(features, weight, bias, edges)
    backend = backends.backend_for(edges.device)
    if backend == "reference":
        with torch.autocast(features.device.type, enabled=False):
            return reference.conv(features, weight, bias, edges.table)
    return registered.conv(features, weight, bias, edges, backend)


def compile_ahead(weight: Tensor, has_bias: bool, symmetric: bool, needs: tuple[bool, bool]) -> None:
    """Inside `compiling_ahead`: begins to compile what `tap_conv` will launch on the GPU. Sizes of edges do not count.

    weight           (T, Q, P): only its type, shape and device are read
    has_bias         whether there is a bias
    symmetric        that of the edges
    needs            whether features and weight get gradients, where gradients are on
    """
    device, dtype = weight.device, weight.dtype
    if backends.backend_for(device) != "gpu":
        return
    gpu: registered.Backend = backends.module_of(__name__, "gpu", device)
    if torch.is_autocast_enabled(device.type) and dtype != torch.float64:
        dtype = torch.get_autocast_dtype(device.type)
    # One number serves all places.
    like = torch.empty((), dtype=dtype, device=device).expand(weight.shape)
    # One target without sources. Nothing counts the pairs.
    table = torch.full((1, len(like)), -1, dtype=torch.int32, device=device)
    edges = TapEdges.made(table=table, num_source=1, symmetric=symmetric)
    edges.cached("number of pairs", lambda: 0)
    backward = torch.is_grad_enabled()
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        out = gpu.conv(like[0, :, :1].t(), like, like[0, 0] if has_bias else None, edges)
        if backward and any(needs):
            gpu.conv_backward(out, like[0, :, :1].t(), like, edges, *needs, False)


def _check(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges) -> None:
    rows, theta = features.shape, weight.shape
    check_rows("tap_conv", features, edges.num_source)
    if len(theta) != 3 or theta[0] != edges.num_taps or theta[1] != rows[1]:
        raise ValueError(
            f"tap_conv: weight must be (taps = {edges.num_taps}, in channels = {rows[1]}, out channels), "
            f"not {tuple(theta)}"
        )
    check_parameters("tap_conv", weight, bias, edges.device, features)
