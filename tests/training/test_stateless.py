"""Random numbers without a state."""

from __future__ import annotations

import torch

from gridless.training import stateless


def test_numbers_are_uniform_and_normal():
    key = stateless.keys(0, 0, torch.arange(4000))
    u, n = stateless.uniform(key, 0, 50), stateless.normal(key, 1, 50)
    assert 0 < u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    assert abs(n.mean()) < 0.01
    assert abs(n.std() - 1) < 0.01
    assert abs(n.pow(4).mean() - 3) < 0.1


def test_examples_epochs_streams_and_positions_differ_and_do_not_correlate():
    key = stateless.keys(0, 0, torch.arange(3000))
    other = stateless.keys(0, 1, torch.arange(3000))
    seed = stateless.keys(1, 0, torch.arange(3000))
    columns = [
        stateless.uniform(key, 0, 2).T,
        stateless.uniform(key, 1, 1).T,
        stateless.uniform(other, 0, 1).T,
        stateless.uniform(seed, 0, 1).T,
        stateless.uniform(key, 0, 1).roll(1, 0).T,
    ]
    matrix = torch.corrcoef(torch.cat(columns)).fill_diagonal_(0)
    assert matrix.abs().max() < 0.08


def test_an_example_draws_the_same_in_any_batch():
    alone = stateless.bits(stateless.keys(3, 5, torch.tensor([17])), 2, 10)
    among = stateless.bits(stateless.keys(3, 5, torch.tensor([4, 17, 9])), 2, 10)
    assert torch.equal(alone[0], among[1])


def test_every_epoch_has_an_order_of_its_own():
    first, second = stateless.permutation(0, 0, 100), stateless.permutation(0, 1, 100)
    assert torch.equal(first.sort().values, torch.arange(100))
    assert not torch.equal(first, second)
    assert torch.equal(first, stateless.permutation(0, 0, 100))


def test_negative_indices_and_large_seeds_are_fine():
    key = stateless.keys(2**70 + 1, 10**6, torch.tensor([-1, -2]))
    assert key[0] != key[1]
