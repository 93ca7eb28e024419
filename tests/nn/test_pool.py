"""Pooling layers: from a cloud of the plan to one row per example."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.nn.pool import MaxPool, MeanPool


@pytest.mark.parametrize("layer", [MaxPool, MeanPool])
def test_a_padded_batch_pools_as_its_examples_do(layer):
    plan = gl.Plan()
    pool = layer(plan.points(dim=3))
    clouds = [torch.rand(n, 3) for n in (5, 1, 9)]
    features = [torch.randn(len(c), 6) for c in clouds]
    alone = torch.cat([pool(f, plan(c)) for f, c in zip(features, clouds)])
    batch = gl.collate([plan(c) for c in clouds], bucket="power_of_two")
    padded = torch.full((16, 6), 1e9)
    padded[:15] = torch.cat(features)
    torch.testing.assert_close(pool(padded, batch), alone)


def test_a_layer_shows_its_cloud():
    assert repr(MaxPool("X3")) == "MaxPool(X3)"
