"""Other point convolutions as their papers write them, in plain torch: FlexConv, PointConv, KPConv. For table2.py.

Each takes features (S, Q) and its parameters, over a fixed number of neighbours K of each point: index (S, K) int64 and
vectors (S, K, 3), source - target over the radius. Own words and code; no compiled extension.
"""

from __future__ import annotations

import torch
from torch import Tensor


def flex_conv_per_edge(features: Tensor, weight: Tensor, index: Tensor, vectors: Tensor) -> Tensor:
    """FlexConv, Groh and others 2018, as its TensorFlow version: f'_i = sum over j of (b + theta . v_ij)^T f_j.

    A kernel (Q, P) is made for every edge: weight (4, Q, P) is the constant and the three slopes. Memory S K Q P.
    """
    terms = torch.cat([torch.ones_like(vectors[..., :1]), vectors], 2)  # (S, K, 4)
    kernels = torch.einsum("skm,mqp->skqp", terms, weight)
    return torch.einsum("skq,skqp->sp", features[index], kernels)


def flex_conv(features: Tensor, weight: Tensor, index: Tensor, vectors: Tensor) -> Tensor:
    """The same function, sums over neighbours first: (S, 4, Q), then one product. Memory S (K + 4) Q."""
    terms = torch.cat([torch.ones_like(vectors[..., :1]), vectors], 2)
    sums = torch.einsum("skm,skq->smq", terms, features[index])
    return sums.flatten(1) @ weight.flatten(0, 1)


def point_conv_net(
    features: Tensor, weight: Tensor, first: Tensor, second: Tensor, index: Tensor, vectors: Tensor
) -> Tensor:
    """PointConv, Wu and others 2019, in its efficient form, without densities: f'_i = vec(sum over j of f_j w_ij^T) H.

    A network of two layers, first (3, H) and second (H, C), makes C numbers w of each vector; weight (Q C, P) is H.
    """
    numbers = ((vectors @ first).relu() @ second).relu()  # (S, K, C)
    sums = torch.einsum("skq,skc->sqc", features[index], numbers)
    return sums.flatten(1) @ weight


def kp_conv(features: Tensor, weight: Tensor, points: Tensor, index: Tensor, vectors: Tensor, extent: float) -> Tensor:
    """KPConv, Thomas and others 2019, rigid: f'_i = sum over kernel points k of (sum over j of h_ijk f_j) W_k.

    h = max(0, 1 - |v_ij - points_k| / extent); points (M, 3), weight (M, Q, P).
    """
    apart = (vectors[:, :, None] - points).norm(dim=3)  # (S, K, M)
    influence = (1 - apart / extent).clamp(min=0)
    sums = torch.einsum("skm,skq->smq", influence, features[index])
    return sums.flatten(1) @ weight.flatten(0, 1)
