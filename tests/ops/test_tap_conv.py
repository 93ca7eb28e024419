"""The convolution over taps: values and gradients of every backend."""

from __future__ import annotations

import os

import pytest
import torch
from torch.nn import functional

import gridless as gl
from gridless.geometry.voxels import strided_taps, submanifold_taps, transposed_taps
from gridless.ops.tap_conv import cpu, registered
from gridless.structures import TapEdges

INTERPRET = os.environ.get("TRITON_INTERPRET", "0") == "1"
TOLERANCE = {torch.float32: 5e-6, torch.float64: 1e-12, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def some_sites(count: int = 90, side: int = 6, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sites = torch.cat(
        [torch.randint(0, 2, (count, 1), generator=generator), torch.randint(0, side, (count, 3), generator=generator)],
        1,
    ).unique(dim=0)
    return sites[torch.randperm(len(sites), generator=generator)]


def some_edges(kind: str, device, side: int = 6) -> TapEdges:
    sites = some_sites(side=side)
    with gl.use_backend("reference"):
        if kind == "submanifold":
            edges = submanifold_taps(sites)
        elif kind == "even":
            edges = submanifold_taps(sites, 2)
        elif kind == "wide":
            edges = submanifold_taps(sites, 5)
        elif kind == "strided":
            edges = strided_taps(sites, 3, 2, 1)[1]
        elif kind == "inverse":
            edges = strided_taps(sites, 2, 2)[1].transpose()
        else:
            edges = transposed_taps(sites, 2, 2)[1]
    return TapEdges(edges.table, edges.num_source, edges.symmetric).to(device)


def some_input(edges: TapEdges, q: int, p: int, dtype=torch.float32, bias: bool = True) -> list:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape, scale=1.0):
        values = torch.randn(*shape, generator=generator) * scale
        return values.to(edges.device, dtype).requires_grad_()

    given = [draw(edges.num_source, q), draw(edges.num_taps, q, p, scale=(q * edges.num_taps) ** -0.5)]
    return [*given, draw(p) if bias else None]


def with_gradients(given: list, edges: TapEdges) -> list:
    out = gl.tap_conv(*given, edges)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(2)).to(out)
    return [out, *torch.autograd.grad(out, [x for x in given if x is not None], slope)]


def assert_close(results: list, expected: list, tolerance: float) -> None:
    for value, wanted in zip(results, expected, strict=True):
        value, wanted = value.detach().double(), wanted.detach().double()
        assert value.shape == wanted.shape
        assert float((value - wanted).norm()) <= tolerance * max(float(wanted.norm()), 1e-6)


def expected_of(given: list, edges: TapEdges) -> list:
    """In float64, by the reference."""
    wide = [None if x is None else x.detach().double().requires_grad_() for x in given]
    with gl.use_backend("reference"):
        return with_gradients(wide, edges)


