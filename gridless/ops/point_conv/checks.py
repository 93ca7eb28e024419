"""Checks of the arguments of the point convolution."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.ops.checks import check_parameters, check_rows
from gridless.ops.point_conv.contract import Neighbours
from gridless.ops.point_conv.edge_function import Basis, EdgeFunction
from gridless.structures.edges import Edges

FALLOFFS = ("linear", None)


def checked_function(
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


def check_features(features: Tensor, weight: Tensor, bias: Tensor | None, edges: Edges, basis: Basis) -> None:
    # Each is read once: this runs at every call.
    shape, theta = features.shape, weight.shape
    check_rows("point_conv", features, edges.num_source)
    known = len(theta) in (2, 3) and theta[0] == basis.size
    if not known or theta[1] != shape[1]:
        reason = f"features have {shape[1]} channels, and the layer takes {theta[1]}: " if known else ""
        raise ValueError(
            f"point_conv: {reason}weight must be (basis.size = {basis.size}, in channels = {shape[1]}, "
            f"out channels), or without the last if depthwise, not {tuple(theta)}"
        )
    check_parameters("point_conv", weight, bias, edges.device, features)


def check_described(near: Neighbours, basis: Basis, backend: str) -> None:
    if near.function.kind < 0:
        raise NotImplementedError(
            f"{type(basis).__name__} has no numeric description, which backend {backend!r} needs. Add one, or use "
            "gl.use_backend('reference')."
        )
