"""The point convolution: F' = sum over m of N(m) F Theta(m), in either order, depthwise, with or without features.

`contract.py` says what a backend provides, `edge_function.py` has the formula of the edge values n_m. `reference.py` is
the specification of all of it: it takes the structures themselves and is differentiated by autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.checks import autocast, check_parameters
from gridless.ops.operator import refuse_transforms
from gridless.ops.point_conv import registered
from gridless.ops.point_conv.checks import check_described, check_features, checked_function
from gridless.ops.point_conv.contract import Neighbours, PointConvBackend
from gridless.ops.point_conv.edge_function import Basis, EdgeFunction
from gridless.ops.point_conv.order import cheaper_order, transforms_first
from gridless.structures.edges import Edges, transposed

__all__ = ["Basis", "EdgeFunction", "cheaper_order", "featureless_conv", "point_conv"]


def point_conv(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    radius: float,
    basis: Basis,
    falloff: str | None = "linear",
    normalise: bool = True,
    order: str | None = None,
) -> Tensor:
    """F'_i = sum over m and the sources j of i of n_m(i, j) F_j Theta(m) + bias; depthwise, F_jc theta_mc.

    n_m = p_m(v) w / W with v = (target_i - source_j) / radius, p the basis, w the fall-off and W the sum of w over the
    row if `normalise`, 1 otherwise. A target without neighbours, or whose weights are all 0, gets the bias. Sums are
    kept in float32 (float64 for float64 features).

    features         (S, Q) float32, float64, bfloat16 or float16
    weight, bias     (M, Q, P), or (M, Q) for a depthwise convolution, in which each channel has weights of its own
                     (P = Q); and (P) or None; of the same dtype
    edges            which sources each target sees. Up-sampling is a convolution over `edges.transpose()`, with the
                     coarse cloud as the source
    source_coords    (S, D) float32 or float64
    target_coords    (S', D), of the same dtype
    radius           what the vectors are divided by
    basis            M functions of a vector, such as `gl.nn.Monomials(3, 2)`
    falloff          "linear" for w = 1 - |v| (0 from the radius on), None for w = 1
    normalise        whether each row is divided by its W
    order            "gather_first" for (N F) Theta, "transform_first" for N (F Theta), or None for the cheaper; a
                     depthwise convolution has but one

    Returns (S', P). Differentiable in features, weight, bias and both coordinates, once and in reverse mode; for other
    derivatives use `gl.use_backend("reference")`.
    """
    if not isinstance(features, Tensor):
        remedy = "a cloud without features is convolved by featureless_conv"
        raise TypeError(
            f"point_conv: features must be a tensor (points, channels), not {type(features).__name__}: {remedy}"
        )
    backend = backends.backend_for(edges.device)
    if backend != "reference":
        refuse_transforms("point_conv")
    features, weight, bias = autocast(edges.device.type, features, weight, bias)
    arguments = source_coords, target_coords, radius, basis, falloff, normalise
    near = _neighbours(edges, *arguments, *(() if backend == "reference" else (features, weight, source_coords)))
    check_features(features, weight, bias, edges, basis)
    transform_first = transforms_first(order, weight.shape, near)
    if backend == "reference":
        from gridless.ops.point_conv import reference

        with torch.autocast(features.device.type, enabled=False):
            settings = (basis, float(radius), near.function.falloff, normalise, transform_first)
            return reference.conv(features, weight, bias, edges, source_coords, target_coords, *settings)
    check_described(near, basis, backend)
    if not features.is_contiguous():
        features = features.contiguous()
    return registered.conv(features, weight, bias, near, transform_first, backend)


def featureless_conv(
    weight: Tensor,
    bias: Tensor | None,
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    radius: float,
    basis: Basis,
    falloff: str | None = "linear",
    normalise: bool = True,
) -> Tensor:
    """The convolution of a cloud that has no features: F'_i = sum over m of (sum over j of n_m(i, j)) Theta(m) + bias.

    weight (M, P), bias (P) or None; returns (S', P) in the dtype of the weight. One sum over the edges of each target,
    then one matrix product. Arguments and edge values as in `point_conv`. With `normalise` the first sum is 1 for the
    constant term of `Monomials`.
    """
    backend = backends.backend_for(edges.device)
    if backend != "reference":
        refuse_transforms("featureless_conv")
    arguments = source_coords, target_coords, radius, basis, falloff, normalise
    near = _neighbours(edges, *arguments, *(() if backend == "reference" else (source_coords,)))
    if weight.ndim != 2 or weight.shape[0] != basis.size:
        raise ValueError(
            f"featureless_conv: weight must be (basis.size = {basis.size}, out channels), not {tuple(weight.shape)}"
        )
    check_parameters("featureless_conv", weight, bias, edges.device)
    if backend == "reference":
        from gridless.ops.point_conv import reference

        settings = (basis, float(radius), near.function.falloff, near.function.normalise)
        sums = reference.edge_sums(edges, source_coords, target_coords, *settings)
    else:
        check_described(near, basis, backend)
        sums = registered.edge_sums(near, backend)
    return torch.nn.functional.linear(sums.to(weight.dtype), weight.t(), bias)


def compile_ahead(
    weight: Tensor,
    bias: Tensor | None,
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    radius: float,
    basis: Basis,
    falloff: str | None = "linear",
    normalise: bool = True,
    order: str | None = None,
    needs_features: bool = True,
) -> None:
    """Inside `compiling_ahead`: what `point_conv` will launch on the GPU, and its gradients where they are on."""
    function = checked_function(edges, source_coords, target_coords, radius, basis, falloff, normalise)
    gpu: PointConvBackend = backends.implementation(__name__, edges.device)
    device, sources, targets = edges.device, edges.num_source, edges.num_target
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weight.dtype

    def empty(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        # Types and shapes are all that counts: one number serves all places.
        return torch.empty((), dtype=dtype, device=device).expand(shape)

    coords = [empty(n, basis.dim, dtype=source_coords.dtype) for n in (sources, targets)]
    splits = [empty(n + 1, dtype=torch.int64) for n in (targets, sources)]
    columns = empty(len(edges), dtype=torch.int32)
    near = Neighbours(splits[0], columns, splits[1], columns, coords[0], coords[1], function)
    features, like = empty(sources, weight.shape[1]), empty(*weight.shape)
    added = None if bias is None else empty(*bias.shape)
    backward = torch.is_grad_enabled()
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        out, inverse = gpu.conv(features, like, added, near, transforms_first(order, weight.shape, near))
        if backward:
            gpu.conv_backward(out, features, like, inverse, near, needs_features, True, bias is not None)


def _neighbours(
    edges: Edges, source_coords: Tensor, target_coords: Tensor, radius: float, basis: Basis, falloff: str | None,
    normalise: bool, *sources: Tensor,
) -> Neighbours:  # fmt: skip
    """Arguments of a backend; with the transposed edges if the gradient of one of `sources` will walk them.

    Layers over the same edges share one object: checks take longer than a small kernel.
    """
    settings = radius, basis.description(), basis.dim, falloff, normalise
    compiling = torch.compiler.is_compiling()
    cache: list[Any] = [None] if compiling else edges.cached("neighbours", lambda: [None])
    known = cache[0]
    if known and known[0] is source_coords and known[1] is target_coords and known[2] == settings:
        near: Neighbours = known[3]
    else:
        function = checked_function(edges, source_coords, target_coords, radius, basis, falloff, normalise)
        coords = source_coords.contiguous(), target_coords.contiguous()
        near, known = Neighbours(edges.splits, edges.source, None, None, *coords, function), None
    if near.back_splits is None and torch.is_grad_enabled() and any(t.requires_grad for t in sources):
        ends = near.source_coords, near.target_coords
        near, known = Neighbours(near.splits, near.source, *transposed(edges), *ends, near.function), None
    # Cache only if the coordinates were not copied (a copy could go stale) and need no gradient (would keep the graph
    # alive).
    is_uncopied = near.source_coords is source_coords and near.target_coords is target_coords
    if known is None and is_uncopied and not (source_coords.requires_grad or target_coords.requires_grad):
        cache[0] = source_coords, target_coords, settings, near
    return near
