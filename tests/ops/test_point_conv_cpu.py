"""Faults that only the CPU convolution can have: tiles, long rows, padding to vectors, threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch

import gridless as gl
from gridless.nn.basis import Monomials
from gridless.ops.point_conv import point_conv
from gridless.ops.point_conv.cpu.values import CAPACITY
from gridless.ops.point_conv.edge_function import MONOMIALS, Description


def ragged_edges(counts: list[int], sources: int) -> gl.Edges:
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(0, sources, (n,), generator=generator).sort().values for n in counts]
    splits = torch.tensor([0, *counts]).cumsum(0)
    return gl.Edges(splits, torch.cat([torch.empty(0), *rows]).int(), sources)


def results(edges: gl.Edges, channels=(5, 3), dtype=torch.float32, basis=None, order=None) -> list[torch.Tensor]:
    """The output and every gradient, of random operands that depend on the sizes alone."""
    basis = basis or Monomials(2, 1)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).requires_grad_()

    features, weight = draw(edges.num_source, channels[0]), draw(basis.size, *channels)
    bias = draw(channels[1])
    x, y = (draw(n, basis.dim, dtype=torch.float32) for n in (edges.num_source, edges.num_target))
    out = point_conv(features, weight, bias, edges, x, y, 3.0, basis, order=order)
    return [out.detach(), *torch.autograd.grad(out.float().sin().sum(), (features, weight, bias, x, y))]


def assert_as_reference(*args, tolerance: float = 1e-4, **kwargs) -> None:
    with gl.use_backend("reference"):
        expected = results(*args, **kwargs)
    with gl.use_backend("cpu"):
        for ours, theirs in zip(results(*args, **kwargs), expected):
            scale = float(theirs.abs().max()) if len(theirs) else 1.0
            torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * max(scale, 1e-3))


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("order", ["gather_first", "transform_first"])
@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 512, 513, 1030])
def test_any_number_of_rows_fills_its_tiles(rows, order):
    assert_as_reference(ragged_edges([(3 * i) % 5 for i in range(rows)], sources=40), order=order)


@pytest.mark.parametrize("long", [CAPACITY - 1, CAPACITY, CAPACITY + 1, 3 * CAPACITY])
def test_rows_longer_than_a_run_of_edges(long):
    assert_as_reference(ragged_edges([2, long, 0, long, 1], sources=60))


@pytest.mark.parametrize("channels", [(1, 1), (15, 17), (16, 16), (33, 64), (64, 8), (48, 40), (130, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_channels_that_do_and_do_not_fill_vectors(channels, dtype):
    assert_as_reference(ragged_edges([4, 0, 9, 1, 30], sources=20), channels, dtype)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_are_summed_in_thirty_two(dtype, count):
    with threads(count):
        assert_as_reference(ragged_edges([4, 0, 9, 1, 600], sources=20), (32, 16), dtype, tolerance=1e-2)


@pytest.mark.parametrize("order", range(5))
def test_more_basis_functions_than_a_block_of_registers(order):
    assert_as_reference(ragged_edges([4, 0, 9], sources=20), basis=Monomials(3, order))


@dataclass(frozen=True)
class Sparse:
    """Monomials whose factors are not part of the basis: x^3 y^2, y^4, x."""

    dim: int = 2
    size: int = 3

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        x, y = vector.unbind(-1)
        return torch.stack([x**3 * y**2, y**4, x], -1)

    def description(self) -> Description:
        return Description(MONOMIALS, (3.0, 2.0, 0.0, 4.0, 1.0, 0.0))


def test_a_basis_may_lack_the_factors_of_its_monomials():
    assert_as_reference(ragged_edges([4, 0, 9], sources=20), basis=Sparse())


def test_threads_share_the_rows():
    edges = ragged_edges([i % 7 for i in range(2000)], sources=1500)
    with gl.use_backend("cpu"):
        with threads(1):
            alone = results(edges, (16, 32))
        with threads(3):
            shared, again = results(edges, (16, 32)), results(edges, (16, 32))
    for a, b, c in zip(alone, shared, again):
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-4)
        assert torch.equal(b, c)


def test_one_target_may_hold_every_edge_of_many_rows():
    with threads(3):
        assert_as_reference(ragged_edges([0] * 900 + [800] + [0] * 900, sources=30))
