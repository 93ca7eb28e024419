"""A depthwise convolution is the point convolution whose matrices are diagonal, on every backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.library import opcheck

import gridless as gl
from gridless.nn import GaussianBumps, KernelPoints, Monomials
from gridless.ops.point_conv import registered
from gridless.structures import Edges, collate

if os.environ.get("TRITON_INTERPRET") == "1":
    from tests.interpreter import quicken

    quicken()

RADIUS = 0.5
SETTINGS = [("linear", True), ("linear", False), (None, True), (None, False)]


def problem(device="cpu", dtype=torch.float64, sources=24, targets=17, channels=5, basis=None, seed=0):
    """Features, weight, bias, both coordinates and edges. Target 0 sits on source 0; the last target has no edge."""
    torch.manual_seed(seed)
    basis = basis or Monomials(3, 2)
    coords = torch.float64 if dtype == torch.float64 else torch.float32
    x = torch.rand(sources, basis.dim, dtype=coords)
    y = torch.cat([x[:1], torch.rand(targets - 1, basis.dim, dtype=coords)])
    near = torch.cdist(y, x) < RADIUS
    near[-1] = False
    edges = Edges.from_edge_index(near.nonzero().flip(1).t(), sources, targets)
    tensors = (torch.randn(sources, channels), torch.randn(basis.size, channels), torch.randn(channels))
    tensors = tuple(t.to(dtype).to(device) for t in tensors)
    return (*tensors, x.to(device), y.to(device)), edges.to(device), basis


def apply(tensors, edges, basis, *settings):
    features, weight, bias, x, y = tensors
    return gl.point_conv(features, weight, bias, edges, x, y, RADIUS, basis, *settings)


def with_gradients(tensors, edges, basis, *settings, diagonal=False):
    """The result and its derivative along a fixed direction, in every tensor; as a dense convolution if `diagonal`."""
    tensors = [t.detach().clone().requires_grad_() for t in tensors]
    features, weight, *others = tensors
    out = apply((features, torch.diag_embed(weight) if diagonal else weight, *others), edges, basis, *settings)
    along = torch.linspace(-0.5, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
    return [out.detach(), *torch.autograd.grad(out, tensors, along)]


def assert_diagonal(tensors, edges, basis, tolerance, *settings):
    found = with_gradients(tensors, edges, basis, *settings)
    with gl.use_backend("reference"):
        expected = with_gradients([t.double() for t in tensors], edges, basis, *settings, diagonal=True)
    for name, a, b in zip(("out", "features", "weight", "bias", "source", "target"), found, expected):
        assert a.shape == b.shape, name
        assert a.isfinite().all(), name
        error = ((a.double() - b).norm() / b.norm().clamp_min(1e-30)).item()
        assert error < tolerance, f"{name}: {error}"


@pytest.fixture(params=["reference", "cpu", "gpu"])
def place(request):
    """The backends; the GPU's kernel also runs under the interpreter, in a process of its own (below)."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with gl.use_backend(request.param):
        yield "cuda" if request.param == "gpu" else "cpu"


@pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_diagonal_matrices(place, falloff, normalise, dtype):
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    assert_diagonal(*problem(place, dtype), tolerance, falloff, normalise)


