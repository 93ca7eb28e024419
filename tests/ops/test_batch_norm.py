"""Batch normalisation of the first rows: every backend against autograd of the formula."""

from __future__ import annotations

import pytest
import torch

from gridless.backends import interpreting
from gridless.ops.batch_norm import batch_norm


def formula(x, count, weight, bias, eps, before, after):
    """As one would write it, on the real rows alone."""
    z = x[:count].relu() if before else x[:count]
    y = (z - z.mean(0)) / (z.var(0, unbiased=False) + eps).sqrt()
    y = y if weight is None else y * weight + bias
    y = y.relu() if after else y
    return torch.cat([y, torch.zeros_like(x[count:])]), z.mean(0), z.var(0)


def with_statistics(x, *arguments):
    """y, and the mean and the variance that running statistics become which forget what was before."""
    mean, var = torch.zeros(2, x.shape[1], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
    batches = torch.tensor(0, device=x.device)
    given = *arguments, *(None, None, None, 1e-3, False, False)[len(arguments) :]
    return batch_norm(x, *given, (mean, var, batches, 1.0)), mean, var


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("rows", "count", "channels"), [(70, 70, 5), (300, 257, 96), (2100, 2000, 3), (9, 7, 200), (9000, 8990, 128)]
)
def test_values_and_gradients_are_those_of_the_formula(device, rows, count, channels, before, after):
    if rows == 9000 and before != after and interpreting():
        pytest.skip("many rows are interpreted with both of ReLU's places and with none")
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in ((rows, channels), channels, channels)]
    tensors[0] = tensors[0] * 2 + 3
    grad = torch.randn(rows, channels, generator=generator, dtype=torch.float64)
    grad[count:] = 0
    mine = [t.to(device, copy=True).requires_grad_() for t in tensors]
    theirs = [t.clone().requires_grad_() for t in tensors]
    # Without a number all rows count.
    number = None if count == rows else torch.tensor(count, device=device)
    results = with_statistics(mine[0], number, mine[1], mine[2], 1e-3, before, after)
    wanted = formula(*theirs[:1], count, *theirs[1:], 1e-3, before, after)
    for result, want in zip(results, wanted):
        torch.testing.assert_close(result.cpu(), want)
    results[0].backward(grad.to(device))
    wanted[0].backward(grad)
    for a, b in zip(mine, theirs):
        torch.testing.assert_close(a.grad.cpu(), b.grad)
    assert (mine[0].grad[count:] == 0).all()


def test_float64_keeps_all_digits_of_its_settings(device):
    """eps, beside a variance that it outweighs, and the momentum."""
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(device) * 0.01
    running = *torch.ones(2, 4, dtype=torch.float64, device=device), torch.tensor(10, device=device), 0.1
    y = batch_norm(x, None, None, None, 1e-3, running=running)
    wanted, mean, var = formula(x, len(x), None, None, 1e-3, False, False)
    torch.testing.assert_close(y, wanted, rtol=1e-12, atol=0)
    torch.testing.assert_close(running[0], 0.9 + 0.1 * mean, rtol=1e-12, atol=0)
    torch.testing.assert_close(running[1], 0.9 + 0.1 * var, rtol=1e-12, atol=0)


