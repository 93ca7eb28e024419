"""The Gluon kernels of the point convolution do what the Triton kernels do; on a GPU, and interpreted without one."""

from __future__ import annotations

import os

import pytest
import torch

import gridless as gl
from gridless.nn import GaussianBumps, Monomials
from gridless.structures import Edges
from tests.ops.test_point_conv import RADIUS, SETTINGS, along, apply, assert_near, doubled, problem

pytest.importorskip("triton")

INTERPRET = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRET else "cuda"
# Products on a device are TF32; interpreted, they are exact.
TOLERANCE = 3e-6 if INTERPRET else 2e-3
HALF = {torch.float32: TOLERANCE, torch.float16: 2e-3, torch.bfloat16: 1.2e-2}
SIX = GaussianBumps(((0.1, 0.2, 0.3), (0, 0, 0), (-0.4, 0, 0.2), (0, 0.5, 0), (0.3, 0, 0), (0, 0, -0.2)), 0.6)


@pytest.fixture
def gluon(monkeypatch):
    """Gluon kernels for any number of rows. The list gains a boolean for each convolution: did a Gluon kernel run?"""
    from gridless.kernels import tf32
    from gridless.ops.point_conv.gpu import dense, gluon, tiles

    if INTERPRET:
        from tests.gluon import every_row, interpreted

        kernels = interpreted("gridless.ops.point_conv.gpu.gluon_kernels")
        walk = interpreted("gridless.ops.point_conv.gpu.gluon_walk", gluon_kernels=kernels)
        for module in (kernels, walk):
            monkeypatch.setattr(module, "own_rows", every_row)
        monkeypatch.setattr(gluon, "gluon_kernels", kernels)
        for name in ("gluon_weight", "gluon_wide"):
            module = interpreted(f"gridless.ops.point_conv.gpu.{name}", gluon_kernels=kernels, gluon_walk=walk)
            monkeypatch.setattr(gluon, name, module)
        monkeypatch.setattr(gluon, "_runs_on", lambda device: True)
    elif not torch.cuda.is_available() or not gluon._runs_on(torch.device("cuda", torch.cuda.current_device())):
        pytest.skip("no device, or no Triton, for these kernels")
    used, choose = [], gluon.forward

    def recorded(*choice):
        run = choose(*choice)
        if run is None:
            used.append(False)
            return None

        def launched(*tensors):
            used.append(run(*tensors))
            return used[-1]

        return launched

    monkeypatch.setattr(gluon, "forward", recorded)
    # No cache: a kernel is chosen at every call.
    for name in ("forward", "backward"):
        monkeypatch.setattr(dense, name, getattr(dense, name).__wrapped__)
    monkeypatch.setattr(tiles, "few_rows", lambda *sizes: False)
    monkeypatch.setattr(tiles, "busy", lambda *sizes: 1.0)
    monkeypatch.setattr(tf32, "float32_precision", lambda: "tf32")
    with gl.use_backend("gpu"):
        yield used


def both_ways(edges):
    """The edges on the device, and their transpose with them, by the reference: the kernels under test are others."""
    with gl.use_backend("reference"):
        edges.transpose()
        edges = edges.to(DEVICE)
        edges.transpose()
    return edges


def edges_of(counts, source, sources):
    splits = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    return both_ways(Edges(splits, source.int(), sources))


def layer(q, p, basis, sources=40, targets=20, dtype=torch.float32):
    tensors, edges, basis = problem("cpu", dtype, sources, targets, basis.dim, q, p, basis)
    return [t.to(DEVICE) for t in tensors], both_ways(edges), basis


def with_gradients(tensors, edges, basis, *settings):
    """The result and its derivatives in features, weight and bias; those in coordinates are work of Triton kernels."""
    tensors = [t.detach().clone().requires_grad_(i < 3) for i, t in enumerate(tensors)]
    out = apply(tensors, edges, basis, *settings)
    return [out.detach(), *torch.autograd.grad(out, tensors[:3], along(out))]


