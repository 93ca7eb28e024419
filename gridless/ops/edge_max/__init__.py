"""Maximum over the neighbours of each target: what strided max pooling is to images.

    edge_max(F, edges)[i, c] = max of F[j, c] over the sources j of target i; 0 where there is none

A NaN is larger than any number. The gradient goes to the source that holds the maximum, the first of several in the
order of the edges, once however often an edge is repeated; it is gathered along the transposed edges, so that no two
writes meet: deterministic. Padding targets have no edges, and padding edges no target.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless.backends import implementation
from gridless.ops.checks import check_rows
from gridless.ops.edge_max import reference
from gridless.ops.operator import by_reference, operator, refuse_transforms
from gridless.structures.edges import Edges, transposed


def edge_max(features: Tensor, edges: Edges) -> Tensor:
    """features (S, C) to (S', C), S the sources and S' the targets of the edges. Differentiable once."""
    check_rows("edge_max", features, edges.num_source)
    if features.device != edges.device:
        raise ValueError(f"edge_max: features on {features.device}, edges on {edges.device}. Put both on one device.")
    if by_reference(features):
        return reference.forward(features, edges.splits, edges.source)[0]
    refuse_transforms("edge_max")
    rows = edges.splits, edges.source
    # Only the gradient reads the transposed edges.
    back = transposed(edges) if features.requires_grad and torch.is_grad_enabled() else rows
    return _max(features, *rows, *back)[0]


def _fake_backward(grad, row, back_splits, back_source):  # type: ignore[no-untyped-def]
    return grad.new_empty(back_splits.shape[0] - 1, grad.shape[1])


@operator("edge_max_backward", _fake_backward)
def _max_backward(grad: Tensor, row: Tensor, back_splits: Tensor, back_source: Tensor) -> Tensor:
    """The gradient of the features: row j sums grad[i] over the targets i of source j where row[i] is j."""
    return implementation(reference, grad.device).backward(grad.contiguous(), row, back_splits, back_source)


def _fake(features, splits, source, back_splits, back_source):  # type: ignore[no-untyped-def]
    shape = (splits.shape[0] - 1, features.shape[1])
    return features.new_empty(shape), source.new_empty(shape)


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    ctx.save_for_backward(output[1], *inputs[3:])


def _differentiate(ctx: Any, grad: Tensor, _: Any) -> tuple:
    return _max_backward(grad, *ctx.saved_tensors), None, None, None, None


@operator("edge_max", _fake, _save, _differentiate)
def _max(
    features: Tensor, splits: Tensor, source: Tensor, back_splits: Tensor, back_source: Tensor
) -> tuple[Tensor, Tensor]:
    """Values (S', C), and the source of each (S', C) int32, -1 where there is none."""
    return implementation(reference, features.device).forward(features.contiguous(), splits, source)
