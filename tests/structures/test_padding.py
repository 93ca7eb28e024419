"""Padding to buckets: few shapes, the same results."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import gridless as gl
from gridless.structures import base, bucket_size, pad


def plan() -> gl.Plan:
    plan = gl.Plan()
    points = plan.points()
    near = plan.ball(points, points, 0.3)
    coarse = plan.rejection_sample(near)
    down = plan.ball(points, coarse, 0.5)
    plan.transpose(down)
    plan.farthest_sample(points, 0.4)
    return plan


def examples(*sizes: int) -> list[gl.Geometry]:
    generator = torch.Generator().manual_seed(0)
    return [plan()(torch.rand(n, 3, generator=generator)) for n in sizes]


@pytest.mark.parametrize(("length", "bucket"), [(0, 1), (1, 1), (2, 2), (3, 4), (64, 64), (65, 128)])
def test_the_next_power_of_two(length, bucket):
    assert bucket_size(length, "power_of_two") == bucket


def test_given_buckets_need_not_be_sorted():
    assert [bucket_size(n, [100, 10]) for n in (0, 10, 11, 100)] == [10, 10, 100, 100]
    with pytest.raises(ValueError, match=r"bucket.*101.*100"):
        bucket_size(101, [100, 10])


@pytest.mark.parametrize("bucket", ["fibonacci", [], [0, 4], [2.5]])
def test_other_buckets_are_refused(bucket):
    with pytest.raises(ValueError, match=r"bucket.*power_of_two.*(fibonacci|\[\]|4|2\.5)"):
        bucket_size(3, bucket)


@pytest.mark.parametrize("bucket", ["power_of_two", [5000, 777]])
@pytest.mark.parametrize("sizes", [(20, 1, 0, 33), (0,), (0, 0), (64,)])
def test_padding_belongs_to_no_example_and_no_edge(sizes, bucket):
    plain, padded = gl.collate(examples(*sizes)), gl.collate(examples(*sizes), bucket=bucket)
    for name in plain:
        a, b = plain[name], padded[name]
        assert len(b) == bucket_size(len(a), bucket)
        assert b.padding == len(b) - len(a)
        if isinstance(a, gl.Cloud):
            assert torch.equal(a.splits, b.splits)
            assert torch.equal(a.coords, b.coords[: len(a)])
            assert (b.example[len(a) :] == b.num_examples).all()
        else:
            assert torch.equal(a.source, b.source[: len(a)])
            assert torch.equal(a.counts, b.counts[: a.num_target])
            assert not b.counts[a.num_target :].any()
            assert (b.target[len(a) :] == b.num_target).all()
            assert torch.equal(a.to_edge_index(), b.to_edge_index())
        b.check()


@pytest.mark.parametrize("sizes", [(20, 1, 0, 33), (0, 3)])
def test_sizes_still_say_how_many_rows_an_index_points_into(sizes):
    padded = gl.collate(examples(*sizes), bucket="power_of_two")
    for name, cloud in (("N00", "X0"), ("N01", "X0"), ("N10", "X1")):
        assert padded[name].num_source == len(padded[cloud])
    for name, cloud in (("N00", "X0"), ("N01", "X1"), ("N10", "X0")):
        assert padded[name].num_target == len(padded[cloud])
    assert padded["X1"].num_parent == padded["X2"].num_parent == len(padded["X0"])
    assert padded["X0"].num_parent == 0


@pytest.mark.parametrize("sizes", [(20, 1, 0, 33), (0,), (64,)])
def test_rows_of_padding_point_at_different_rows(sizes):
    """On a GPU, gradients of many rows that point at one wait for each other."""
    plain, padded = gl.collate(examples(*sizes)), gl.collate(examples(*sizes), bucket=[5000, 100])
    for name in ("X1", "X2", "N00", "N01", "N10"):
        short, long = plain[name], padded[name]
        if isinstance(short, gl.Cloud):
            index, into = long.parent_index[len(short) :], long.num_parent
        else:
            index, into = long.source[len(short) :], long.num_source
        counts = torch.bincount(index, minlength=into)
        assert len(counts) == into
        assert counts.max() - counts.min() <= 1


def test_searches_and_samplers_pass_padding_by(backend, device):
    parts = [torch.rand(n, 3, generator=torch.Generator().manual_seed(n)) for n in (20, 0, 33)]
    plain = gl.Cloud.of(parts).to(device)
    padded = pad(plain, "power_of_two")
    near, same = gl.ball(plain, plain, 0.4), gl.ball(padded, padded, 0.4)
    assert torch.equal(near.source, same.source)
    assert same.num_target == 64
    for search in (near, gl.nearest(plain, plain, 4)):
        other = same if search is near else gl.nearest(padded, padded, 4)
        assert torch.equal(search.source, other.source)
        assert torch.equal(search.counts, other.counts[:53])
        assert not other.counts[53:].any()
    for sample in (
        lambda cloud, near: gl.rejection_sample(cloud, near, distance=True),
        lambda cloud, near: gl.rejection_sample(cloud, radius=0.4, distance=True),
        lambda cloud, near: gl.farthest_sample(cloud, 0.3),
        lambda cloud, near: gl.farthest_sample(cloud, 30, near=near),
        lambda cloud, near: gl.random_sample(cloud, 12, torch.Generator(device).manual_seed(0)),
    ):
        a, b = sample(plain, near), sample(padded, same)
        assert torch.equal(a.splits, b.splits)
        assert b.num_parent == 64
        if a.distance is not None:
            assert torch.equal(a.distance, b.distance[:53])
            assert not b.distance[53:].any()
    assert torch.equal(a.example, b.example)
    for size in (0.3, 30):
        a, b = (gl.farthest_sample(c, size, near=n if size == 30 else None) for c, n in ((plain, near), (padded, same)))
        assert torch.equal(a.parent_index, b.parent_index)


def test_padded_edges_are_transposed_without_their_padding(backend, device):
    with gl.use_backend(None):
        edges = gl.collate(examples(20, 33))["N01"].to(device)
    padded = pad(edges, [5000])
    back, same = edges.transpose(), padded.transpose()
    assert torch.equal(back.source, same.source[: len(back)])
    assert torch.equal(back.splits, same.splits[: len(back.splits)])
    assert same.padding == len(same) - len(back)
    assert torch.equal(same.transpose().source, padded.source)


def test_sums_over_edges_do_not_change():
    plain, padded = gl.collate(examples(20, 33)), gl.collate(examples(20, 33), bucket="power_of_two")
    features = torch.rand(len(plain["X0"]), 5, generator=torch.Generator().manual_seed(0))
    more = torch.full((len(padded["X0"]), 5), torch.nan)
    more[: len(features)] = features
    wanted = plain["N01"].to_torch_csr() @ features
    product = torch.from_numpy(padded["N01"].to_scipy() @ more.numpy())
    torch.testing.assert_close(product[: len(wanted)], wanted)
    assert not product[len(wanted) :].any()


def test_padding_again_keeps_count():
    cloud = gl.Cloud.of(torch.rand(5, 3))
    twice = pad(pad(cloud, "power_of_two"), [100])
    assert (len(twice), twice.padding) == (100, 95)
    assert np.array_equal(np.asarray(twice), cloud.coords.numpy())
    twice.check()


def test_padded_batches_are_not_collated_again():
    padded = gl.collate([gl.Cloud.of(torch.rand(5, 3))], bucket="power_of_two")
    with pytest.raises(ValueError, match="collate: padded"):
        gl.collate([padded, padded])


@pytest.mark.parametrize(
    "cut",
    [
        lambda geometry: geometry["X0"][:5],
        lambda geometry: geometry["X0"][geometry["X0"].coords[:, 0] > 0],
        lambda geometry: geometry["N00"].to_edge_index(),
        lambda geometry: geometry["N00"].to_torch_csr(),
    ],
)
def test_padding_is_not_cut_off_while_a_graph_is_captured(cut, monkeypatch):
    """The graph would keep what is the padding of its first batch."""
    plain, padded = gl.collate(examples(20, 33)), gl.collate(examples(20, 33), bucket="power_of_two")
    cut(padded)
    monkeypatch.setattr(base, "_capturing", lambda device: True)
    cut(plain)
    with pytest.raises(RuntimeError, match=r"captured.*padding.*num_examples"):
        cut(padded)
