"""Which kernel of the point convolution runs where, as on a device of 132 multiprocessors."""

from __future__ import annotations

import importlib
from itertools import product

import pytest
import torch

pytest.importorskip("triton")

import gridless as gl
from gridless.nn import Monomials

HERE = torch.device("cpu")
SMALL, GLUON = 16, 128
PLANE = Monomials(2, 1)


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    from gridless.ops.point_conv.gpu import tiles

    monkeypatch.setattr(tiles, "processors", lambda device: 132)
    monkeypatch.setattr(tiles, "side_by_side", lambda device, tile: 132 * tile.beside // 32 * 32)
    return tiles


def rows_of(tile):
    return None if tile is None else tile.rows


# terms, channels, width, rows, edges per row: rows of a tile forward and backward, None where sums are written.
@pytest.mark.parametrize(
    ("size", "forward", "backward"),
    [
        ((4, 64, 64, 32_768, 9), GLUON, 64),
        ((10, 32, 32, 131_072, 10), GLUON, 32),
        ((10, 32, 32, 131_072, 40), 32, 32),
        ((10, 32, 32, 24_000, 40), SMALL, SMALL),
        ((10, 32, 32, 1_000, 10), SMALL, SMALL),
        ((4, 64, 64, 32_768, 20), GLUON, 64),
        ((4, 64, 64, 32_768, 30), SMALL, 64),
        ((4, 32, 16, 100_000, 10), GLUON, 32),
        ((10, 16, 16, 200_000, 10), 32, 32),
        ((10, 32, 64, 100_000, 10), GLUON, None),
        ((8, 32, 64, 100_000, 10), GLUON, None),
        ((10, 64, 64, 100_000, 10), GLUON, None),
        ((12, 64, 64, 100_000, 10), 32, None),
        ((10, 64, 64, 10_000, 10), None, None),
        ((20, 4, 4, 100_000, 10), None, None),
        # 1.01 rounds of tiles: half of the multiprocessors would wait for the other half.
        ((4, 64, 64, 17_100, 9), 32, 64),
    ],
)
def test_tiles(tiles, size, forward, backward):
    *shape, rows, each = size
    given = (*shape, rows, rows * each, HERE)
    fused = tiles.fused_tile(torch.float32, *given)
    assert rows_of((fused and tiles.gluon_tile(torch.float32, *given)) or fused) == forward
    assert rows_of(tiles.fused_backward_tile(torch.float32, *given)) == backward


# terms, channels, width, rows, edges per row.
@pytest.mark.parametrize(
    ("dtype", "size", "wide"),
    [
        (torch.float32, (10, 64, 64, 100_000, 4), True),
        (torch.float32, (10, 64, 64, 100_000, 8), True),
        (torch.float32, (10, 64, 64, 100_000, 9), False),
        (torch.float16, (10, 32, 64, 100_000, 4), True),
        (torch.float64, (10, 64, 64, 100_000, 4), False),
        (torch.float16, (10, 64, 64, 100_000, 8), True),
        (torch.float32, (10, 128, 64, 100_000, 4), True),
        (torch.float16, (10, 64, 128, 100_000, 4), True),
        (torch.float32, (10, 256, 64, 100_000, 4), False),
        (torch.float16, (10, 64, 512, 100_000, 4), False),
        (torch.float32, (10, 64, 64, 10_000, 4), False),
        (torch.float32, (20, 64, 64, 100_000, 4), False),
    ],
)
def test_gradients_strip_by_strip_where_sums_are_many_and_rows_short(tiles, dtype, size, wide):
    *shape, rows, each = size
    assert (tiles.wide_backward_tiles(dtype, *shape, rows, rows * each) is not None) == wide


@pytest.mark.parametrize(
    ("dtype", "each", "wide"),
    [(torch.float32, 18, True), (torch.float32, 19, False), (torch.float16, 10, True), (torch.float16, 11, False)],
)
def test_sums_strip_by_strip_where_rows_are_short(tiles, dtype, each, wide):
    assert (tiles.wide_tile(dtype, 10, 128, 100_000, 100_000 * each) is not None) == wide


def test_every_size_that_gluon_takes_fits_in_shared_memory(tiles):
    """227 KB, of which the driver takes one, hold Theta."""
    taken = 0
    for terms in range(1, 33):
        for channels in (16, 32, 64, 128):
            for width in (16, 32, 64, 128):
                given = (terms, channels, width, 1_000_000, 10_000_000, HERE)
                if tiles.gluon_tile(torch.float32, *given):
                    taken += 1
                    assert terms * channels * width * 4 <= 226 << 10
    assert taken > 15


@pytest.mark.parametrize(
    ("dtype", "size", "taken"),
    [
        (torch.float32, (10, 64, 64, 100_000, 4), True),
        (torch.float16, (10, 128, 128, 100_000, 8), True),
        (torch.bfloat16, (4, 64, 128, 100_000, 4), True),
        (torch.float16, (10, 128, 128, 100_000, 9), False),
        (torch.float16, (10, 64, 64, 10_000, 4), False),
        (torch.float16, (9, 64, 64, 100_000, 4), False),
        (torch.float16, (12, 64, 64, 100_000, 4), False),
        (torch.float32, (10, 64, 96, 100_000, 4), False),
        (torch.float64, (10, 64, 64, 100_000, 4), False),
    ],
)
def test_weight_by_gluon_where_sums_are_many_and_rows_short(tiles, dtype, size, taken):
    terms, channels, width, rows, each = size
    tile = tiles.gluon_weight_tile(dtype, terms, channels, width, rows, rows * each)
    assert (tile is not None) == taken
    if tile is not None:
        numbers = 2 * tile.rows * (channels + tile.unroll * terms * tile.strip)
        assert numbers * dtype.itemsize <= 226 << 10


@pytest.mark.parametrize(
    ("dtype", "size", "taken"),
    [
        (torch.float32, (10, 128, 128, 100_000, 4), True),
        (torch.float32, (10, 64, 128, 100_000, 18), True),
        (torch.float16, (10, 128, 64, 100_000, 4), True),
        (torch.bfloat16, (4, 128, 128, 100_000, 10), True),
        (torch.float16, (10, 128, 128, 100_000, 11), False),
        (torch.float32, (10, 64, 64, 100_000, 4), False),
        (torch.float32, (2, 128, 128, 1_000_000, 4), False),
        (torch.float32, (12, 128, 128, 100_000, 4), False),
        (torch.float32, (10, 128, 256, 100_000, 4), False),
        (torch.float32, (10, 128, 128, 5_000, 4), False),
        (torch.float64, (10, 128, 128, 100_000, 4), False),
    ],
)
def test_128_channels_by_gluon_where_sums_are_many_and_rows_short(tiles, dtype, size, taken):
    terms, channels, width, rows, each = size
    tile = tiles.gluon_wide_tile(dtype, terms, channels, width, rows, rows * each)
    assert (tile is not None) == taken
    if tile is not None:
        numbers = tile.unroll * terms * tile.strip * (width + 2 * tile.rows)
        assert numbers * dtype.itemsize <= 226 << 10


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_have_tiles_of_their_own(tiles, dtype):
    given = (4, 64, 64, 32_768, 30 * 32_768, HERE)
    assert rows_of(tiles.fused_tile(dtype, *given)) == 64
    assert tiles.fused_tile(torch.float64, *given) is None


@pytest.mark.parametrize(("kilobytes", "fused"), [(227, True), (163, True), (99, False)])
def test_sums_that_shared_memory_does_not_hold_are_written(tiles, monkeypatch, kilobytes, fused):
    """On devices that have less of it, a kernel that would need more is not launched."""
    from gridless.ops.point_conv.gpu import dense

    monkeypatch.setattr(tiles, "shared_memory", lambda device: kilobytes << 10)
    chosen = dense.backward(kind(4), torch.float32, 4, 64, 64, True, True, 250, 10, "int32", HERE, "tf32x3", False)
    assert (chosen.both is not None) == fused


def kind(terms):
    from gridless.ops.point_conv.edge_function import EdgeFunction
    from gridless.ops.point_conv.gpu.rows import RowKind

    return RowKind(EdgeFunction(0, (0.0,) * (3 * terms), 1.0, 3, 0.1, True, True), True, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rounded_sizes_decide_as_the_sizes_themselves(tiles, dtype):
    """Kernels are chosen by rows in blocks and by the mean of a row, rounded up, so that the next batch, which has
    nearly as many, needs no new choice."""
    generator = torch.Generator().manual_seed(0)
    for terms, channels, width in ((10, 32, 32), (10, 64, 64), (4, 64, 64), (10, 128, 128), (10, 16, 32)):
        for _ in range(300):
            rows = int(2 ** (17 * torch.rand((), generator=generator)))
            edges = int(rows * 40 * torch.rand((), generator=generator) ** 2) + rows
            whole = -(-rows // tiles.BLOCK) * tiles.BLOCK
            rounded = whole, whole * -(-edges // rows)
            for name, *more in (
                ("fused_tile", HERE), ("fused_backward_tile", HERE), ("wide_backward_tiles",),
                ("gluon_tile", HERE), ("gluon_weight_tile",), ("gluon_wide_tile",),
            ):  # fmt: skip
                shape, choose = (dtype, terms, channels, width), getattr(tiles, name)
                assert choose(*shape, rows, edges, *more) == choose(*shape, *rounded, *more), (name, rows, edges)


@pytest.mark.parametrize("count", [1, 15, 16, 17, 999, 24_320])
def test_every_tile_has_whole_blocks(tiles, count):
    for dtype in (torch.float32, torch.float16):
        for channels in (16, 32, 64, 128):
            for choose in (tiles.fused_tile, tiles.fused_backward_tile):
                tile = choose(dtype, 10, channels, 32, count, 8 * count, HERE)
                assert tile is None or tile.rows % tiles.BLOCK == 0


def test_a_choice_serves_the_next_batch():
    from gridless.ops.point_conv.gpu import dense

    like, more = kind(10), ("int32", HERE, "tf32x3", False)
    first = dense.forward(like, torch.float32, 10, 32, 32, True, 250, 10, *more)
    assert dense.forward(like, torch.float32, 10, 32, 32, True, 250, 10, *more) is first
    assert dense.forward(like, torch.float32, 10, 32, 32, True, 25_000, 10, *more) is not first


@pytest.fixture
def launches(monkeypatch):
    """Every `Launch` of a convolution, with its tensors: the kernels do not run."""
    from gridless.kernels.launch import Launch

    # Imported while CPU tensors are taken, the kernels would take it for true ever after.
    convolution = importlib.import_module("gridless.ops.point_conv.gpu.convolution")
    launches = []
    monkeypatch.setattr(Launch, "__call__", lambda self, grid, tensors, sizes: launches.append((self, tensors)))
    for module in (gl.backends, convolution):
        monkeypatch.setattr(module, "interpreting", lambda: True)
    with gl.use_backend("gpu"):
        yield launches


def convolve(dtype=torch.float32, coords=torch.float32, basis=PLANE, width=(8,), needs=(True,) * 5):
    edges = gl.Edges(torch.tensor([0, 2, 3]), torch.tensor([0, 1, 1]), 2)
    tensors = [torch.zeros(*shape, dtype=dtype) for shape in ((2, 8), (basis.size, 8, *width), (8,))]
    tensors += [torch.zeros(2, 2, dtype=coords) for _ in range(2)]
    tensors = [t.requires_grad_(need) for t, need in zip(tensors, needs)]
    with gl.use_backend("reference"):
        edges.transpose()
    gl.point_conv(*tensors[:3], edges, *tensors[3:], 0.1, basis).sum().backward()


def test_a_launch_has_tensors_of_the_same_types_every_time(launches):
    """A kernel compiled for some types gets addresses, and would misread other types."""
    from gridless.kernels.launch import types_of

    halves = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
    wanted = [(True,) * 5, (True, False, False, False, False), (False, True, False, False, False)]
    # Up to 16 terms are summed at once, and a depthwise convolution of more has its sums in the other dtype.
    bases = [PLANE, Monomials(2, 4), Monomials(2, 5)]
    for given in product(halves, [torch.float32, torch.float64], bases, [(8,), ()], wanted):
        convolve(*given)
    types = {}
    for launch, tensors in launches:
        assert types.setdefault(launch, types_of(tensors)) == types_of(tensors), launch._kernel.fn.__name__
    assert len(types) > 100


def test_products_are_as_precise_as_they_are_told_to_be_at_each_call(monkeypatch, launches):
    from gridless.kernels import tf32

    for precision in ("tf32", "tf32x3", "tf32"):
        launches.clear()
        monkeypatch.setattr(tf32, "float32_precision", lambda precision=precision: precision)
        convolve(needs=(True, True, False, False, False))
        fused = [launch._constants for launch, _ in launches if launch._kernel.fn.__name__.startswith("fused")]
        assert [precision in constants for constants in fused] == [True, True]


def test_rows_of_which_32_bits_count_too_few_numbers(monkeypatch, launches):
    import triton.language as tl

    from gridless.ops.point_conv.gpu import rows

    monkeypatch.setattr(rows, "widest", lambda *given: 8)
    for width, index in ((8, tl.int32), (9, tl.int64)):
        launches.clear()
        edges = gl.Edges(torch.tensor([0, 1]), torch.tensor([0]), 1)
        features, weight, x = torch.zeros(1, 8), torch.zeros(3, 8, width, requires_grad=True), torch.zeros(1, 2)
        with gl.use_backend("reference"):
            edges.transpose()
        gl.point_conv(features, weight, None, edges, x, x, 0.1, PLANE, order="gather_first").sum().backward()
        fused = [launch._constants for launch, _ in launches if launch._kernel.fn.__name__.startswith("fused")]
        assert [index in constants for constants in fused] == [True, True]


def test_kernels_are_chosen_by_blocks_of_rows_and_their_mean(monkeypatch, launches):
    from gridless.ops.point_conv.gpu import dense

    chosen = []
    choose = dense.forward
    monkeypatch.setattr(dense, "forward", lambda *given: chosen.append(given[6:8]) or choose(*given))
    edges = gl.Edges(torch.arange(41) * 2, torch.arange(80) % 33, 33)
    features, weight, x, y = torch.zeros(33, 8), torch.zeros(3, 8, 8), torch.zeros(33, 2), torch.zeros(40, 2)
    gl.point_conv(features, weight, None, edges, x, y, 0.1, PLANE, order="gather_first")
    assert chosen == [(3, 2)]


def test_gluon_has_kernels_of_some_types_only(monkeypatch):
    import triton.language as tl

    from gridless.ops.point_conv.gpu import dense, gluon

    monkeypatch.setattr(gluon, "_runs_on", lambda device: True)
    suits = dense.Choice(kind(4), torch.float32, 4, 32, 32, 16, 16, tl.int32, HERE, "tf32")
    wide, flat = kind(4), kind(4)
    wide.coords, flat.function = torch.float64, flat.function._replace(dim=2)
    assert gluon._suits(suits)
    for other in ({"index": tl.int64}, {"dtype": torch.float64}, {"kind": wide}, {"kind": flat}):
        assert not gluon._suits(suits._replace(**other))


def test_gluon_is_asked_only_where_it_is_on_and_products_may_round(monkeypatch, launches):
    from gridless.kernels import tf32
    from gridless.ops.point_conv.gpu import gluon

    asked = []
    monkeypatch.setattr(gluon, "forward", lambda choice, has_bias: asked.append("forward"))
    for on, precision, dtype in product((False, True), ("tf32", "tf32x3"), (torch.float32, torch.float16)):
        asked.clear()
        monkeypatch.setattr(gluon, "GLUON", on)
        monkeypatch.setattr(tf32, "float32_precision", lambda precision=precision: precision)
        convolve(dtype, needs=(True, True, False, False, False))
        rounds = precision == "tf32" or dtype == torch.float16
        assert asked == (["forward"] if on and rounds else [])


@pytest.mark.parametrize(("kilobytes", "terms"), [(227, 16), (163, 16), (99, 12), (64, 8)])
def test_terms_that_shared_memory_holds(tiles, monkeypatch, kilobytes, terms):
    monkeypatch.setattr(tiles, "shared_memory", lambda device: kilobytes << 10)
    for m in range(1, tiles.GROUP + 1):
        for dtype in (torch.float32, torch.bfloat16):
            _, tile = tiles.wide_backward_tiles(dtype, m, 64, 64, 1 << 20, 4 << 20)
            fits = tiles.have_room(m * tile.rows * tile.strip, dtype, HERE)
            assert fits == (m <= terms or dtype == torch.bfloat16)