def test_settings_may_be_whole_numbers(device):
    """The first call's types do not decide how the kernel is compiled."""
    x = torch.randn(50, 7, generator=torch.Generator().manual_seed(3)).to(device)
    for eps, momentum in ((1, 1), (0.5, 0.25)):
        running = *torch.ones(2, 7, device=device), torch.tensor(10, device=device), momentum
        y = batch_norm(x, None, None, None, eps, running=running)
        wanted, mean, _ = formula(x, len(x), None, None, eps, False, False)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(running[0], (1 - momentum) + momentum * mean)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_mean_does_not_drown_the_variance(device, dtype):
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(1)) + (1000 if dtype == torch.float32 else 4)
    x = x.to(device, dtype)
    y, mean, var = with_statistics(x, torch.tensor(500, device=device))
    exact = x.double()
    torch.testing.assert_close(mean.double(), exact.mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(var.double(), exact.var(0), rtol=1e-4, atol=0)
    assert y.dtype == dtype


def test_what_a_relu_before_cuts_off_has_no_gradient_in_bfloat16(device):
    generator = torch.Generator().manual_seed(3)
    x, grad = torch.randn(2, 64, 4, generator=generator).to(device, torch.bfloat16)
    exact, x = x.double().requires_grad_(), x.requires_grad_()
    batch_norm(x, before=True).backward(grad)
    formula(exact, 64, None, None, 1e-3, True, False)[0].backward(grad.double())
    assert (x.grad[x < 0] == 0).all()
    torch.testing.assert_close(x.grad.double(), exact.grad, rtol=2e-2, atol=2e-2)


def test_padding_is_not_read(device):
    x = torch.randn(64, 4, device=device)
    x[40:] = torch.nan
    y, mean, var = with_statistics(x.requires_grad_(), torch.tensor(40, device=device))
    y.sum().backward()
    assert all(t.isfinite().all() for t in (y, mean, var, x.grad))
    assert (y[40:] == 0).all()


@pytest.mark.parametrize("count", [0, 1])
def test_no_row_and_one_row_are_finite(device, count):
    x = torch.ones(3, 4, device=device, requires_grad=True)
    y, mean, var = with_statistics(x, torch.tensor(count, device=device))
    y.sum().backward()
    assert (y == 0).all()
    assert (var == 0).all()
    assert (mean == count).all()
    assert (x.grad == 0).all()


@pytest.mark.parametrize(("count", "channels"), [(40, 5), (1, 1100), (0, 3)])
def test_running_statistics_are_those_of_torch(device, count, channels):
    x = torch.randn(64, channels, generator=torch.Generator().manual_seed(2))
    torch_norm = torch.nn.BatchNorm1d(channels, momentum=0.3)
    torch_norm.num_batches_tracked.fill_(10)
    statistics = [t.detach().clone().to(device) for t in torch_norm.buffers()]
    for _ in range(3):
        if count > 1:
            torch_norm(x[:count])
        elif count:
            # torch refuses one row; its variance is 0.
            torch_norm.running_mean.lerp_(x[0], 0.3)
            torch_norm.running_var.lerp_(torch.zeros(channels), 0.3)
            torch_norm.num_batches_tracked += 1
        batch_norm(x.to(device), torch.tensor(count, device=device), running=(*statistics, 0.3))
    for mine, theirs in zip(statistics, torch_norm.buffers(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)


@pytest.mark.parametrize("channels", [5, 300])
def test_the_first_batches_are_averaged(device, channels):
    """Until each has the weight of the momentum; batches without rows do not count."""
    statistics = (
        torch.zeros(channels, device=device),
        torch.ones(channels, device=device),
        torch.tensor(0, device=device),
    )
    batches = torch.randn(6, 40, channels, generator=torch.Generator().manual_seed(4)) + torch.arange(6)[:, None, None]
    mean, var = torch.zeros(channels), torch.ones(channels)
    for number, x in enumerate(batches):
        for count in (0, 30):
            batch_norm(x.to(device), torch.tensor(count, device=device), running=(*statistics, 0.25))
        weight = max(0.25, 1 / (number + 1))
        mean, var = mean.lerp(x[:30].mean(0), weight), var.lerp(x[:30].var(0), weight)
        torch.testing.assert_close(statistics[0].cpu(), mean)
        torch.testing.assert_close(statistics[1].cpu(), var)
    assert statistics[2] == 6


def test_the_op_is_registered_rightly(backend):
    if backend != "reference":
        pytest.skip("the checks are of the registration, which is one for all")
    x, count = torch.randn(10, 4, requires_grad=True), torch.tensor(7)
    parameters = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    torch.library.opcheck(torch.ops.gridless.batch_norm.default, (x, count, *parameters, 1e-3, True, False))
    torch.library.opcheck(torch.ops.gridless.batch_norm.default, (x, None, None, None, 1e-3, False, True))


def test_mismatches_are_named(device):
    x, count = torch.randn(10, 4, device=device), torch.tensor(7, device=device)
    with pytest.raises(ValueError, match=r"weight.*\(4,\).*\(3,\)"):
        batch_norm(x, count, torch.ones(3, device=device), torch.ones(4, device=device))
    with pytest.raises(ValueError, match=r"count.*int64"):
        batch_norm(x, count.float())
    with pytest.raises(ValueError, match=r"number of batches.*int64"):
        batch_norm(x, count, running=(torch.ones(4, device=device), torch.ones(4, device=device), x, 0.1))
    with pytest.raises(ValueError, match="weight or bias"):
        batch_norm(x, count, torch.ones(4, device=device))


def test_parameters_may_lie_apart_and_running_statistics_may_not(device):
    x = torch.randn(50, 6, device=device)
    both = torch.randn(6, 2, device=device)
    wanted = batch_norm(x, None, *(p.contiguous() for p in both.unbind(1)))
    assert torch.equal(batch_norm(x, None, *both.unbind(1)), wanted)
    statistics = torch.zeros(6, 2, device=device)
    with pytest.raises(ValueError, match=r"running mean.*contiguous"):
        batch_norm(x, running=(statistics[:, 0], statistics[:, 1], torch.tensor(0, device=device), 0.1))


def test_no_channels_are_no_fault(device):
    assert batch_norm(torch.zeros(4, 0, device=device)).shape == (4, 0)
