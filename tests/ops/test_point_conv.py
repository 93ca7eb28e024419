"""The point convolution does what its formula says, forwards and backwards, on every backend."""

from __future__ import annotations

import math
import os

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.library import opcheck
from torch.utils.flop_counter import FlopCounterMode

import gridless as gl
from gridless.nn import GaussianBumps, KernelPoints, Monomials
from gridless.ops.point_conv import cheaper_order, registered
from gridless.structures import Edges, collate

interpreted = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="for Triton's interpreter")

RADIUS = 0.5
SETTINGS = [("linear", True), ("linear", False), (None, True), (None, False)]


def problem(device="cpu", dtype=torch.float64, sources=24, targets=17, dim=3, q=5, p=3, basis=None, seed=0):
    """Features, weight, bias, both coordinates and edges. Target 0 sits on source 0; the last target has no edge.

    Without `p` the convolution is depthwise.
    """
    torch.manual_seed(seed)
    basis = basis or Monomials(dim, 2)
    coords = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.rand(sources, dim, dtype=coords)
    y = torch.cat([x[:1], torch.rand(targets - 1, dim, dtype=coords)])
    near = torch.cdist(y, x) < RADIUS
    near[-1] = False
    edges = Edges.from_edge_index(near.nonzero().flip(1).t(), sources, targets)
    tensors = [torch.randn(*shape) for shape in shapes(sources, basis.size, q, p)]
    tensors = tuple(t.to(dtype).to(device) for t in tensors)
    return (*tensors, x.to(device), y.to(device)), edges.to(device), basis


def shapes(sources, terms, q, p):
    return ((sources, q), (terms, q), (q,)) if p is None else ((sources, q), (terms, q, p), (p,))


def apply(tensors, edges, basis, falloff="linear", normalise=True, order=None):
    features, weight, bias, x, y = tensors
    return gl.point_conv(features, weight, bias, edges, x, y, RADIUS, basis, falloff, normalise, order)


def along(out):
    """A fixed direction. Its sums over the rows, the bias's gradient, do not cancel, which would show mere rounding."""
    return torch.linspace(-0.5, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)


def with_gradients(tensors, edges, basis, *settings):
    """The result and its derivative along a fixed direction, in every tensor."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    out = apply(tensors, edges, basis, *settings)
    return [out.detach(), *torch.autograd.grad(out, tensors, along(out))]


def doubled(tensors):
    return [t.double() for t in tensors]


def assert_like_reference(tensors, edges, basis, tolerance, *settings):
    results = with_gradients(tensors, edges, basis, *settings)
    with gl.use_backend("reference"):
        expected = with_gradients(doubled(tensors), edges, basis, *settings)
    assert_near(results, expected, tolerance)


def assert_near(results, expected, tolerance):
    """The result, and the gradients that were asked for."""
    for name, a, b in zip(("out", "features", "weight", "bias", "source", "target"), results, expected):
        assert a.shape == b.shape, name
        assert a.isfinite().all(), name
        error = ((a.double() - b).norm() / b.norm().clamp_min(1e-30)).item()
        assert error < tolerance, f"{name}: {error}"


# Results.


def by_hand(tensors, edges, basis, falloff, normalise):
    """The formula, edge by edge, in Python's own numbers."""
    features, weight, bias, x, y = (t.tolist() for t in tensors)
    splits, source = edges.splits.tolist(), edges.source.tolist()
    rows = []
    for i, target in enumerate(y):
        row, values = list(bias), []
        for j in source[splits[i] : splits[i + 1]]:
            v = [(t - s) / RADIUS for t, s in zip(target, x[j])]
            w = max(0.0, 1 - math.dist(v, [0] * len(v))) if falloff else 1.0
            values.append((j, v, w))
        total = sum(w for *_, w in values) if normalise else 1.0
        for j, v, w in values:
            for m, exponents in enumerate(basis.exponents):
                n = w / total * math.prod(a**e for a, e in zip(v, exponents)) if total > 0 else 0.0
                for c, f in enumerate(features[j]):
                    for k in range(len(bias)):
                        row[k] += n * f * weight[m][c][k]
        rows.append(row)
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
@pytest.mark.parametrize("order", ["gather_first", "transform_first"])
def test_the_reference_is_the_formula(falloff, normalise, order):
    tensors, edges, basis = problem(sources=9, targets=7)
    with gl.use_backend("reference"):
        out = apply(tensors, edges, basis, falloff, normalise, order)
    torch.testing.assert_close(out, by_hand(tensors, edges, basis, falloff, normalise))


