"""Leaky sums: every backend gives the reference's values and gradients."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.ops.leaky_sum import gpu as blocks
from gridless.ops.leaky_sum import leaky_sum, reference


def recordings(sizes: list[int], device: torch.device | str = "cpu", seed: int = 0) -> gl.Events:
    generator = torch.Generator().manual_seed(seed)
    times = [torch.randint(0, 300, (n,), generator=generator).cumsum(0) + 10**12 for n in sizes]
    splits = torch.tensor([0, *torch.tensor(sizes).cumsum(0).tolist()])
    total = int(splits[-1])
    pixel = torch.randint(0, 4, (total, 2), generator=generator, dtype=torch.int32)
    return gl.Events(pixel, torch.cat(times), torch.zeros(total, dtype=torch.bool), splits, (4, 4)).to(device)


def both(function, features, rate, events):
    features, rate = features.clone().requires_grad_(), rate.clone().requires_grad_()
    out = function(features, rate, events, 5000.0)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype, device=out.device).view_as(out)
    return out, *torch.autograd.grad((out * weight).sum(), (features, rate))


@pytest.mark.parametrize("sizes", [[1], [0, 3, 0], [64], [65, 63, 128], [5, 300, 1, 200]])
def test_backends_give_the_reference(backend: str, device: torch.device, sizes: list[int]):
    events = recordings(sizes, device)
    features = torch.randn(len(events), 3, dtype=torch.float64, device=device)
    rate = torch.tensor([0.25, 4.0], dtype=torch.float64, device=device)
    for value, expected in zip(
        both(leaky_sum, features, rate, events), both(reference.leaky_sum, features, rate, events)
    ):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


def test_blocks_of_blocks_give_the_reference():
    events = recordings([1000, 4000, 200])
    features, rate = torch.randn(len(events), 2, dtype=torch.float64), torch.tensor([1.0], dtype=torch.float64)
    for value, expected in zip(
        both(blocks.leaky_sum, features, rate, events), both(reference.leaky_sum, features, rate, events)
    ):
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)


def test_bad_arguments_are_refused():
    events = recordings([4])
    with pytest.raises(ValueError, match=r"leaky_sum.*\(4, C\)"):
        leaky_sum(torch.zeros(3, 2), torch.ones(1), events)
    with pytest.raises(TypeError, match="float64"):
        leaky_sum(torch.zeros(4, 2), torch.ones(1).double(), events)
    with pytest.raises(ValueError, match="decay_time"):
        leaky_sum(torch.zeros(4, 2), torch.ones(1), events, 0.0)