def assert_like_reference(
    tensors, edges, basis, falloff="linear", normalise=True, tolerance=TOLERANCE, run=with_gradients
):
    results = run(tensors, edges, basis, falloff, normalise, "gather_first")
    with gl.use_backend("reference"):
        expected = run(doubled(tensors), edges, basis, falloff, normalise, "gather_first")
    assert_near(results, expected, tolerance)


def values(tensors, edges, basis, *settings):
    """The result alone: narrow layers have Triton's gradients."""
    return [apply(tensors, edges, basis, *settings)]


FOUR, FIVE = Monomials(3, 1), GaussianBumps(SIX.centres[:5], SIX.width)
SIZES = [
    (32, 32, Monomials(3, 2)), (32, 32, SIX), (64, 64, Monomials(3, 1)), (64, 32, FIVE), (32, 64, Monomials(3, 1)),
    (32, 16, SIX), (16, 32, Monomials(3, 1)),
]  # fmt: skip


def check_every_size(gluon, q, p, basis, run=with_gradients):
    assert_like_reference(*layer(q, p, basis), run=run)
    assert gluon == [q in (32, 64)]


def check_weight(monkeypatch, dtype, q, p, basis, falloff="linear", normalise=True, sources=40, targets=20):
    """The gradient of the weight alone, of a wide layer, as if it had many rows."""
    from gridless.ops.point_conv.gpu import gluon as module

    parts, weight, tile = [], module.weight, module.gluon_weight_tile
    monkeypatch.setattr(module, "gluon_weight_tile", lambda *sizes: tile(*sizes[:-2], 1_000_000, 1_000_000))

    def noted(choice):
        run = weight(choice)
        return lambda *tensors: parts.append(run(*tensors)) or parts[-1]

    monkeypatch.setattr(module, "weight", noted)
    tensors, edges, basis = layer(q, p, basis, sources, targets, dtype)
    gradients = []
    for backend in ("gpu", "reference"):
        tensors = tensors if backend == "gpu" else doubled(tensors)
        alone = [t.detach().clone().requires_grad_(i == 1) for i, t in enumerate(tensors)]
        with gl.use_backend(backend):
            out = apply(alone, edges, basis, falloff, normalise, "gather_first")
            gradients += torch.autograd.grad(out, alone[1], along(out))
    gradient, expected = gradients
    assert [part is not None for part in parts] == [True]
    assert gradient.dtype == dtype
    assert gradient.isfinite().all()
    assert (gradient.double() - expected).norm() < HALF[dtype] * expected.norm()


def wide_whatever_the_rows(monkeypatch):
    """Kernels are chosen as if there were many rows, of one edge each."""
    from gridless.ops.point_conv.gpu import dense, gluon

    many = 1_000_000, 1_000_000
    fused, back, tile = dense.fused_tile, dense.wide_backward_tiles, gluon.gluon_tile
    monkeypatch.setattr(dense, "fused_tile", lambda *sizes: fused(*sizes[:-3], *many, sizes[-1]))
    monkeypatch.setattr(dense, "wide_backward_tiles", lambda *sizes: back(*sizes[:-2], *many))
    monkeypatch.setattr(gluon, "gluon_tile", lambda *sizes: tile(*sizes[:-3], *many, sizes[-1]))
    for name in ("gluon_wide_tile", "gluon_weight_tile"):
        chosen = getattr(gluon, name)
        monkeypatch.setattr(gluon, name, lambda *sizes, chosen=chosen: chosen(*sizes[:-2], *many))


def check_wide(
    gluon, monkeypatch, dtype, basis, falloff="linear", normalise=True, sources=40, targets=20, q=64, p=64
):  # fmt: skip
    """All of a layer: strip by strip, forward, and back to the features."""
    wide_whatever_the_rows(monkeypatch)
    assert_like_reference(*layer(q, p, basis, sources, targets, dtype), falloff, normalise, tolerance=HALF[dtype])
    assert gluon == [True, True]