@pytest.fixture(params=["cpu", "gpu"])
def fast(request):
    """The compiled backends; under the interpreter the GPU's kernels have tests of their own (below)."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with gl.use_backend(request.param):
        yield "cuda" if request.param == "gpu" else "cpu"


@pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
@pytest.mark.parametrize("order", ["gather_first", "transform_first"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_the_reference(fast, falloff, normalise, order, dtype):
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    assert_like_reference(*problem(fast, dtype), tolerance, falloff, normalise, order)


@pytest.mark.parametrize(
    ("basis", "q", "p"),
    [(Monomials(1, 3), 4, 4), (Monomials(2, 2), 33, 7), (Monomials(4, 1), 1, 70), (Monomials(3, 3), 16, 16),
     (KernelPoints(3), 20, 2), (GaussianBumps(((0.1, 0.2), (-0.5, 0.0)), 0.4), 64, 8)],
)  # fmt: skip
def test_every_basis_dimension_and_width(fast, basis, q, p):
    assert_like_reference(*problem(fast, torch.float32, dim=basis.dim, q=q, p=p, basis=basis), 3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("order", ["gather_first", "transform_first"])
def test_half_precision_features_keep_float32_sums(fast, dtype, tolerance, order):
    tensors, edges, basis = problem(fast, dtype, sources=200, targets=60, q=16, p=16)
    assert apply(tensors, edges, basis).dtype == dtype
    assert_like_reference(tensors, edges, basis, tolerance, "linear", True, order)


def test_gradcheck_of_everything(fast):
    tensors, edges, _ = problem(fast, sources=7, targets=5, q=2, p=2, basis=Monomials(3, 1))
    tensors = [t.requires_grad_() for t in tensors]
    for basis in (Monomials(3, 1), GaussianBumps(((0.1, 0.2, 0.3), (0, 0, 0), (-0.4, 0, 0.2), (0, 0.5, 0)), 0.6)):
        assert torch.autograd.gradcheck(lambda *t, basis=basis: apply(t, edges, basis), tensors)


def test_only_the_gradients_asked_for_are_made(fast):
    tensors, edges, basis = problem(fast)
    for i, tensor in enumerate(tensors):
        alone = [t.detach().requires_grad_(t is tensor) for t in tensors]
        apply(alone, edges, basis).sum().backward()
        assert [t.grad is not None for t in alone] == [j == i for j in range(5)]


def test_second_derivatives_through_the_reference():
    # A fall-off has a kink where source and target coincide; without that pair it is smooth.
    tensors, edges, _ = problem(sources=5, targets=4, q=2, p=1, basis=Monomials(3, 1))
    tensors = [t.requires_grad_() for t in (*tensors[:3], tensors[3] + 0.01, tensors[4])]
    with gl.use_backend("reference"):
        assert torch.autograd.gradgradcheck(lambda *t: apply(t, edges, Monomials(3, 1)), tensors)


def test_second_derivatives_of_a_fast_backend_say_where_to_get_them(fast):
    tensors, edges, basis = problem(fast)
    tensors = [t.requires_grad_() for t in tensors]
    (first,) = torch.autograd.grad(apply(tensors, edges, basis).square().sum(), tensors[0], create_graph=True)
    with pytest.raises(NotImplementedError, match=r"use_backend\('reference'\)"):
        first.sum().backward()


@pytest.mark.parametrize("moved", [3, 4])
def test_second_derivatives_by_coordinates_alone_are_not_left_out(fast, moved):
    tensors, edges, basis = problem(fast)
    ends = tensors[moved].requires_grad_()
    out = apply(tensors, edges, basis).sum()
    (first,) = torch.autograd.grad(out, ends, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"use_backend\('reference'\)"):
        (out + first.square().sum()).backward()


def test_coordinates_have_more_numbers_than_32_bits_count():
    """Channels may be fewer than dimensions: 32 bits then count the features, and not the coordinates."""
    pytest.importorskip("triton")
    import triton.language as tl

    from gridless.ops.point_conv.contract import Neighbours
    from gridless.ops.point_conv.edge_function import EdgeFunction
    from gridless.ops.point_conv.gpu.rows import EdgeRows

    function = EdgeFunction(0, (0.0,) * 3, 1.0, 3, RADIUS, True, False)
    for rows, index in ((2**31 // 3, tl.int32), (2**31 // 3 + 1, tl.int64)):
        x, splits = torch.zeros(()).expand(rows, 3), torch.zeros((), dtype=torch.int64).expand(rows + 1)
        near = Neighbours(splits, splits[:0].int(), splits, splits[:0].int(), x, x, function)
        assert EdgeRows(near, False).index(1) == index


def test_the_last_rows_of_more_coordinates_than_32_bits_count():
    if not torch.cuda.is_available() or torch.cuda.mem_get_info()[0] < 90e9:
        pytest.skip("needs 90 GB of GPU memory")
    few, rows = 40, 2**31 // 3 + 1000
    (features, weight, bias, x, _), _, basis = problem(dtype=torch.float32, sources=few, q=1, p=1)
    near = (torch.cdist(x, x) < RADIUS).nonzero()
    edges = Edges.from_edge_index(near.flip(1).t(), few, few)
    with gl.use_backend("reference"):
        expected = with_gradients((features, weight, bias, x, x), edges, basis)
    wide = []
    for tensor in (features, x):
        wide.append(torch.zeros(rows, tensor.shape[1], device="cuda"))
        wide[-1][-few:] = tensor
    splits = torch.zeros(rows + 1, dtype=torch.int64, device="cuda")
    splits[-few - 1 :] = edges.splits
    last = Edges(splits, edges.source.cuda() + (rows - few), rows)
    given = [t.cuda().requires_grad_() for t in (wide[0], weight, bias, wide[1])]
    out = gl.point_conv(*given[:3], last, given[3], given[3], RADIUS, basis)
    direction = torch.zeros_like(out)
    direction[-few:] = along(expected[0]).cuda()
    grads = torch.autograd.grad(out, given, direction)
    results = [out[-few:], grads[0][-few:], grads[1], grads[2], grads[3][-few:]]
    for a, b in zip(results, [*expected[:4], expected[4] + expected[5]]):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


# Neighbourhoods.


def test_an_empty_neighbourhood_gets_the_bias_and_no_nan(fast):
    tensors, edges, basis = problem(fast)
    out, *gradients = with_gradients(tensors, edges, basis)
    assert torch.equal(out[-1], tensors[2])
    assert all(g.isfinite().all() for g in gradients)
    assert torch.equal(gradients[-1][-1], torch.zeros_like(gradients[-1][-1]))


@pytest.mark.parametrize("where", ["features", "gradient"])
@pytest.mark.parametrize("order", ["gather_first", "transform_first", "depthwise"])
def test_what_has_no_edge_does_not_reach_the_gradient_of_the_weight(backend, device, order, where):
    if (backend, where) == ("gpu", "features") and order != "depthwise":
        pytest.skip("the dense kernels of GPUs multiply whole tiles of features: docs/limits.md")
    edges = Edges(torch.tensor([0, 1, 3, 3]), torch.tensor([0, 0, 1]), 3).to(device)
    x = torch.tensor([[0.0, 0.0], [0.2, 0.0], [0.4, 0.0]], device=device)
    gradients = []
    for value in (1.0, math.nan, math.inf):
        features, grad = torch.ones(2, 3, 2, device=device)
        (features if where == "features" else grad)[2] = value
        weight = torch.ones((3, 2) if order == "depthwise" else (3, 2, 2), device=device, requires_grad=True)
        how = None if order == "depthwise" else order
        gl.point_conv(features, weight, None, edges, x, x, 1.0, Monomials(2, 1), order=how).backward(grad)
        gradients.append(weight.grad)
    assert gradients[0].abs().sum() > 0
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])


def test_a_neighbour_exactly_at_the_radius_weighs_nothing(fast):
    edges = Edges(torch.tensor([0, 1]), torch.tensor([0]), 1).to(fast)
    x, y = torch.zeros(1, 1, device=fast), torch.full((1, 1), RADIUS, device=fast)
    tensors = (torch.ones(1, 2, device=fast), torch.ones(3, 2, 4, device=fast), torch.arange(4.0, device=fast), x, y)
    out, *gradients = with_gradients(tensors, edges, Monomials(1, 2))
    assert torch.equal(out[0], tensors[2])
    assert all(g.isfinite().all() for g in gradients)


def test_up_sampling_reverses_the_edges_and_the_vectors(fast):
    (_, weight, bias, fine, coarse), edges, basis = problem(fast)
    coarse_features = torch.randn(len(coarse), 5, dtype=torch.float64, device=fast)
    up = edges.transpose()
    tensors = (coarse_features, weight, bias, coarse, fine)
    expected = by_hand(tensors, up, basis, "linear", True).to(fast)
    torch.testing.assert_close(apply(tensors, up, basis), expected)
    assert_like_reference(tensors, up, basis, 1e-13)


def test_repeated_edges_count_as_often_as_they_are_listed(fast):
    edges = Edges(torch.tensor([0, 3]), torch.tensor([1, 1, 0]), 2).to(fast)
    tensors = [torch.randn(*s, dtype=torch.float64, device=fast) for s in ((2, 3), (4, 3, 2), (2,))]
    tensors += [torch.rand(n, 3, dtype=torch.float64, device=fast) * 0.2 for n in (2, 1)]
    assert_like_reference(tensors, edges, Monomials(3, 1), 1e-13)


@pytest.mark.parametrize("p", [2, None])
@pytest.mark.parametrize(("sources", "targets"), [(0, 0), (4, 0), (0, 4), (4, 4)])
def test_clouds_without_points_or_edges(fast, sources, targets, p):
    edges = Edges(torch.zeros(targets + 1, dtype=torch.long), torch.zeros(0, dtype=torch.int32), sources).to(fast)
    both = *shapes(sources, 4, 3, p), (sources, 3), (targets, 3)
    tensors = [torch.randn(*s, device=fast) for s in both]
    out, d_features, d_weight, _, d_source, d_target = with_gradients(tensors, edges, Monomials(3, 1))
    assert torch.equal(out, tensors[2].expand(targets, -1))
    assert not any(g.any() for g in (d_features, d_weight, d_source, d_target))


@pytest.mark.parametrize(("q", "p"), [(0, 2), (3, 0), (0, 0), (0, None)])
def test_edges_without_channels(fast, q, p):
    (_, _, _, x, y), edges, basis = problem(fast)
    tensors = [torch.randn(*s, dtype=x.dtype, device=fast) for s in shapes(24, 10, q, p)]
    out, d_features, d_weight, _, d_source, d_target = with_gradients((*tensors, x, y), edges, basis)
    assert torch.equal(out, tensors[2].expand(17, -1))
    assert not any(g.any() for g in (d_features, d_weight, d_source, d_target))


@pytest.mark.parametrize("p", [3, None])
def test_padding_changes_nothing(fast, p):
    if fast == "cuda":
        pytest.skip("collation is for the CPU")
    (features, weight, bias, x, y), edges, basis = problem(p=p)
    padded = collate([edges], bucket="power_of_two")
    grow = lambda t, rows: torch.cat([t, t.new_full((rows - len(t), t.shape[1]), 7.0)])  # noqa: E731
    tensors = (grow(features, padded.num_source), weight, bias, grow(x, padded.num_source), grow(y, padded.num_target))
    out = apply(tensors, padded, basis)
    torch.testing.assert_close(out[: len(y)], apply((features, weight, bias, x, y), edges, basis))
    assert torch.equal(out[len(y) :], bias.expand(len(out) - len(y), -1))
    assert_like_reference(tensors, padded, basis, 1e-13)


@pytest.mark.parametrize("p", [32, None])
def test_two_runs_give_the_same_bits(fast, p):
    given = problem(fast, torch.float32, sources=300, targets=200, q=32, p=p)
    for a, b in zip(with_gradients(*given), with_gradients(*given)):
        assert torch.equal(a, b)


# Without features.


@pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
@pytest.mark.parametrize("basis", [Monomials(3, 2), KernelPoints(3), Monomials(3, 3)])
def test_a_featureless_convolution_is_one_of_ones(fast, falloff, normalise, basis):
    (_, weight, bias, x, y), edges, _ = problem(fast, basis=basis, q=1)
    results = []
    for featureless in (True, False):
        inputs = [t.detach().clone().requires_grad_() for t in (weight, bias, x, y)]
        w, b, source, target = inputs
        if featureless:
            out = gl.featureless_conv(w[:, 0], b, edges, source, target, RADIUS, basis, falloff, normalise)
        else:
            ones = torch.ones(len(x), 1, dtype=x.dtype, device=fast)
            with gl.use_backend("reference"):
                out = gl.point_conv(ones, w, b, edges, source, target, RADIUS, basis, falloff, normalise)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


def test_gradcheck_of_the_featureless_convolution(fast):
    (_, weight, _, x, y), edges, basis = problem(fast, sources=7, targets=5, q=1, p=2)
    inputs = [t.requires_grad_() for t in (weight[:, 0].clone(), x, y)]
    assert torch.autograd.gradcheck(lambda w, x, y: gl.featureless_conv(w, None, edges, x, y, RADIUS, basis), inputs)


# Order, precision, graphs.


def test_the_order_is_the_cheaper_of_the_papers_table():
    assert cheaper_order(900, 100, 100, 64, 64) == "gather_first"
    assert cheaper_order(900, 100, 25, 32, 64) == "gather_first"
    assert cheaper_order(900, 25, 100, 64, 32) == "transform_first"
    # Channels alone do not decide: few targets outweigh a narrower output.
    assert cheaper_order(100, 1000, 10, 64, 48) == "gather_first"


@pytest.mark.parametrize("p", [16, None])
def test_autocast_lowers_features_and_weight_but_not_coordinates(fast, p):
    tensors, edges, basis = problem(fast, torch.float32, sources=60, q=16, p=p)
    tensors = [t.requires_grad_() for t in tensors]
    plain = apply(tensors, edges, basis)
    with torch.autocast(fast, torch.bfloat16):
        out = apply(tensors, edges, basis)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(t.grad.dtype == torch.float32 for t in tensors)
    assert 0 < (out - plain).norm() / plain.norm() < 2e-2


@pytest.mark.slow
@pytest.mark.parametrize("p", [3, None])
def test_compiles_without_a_graph_break(fast, p):
    given = problem(fast, torch.float32, p=p)
    eager = with_gradients(*given)
    # A fresh structure, of which nobody has asked the transpose.
    tensors, edges, basis = given
    edges = Edges(edges.splits.clone(), edges.source.clone(), edges.num_source)
    inputs = [t.detach().clone().requires_grad_() for t in tensors]
    out = torch.compile(apply, fullgraph=True, backend="aot_eager")(inputs, edges, basis)
    for a, b in zip(eager, [out, *torch.autograd.grad(out, inputs, along(out))]):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("p", [3, None])
def test_the_operators_pass_torchs_own_checks(fast, p):
    tensors, edges, basis = problem(fast, p=p)
    features, weight, bias, x, y = (t.requires_grad_() for t in tensors)
    back = edges.transpose()
    kind, table, width = basis.description()
    numbers = (kind, list(table), width, RADIUS, True, True)
    backend = "gpu" if fast == "cuda" else "cpu"
    ends = (edges.splits, edges.source, back.splits, back.source)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    given = (features, weight, bias, *ends, x, y, *numbers, False, backend)
    opcheck(registered._traced_conv.registered, given, test_utils=checks)
    opcheck(registered._edge_sums.registered, (*ends, x, y, *numbers, backend), test_utils=checks)


def test_forward_mode_and_transforms_are_refused_and_the_reference_has_them(fast):
    tensors, edges, basis = problem(fast)
    directions = tuple(torch.randn_like(t) for t in tensors)
    edges.transpose()
    with pytest.raises(NotImplementedError, match="reference"):
        torch.func.jvp(lambda *t: apply(t, edges, basis), tensors, directions)
    with pytest.raises(NotImplementedError, match="reference"):
        torch.func.vjp(lambda *t: apply(t, edges, basis), *tensors)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="reference"):
        apply([forward_ad.make_dual(t, d) for t, d in zip(tensors, directions)], edges, basis)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="reference"):
        apply([*tensors[:4], forward_ad.make_dual(tensors[4], directions[4])], edges, basis)
    with gl.use_backend("reference"):
        out, slope = torch.func.jvp(lambda *t: apply(t, edges, basis), tensors, directions)
        grads = with_gradients(tensors, edges, basis)[1:]
    backwards = sum((g * d).sum() for g, d in zip(grads, directions))
    torch.testing.assert_close((slope * along(out)).sum(), backwards)


def test_a_traced_graph_calls_the_operator(fast):
    tensors, edges, basis = problem(fast)
    edges.transpose()
    graph = make_fx(lambda *t: apply(t, edges, basis))(*tensors)
    others = [t + 0.01 for t in tensors]
    assert torch.equal(graph(*others), apply(others, edges, basis))
    with pytest.raises(NotImplementedError, match="reference"):
        torch.func.linearize(lambda *t: apply(t, edges, basis), *tensors)


@pytest.mark.slow
@pytest.mark.parametrize("p", [3, None])
def test_features_may_lie_apart(fast, p):
    """Slices of wider ones, and transposed ones, also in a compiled graph; gradients go back to where they lie."""
    (features, *others), edges, basis = problem(fast, p=p)
    edges.transpose()
    expected = with_gradients([features, *others], edges, basis)
    compiled = torch.compile(lambda x: apply([x, *others], edges, basis), fullgraph=True, backend="aot_eager")
    for apart in (torch.cat([features, features], 1), features.t().contiguous()):
        wide = apart.requires_grad_()
        x = wide.chunk(2, 1)[1] if len(wide) == len(features) else wide.t()
        assert not x.is_contiguous()
        for out in (apply([x, *others], edges, basis), compiled(x)):
            assert torch.equal(out, expected[0])
            (grad,) = torch.autograd.grad((out * along(out)).sum(), x)
            torch.testing.assert_close(grad, expected[1])


@pytest.mark.parametrize(("order", "p"), [("gather_first", 3), ("transform_first", 3), (None, None)])
def test_torchs_counter_counts_the_products(fast, order, p):
    (features, weight, *others), edges, basis = problem(fast, p=p)
    tensors = features.requires_grad_(), weight.requires_grad_(), *others
    with FlopCounterMode(display=False, custom_mapping=gl.ops.FLOPS) as forward:
        out = apply(tensors, edges, basis, order=order)
    with FlopCounterMode(display=False, custom_mapping=gl.ops.FLOPS) as backward:
        out.sum().backward()
    terms, q, p = len(weight), 5, p or 1
    rows, gathered = (24, p) if order == "transform_first" else (17, q)
    assert forward.get_total_flops() == 2 * terms * (len(edges) * gathered + rows * q * p)
    # Gathered once over the transposed edges, then multiplied for the features and for the weight.
    assert backward.get_total_flops() == 2 * terms * (len(edges) * out.shape[1] + 2 * 24 * q * p)


# Bad input.


def refuse(match, error=ValueError, **changes):
    tensors, edges, basis = problem(dtype=torch.float32)
    given = dict(zip(("features", "weight", "bias", "source_coords", "target_coords"), tensors))
    given |= {"edges": edges, "basis": basis, "radius": RADIUS} | changes
    for backend in ("reference", "cpu"):
        with gl.use_backend(backend), pytest.raises(error, match=match):
            gl.point_conv(**given)


def test_mismatched_sizes_are_refused():
    refuse("24 sources", features=torch.ones(23, 5))
    refuse(r"basis.size = 10, in channels = 5", weight=torch.ones(10, 4, 3))
    refuse(r"basis.size = 10, in channels = 5", weight=torch.ones(9, 5, 3))
    refuse(r"bias.*\(3,\).*\(4,\)", bias=torch.ones(4))
    refuse("source_coords.*24.*17", source_coords=torch.rand(17, 3))
    refuse("target_coords.*17.*24", target_coords=torch.rand(24, 3))


def test_a_basis_of_another_dimension_is_refused():
    refuse(r"source_coords.*\b3\b.*\b2\b", basis=Monomials(2, 2), weight=torch.ones(6, 5, 3))


def test_wrong_types_are_refused():
    refuse(r"features.*torch\.int32", TypeError, features=torch.ones(24, 5, dtype=torch.int32))
    refuse(r"weight.*bfloat16", TypeError, weight=torch.ones(10, 5, 3, dtype=torch.bfloat16))
    refuse(r"source_coords.*float16", TypeError, source_coords=torch.rand(24, 3).half())
    refuse(r"source_coords.*float64", TypeError, source_coords=torch.rand(24, 3).double())


@pytest.mark.parametrize("radius", [0.0, -1.0, math.inf, math.nan])
def test_a_radius_that_is_no_length_is_refused(radius):
    refuse(f"radius.*{radius}", radius=radius)


def test_unknown_words_are_refused():
    refuse("falloff.*'cubic'", falloff="cubic")
    refuse("order.*'fastest'", order="fastest")


def test_tensors_on_two_devices_are_refused():
    refuse("features.*meta", features=torch.ones(24, 5, device="meta"))
    refuse("bias.*meta.*cpu", bias=torch.ones(3, device="meta"))
    refuse("source_coords.*meta", source_coords=torch.rand(24, 3, device="meta"))


def test_a_basis_without_numbers_runs_on_the_reference_alone():
    class Constant:
        dim, size = 3, 1

        def __call__(self, vector):
            return torch.ones_like(vector[..., :1])

        def description(self):
            return None

    tensors, edges, _ = problem(basis=Monomials(3, 0))
    with gl.use_backend("reference"):
        torch.testing.assert_close(apply(tensors, edges, Constant()), apply(tensors, edges, Monomials(3, 0)))
    with gl.use_backend("cpu"), pytest.raises(NotImplementedError, match=r"Constant.*'cpu'"):
        apply(tensors, edges, Constant())


# The GPU's kernels, where there is no GPU.

TINY = [
    (torch.float64, Monomials(2, 1), 3, 2, "gather_first", "linear", True),
    (torch.float64, Monomials(1, 2), 2, 3, "transform_first", "linear", True),
    (torch.float64, GaussianBumps(((0.1,), (-0.3,)), 0.5), 2, 2, "gather_first", None, False),
    (torch.float32, Monomials(2, 1), 16, 17, "gather_first", "linear", True),
    (torch.float16, Monomials(1, 1), 5, 16, "gather_first", "linear", False),
    (torch.float16, Monomials(1, 1), 5, 16, "gather_first", "linear", True),
    (torch.float32, Monomials(2, 1), 130, 3, "gather_first", None, True),
    (torch.float64, Monomials(1, 1), 0, 2, "gather_first", "linear", True),
    (torch.float32, Monomials(1, 1), 0, 2, "transform_first", "linear", True),
]


@interpreted
@pytest.mark.parametrize("case", TINY, ids=str)
def test_interpreted_kernels(case):
    dtype, basis, q, p, order, falloff, normalise = case
    tensors, edges, _ = problem("cpu", dtype, sources=6, targets=5, dim=basis.dim, q=q, p=p, basis=basis)
    tolerance = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3}[dtype]
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_like_reference(tensors, edges, basis, tolerance, falloff, normalise, order)


@interpreted
@pytest.mark.parametrize(("dtype", "q"), [(torch.float32, 16), (torch.float32, 33), (torch.float16, 5)])
def test_interpreted_kernels_of_many_rows(monkeypatch, dtype, q):
    from gridless.ops.point_conv.gpu import tiles

    monkeypatch.setattr(tiles, "few_rows", lambda *given: False)
    tensors, edges, basis = problem("cpu", dtype, sources=6, targets=5, dim=1, q=q, p=16, basis=Monomials(1, 1))
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_like_reference(tensors, edges, basis, 3e-6 if dtype == torch.float32 else 2e-3)


def strip_by_strip(monkeypatch):
    """Sums of many channels are made one strip after the other, however few the rows are and however long."""
    from gridless.ops.point_conv.gpu import tiles

    for name, value in {"FEW": 0, "LONG": 999, "LONG_HALF": 999, "LONG_BACKWARD": 9999}.items():
        monkeypatch.setattr(tiles, name, value)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_interpreted_kernels_of_many_rows_and_channels(monkeypatch, dtype):
    """More sums than registers hold: one strip of channels after the other, forwards and backwards."""
    strip_by_strip(monkeypatch)
    tensors, edges, basis = problem("cpu", dtype, sources=6, targets=5, dim=1, q=33, p=40, basis=Monomials(1, 6))
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_like_reference(tensors, edges, basis, 3e-6 if dtype == torch.float32 else 2e-3)


@pytest.mark.parametrize(("q", "p"), [(64, 64), (72, 96), (128, 128), (160, 24), (48, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_many_rows_and_channels(fast, monkeypatch, dtype, q, p):
    if fast == "cpu":
        pytest.skip("the rules are those of the GPU's kernels")
    strip_by_strip(monkeypatch)
    given = problem(fast, dtype, sources=300, targets=270, q=q, p=p)
    assert_like_reference(*given, {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype])


def bias_alone(device, dtype, targets, p):
    """The bias's gradient, of more rows than programs take at a time, beside the sum in float64."""
    torch.manual_seed(0)
    edges = Edges(torch.zeros(targets + 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int32), 3).to(device)
    x, y = torch.rand(3, 1, device=device), torch.rand(targets, 1, device=device)
    features, weight = (torch.randn(shape, device=device, dtype=dtype) for shape in ((3, 2), (2, 2, p)))
    bias = torch.zeros(p, device=device, dtype=dtype, requires_grad=True)
    grad = torch.rand(targets, p, device=device).to(dtype)
    out = gl.point_conv(features, weight, bias, edges, x, y, RADIUS, Monomials(1, 1))
    (gradient,) = torch.autograd.grad(out, bias, grad)
    assert gradient.dtype == dtype
    expected = grad.double().sum(0)
    tolerance = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=0.0)


