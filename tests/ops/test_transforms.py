"""torch.func's transforms of every op: refused by name, and nothing that one made stays behind."""

from __future__ import annotations

import pytest
import torch
from test_not_finite import CASES

import gridless as gl

TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "vmap": lambda f, x: torch.func.vmap(f)(x[None]),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
    "hessian": lambda f, x: torch.func.hessian(lambda y: f(y).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("case", CASES)
def test_a_transform_is_refused_by_name_and_leaves_nothing_behind(backend, device, case, transform):
    if backend == "reference":
        pytest.skip("torch transforms the reference")
    op, arguments = CASES[case]()
    values = {name: value.float().to(device) for name, value in arguments.items()}
    expected = op(**values)
    for argument in values:

        def of_one(x, argument=argument):
            return op(**{**values, argument: x})

        with pytest.raises(NotImplementedError, match=r"torch\.func|forward-mode"):
            TRANSFORMS[transform](of_one, values[argument])
    given = {name: value.clone().requires_grad_() for name, value in values.items()}
    out = op(**given)
    assert torch.equal(out, expected)
    torch.autograd.grad(out.sum(), list(given.values()), allow_unused=True)


@pytest.mark.parametrize("case", CASES)
def test_what_the_reference_made_in_a_transform_is_not_kept(backend, device, case):
    if backend != "cpu":
        pytest.skip("one backend after the reference shows it")
    op, arguments = CASES[case]()
    values = {name: value.float() for name, value in arguments.items()}
    argument, value = next(iter(values.items()))
    with gl.use_backend("reference"):
        torch.func.grad(lambda x: op(**{**values, argument: x}).sum())(value)
    given = {name: value.clone().requires_grad_() for name, value in values.items()}
    torch.autograd.grad(op(**given).sum(), list(given.values()), allow_unused=True)