def check_settings(gluon, falloff, normalise, run=with_gradients):
    assert_like_reference(*layer(32, 32, Monomials(3, 1)), falloff, normalise, run=run)
    assert gluon == [True]


def check_duplicates_and_uneven_neighbourhoods(gluon, sources):
    """Rows with none, one and many edges, some of them twice, among points of which many are the same."""
    torch.manual_seed(1)
    x = torch.rand(sources, 3).round(decimals=1) * RADIUS
    y = torch.rand(19, 3) * RADIUS
    counts = torch.tensor([0, 1, 3, 0, 7, 40, 2, 0, 0, 5, 1, 1, 9, 0, 2, 4, 30, 1, 0])
    edges = edges_of(counts, torch.randint(sources, (int(counts.sum()),)), sources)
    tensors = [torch.randn(sources, 32), torch.randn(4, 32, 32), torch.randn(32), x, y]
    assert_like_reference([t.to(DEVICE) for t in tensors], edges, Monomials(3, 1), run=values)
    assert gluon == [True]


def check_what_is_not_finite(gluon, monkeypatch):
    """Coordinates that are not finite spoil their own rows, and those alone, as in the Triton kernels."""
    from gridless.ops.point_conv.gpu import gluon as module

    (features, weight, bias, x, y), edges, basis = layer(32, 32, Monomials(3, 1))
    x[3, 1], x[5, 0], y[2, 2], y[-1] = torch.nan, torch.inf, -torch.inf, torch.inf
    tensors = (features, weight, bias, x, y)
    result = apply(tensors, edges, basis)
    assert gluon == [True]
    monkeypatch.setattr(module, "GLUON", False)
    expected = apply(tensors, edges, basis)
    assert gluon == [True]
    assert 0 < result.isnan().any(1).sum() < len(y)
    assert torch.equal(result[-1], bias)
    assert torch.equal(result.isnan(), expected.isnan())
    torch.testing.assert_close(result, expected, rtol=TOLERANCE, atol=10 * TOLERANCE, equal_nan=True)


def check_only_what_is_asked_for(gluon):
    tensors, edges, basis = layer(32, 32, Monomials(3, 1))
    whole = with_gradients(tensors, edges, basis)
    direction = along(whole[0])
    for i in (0, 1):
        alone = [t.detach().clone().requires_grad_(j == i) for j, t in enumerate(tensors)]
        (gradient,) = torch.autograd.grad(apply(alone, edges, basis), alone[i], direction)
        torch.testing.assert_close(gradient, whole[1 + i], rtol=TOLERANCE, atol=10 * TOLERANCE)
    # Three results, and the gradient of the features alone.
    assert gluon == [True] * 4


def check_several_tiles_of_one_program(
    gluon, monkeypatch, basis=FOUR, q=32, p=32, dtype=torch.float32, run=values, normalise=True
):  # fmt: skip
    """Three tiles of targets and of sources, the middle one without edges, the last incomplete."""
    from gridless.ops.point_conv.gpu import gluon as module

    monkeypatch.setattr(module, "processors", lambda device: 1)
    torch.manual_seed(3)
    counts = torch.randint(4, (270,))
    counts[128:256] = 0
    source = torch.randint(256, (int(counts.sum()),))
    source[source >= 128] += 128
    edges = edges_of(counts, source, 384)
    tensors = [torch.randn(384, q).to(dtype), torch.randn(basis.size, q, p).to(dtype), torch.rand(p).to(dtype)]
    tensors += [torch.rand(n, 3) * RADIUS for n in (384, 270)]
    tolerance = max(HALF[dtype], 3e-5)
    tensors = [t.to(DEVICE) for t in tensors]
    assert_like_reference(tensors, edges, basis, "linear", normalise, tolerance, run)
    assert gluon == [True] * (1 if run is values else 2)


