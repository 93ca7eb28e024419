"""Bases: which functions, in which order, and how they are described to kernels."""

from __future__ import annotations

import math

import pytest
import torch

from gridless.nn import Basis, GaussianBumps, KernelPoints, Monomials
from gridless.ops.point_conv.edge_function import GAUSSIANS, MONOMIALS


def test_the_terms_of_order_two_in_three_dimensions_come_in_the_documented_order():
    x, y, z = vector = torch.tensor([2.0, 3.0, 5.0])
    expected = torch.stack([x**0, z, z * z, y, y * z, y * y, x, x * z, x * y, x * x])
    assert torch.equal(Monomials(3, 2)(vector), expected)


@pytest.mark.parametrize("dim", [1, 2, 3, 4])
@pytest.mark.parametrize("order", [0, 1, 2, 3, 4])
def test_there_is_one_term_for_every_way_to_spend_the_order(dim, order):
    basis = Monomials(dim, order)
    assert basis.size == math.comb(dim + order, order)
    assert len(set(basis.exponents)) == basis.size
    assert max(sum(e) for e in basis.exponents) == order


@pytest.mark.parametrize("basis", [Monomials(3, 2), Monomials(2, 3), KernelPoints(3), KernelPoints(1)], ids=str)
def test_the_description_gives_the_same_values(basis):
    assert isinstance(basis, Basis)
    kind, table, width = basis.description()
    table = torch.tensor(table, dtype=torch.float64).view(basis.size, basis.dim)
    vector = torch.rand(7, basis.dim, dtype=torch.float64) * 2 - 1
    if kind == MONOMIALS:
        values = (vector[:, None] ** table).prod(-1)
    else:
        assert kind == GAUSSIANS
        values = torch.exp(-(vector[:, None] - table).square().sum(-1) / (2 * width**2))
    torch.testing.assert_close(basis(vector), values)


def test_values_are_differentiable_at_the_centre():
    for basis in (Monomials(3, 2), KernelPoints(3)):
        vector = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(basis, vector)


@pytest.mark.parametrize(("dim", "size"), [(1, 3), (2, 9), (3, 15)])
def test_kernel_points_are_a_centre_and_one_shell(dim, size):
    basis = KernelPoints(dim)
    lengths = torch.tensor(basis.centres).norm(dim=1)
    assert basis.size == size == len(set(basis.centres))
    torch.testing.assert_close(lengths, torch.tensor([0.0] + [2 / 3] * (size - 1)))


def test_bases_are_values():
    assert Monomials(3, 2) == Monomials(3, 2) != Monomials(3, 1)
    assert hash(KernelPoints(2)) == hash(KernelPoints(2))
    assert GaussianBumps([[0, 1]], 0.5) == GaussianBumps(((0.0, 1.0),), 0.5)


def test_impossible_bases_are_refused():
    with pytest.raises(ValueError, match=r"Monomials: dim.*0"):
        Monomials(0, 2)
    with pytest.raises(ValueError, match=r"GaussianBumps: width.*0"):
        GaussianBumps(((0.0,),), 0.0)
    with pytest.raises(ValueError, match=r"centres.*dimension"):
        GaussianBumps(((0.0,), (0.0, 1.0)), 1.0)


@pytest.mark.parametrize("basis", [Monomials(3, 2), KernelPoints(3)], ids=str)
def test_values_of_ones_own_are_not_described_by_the_class_they_come_from(basis):
    class Twice(type(basis)):
        def __call__(self, vector):
            return 2 * super().__call__(vector)

    assert type(basis)(*vars_of(basis)).description() is not None
    assert Twice(*vars_of(basis)).description() is None


def vars_of(basis):
    return (basis.dim, basis.order) if isinstance(basis, Monomials) else (basis.centres, basis.width)
