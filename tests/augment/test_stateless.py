"""Random numbers without a state."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless import augment
from gridless.augment import stateless


def batch(examples: int) -> gl.Cloud:
    return gl.Cloud.of([torch.zeros(1, 3)] * examples)


def keyed(index: torch.Tensor, seed: int = 0, epoch: int = 0) -> stateless.Keyed:
    return stateless.Keyed(stateless.keys(seed, epoch, index))


def test_numbers_are_uniform_and_normal():
    draws, cloud = keyed(torch.arange(4000)), batch(4000)
    u, n = draws.uniform(cloud, 50), draws.normal(cloud, 50)
    assert 0 < u.min() < 1e-3
    assert 1 - 1e-3 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    assert abs(n.mean()) < 0.01
    assert abs(n.std() - 1) < 0.01
    assert abs(n.pow(4).mean() - 3) < 0.1


def test_examples_epochs_streams_and_positions_differ_and_do_not_correlate():
    cloud, every = batch(3000), torch.arange(3000)
    first = keyed(every)
    u = first.uniform(cloud, 2)
    columns = [
        u.T,
        first.uniform(cloud, 1).T,
        keyed(every, epoch=1).uniform(cloud, 1).T,
        keyed(every, seed=1).uniform(cloud, 1).T,
        u[:, :1].roll(1, 0).T,
    ]
    matrix = torch.corrcoef(torch.cat(columns)).fill_diagonal_(0)
    assert matrix.abs().max() < 0.08


def test_an_example_draws_the_same_in_any_batch():
    alone = keyed(torch.tensor([17]), 3, 5).uniform(batch(1), 10)
    among = keyed(torch.tensor([4, 17, 9]), 3, 5).uniform(batch(3), 10)
    assert torch.equal(alone[0], among[1])


def test_every_epoch_has_an_order_of_its_own():
    first, second = stateless.permutation(0, 0, 100), stateless.permutation(0, 1, 100)
    assert torch.equal(first.sort().values, torch.arange(100))
    assert not torch.equal(first, second)
    assert torch.equal(first, stateless.permutation(0, 0, 100))


def test_negative_indices_and_large_seeds_are_fine():
    key = stateless.keys(2**70 + 1, 10**6, torch.tensor([-1, -2]))
    assert key[0] != key[1]


POINT_STEPS = [augment.Shuffle(), augment.Drop(0.5), augment.Jitter(0.01), augment.Tilt(), augment.RotateAboutUp()]
POINT_STEPS += [augment.Scale(each_axis=True), augment.Mirror(0), augment.Shift()]
EVENT_STEPS = [augment.Rotate(0.3), augment.Zoom(0.9, 1.1), augment.Flip(0), augment.ReverseTime(), augment.Thin(0.5)]
EVENT_STEPS += [augment.StretchTime(0.8, 1.2), augment.Translate(2, 2)]


def augmented(batch, index, epoch: int = 0):
    draws = stateless.Keyed(stateless.keys(7, epoch, torch.tensor(index)))
    for step in POINT_STEPS if isinstance(batch, gl.Cloud) else EVENT_STEPS:
        batch = step(batch, draws)
    return batch


def test_keyed_draws_augment_an_example_alike_in_any_batch_and_anew_in_every_epoch():
    clouds = [gl.Cloud.of(torch.rand(n, 3), place=torch.arange(n)) for n in (40, 25, 60)]
    glyphs = gl.data.MovingGlyphs(3)
    for parts in (clouds, [glyphs[i][0] for i in range(3)]):
        whole = augmented(gl.collate(parts), [4, 1, 9])
        for i, one in zip([4, 1, 9], range(3), strict=True):
            alone, among = augmented(parts[one], [i]), whole.examples[one]
            for name, leaf in alone.leaves().items():
                if isinstance(leaf, torch.Tensor):
                    assert torch.equal(leaf, among.leaves()[name]), name
        other = augmented(gl.collate(parts), [4, 1, 9], epoch=1)
        assert len(other) != len(whole) or not torch.equal(*(getattr(x, x._length) for x in (other, whole)))


def test_keyed_draws_are_uniform_and_normal_for_points_too():
    batch = gl.Cloud.of([torch.rand(n, 3) for n in (3000, 0, 5000)])
    draws = stateless.Keyed(stateless.keys(0, 0, torch.arange(3)))
    u, n = draws.uniform(batch, 3, each="row"), draws.normal(batch, 3, each="row")
    fine = draws.uniform(batch, each="row", dtype=torch.float64)
    assert u.shape == n.shape == (8000, 3)
    assert abs(u.mean() - 0.5) < 0.01
    assert abs(n.std() - 1) < 0.02
    assert len(fine.unique()) == 8000
    assert 0 < fine.min() < fine.max() < 1
    columns = torch.cat([u.T, n.T, fine[None].float()])
    assert torch.corrcoef(columns).fill_diagonal_(0).abs().max() < 0.05
    with pytest.raises(ValueError, match=r"1 keys.*3 examples"):
        stateless.Keyed(torch.zeros(1, dtype=torch.int32)).uniform(batch)


def test_the_numbers_of_a_key_are_the_same_in_every_version():
    """Runs that are resumed, and recipes of shipped weights, count on them."""
    ragged = gl.Cloud.of([torch.zeros(n, 3) for n in (5, 0, 31, 7)])
    draws = stateless.Keyed(stateless.keys(3, 1, torch.tensor([-5, 0, 2**40, 7])))
    first, second = draws._numbers(ragged, (2, 3), "example"), draws._numbers(ragged, (2,), "row")
    assert first[:, 1, 2].tolist() == [-1302535648, -1119553058, 1385879617, -790498093]
    assert second[[0, 5, 42], 1].tolist() == [-613562159, -1252985557, 291587565]


def test_every_backend_draws_the_same_numbers_for_points(backend, device):
    ragged = gl.Cloud.of([torch.zeros(n, 3) for n in (5, 0, 31, 1300)])

    def drawn(cloud):
        draws = stateless.Keyed(stateless.keys(3, 1, torch.tensor([-5, 0, 2**40, 7])))
        bits, shares = draws._numbers(cloud, (2,), "row"), draws.uniform(cloud, 3, each="row")
        fine = draws.uniform(cloud, each="row", dtype=torch.float64)
        return [x.cpu() for x in (bits, shares, fine)]

    values = drawn(ragged.to(device))
    with gl.use_backend("reference"):
        wanted = drawn(ragged)
    assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(values, wanted, strict=True))


def test_clouds_known_to_be_of_one_size_are_augmented_to_the_same_bits():
    clouds = [gl.Cloud.of(torch.rand(40, 3), normal=torch.rand(40, 3), directions=["normal"]) for _ in range(3)]
    ragged, even = gl.collate(clouds), gl.collate(clouds)
    even.cached(augment.points.EVEN, lambda: 40)
    # Drop comes last: after it clouds are of several sizes.
    steps = [step for step in POINT_STEPS if not isinstance(step, augment.Drop)] + [augment.Drop(0.5)]
    first, second = keyed(torch.arange(3)), keyed(torch.arange(3))
    for step in steps:
        ragged, even = step(ragged, first), step(even, second)
        assert torch.equal(ragged.coords, even.coords)
        assert torch.equal(ragged.rows["normal"], even.rows["normal"])
        assert torch.equal(ragged.splits, even.splits)
    assert not even.keeps(augment.points.EVEN)


def test_no_number_is_one(monkeypatch):
    draws = keyed(torch.arange(3))
    monkeypatch.setattr(stateless, "_mix32", lambda x: torch.full_like(x, -1))
    for dtype in (torch.float32, torch.float64):
        assert draws.uniform(batch(3), dtype=dtype).max() < 1