if INTERPRET:
    # One of each, and few of them: interpreted kernels take their time.

    @pytest.mark.parametrize(("q", "p", "basis"), [SIZES[2], SIZES[5]], ids=str)
    def test_interpreted_sizes(gluon, q, p, basis):
        check_every_size(gluon, q, p, basis, values)

    @pytest.mark.parametrize(("falloff", "normalise"), SETTINGS[1:3])
    def test_interpreted_settings(gluon, falloff, normalise):
        check_settings(gluon, falloff, normalise, values)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_interpreted_wide_layers(gluon, monkeypatch, dtype):
        check_wide(gluon, monkeypatch, dtype, SIX, sources=12, targets=10)

    @pytest.mark.parametrize(("dtype", "normalise"), [(torch.float32, True), (torch.float16, False)])
    def test_interpreted_weight_of_wide_layers(gluon, monkeypatch, dtype, normalise):
        check_weight(monkeypatch, dtype, 64, 64, SIX, "linear", normalise, sources=12, targets=10)

    def test_interpreted_half_precision(gluon):
        assert_like_reference(*layer(32, 32, SIX, dtype=torch.float16), tolerance=HALF[torch.float16])
        assert gluon == [True]

    def test_interpreted_duplicates_and_uneven_neighbourhoods(gluon):
        check_duplicates_and_uneven_neighbourhoods(gluon, 130)

    def test_interpreted_coordinates_that_are_not_finite(gluon, monkeypatch):
        check_what_is_not_finite(gluon, monkeypatch)

    def test_interpreted_tiles_of_one_program(gluon, monkeypatch):
        check_several_tiles_of_one_program(gluon, monkeypatch)

    @pytest.mark.parametrize(("dtype", "normalise"), [(torch.float32, False), (torch.float16, True)])
    def test_interpreted_layers_of_128_channels(gluon, monkeypatch, dtype, normalise):
        wide_whatever_the_rows(monkeypatch)
        check_several_tiles_of_one_program(gluon, monkeypatch, SIX, 64, 128, dtype, with_gradients, normalise)

    def test_interpreted_gradients_alone(gluon):
        check_only_what_is_asked_for(gluon)

