"""Other people's convolutions, as the benchmarks time them, are what their papers say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import gridless as gl

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

peers = pytest.importorskip("peers_convs")

S, K, Q, P = 12, 4, 3, 5


@pytest.fixture
def layer():
    g = torch.Generator().manual_seed(0)
    cloud = gl.Cloud.of(torch.rand(S, 3, generator=g, dtype=torch.float64))
    near = gl.nearest(cloud, cloud, K)
    index = near.source.long().view(S, K)
    vectors = (cloud.coords[index] - cloud.coords[:, None]) / 0.5
    features = torch.randn(S, Q, generator=g, dtype=torch.float64)
    return g, cloud, near, index, vectors, features


def test_flex_conv_is_our_operator_with_linear_terms(layer):
    g, cloud, near, index, vectors, features = layer
    weight = torch.randn(4, Q, P, generator=g, dtype=torch.float64)
    # Our terms are 1, z, y, x of target - source.
    own = weight[[0, 3, 2, 1]] * torch.tensor([1.0, -1, -1, -1], dtype=torch.float64)[:, None, None]
    basis = gl.nn.Monomials(3, 1)
    ours = gl.point_conv(features, own, None, near, cloud.coords, cloud.coords, 0.5, basis, None, False)
    for conv in (peers.flex_conv, peers.flex_conv_per_edge):
        torch.testing.assert_close(conv(features, weight, index, vectors), ours)


def test_point_conv_is_the_sum_over_neighbours_of_learned_weights(layer):
    g, _, _, index, vectors, features = layer
    first, second, weight = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((3, 8), (8, 6), (Q * 6, P)))
    out = peers.point_conv_net(features, weight, first, second, index, vectors)
    for i in range(S):
        total = torch.zeros(Q, 6, dtype=torch.float64)
        for k in range(K):
            w = ((vectors[i, k] @ first).relu() @ second).relu()
            total += torch.outer(features[index[i, k]], w)
        torch.testing.assert_close(out[i], total.flatten() @ weight)


def test_kp_conv_is_the_sum_over_kernel_points(layer):
    g, _, _, index, vectors, features = layer
    points, weight = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((7, 3), (7, Q, P)))
    out = peers.kp_conv(features, weight, points, index, vectors, 1.3)
    for i in range(S):
        total = torch.zeros(P, dtype=torch.float64)
        for k in range(K):
            for m in range(7):
                near = max(0.0, 1 - (vectors[i, k] - points[m]).norm().item() / 1.3)
                total += near * features[index[i, k]] @ weight[m]
        torch.testing.assert_close(out[i], total)