@interpreted
@pytest.mark.parametrize(("dtype", "p"), [(torch.float64, 130), (torch.float32, 128), (torch.float16, 3)])
def test_interpreted_gradient_of_the_bias(monkeypatch, dtype, p):
    from gridless.ops.point_conv.gpu import convolution

    # At most 4 programs of few rows, which take several tiles each.
    monkeypatch.setattr(convolution, "processors", lambda device: 1)
    monkeypatch.setattr(convolution, "COLUMN_TILE", 2048 if p > 100 else 128)
    with gl.use_backend("gpu"):
        bias_alone("cpu", dtype, 200, p)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("targets", "p"), [(1, 1), (63, 128), (50_000, 200)])
def test_gradient_of_the_bias(fast, dtype, targets, p):
    bias_alone(fast, dtype, targets, p)


@interpreted
@pytest.mark.parametrize("basis", [Monomials(2, 1), Monomials(1, 16)], ids=str)
def test_interpreted_featureless_kernels(basis):
    (_, weight, _, x, y), edges, _ = problem(sources=5, targets=4, dim=basis.dim, q=1, basis=basis)
    results = []
    for backend in ("reference", "gpu"):
        inputs = [t.detach().clone().requires_grad_() for t in (weight, x, y)]
        with gl.use_backend("reference"):
            edges.transpose()
        with gl.use_backend(backend):
            out = gl.featureless_conv(inputs[0][:, 0], None, edges, *inputs[1:], RADIUS, basis)
            results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b)


