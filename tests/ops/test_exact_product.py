"""IEEE float32 products as three products of TF32 parts, where the GPU backend takes them and what they give."""

from __future__ import annotations

import pytest
import torch

import gridless as gl

pytest.importorskip("triton")

from gridless.kernels import tf32


@pytest.fixture
def gpu(backend, device):
    if backend != "gpu":
        pytest.skip("one device is enough")
    return device


def some(device, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


@pytest.mark.parametrize("shape", [(1, 32, 64), (64, 96, 64), (70, 64, 128), (129, 32, 192)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_a_product_is_as_exact_as_float32(gpu, shape, with_bias):
    rows, steps, columns = shape
    left, right = some(gpu, rows, steps), some(gpu, steps, columns, seed=1)
    bias = some(gpu, columns, seed=2) if with_bias else None
    out = left.new_empty(rows, columns)
    tf32.exact_product(left, *tf32.parts(right.t()), bias, out)
    expected = left.double() @ right.double() + (0 if bias is None else bias.double())
    assert float((out - expected).norm() / expected.norm()) < 1e-6


def test_products_of_far_magnitudes_keep_their_digits(gpu):
    """A part in TF32 and the rest have the range of float32."""
    scale = torch.logspace(-12, 12, 64).to(gpu)
    left, right = some(gpu, 64, 32) * scale[:, None], some(gpu, 32, 64, seed=1) * scale
    out = left.new_empty(64, 64)
    tf32.exact_product(left, *tf32.parts(right.t()), None, out)
    expected = left.double() @ right.double()
    assert float(((out - expected).norm(dim=1) / expected.norm(dim=1)).max()) < 4e-6


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_row(gpu, bad):
    left, right = some(gpu, 70, 32), some(gpu, 32, 64, seed=1)
    left[3, 5] = bad
    out = left.new_empty(70, 64)
    tf32.exact_product(left, *tf32.parts(right.t()), None, out)
    finite = out.isfinite().all(1)
    assert not finite[3]
    assert int(finite.sum()) == 69


def test_parts_add_up_to_the_numbers(gpu):
    for view in (some(gpu, 5, 7).t(), some(gpu, 3, 5, 7).transpose(1, 2), some(gpu, 3, 5, 7).permute(1, 0, 2)):
        high, low = tf32.parts(view)
        assert high.is_contiguous()
        assert low.is_contiguous()
        assert torch.equal(high + low, view)
        assert not (high.view(torch.int32) & 8191).any()


def test_it_is_taken_for_large_products_of_float32(monkeypatch):
    right = torch.zeros(640, 64)
    assert tf32.suits(right, 40_000, 132)
    for other, rows, processors in (
        (right, 1000, 132),  # little work
        (right, 40_000, 10_000),  # few tiles
        (torch.zeros(650, 64), 40_000, 132),
        (torch.zeros(640, 65), 40_000, 132),
        (right.half(), 40_000, 132),
        (right.double(), 40_000, 132),
    ):
        assert not tf32.suits(other, rows, processors)
    monkeypatch.setattr(tf32, "float32_precision", lambda: "tf32")
    assert not tf32.suits(right, 40_000, 132)


def test_wide_convolutions_in_float32_multiply_by_it(gpu, monkeypatch):
    """Values and gradients are those of the reference, and the product was used for both."""
    used, product = [], tf32.exact_product
    monkeypatch.setattr(tf32, "exact_product", lambda *given: used.append(given[0].shape) or product(*given))
    monkeypatch.setattr(tf32, "_WORTH", 1)
    # Interpreted, the time goes by tiles: two of rows, and four monomials.
    rows, order, channels = (140, 1, 128) if gpu.type == "cpu" else (6000, 2, 128)
    monomials = gl.nn.Monomials(3, order)
    edges = gl.Edges(torch.arange(rows + 1) * 3, (torch.arange(3 * rows) * 7 % rows).int(), rows).to(gpu)
    coords, weight = some(gpu, rows, 3), some(gpu, monomials.size, channels, channels, seed=1) / 25
    features, bias, slope = some(gpu, rows, channels, seed=2), some(gpu, channels, seed=3), some(gpu, rows, channels)

    def run() -> list[torch.Tensor]:
        given = [t.clone().requires_grad_() for t in (features, weight, bias)]
        out = gl.point_conv(*given, edges, coords, coords, 4.0, monomials, order="gather_first")
        return [out, *torch.autograd.grad(out, given, slope)]

    got = run()
    assert used == [(rows, monomials.size * channels)] * 2
    with gl.use_backend("reference"):
        expected = run()
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