@pytest.mark.parametrize(
    ("basis", "channels"),
    [(Monomials(1, 3), 4), (Monomials(2, 2), 33), (Monomials(4, 1), 1), (Monomials(3, 3), 16), (KernelPoints(3), 96),
     (GaussianBumps(((0.1, 0.2), (-0.5, 0.0)), 0.4), 128), (Monomials(3, 0), 1)],
)  # fmt: skip
def test_every_basis_dimension_and_width(place, basis, channels):
    assert_diagonal(*problem(place, torch.float32, channels=channels, basis=basis), 3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("basis", [Monomials(3, 2), Monomials(3, 3)])
def test_half_precision_features_keep_float32_sums(place, dtype, tolerance, basis):
    given = problem(place, dtype, sources=200, targets=60, channels=64, basis=basis)
    assert apply(*given).dtype == dtype
    assert_diagonal(*given, tolerance)


def test_gradcheck_of_everything(place):
    tensors, edges, _ = problem(place, sources=7, targets=5, channels=2, basis=Monomials(3, 1))
    tensors = [t.requires_grad_() for t in tensors]
    for basis in (Monomials(3, 1), GaussianBumps(((0.1, 0.2, 0.3), (0, 0, 0), (-0.4, 0, 0.2), (0, 0.5, 0)), 0.6)):
        assert torch.autograd.gradcheck(lambda *t, basis=basis: apply(t, edges, basis), tensors)


def test_only_the_gradients_asked_for_are_made(place):
    assert_each_alone(*problem(place))


def assert_each_alone(tensors, edges, basis):
    everything = with_gradients(tensors, edges, basis)[1:]
    for i, tensor in enumerate(tensors):
        alone = [t.detach().requires_grad_(t is tensor) for t in tensors]
        out = apply(alone, edges, basis)
        out.backward(torch.linspace(-0.5, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out))
        assert [t.grad is not None for t in alone] == [j == i for j in range(5)]
        torch.testing.assert_close(alone[i].grad, everything[i])


@pytest.mark.parametrize(("sources", "targets", "channels"), [(0, 0, 3), (4, 0, 3), (0, 4, 3), (4, 4, 3), (4, 4, 0)])
def test_clouds_without_points_edges_or_channels(place, sources, targets, channels):
    edges = Edges(torch.zeros(targets + 1, dtype=torch.long), torch.zeros(0, dtype=torch.int32), sources).to(place)
    shapes = ((sources, channels), (4, channels), (channels,), (sources, 3), (targets, 3))
    tensors = [torch.randn(*s, device=place) for s in shapes]
    out, d_features, d_weight, _, d_source, d_target = with_gradients(tensors, edges, Monomials(3, 1))
    assert torch.equal(out, tensors[2].expand(targets, channels))
    assert not any(g.any() for g in (d_features, d_weight, d_source, d_target))


def test_edges_without_channels_move_no_point(place):
    (_, _, _, x, y), edges, basis = problem(place)
    nothing = [torch.zeros(*s, dtype=x.dtype, device=place) for s in ((24, 0), (10, 0), (0,))]
    *_, d_source, d_target = with_gradients([*nothing, x, y], edges, basis)
    assert not d_source.any()
    assert not d_target.any()


def test_padding_changes_nothing(place):
    if place == "cuda":
        pytest.skip("collation is for the CPU")
    (features, weight, bias, x, y), edges, basis = problem()
    padded = collate([edges], bucket="power_of_two")
    grow = lambda t, rows: torch.cat([t, t.new_full((rows - len(t), t.shape[1]), 7.0)])  # noqa: E731
    tensors = (grow(features, padded.num_source), weight, bias, grow(x, padded.num_source), grow(y, padded.num_target))
    out = apply(tensors, padded, basis)
    torch.testing.assert_close(out[: len(y)], apply((features, weight, bias, x, y), edges, basis))
    assert torch.equal(out[len(y) :], bias.expand(len(out) - len(y), -1))
    assert_diagonal(tensors, padded, basis, 1e-13)


def test_two_runs_give_the_same_bits(place):
    if gl.backends.backend_for(torch.device(place)) == "reference":
        pytest.skip("torch's own sums take turns as they come")
    given = problem(place, torch.float32, sources=300, targets=200, channels=64)
    for a, b in zip(with_gradients(*given), with_gradients(*given)):
        assert torch.equal(a, b)


def test_autocast_lowers_features_and_weight_but_not_coordinates(place):
    tensors, edges, basis = problem(place, torch.float32, sources=60, channels=16)
    tensors = [t.requires_grad_() for t in tensors]
    plain = apply(tensors, edges, basis)
    with torch.autocast(place, torch.bfloat16):
        out = apply(tensors, edges, basis)
    out.float().sum().backward()
    assert out.dtype == torch.bfloat16
    assert all(t.grad.dtype == torch.float32 for t in tensors)
    assert 0 < (out - plain).norm() / plain.norm() < 2e-2


def test_compiles_without_a_graph_break(place):
    if gl.backends.backend_for(torch.device(place)) == "reference":
        pytest.skip("plain torch")
    tensors, edges, basis = problem(place, torch.float32)
    eager = with_gradients(tensors, edges, basis)
    # A fresh structure, of which nobody has asked the transpose.
    edges = Edges(edges.splits.clone(), edges.source.clone(), edges.num_source)
    inputs = [t.detach().clone().requires_grad_() for t in tensors]
    out = torch.compile(apply, fullgraph=True, backend="aot_eager")(inputs, edges, basis)
    along = torch.linspace(-0.5, 1, out.numel(), dtype=torch.float64).reshape(out.shape).to(out)
    for a, b in zip(eager, [out, *torch.autograd.grad(out, inputs, along)]):
        torch.testing.assert_close(a, b)


def test_the_operator_passes_torchs_own_checks():
    tensors, edges, basis = problem()
    features, weight, bias, x, y = (t.requires_grad_() for t in tensors)
    back = edges.transpose()
    kind, table, width = basis.description()
    given = (features, weight, bias, edges.splits, edges.source, back.splits, back.source, x, y)
    numbers = (kind, list(table), width, RADIUS, True, True, False, "cpu")
    checks = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_static")
    opcheck(registered.conv.registered, (*given, *numbers), test_utils=checks)


def test_bad_weights_and_orders_are_refused():
    (features, weight, bias, x, y), edges, basis = problem()
    for wrong in (weight[:9], weight[:, :4], weight[0], weight[..., None, None]):
        with pytest.raises(ValueError, match=r"basis.size = 10, in channels = 5, out channels\), or without the last"):
            apply((features, wrong, bias, x, y), edges, basis)
    with pytest.raises(ValueError, match="bias must be"):
        apply((features, weight, bias[:4], x, y), edges, basis)
    with pytest.raises(ValueError, match="leaves no choice of order: drop order='gather_first'"):
        apply((features, weight, bias, x, y), edges, basis, "linear", True, "gather_first")


# The GPU's kernel, where there is no GPU.

TINY = [
    (torch.float64, Monomials(1, 1), 3, "linear", True),
    (torch.float64, GaussianBumps(((0.1,), (-0.3,)), 0.5), 2, None, False),
    (torch.float32, Monomials(1, 2), 64, "linear", True),
    (torch.float32, Monomials(1, 1), 70, None, True),  # one program for two tiles of sources
    (torch.float16, Monomials(1, 17), 5, "linear", True),  # more terms than one launch sums
    (torch.bfloat16, Monomials(1, 1), 64, "linear", True),
]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs in a process of its own")
@pytest.mark.parametrize("case", TINY, ids=str)
def test_interpreted_kernel(case):
    dtype, basis, channels, falloff, normalise = case
    tensors, edges, _ = problem("cpu", dtype, sources=6, targets=4, channels=channels, basis=basis)
    tolerance = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_diagonal(tensors, edges, basis, tolerance, falloff, normalise)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="runs in a process of its own")
def test_interpreted_gradients_one_at_a_time():
    with gl.use_backend("reference"):
        tensors, edges, basis = problem(sources=3, targets=3, channels=2, basis=Monomials(1, 1))
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_each_alone(tensors, edges, basis)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernel itself runs here")
def test_the_gpu_kernel_agrees_with_diagonal_matrices_under_the_interpreter():
    pytest.importorskip("triton")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:xdist", "-k", "interpreted", str(Path(__file__))],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert f"{len(TINY) + 1} passed" in run.stdout