@interpreted
def test_interpreted_kernels_cut_large_clouds_into_chunks(monkeypatch):
    from gridless.ops.point_conv.gpu import convolution

    monkeypatch.setattr(convolution, "CHUNK", 1)
    edges = Edges(torch.arange(141).clamp_max(137), torch.arange(137) % 130, 130)
    torch.manual_seed(0)
    tensors = [torch.randn(*s, dtype=torch.float64) for s in ((130, 2), (2, 2, 3), (3,))]
    tensors += [torch.rand(n, 1, dtype=torch.float64) * RADIUS for n in (130, 140)]
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_like_reference(tensors, edges, Monomials(1, 1), 1e-13)


@pytest.mark.parametrize("order", ["gather_first", "transform_first"])
def test_a_bias_may_lie_apart(device, order):
    (features, weight, bias, x, y), edges, basis = problem(device)
    wanted = apply((features, weight, bias, x, y), edges, basis, order=order)
    apart = torch.stack([bias, torch.full_like(bias, 7.0)], 1)[:, 0]
    assert torch.equal(apply((features, weight, apart, x, y), edges, basis, order=order), wanted)


@pytest.mark.slow
def test_an_empty_cloud_compiles():
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    conv = gl.nn.PointConv(plan.ball(cloud, cloud, 0.3), 2, 4)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    assert compiled(torch.rand(0, 2), plan(torch.rand(0, 3))).shape == (0, 4)
