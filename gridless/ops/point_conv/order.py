"""The order of the point convolution: neighbours are gathered first, or features are transformed first."""

from __future__ import annotations

import torch

from gridless.ops.point_conv.contract import Neighbours

ORDERS = ("gather_first", "transform_first")


def transforms_first(order: str | None, weight: torch.Size, near: Neighbours) -> bool:
    if len(weight) == 2:
        if order is not None:
            raise ValueError(f"point_conv: a depthwise weight (M, C) leaves no choice of order. Drop order={order!r}.")
    elif order is None:
        sizes = near.source.shape[0], near.source_coords.shape[0], near.target_coords.shape[0]
        order = cheaper_order(*sizes, weight[1], weight[2])
    elif order not in ORDERS:
        raise ValueError(f"point_conv: order must be one of {ORDERS} or None, not {order!r}")
    return order == "transform_first"


def cheaper_order(num_edges: int, num_source: int, num_target: int, in_channels: int, out_channels: int) -> str:
    """The order with fewer multiply-adds: M Q (E + S' P) to gather first, M P (E + S Q) to transform first.

    E, S, S', Q and P are `num_edges`, `num_source`, `num_target`, `in_channels` and `out_channels`.
    """
    gather_first = in_channels * (num_edges + num_target * out_channels)
    transform_first = out_channels * (num_edges + num_source * in_channels)
    return "gather_first" if gather_first <= transform_first else "transform_first"