@pytest.mark.parametrize("kind", ["submanifold", "even", "wide", "strided", "inverse", "transposed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_values_and_gradients_are_those_of_the_reference(backend, device, kind, dtype):
    if INTERPRET and backend == "gpu" and (dtype == torch.bfloat16 or kind == "wide"):
        pytest.skip("the interpreter multiplies no bfloat16, and takes minutes for 125 taps")
    edges = some_edges(kind, device)
    given = some_input(edges, 5, 18, dtype)
    assert_close(with_gradients(given, edges), expected_of(given, edges), TOLERANCE[dtype])


@pytest.mark.parametrize(("q", "p"), [(16, 16), (33, 1), (1, 40), (64, 96)])
@pytest.mark.parametrize("bias", [True, False])
def test_channels_of_any_number(backend, device, q, p, bias):
    edges = some_edges("strided", device)
    given = some_input(edges, q, p, bias=bias)
    assert_close(with_gradients(given, edges), expected_of(given, edges), TOLERANCE[torch.float32])


@pytest.mark.parametrize(("q", "p"), [(128, 200), (256, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_many_channels_on_a_device(q, p, dtype):
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    edges = some_edges("submanifold", torch.device("cuda"), side=5)
    given = some_input(edges, q, p, dtype)
    assert_close(with_gradients(given, edges), expected_of(given, edges), TOLERANCE[dtype])


@pytest.mark.parametrize("dim", [1, 2, 3])
@pytest.mark.parametrize("window", [(3, 1, 1, 1), (3, 2, 1, 1), (2, 2, 0, 1), (3, 2, 2, 2)])
def test_it_is_torchs_dense_convolution(backend, device, dim, window):
    if INTERPRET and backend == "gpu" and dim == 3 and window[0] == 3 and window[1] == 1:
        pytest.skip("the interpreter takes long")
    kernel, stride, padding, dilation = window
    shape, q, p = [5, 4, 6][:dim], 3, 4
    generator = torch.Generator().manual_seed(0)
    occupied = torch.rand(2, *shape, generator=generator) < 0.5
    sites = occupied.nonzero()
    grid = (torch.randn(2, q, *shape, generator=generator) * occupied[:, None]).double().to(device)
    weight = torch.randn(kernel**dim, q, p, generator=generator).double().to(device)
    rows = grid.movedim(1, -1)[tuple(sites.T)]
    settings = {"stride": stride, "padding": padding, "dilation": dilation}
    for search, name, order in ((strided_taps, "conv", (2, 1)), (transposed_taps, "conv_transpose", (1, 2))):
        targets, edges = search(sites.to(device), *window, shape=shape)
        dense = weight.permute(*order, 0).reshape(*(weight.shape[n] for n in order), *[kernel] * dim)
        expected = getattr(functional, f"{name}{dim}d")(grid, dense, **settings)
        out = torch.zeros(2, *expected.shape[2:], p, dtype=torch.float64, device=device)
        out[tuple(targets.T)] = gl.tap_conv(rows, weight, None, edges)
        torch.testing.assert_close(out.movedim(-1, 1), expected)


def test_gradcheck(backend, device):
    edges = some_edges("strided", device, side=3)
    given = some_input(edges, 2, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: gl.tap_conv(*x, edges), given, atol=1e-6, fast_mode=True)


def test_the_reference_has_second_derivatives():
    edges = some_edges("even", "cpu", side=3)
    given = some_input(edges, 2, 2, torch.float64)
    with gl.use_backend("reference"):
        assert torch.autograd.gradgradcheck(lambda *x: gl.tap_conv(*x, edges), given)


def test_the_same_bits_twice(backend, device):
    edges = some_edges("submanifold", device)
    given = some_input(edges, 16, 16)
    first, again = (with_gradients(given, TapEdges(edges.table, edges.num_source, True)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_a_nan_stays_with_the_targets_that_see_it(backend, device):
    edges = some_edges("strided", device)
    features, weight, bias = (x.detach() for x in some_input(edges, 4, 4))
    features[3] = float("nan")
    out = gl.tap_conv(features, weight, bias, edges)
    assert torch.equal(out.isnan().any(1), (edges.table == 3).any(1))


def test_nothing_to_convolve(backend, device):
    none = TapEdges(torch.zeros(0, 27, dtype=torch.int32), 0).to(device)
    given = some_input(none, 4, 5)
    assert [tuple(x.shape) for x in with_gradients(given, none)] == [(0, 5), (0, 4), (27, 4, 5), (5,)]
    alone = TapEdges(torch.full((3, 27), -1, dtype=torch.int32), 2).to(device)
    given = some_input(alone, 4, 5)
    out, d_features, d_weight, _ = with_gradients(given, alone)
    assert torch.equal(out, given[2].expand(3, 5))
    assert not d_features.any()
    assert not d_weight.any()


def test_padding_changes_nothing(backend, device):
    edges = some_edges("submanifold", device)
    padded = gl.structures.pad(edges, "power_of_two")
    features, weight, bias = (x.detach() for x in some_input(edges, 8, 8))
    more = torch.cat([features, features.new_zeros(padded.num_source - len(features), 8)])
    whole = gl.tap_conv(more, weight, bias, padded)
    assert torch.equal(whole[: len(edges)], gl.tap_conv(features, weight, bias, edges))
    assert torch.equal(whole[len(edges) :], bias.expand(len(padded) - len(edges), 8))


def test_autocast_converts_features_and_weight(backend, device):
    edges = some_edges("even", device)
    given = some_input(edges, 4, 4)
    with torch.autocast(device.type, torch.float16):
        out = gl.tap_conv(*given, edges)
    assert out.dtype == torch.float16
    out.float().sum().backward()
    assert given[1].grad.dtype == torch.float32


def test_the_cpu_takes_large_inputs_piece_by_piece(monkeypatch):
    edges = some_edges("submanifold", "cpu")
    given = some_input(edges, 8, 6)
    whole = with_gradients(given, edges)
    monkeypatch.setattr(cpu, "_ROOM", 200)
    assert_close(with_gradients(given, edges), whole, 1e-6)


@pytest.mark.parametrize("kind", ["submanifold", "strided"])
def test_opcheck(kind):
    edges = some_edges(kind, "cpu", side=3)
    given = some_input(edges, 2, 3)
    arguments = (*given, edges.table, edges.num_source, edges.symmetric, "cpu")
    torch.library.opcheck(registered._traced_conv.registered, arguments)


def test_a_compiled_layer_gives_the_same():
    edges = some_edges("submanifold", "cpu", side=3)
    given = some_input(edges, 4, 4)
    compiled = torch.compile(lambda *x: gl.tap_conv(*x, edges), fullgraph=True, backend="aot_eager")
    eager = with_gradients(given, edges)
    out = compiled(*given)
    slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(2))
    for value, wanted in zip([out, *torch.autograd.grad(out, given, slope)], eager, strict=True):
        torch.testing.assert_close(value, wanted)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.ones(3, 4)}, "sources.*features.*3"),
        ({"weight": torch.ones(8, 4, 5)}, r"taps = 27.*\(8, 4, 5\)"),
        ({"weight": torch.ones(27, 4, 5, dtype=torch.float64)}, "float64"),
        ({"bias": torch.ones(4)}, r"bias.*5.*4"),
        ({"edges": "no edges"}, "TapEdges.*str"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    edges = some_edges("submanifold", "cpu", side=3)
    given = {"features": torch.ones(edges.num_source, 4), "weight": torch.ones(27, 4, 5), "bias": None, "edges": edges}
    with pytest.raises((TypeError, ValueError), match=message):
        gl.tap_conv(**given | change)


def test_fixed_shapes_give_the_same_rows():
    plan = gl.Plan()
    voxels = plan.voxels(plan.points(dim=3), 0.3)
    layer = gl.nn.TapConv(plan.taps(voxels, voxels), 3, 4)
    x = torch.rand(50, 3)
    geometry, fixed = plan(x), plan.fixed(x)
    out = layer(fixed[voxels].coords, fixed)
    wanted = layer(geometry[voxels].coords, geometry)
    torch.testing.assert_close(out[: len(wanted)], wanted)


def test_a_network_mixes_balls_and_voxels():
    plan = gl.Plan()
    cloud = plan.points(dim=3)
    voxels = plan.voxels(cloud, 0.2)
    coarse = plan.coarser_voxels(voxels)
    same, down = plan.taps(voxels, voxels), plan.taps(voxels, coarse, 2, 2, 0)
    near = plan.ball(coarse, coarse, 0.6)
    up = plan.transpose(down)
    layers = torch.nn.ModuleList(
        [
            gl.nn.TapConv(same, 3, 8),
            gl.nn.TapConv(down, 8, 16),
            gl.nn.PointConv(near, 16, 16),
            gl.nn.TapConv(up, 16, 8),
        ]
    )
    geometry = plan(gl.Cloud.of([torch.rand(60, 3), torch.rand(80, 3)]))
    rows = geometry[voxels].coords
    for layer in layers:
        rows = layer(rows, geometry)
    rows.sum().backward()
    assert rows.shape == (len(geometry[voxels]), 8)
    assert all(bool(p.grad.isfinite().all()) for p in layers.parameters())
    with pytest.raises(TypeError, match=r"TapConv.*N"):
        gl.nn.TapConv(near, 3, 8)
    with pytest.raises(TypeError, match=r"X0.*voxels"):
        plan.taps(cloud, cloud)


@pytest.mark.skipif(not (INTERPRET or torch.cuda.is_available()), reason="needs a GPU or Triton's interpreter")
@pytest.mark.parametrize("groups", [1, 2])
def test_tiles_hold_every_edge_once_and_nothing_else(groups):
    from gridless.ops.tap_conv import gpu

    device = torch.device("cpu" if INTERPRET else "cuda")
    edges = some_edges("submanifold", device)
    with gl.use_backend("gpu"):
        tiles, pairs = gpu.tiles_of(edges, 16, groups), gpu.pairs_of(edges)
    seen = []
    for group in tiles:
        assert sorted(row for row in group.rows.flatten().tolist() if row >= 0) == list(range(len(edges)))
        for tile, rows in enumerate(group.rows.tolist()):
            for entry in range(int(group.begin[tile]), int(group.begin[tile + 1])):
                sources = group.gather[entry].tolist()
                assert max(sources) >= 0
                tap = int(group.taps[entry])
                seen += [(row, tap, source) for row, source in zip(rows, sources, strict=True) if source >= 0]
    wanted = {(i, k, j) for i, row in enumerate(edges.table.tolist()) for k, j in enumerate(row) if j >= 0}
    assert len(seen) == len(wanted)
    assert set(seen) == wanted
    # The reference's pairs, in the same order.
    for one, other in zip(pairs, TapEdges(edges.table, edges.num_source).pairs, strict=True):
        assert torch.equal(one, other)
