"""The maximum over neighbours, on every backend."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.ops.edge_max import edge_max


def random_edges(targets: int, sources: int, seed: int = 0) -> gl.Edges:
    generator = torch.Generator().manual_seed(seed)
    pairs = (torch.rand(targets, sources, generator=generator) < 0.2).nonzero()
    pairs = pairs[pairs[:, 0] % 7 != 3]  # some targets without neighbours
    return gl.Edges.from_edge_index(pairs.flip(1).T, sources, targets)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(("targets", "sources", "channels"), [(30, 50, 5), (70, 20, 67), (1, 3, 16)])
def test_values_and_gradients_are_those_of_a_loop(device, dtype, targets, sources, channels):
    edges = random_edges(targets, sources)
    features = torch.randn(sources, channels, generator=torch.Generator().manual_seed(1)).to(dtype)
    grad = torch.randn(targets, channels, generator=torch.Generator().manual_seed(2)).to(dtype)
    mine, theirs = features.to(device, copy=True).requires_grad_(), features.clone().requires_grad_()
    out = edge_max(mine, edges.to(device))
    rows = [edges.source[a:b].long() for a, b in zip(edges.splits[:-1], edges.splits[1:])]
    want = torch.stack([theirs[r].max(0).values if len(r) else theirs.new_zeros(channels) for r in rows])
    assert torch.equal(out.cpu(), want)
    out.backward(grad.to(device))
    (want.float() * grad.float()).sum().backward()
    near = {"atol": 0.05, "rtol": 0.02} if dtype == torch.bfloat16 else {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(mine.grad.cpu().float(), theirs.grad.float(), **near)


def test_the_first_of_equal_sources_gets_the_gradient(device):
    edges = gl.Edges(torch.tensor([0, 3]), torch.tensor([1, 2, 4]), 5).to(device)
    features = torch.tensor([9.0, 1.0, 2.0, 9.0, 2.0], device=device)[:, None].requires_grad_()
    out = edge_max(features, edges)
    out.sum().backward()
    assert out.item() == 2
    assert features.grad[:, 0].tolist() == [0, 0, 1, 0, 0]


def test_the_first_is_that_of_the_list_also_where_it_does_not_ascend(device):
    edges = gl.Edges(torch.tensor([0, 3]), torch.tensor([4, 1, 2]), 5).to(device)
    features = torch.tensor([9.0, 1.0, 2.0, 9.0, 2.0], device=device)[:, None].requires_grad_()
    edge_max(features, edges).sum().backward()
    assert features.grad[:, 0].tolist() == [0, 0, 0, 0, 1]


def test_a_repeated_edge_has_the_gradient_once(device):
    edges = gl.Edges.from_edge_index(torch.tensor([[0, 0, 1, 2], [0, 0, 0, 1]]), 3, 2).to(device)
    features = torch.tensor([3.0, 1.0, 2.0], device=device)[:, None].requires_grad_()
    edge_max(features, edges).sum().backward()
    assert features.grad[:, 0].tolist() == [1, 0, 1]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]])
def test_a_nan_is_the_maximum_in_any_order(device, order):
    edges = gl.Edges(torch.tensor([0, 4]), torch.tensor(order), 4).to(device)
    features = torch.tensor([1.0, torch.nan, torch.inf, torch.nan], device=device)[:, None].requires_grad_()
    out = edge_max(features, edges)
    out.sum().backward()
    assert out.isnan().all()
    first = min(1, 3, key=order.index)
    assert features.grad[:, 0].tolist() == [float(j == first) for j in range(4)]


def test_negative_maxima_and_no_neighbours_at_all(device):
    edges = gl.Edges(torch.tensor([0, 1, 1]), torch.tensor([0]), 1).to(device)
    out = edge_max(torch.tensor([[-3.0]], device=device, requires_grad=True), edges)
    assert out[:, 0].tolist() == [-3, 0]
    nothing = gl.Edges(torch.tensor([0]), torch.zeros(0, dtype=torch.int32), 4).to(device)
    features = torch.ones(4, 2, device=device, requires_grad=True)
    edge_max(features, nothing).sum().backward()
    assert (features.grad == 0).all()


def test_features_and_gradients_may_lie_anyhow(device):
    edges = random_edges(9, 7).to(device)
    across, grad = torch.randn(5, 7, device=device, requires_grad=True), torch.randn(5, 9, device=device).t()
    along = across.detach().t().contiguous().requires_grad_()
    outs = edge_max(across.t(), edges), edge_max(along, edges)
    assert torch.equal(*outs)
    for out in outs:
        out.backward(grad if out is outs[0] else grad.contiguous())
    assert torch.equal(across.grad.t(), along.grad)


def test_the_op_is_registered_rightly(backend):
    if backend != "reference":
        pytest.skip("the checks are of the registration, which is one for all")
    edges = random_edges(8, 10)
    back = edges.transpose()
    tensors = (torch.randn(10, 3, requires_grad=True), edges.splits, edges.source, back.splits, back.source)
    torch.library.opcheck(torch.ops.gridless.edge_max.default, tensors)


def test_mismatches_are_named():
    with pytest.raises(ValueError, match=r"10 sources.*features.*\(9, 3\)"):
        edge_max(torch.randn(9, 3), random_edges(8, 10))
    with pytest.raises(TypeError, match=r"features.*torch\.int64"):
        edge_max(torch.ones(10, 3, dtype=torch.int64), random_edges(8, 10))


def test_edges_are_transposed_for_a_gradient_alone(backend, device):
    edges = random_edges(30, 50).to(device)
    features = torch.randn(50, 4, device=device, requires_grad=True)
    with torch.inference_mode():
        edge_max(features, edges)
    assert not edges.keeps("transpose")
    edge_max(features, edges).sum().backward()
    assert edges.keeps("transpose") == (backend != "reference")
    assert features.grad.isfinite().all()


def test_the_reference_has_every_derivative():
    edges, features = random_edges(9, 7), torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    with gl.use_backend("reference"):
        assert torch.autograd.gradgradcheck(lambda x: edge_max(x, edges) ** 2, features)
        slope = torch.func.jvp(lambda x: edge_max(x, edges).sum(), (features,), (torch.ones_like(features),))[1]
    assert slope == 3 * int((edges.counts > 0).sum())


@pytest.mark.slow
def test_compiles_without_breaks():
    edges, features = random_edges(9, 7), torch.randn(7, 3, requires_grad=True)
    compiled = torch.compile(lambda x: edge_max(x, edges), fullgraph=True, backend="aot_eager")
    outs = compiled(features), edge_max(features, edges)
    gradients = [torch.autograd.grad(out.square().sum(), features)[0] for out in outs]
    assert torch.equal(*gradients)
