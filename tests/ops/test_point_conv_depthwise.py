"""A depthwise convolution is the point convolution whose matrices are diagonal, on every backend."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.nn import GaussianBumps, KernelPoints, Monomials
from tests.ops.test_point_conv import SETTINGS, along, apply, assert_near, doubled, interpreted, problem, with_gradients


def depthwise(device="cpu", dtype=torch.float64, channels=5, basis=None, **sizes):
    basis = basis or Monomials(3, 2)
    return problem(device, dtype, dim=basis.dim, q=channels, p=None, basis=basis, **sizes)


def assert_diagonal(tensors, edges, basis, tolerance, *settings):
    results = with_gradients(tensors, edges, basis, *settings)
    features, weight, *others = doubled(tensors)
    with gl.use_backend("reference"):
        expected = with_gradients((features, torch.diag_embed(weight), *others), edges, basis, *settings)
    expected[2] = expected[2].diagonal(dim1=1, dim2=2)
    assert_near(results, expected, tolerance)


@pytest.fixture(params=["reference", "cpu", "gpu"])
def place(request):
    """The backends; under the interpreter the GPU's kernel has tests of its own (below)."""
    if request.param == "gpu" and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with gl.use_backend(request.param):
        yield "cuda" if request.param == "gpu" else "cpu"


@pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_and_gradients_are_those_of_diagonal_matrices(place, falloff, normalise, dtype):
    tolerance = 2e-6 if dtype == torch.float32 else 1e-13
    assert_diagonal(*depthwise(place, dtype), tolerance, falloff, normalise)


@pytest.mark.parametrize(
    ("basis", "channels"),
    [(Monomials(1, 3), 4), (Monomials(2, 2), 33), (Monomials(4, 1), 1), (Monomials(3, 3), 16), (KernelPoints(3), 96),
     (GaussianBumps(((0.1, 0.2), (-0.5, 0.0)), 0.4), 128), (Monomials(3, 0), 1)],
)  # fmt: skip
def test_every_basis_dimension_and_width(place, basis, channels):
    assert_diagonal(*depthwise(place, torch.float32, channels=channels, basis=basis), 3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)])
@pytest.mark.parametrize("basis", [Monomials(3, 2), Monomials(3, 3)])
def test_half_precision_features_keep_float32_sums(place, dtype, tolerance, basis):
    given = depthwise(place, dtype, sources=200, targets=60, channels=64, basis=basis)
    assert apply(*given).dtype == dtype
    assert_diagonal(*given, tolerance)


def test_gradcheck_of_everything(place):
    tensors, edges, _ = depthwise(place, sources=7, targets=5, channels=2, basis=Monomials(3, 1))
    tensors = [t.requires_grad_() for t in tensors]
    for basis in (Monomials(3, 1), GaussianBumps(((0.1, 0.2, 0.3), (0, 0, 0), (-0.4, 0, 0.2), (0, 0.5, 0)), 0.6)):
        assert torch.autograd.gradcheck(lambda *t, basis=basis: apply(t, edges, basis), tensors)


def test_only_the_gradients_asked_for_are_made(place):
    assert_each_alone(*depthwise(place))


def assert_each_alone(tensors, edges, basis):
    everything = with_gradients(tensors, edges, basis)[1:]
    for i, tensor in enumerate(tensors):
        alone = [t.detach().requires_grad_(t is tensor) for t in tensors]
        out = apply(alone, edges, basis)
        out.backward(along(out))
        assert [t.grad is not None for t in alone] == [j == i for j in range(5)]
        torch.testing.assert_close(alone[i].grad, everything[i])


def test_bad_weights_and_orders_are_refused():
    (features, weight, bias, x, y), edges, basis = depthwise()
    for wrong in (weight[:9], weight[:, :4], weight[0], weight[..., None, None]):
        with pytest.raises(ValueError, match=r"basis\.size = 10, in channels = 5"):
            apply((features, wrong, bias, x, y), edges, basis)
    with pytest.raises(ValueError, match=r"bias.*\(5,\).*\(4,\)"):
        apply((features, weight, bias[:4], x, y), edges, basis)
    with pytest.raises(ValueError, match=r"depthwise.*order='gather_first'"):
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


@interpreted
@pytest.mark.parametrize("case", TINY, ids=str)
def test_interpreted_kernel(case):
    dtype, basis, channels, falloff, normalise = case
    tensors, edges, _ = depthwise("cpu", dtype, sources=6, targets=4, channels=channels, basis=basis)
    tolerance = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}[dtype]
    with gl.use_backend("reference"):
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_diagonal(tensors, edges, basis, tolerance, falloff, normalise)


@interpreted
def test_interpreted_gradients_one_at_a_time():
    with gl.use_backend("reference"):
        tensors, edges, basis = depthwise(sources=3, targets=3, channels=2, basis=Monomials(1, 1))
        edges.transpose()
    with gl.use_backend("gpu"):
        assert_each_alone(tensors, edges, basis)
