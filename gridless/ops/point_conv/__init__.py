"""The point convolution: F' = sum over m of N(m) F Theta(m), in either order, depthwise, with or without features.

`contract.py` says what a backend provides, `edge_function.py` has the formula of the edge values n_m. `reference.py` is
the specification of all of it: it takes the structures themselves and is differentiated by autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless import backends
from gridless.ops.operator import refuse_transforms
from gridless.ops.point_conv import registered
from gridless.ops.point_conv.contract import Neighbours, PointConvBackend
from gridless.ops.point_conv.edge_function import Basis, EdgeFunction
from gridless.structures.edges import Edges, transposed
from gridless.structures.rows import shape_in_words

__all__ = ["Basis", "EdgeFunction", "cheaper_order", "featureless_conv", "point_conv"]

FALLOFFS = ("linear", None)
FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
ORDERS = ("gather_first", "transform_first")


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
    features, weight, bias = _autocast(edges.device.type, features, weight, bias)
    arguments = source_coords, target_coords, radius, basis, falloff, normalise
    near = _neighbours(edges, *arguments, *(() if backend == "reference" else (features, weight, source_coords)))
    _check_features(features, weight, bias, edges, basis)
    transform_first = _transforms_first(order, weight.shape, near)
    if backend == "reference":
        from gridless.ops.point_conv import reference

        with torch.autocast(features.device.type, enabled=False):
            settings = (basis, float(radius), near.function.falloff, normalise, transform_first)
            return reference.conv(features, weight, bias, edges, source_coords, target_coords, *settings)
    _check_described(near, basis, backend)
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
    _check_bias(bias, weight)
    if weight.device != edges.device:
        raise ValueError(f"featureless_conv: weight is on {weight.device}, the edges on {edges.device}. Use .to(...).")
    if backend == "reference":
        from gridless.ops.point_conv import reference

        settings = (basis, float(radius), near.function.falloff, near.function.normalise)
        sums = reference.edge_sums(edges, source_coords, target_coords, *settings)
    else:
        _check_described(near, basis, backend)
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
    function = _check(edges, source_coords, target_coords, radius, basis, falloff, normalise)
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
        out, inverse = gpu.conv(features, like, added, near, _transforms_first(order, weight.shape, near))
        if backward:
            gpu.conv_backward(out, features, like, inverse, near, needs_features, True, bias is not None)


def cheaper_order(num_edges: int, num_source: int, num_target: int, in_channels: int, out_channels: int) -> str:
    """The order with fewer multiply-adds: M Q (E + S' P) to gather first, M P (E + S Q) to transform first.

    E, S, S', Q and P are `num_edges`, `num_source`, `num_target`, `in_channels` and `out_channels`.
    """
    gather_first = in_channels * (num_edges + num_target * out_channels)
    transform_first = out_channels * (num_edges + num_source * in_channels)
    return "gather_first" if gather_first <= transform_first else "transform_first"


# Checks.


def _autocast(
    device: str, features: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Features and parameters in the dtype of autocast; coordinates keep theirs."""
    if not torch.is_autocast_enabled(device) or not features.is_floating_point() or features.dtype == torch.float64:
        return features, weight, bias
    dtype = torch.get_autocast_dtype(device)
    return features.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _check(
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    radius: float,
    basis: Basis,
    falloff: str | None,
    normalise: bool,
) -> EdgeFunction:
    if falloff not in FALLOFFS:
        raise ValueError(f"point_conv: falloff must be 'linear' or None, not {falloff!r}")
    if not 0 < radius < float("inf"):
        raise ValueError(f"point_conv: radius must be positive and finite, not {radius}")
    for name, coords, rows in (
        ("source_coords", source_coords, edges.num_source),
        ("target_coords", target_coords, edges.num_target),
    ):
        if coords.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"point_conv: {name} must be float32 or float64, not {coords.dtype}. Use .float().")
        if coords.ndim != 2 or coords.shape[0] != rows:
            raise ValueError(f"point_conv: the edges need {name} of {rows} rows, but it is {tuple(coords.shape)}")
        if coords.shape[1] != basis.dim:
            raise ValueError(
                f"point_conv: {name} has {coords.shape[1]} dimensions, {basis!r} has {basis.dim}. Use another basis."
            )
        if coords.device != edges.device:
            raise ValueError(f"point_conv: {name} is on {coords.device}, the edges on {edges.device}. Use .to(...).")
    if source_coords.dtype != target_coords.dtype:
        raise TypeError(
            f"point_conv: source_coords is {source_coords.dtype}, target_coords {target_coords.dtype}. Use one dtype."
        )
    description = basis.description()
    kind, table, width = (-1, (0.0,) * (basis.size * basis.dim), 1.0) if description is None else description
    return EdgeFunction(kind, table, width, basis.dim, float(radius), falloff is not None, bool(normalise))


def _check_features(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges, basis: Basis) -> None:
    # Each is read once: this runs at every call.
    shape, theta, dtype, device = features.shape, weight.shape, features.dtype, edges.device
    if dtype not in FLOATS:
        raise TypeError(f"point_conv: features must be floating point, not {dtype}. Use .float().")
    if len(shape) != 2 or shape[0] != edges.num_source:
        raise ValueError(
            f"point_conv: the edges have {edges.num_source} sources, so features must be "
            f"({edges.num_source}, channels), not {shape_in_words(features)}"
        )
    known = len(theta) in (2, 3) and theta[0] == basis.size
    if not known or theta[1] != shape[1]:
        reason = f"features have {shape[1]} channels, and the layer takes {theta[1]}: " if known else ""
        raise ValueError(
            f"point_conv: {reason}weight must be (basis.size = {basis.size}, in channels = {shape[1]}, "
            f"out channels), or without the last if depthwise, not {tuple(theta)}"
        )
    if weight.dtype != dtype:
        raise TypeError(f"point_conv: features are {dtype}, weight {weight.dtype}. Convert one, or use torch.autocast.")
    _check_bias(bias, weight)
    for name, tensor in (("features", features), ("weight", weight)):
        if tensor.device != device:
            raise ValueError(f"point_conv: {name} are on {tensor.device}, the edges on {device}. Use .to(...).")


def _transforms_first(order: str | None, weight: torch.Size, near: Neighbours) -> bool:
    if len(weight) == 2:
        if order is not None:
            raise ValueError(f"point_conv: a depthwise weight (M, C) leaves no choice of order. Drop order={order!r}.")
    elif order is None:
        sizes = near.source.shape[0], near.source_coords.shape[0], near.target_coords.shape[0]
        order = cheaper_order(*sizes, weight[1], weight[2])
    elif order not in ORDERS:
        raise ValueError(f"point_conv: order must be one of {ORDERS} or None, not {order!r}")
    return order == "transform_first"


def _check_bias(bias: Tensor | None, weight: Tensor) -> None:
    if bias is None:
        return
    if bias.shape != weight.shape[-1:] or bias.dtype != weight.dtype:
        raise ValueError(
            f"point_conv: bias must be ({weight.shape[-1]},) {weight.dtype} like the weight, "
            f"not {tuple(bias.shape)} {bias.dtype}"
        )
    if bias.device != weight.device:
        raise ValueError(f"point_conv: bias is on {bias.device}, weight on {weight.device}. Use .to(...).")


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
        function = _check(edges, source_coords, target_coords, radius, basis, falloff, normalise)
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


def _check_described(near: Neighbours, basis: Basis, backend: str) -> None:
    if near.function.kind < 0:
        raise NotImplementedError(
            f"{type(basis).__name__} has no numeric description, which backend {backend!r} needs. Add one, or use "
            "gl.use_backend('reference')."
        )