else:

    @pytest.mark.parametrize(("q", "p", "basis"), SIZES, ids=str)
    def test_values_and_gradients_are_those_of_the_reference(gluon, q, p, basis):
        check_every_size(gluon, q, p, basis)

    @pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
    def test_falloff_and_normalisation(gluon, falloff, normalise):
        check_settings(gluon, falloff, normalise)

    @pytest.mark.parametrize(("q", "p"), [(64, 64), (128, 128), (64, 128), (128, 64)])
    @pytest.mark.parametrize("dtype", list(HALF))
    def test_weight_of_wide_layers(gluon, monkeypatch, dtype, q, p):
        # The reference takes gigabytes for more.
        check_weight(monkeypatch, dtype, q, p, Monomials(3, 2), sources=700, targets=500)

    @pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
    @pytest.mark.parametrize("sources", [1, 127, 129])
    def test_weight_of_few_rows(gluon, monkeypatch, falloff, normalise, sources):
        check_weight(monkeypatch, torch.float32, 64, 64, SIX, falloff, normalise, sources)

    @pytest.mark.parametrize("sources", [1, 16, 127, 129, 3000])
    def test_duplicates_uneven_neighbourhoods_and_incomplete_tiles(gluon, sources):
        check_duplicates_and_uneven_neighbourhoods(gluon, sources)

    @pytest.mark.parametrize(("sources", "targets"), [(1, 2), (300, 16), (300, 17), (40_000, 3), (70, 20_001)])
    def test_more_and_fewer_targets_than_sources(gluon, sources, targets):
        torch.manual_seed(0)
        edges = Edges(torch.arange(targets + 1) * 5, torch.randint(sources, (targets * 5,)).int(), sources).to(DEVICE)
        tensors = [torch.randn(sources, 32), torch.randn(10, 32, 32), torch.randn(32)]
        tensors += [torch.rand(n, 3) * RADIUS for n in (sources, targets)]
        assert_like_reference([t.to(DEVICE) for t in tensors], edges, Monomials(3, 2))
        assert gluon == [True]

    def test_coordinates_that_are_not_finite(gluon, monkeypatch):
        check_what_is_not_finite(gluon, monkeypatch)

    def test_several_tiles_of_one_program(gluon, monkeypatch):
        check_several_tiles_of_one_program(gluon, monkeypatch)

    def test_only_the_gradients_asked_for_are_made(gluon):
        check_only_what_is_asked_for(gluon)

    def test_two_runs_give_the_same_bits(gluon):
        tensors = layer(32, 32, Monomials(3, 2), 3000, 2000)
        for a, b in zip(with_gradients(*tensors), with_gradients(*tensors)):
            assert torch.equal(a, b)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    @pytest.mark.parametrize(("q", "p", "basis"), SIZES[:-1], ids=str)
    def test_half_precision(gluon, dtype, q, p, basis):
        assert_like_reference(*layer(q, p, basis, dtype=dtype), tolerance=HALF[dtype])
        assert gluon == [True]

    @pytest.mark.parametrize("channels", [32, 128])
    def test_sums_beyond_the_range_of_float16_are_divided_first(gluon, monkeypatch, channels):
        wide_whatever_the_rows(monkeypatch)
        (features, weight, bias, x, y), edges, basis = layer(channels, channels, Monomials(3, 1), dtype=torch.float16)
        features, weight = features.abs() * 5000, weight / 5000
        assert_like_reference((features, weight, bias, x, y), edges, basis, tolerance=HALF[torch.float16])
        assert gluon == [True] * (1 if channels == 32 else 2)

    @pytest.mark.parametrize("dtype", list(HALF))
    @pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
    def test_wide_layers(gluon, monkeypatch, dtype, falloff, normalise):
        check_wide(gluon, monkeypatch, dtype, Monomials(3, 2), falloff, normalise, 700, 500)

    @pytest.mark.parametrize("dtype", list(HALF))
    @pytest.mark.parametrize(("falloff", "normalise"), SETTINGS)
    @pytest.mark.parametrize(("q", "p"), [(128, 128), (64, 128), (128, 64)])
    def test_layers_of_128_channels(gluon, monkeypatch, dtype, falloff, normalise, q, p):
        check_wide(gluon, monkeypatch, dtype, Monomials(3, 2), falloff, normalise, 700, 500, q, p)

    @pytest.mark.parametrize("dtype", list(HALF))
    @pytest.mark.parametrize("sources", [1, 127, 129])
    def test_layers_of_128_channels_with_few_rows(gluon, monkeypatch, dtype, sources):
        check_wide(gluon, monkeypatch, dtype, SIX, "linear", True, sources, 20, 128, 128)

    @pytest.mark.parametrize("dtype", list(HALF))
    def test_several_pairs_of_tiles_of_one_program(gluon, monkeypatch, dtype):
        wide_whatever_the_rows(monkeypatch)
        check_several_tiles_of_one_program(gluon, monkeypatch, Monomials(3, 2), 128, 128, dtype, with_gradients)

    def test_two_runs_of_128_channels_give_the_same_bits(gluon, monkeypatch):
        wide_whatever_the_rows(monkeypatch)
        tensors = layer(128, 128, Monomials(3, 2), 3000, 2000)
        for a, b in zip(with_gradients(*tensors), with_gradients(*tensors)):
            assert torch.equal(a, b)

    def test_full_precision_and_other_dimensions_go_to_the_triton_kernels(gluon, monkeypatch):
        from gridless.kernels import tf32

        with_gradients(*layer(32, 32, Monomials(2, 2)))
        assert gluon == [False]
        monkeypatch.setattr(tf32, "float32_precision", lambda: "tf32x3")
        with_gradients(*layer(32, 32, Monomials(3, 2)))
        assert gluon == [False]
