"""The specification: plain torch, differentiable as often as one likes, with every edge value stored."""

from __future__ import annotations

import torch
from torch import Tensor

from gridless.ops.point_conv.edge_function import Basis, compute_dtype
from gridless.structures import Edges


def conv(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    basis: Basis,
    radius: float,
    falloff: bool,
    normalise: bool,
    transform_first: bool,
) -> Tensor:
    """F' = sum over m of N(m) F Theta(m) + bias: (S, Q), (M, Q, P) to (S', P); a weight (M, Q) is depthwise, P = Q."""
    dtype = compute_dtype(features.dtype)
    values = edge_values(edges, source_coords, target_coords, basis, radius, falloff, normalise, dtype)  # (E, M)
    source, target = _ends(edges)
    shape = (edges.num_target, basis.size)
    inputs, theta = features.to(dtype), weight.to(dtype)
    if weight.ndim == 2:
        messages = (values @ theta) * inputs[source]  # (E, Q)
        out = messages.new_zeros(edges.num_target, weight.shape[1]).index_add(0, target, messages)
    elif transform_first:
        # Zero times NaN is NaN: sources that nobody sees must not reach the gradient of Theta.
        seen = torch.zeros(len(inputs), 1, dtype=torch.bool, device=inputs.device).index_fill(0, source, True)
        transformed = torch.einsum("sq,mqp->smp", torch.where(seen, inputs, 0), theta)[source]  # (E, M, P)
        messages = torch.einsum("em,emp->ep", values, transformed)
        out = messages.new_zeros(edges.num_target, weight.shape[2]).index_add(0, target, messages)
    else:
        messages = values[:, :, None] * inputs[source][:, None, :]  # (E, M, Q)
        gathered = messages.new_zeros(*shape, features.shape[1]).index_add(0, target, messages)
        # Nor must the gradients of targets that see nobody.
        out = torch.where(edges.counts[:, None] > 0, torch.einsum("tmq,mqp->tp", gathered, theta), 0)
    return (out if bias is None else out + bias.to(dtype)).to(features.dtype)


def edge_sums(
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    basis: Basis,
    radius: float,
    falloff: bool,
    normalise: bool,
) -> Tensor:
    """Sums of the edge values of each target: (S', M)."""
    dtype = source_coords.dtype
    values = edge_values(edges, source_coords, target_coords, basis, radius, falloff, normalise, dtype)
    return values.new_zeros(edges.num_target, basis.size).index_add(0, _ends(edges)[1], values)


def edge_values(
    edges: Edges,
    source_coords: Tensor,
    target_coords: Tensor,
    basis: Basis,
    radius: float,
    falloff: bool,
    normalise: bool,
    dtype: torch.dtype,
) -> Tensor:
    """n_m = p_m(v) w / W for every edge: (E, M)."""
    source, target = _ends(edges)
    vector = ((target_coords[target] - source_coords[source]) / radius).to(dtype)  # (E, D)
    falls = _falloff(vector) if falloff else torch.ones_like(vector[:, 0])
    if normalise:
        total = falls.new_zeros(edges.num_target).index_add(0, target, falls)[target]
        falls = torch.where(total == 0, 0, falls / torch.where(total == 0, 1, total))
    return basis(vector) * falls[:, None]


def _falloff(vector: Tensor) -> Tensor:
    """max(0, 1 - |v|), with the derivative 0 at the centre and from the radius on."""
    square = vector.detach().square().sum(-1)
    flat = (square == 0) | (square >= 1)
    # Vectors without a derivative are replaced by zero before it is taken: infinity times 0 is NaN.
    length = torch.where(flat, 1, torch.where(flat[:, None], 0, vector).square().sum(-1)).sqrt()
    return 1 - torch.where(flat, square.clamp(max=1), length)


def _ends(edges: Edges) -> tuple[Tensor, Tensor]:
    """Source and target rows of the edges that are not padding."""
    real = len(edges) - edges.padding
    return edges.source[:real].long(), edges.target[:real].long()
