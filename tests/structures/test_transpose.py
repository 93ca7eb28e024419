"""Edges seen from the other side."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.structures.edges import _traced_transpose, transpose, transposed


def make(backend_device: torch.device) -> gl.Edges:
    # Examples with no points, with fewer than are searched, and with all points equal.
    source = gl.Cloud.of([torch.rand(90, 3), torch.zeros(0, 3), torch.rand(3, 3), torch.full((12, 3), 0.25)])
    target = gl.Cloud.of([torch.rand(40, 3), torch.rand(2, 3), torch.zeros(0, 3), torch.full((9, 3), 0.25)])
    return gl.nearest(source.to(backend_device), target.to(backend_device), 5)


def test_it_agrees_with_scipy(backend, device):
    edges = make(device)
    back = transpose(edges).cpu()
    wanted = edges.cpu().to_scipy().T.tocsr()
    wanted.sort_indices()
    assert back.splits.tolist() == wanted.indptr.tolist()
    assert back.source.tolist() == wanted.indices.tolist()
    assert (back.num_source, back.num_target) == (edges.num_target, edges.num_source)
    assert back.source.dtype == torch.int32


def test_repeated_edges_are_kept(backend, device):
    edges = gl.Edges(torch.tensor([0, 3, 4]), torch.tensor([1, 1, 0, 1]), 3).to(device)
    back = transpose(edges)
    assert back.splits.tolist() == [0, 1, 4, 4]
    assert back.source.tolist() == [0, 0, 0, 1]


def test_twice_is_the_same(backend, device):
    edges = make(device)
    again = transpose(transpose(edges))
    assert torch.equal(again.splits, edges.splits)
    assert torch.equal(again.source, edges.source)


@pytest.mark.parametrize("splits", [[0], [0, 0, 0]])
def test_no_edges_at_all(backend, device, splits):
    edges = gl.Edges(torch.tensor(splits), torch.zeros(0, dtype=torch.int32), 4).to(device)
    back = transpose(edges)
    assert back.splits.tolist() == [0] * 5
    assert len(back) == 0


def test_many_edges_in_several_threads():
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randint(0, 1000, (2, 400_000), generator=generator)
    edges = gl.Edges.from_edge_index(pairs, 1000, 1000)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threaded = transpose(edges)
    finally:
        torch.set_num_threads(before)
    with gl.use_backend("reference"):
        wanted = transpose(edges)
    assert torch.equal(threaded.splits, wanted.splits)
    assert torch.equal(threaded.source, wanted.source)


def test_the_method_is_cached_both_ways():
    edges = make(torch.device("cpu"))
    back = edges.transpose()
    assert edges.transpose() is back
    assert back.transpose() is edges


def test_a_symmetric_search_is_its_own_transpose():
    cloud = gl.Cloud.of(torch.rand(50, 3))
    near = gl.ball(cloud, cloud, 0.3)
    assert near.transpose() is near
    back = transpose(near)
    assert torch.equal(back.splits, near.splits)
    assert torch.equal(back.source, near.source)


def test_other_things_are_refused():
    with pytest.raises(TypeError, match="Edges"):
        transpose(torch.zeros(3))


@pytest.mark.slow
def test_a_graph_that_is_compiled_first_has_it_too():
    edges = gl.Edges(torch.tensor([0, 2, 3]), torch.tensor([1, 2, 1]), 4)
    compiled = torch.compile(lambda edges: transposed(edges)[0] * 2, fullgraph=True, backend="aot_eager")
    assert compiled(edges).tolist() == [0, 0, 4, 6, 6]
    assert not edges.keeps("transpose")
    # The rest of the graph is made for these shapes.
    splits, target = _traced_transpose(edges.splits.to("meta"), edges.source.to("meta"), 4, 0)
    assert (splits.shape, splits.dtype) == ((5,), torch.int64)
    assert (target.shape, target.dtype) == ((3,), torch.int32)
