"""Maximum and mean over each example of ragged rows."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.ops import segment_pool
from gridless.ops.segment_pool import segment_max, segment_mean, segment_spread

# Empty examples first, in the middle and last; a single row; one that spans several row blocks; padding behind it all.
SPLITS = [0, 0, 5, 5, 6, 46, 46]
POOLS = [segment_max, segment_mean]


def batch(device, dtype=torch.float32, channels=70, padding=4):
    splits = torch.tensor(SPLITS, device=device)
    features = torch.randn(SPLITS[-1] + padding, channels, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    return features, splits


def expected(pool, features, splits):
    rows = []
    for a, b in zip(splits.tolist(), splits.tolist()[1:]):
        part = features[a:b].double()
        none = features.new_zeros(features.shape[1]).double()
        rows.append(none if a == b else part.amax(0) if pool is segment_max else part.mean(0))
    return torch.stack(rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("pool", POOLS)
def test_pools_each_example_alone(device, pool, dtype):
    features, splits = batch(device, dtype)
    pooled = pool(features, splits)
    assert pooled.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    torch.testing.assert_close(pooled.double(), expected(pool, features, splits), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("pool", POOLS)
def test_empty_examples_give_zero_and_padding_is_not_read(device, pool):
    features, splits = batch(device)
    features[SPLITS[-1] :] = float("nan")
    features.requires_grad_()
    pooled = pool(features, splits)
    assert pooled.isfinite().all()
    assert (pooled[[0, 2, 5]] == 0).all()
    (grad,) = torch.autograd.grad(pooled.sum(), features)
    assert grad.isfinite().all()
    assert (grad[SPLITS[-1] :] == 0).all()


@pytest.mark.parametrize("pool", POOLS)
def test_gradients_and_second_derivatives_are_right(device, pool):
    features = torch.randn(6, 2, dtype=torch.float64, device=device, requires_grad=True)
    splits = torch.tensor([0, 0, 3, 4], device=device)
    assert torch.autograd.gradcheck(lambda x: pool(x, splits), features)
    assert torch.autograd.gradgradcheck(lambda x: pool(x, splits) ** 2, features)


def test_spread_rows_and_their_derivatives_are_right(device):
    values = torch.randn(3, 2, dtype=torch.float64, device=device, requires_grad=True)
    splits = torch.tensor([0, 0, 3, 4], device=device)
    assert torch.equal(segment_spread(values, splits, 6)[:4], values[[1, 1, 1, 2]])
    assert (segment_spread(values, splits, 6)[4:] == 0).all()
    assert torch.autograd.gradcheck(lambda x: segment_spread(x, splits, 6), values)
    assert torch.autograd.gradgradcheck(lambda x: segment_spread(x, splits, 6) ** 2, values)


def test_the_gradient_of_a_tied_maximum_goes_to_the_first_row(device):
    features = torch.zeros(40, 5, device=device, requires_grad=True)
    splits = torch.tensor([0, 3, 40], device=device)
    (grad,) = torch.autograd.grad(segment_max(features, splits).sum(), features)
    assert grad.nonzero()[:, 0].tolist() == [0] * 5 + [3] * 5


def test_the_maximum_of_minus_infinity_and_of_nan(device):
    features = torch.full((36, 2), -torch.inf, device=device)
    features[20:30, 1] = torch.nan
    features.requires_grad_()
    pooled = segment_max(features, torch.tensor([0, 18, 36], device=device))
    assert pooled[:, 0].tolist() == [-torch.inf, -torch.inf]
    assert pooled[0, 1] == -torch.inf
    assert pooled[1, 1].isnan()
    (grad,) = torch.autograd.grad(pooled, features, torch.ones_like(pooled))
    assert grad.nonzero().tolist() == [[0, 0], [0, 1], [18, 0], [20, 1]]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize(("splits", "rows", "channels"), [([0], 0, 3), ([0, 0], 0, 3), ([0, 2], 2, 0), ([0], 4, 3)])
def test_nothing_to_pool(device, pool, splits, rows, channels):
    features = torch.ones(rows, channels, device=device, requires_grad=True)
    pooled = pool(features, torch.tensor(splits, device=device))
    assert pooled.shape == (len(splits) - 1, channels)
    (grad,) = torch.autograd.grad(pooled.sum(), features)
    assert grad.shape == features.shape


@pytest.mark.parametrize("pool", POOLS)
def test_long_examples_that_several_programs_share(device, pool):
    sizes = torch.tensor([0, 6100, 3, 2500])
    splits = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).to(device)
    features = torch.randint(-40, 40, (8603, 3), generator=torch.Generator().manual_seed(0)).float().to(device)
    features[6100:6103, 0] = -torch.inf
    features[7000:, 1] = torch.nan
    features.requires_grad_()
    pooled = pool(features, splits)
    torch.testing.assert_close(pooled.double(), expected(pool, features.detach(), splits), equal_nan=True)
    if pool is segment_max:
        with gl.use_backend("reference"):
            known = segment_max(features, splits)
        gradients = [torch.autograd.grad(y, features, torch.ones_like(y))[0] for y in (pooled, known)]
        assert torch.equal(*gradients)


@pytest.mark.parametrize("pool", POOLS)
def test_accepts_rows_that_are_not_contiguous(device, pool):
    features, splits = batch(device)
    wide = torch.stack([features, features], 2)[:, :, 0]
    assert not wide.is_contiguous()
    torch.testing.assert_close(pool(wide, splits), pool(features, splits), rtol=0, atol=0)


def test_is_a_well_formed_operator():
    features, splits = batch("cpu", channels=4)
    features.requires_grad_()
    torch.library.opcheck(segment_pool._max.registered, (features, splits))
    torch.library.opcheck(segment_pool._mean.registered, (features, splits))
    torch.library.opcheck(segment_pool._spread.registered, (features[:6].detach().requires_grad_(), splits, 50))


@pytest.mark.slow
def test_compiles_without_breaks():
    features, splits = batch("cpu", channels=4)
    features.requires_grad_()

    def both(x):
        return segment_max(x * 2, splits) + segment_mean(x, splits)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(features), both(features))
    gradients = [torch.autograd.grad(f(features).square().sum(), features)[0] for f in (compiled, both)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("pool", POOLS)
def test_refuses_what_it_cannot_pool(pool):
    features, splits = batch("cpu")
    with pytest.raises(TypeError, match=r"features.*torch\.int32"):
        pool(features.int(), splits)
    with pytest.raises(ValueError, match="rows, channels"):
        pool(features[0], splits)
    with pytest.raises(ValueError, match="int64"):
        pool(features, splits.float())
    with pytest.raises(ValueError, match=r"meta.*cpu|cpu.*meta"):
        pool(features.to("meta"), splits)


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
def test_forward_mode_of_a_compiled_graph_is_refused(compiler):
    splits = torch.tensor([0, 3, 5])
    features, direction = torch.randn(2, 5, 4)
    for pool in (segment_pool.segment_max, segment_pool.segment_mean):
        slope = torch.compile(
            lambda x, d, f=pool: torch.func.jvp(lambda z: f(z, splits), (x,), (d,))[1], backend=compiler
        )
        with pytest.raises(Exception, match="reference"):
            slope(features, direction)


def test_more_rows_than_float16_can_count_have_the_right_gradient(device):
    features = torch.zeros(70_000, 1, dtype=torch.float16, device=device, requires_grad=True)
    pooled = segment_mean(features, torch.tensor([0, 70_000], device=device))
    (grad,) = torch.autograd.grad(pooled, features, torch.full_like(pooled, 1000.0))
    torch.testing.assert_close(grad.unique().cpu(), torch.tensor([1000 / 70_000]).half())


@pytest.mark.parametrize("pool", POOLS)
def test_the_reference_has_every_derivative(pool):
    features, splits = batch("cpu", torch.float64, channels=3)
    direction = torch.randn_like(features)
    with pytest.raises(NotImplementedError, match=r"use_backend\('reference'\)"):
        torch.func.jvp(lambda x: pool(x, splits), (features,), (direction,))
    grad = torch.func.grad(lambda x: pool(x, splits).square().sum())
    with gl.use_backend("reference"):
        slope = torch.func.jvp(lambda x: pool(x, splits).square().sum(), (features,), (direction,))[1]
        torch.testing.assert_close(slope, (grad(features) * direction).sum())
        two = torch.func.vmap(lambda x: pool(x, splits))(torch.stack([features, direction]))
        torch.testing.assert_close(two, torch.stack([pool(features, splits), pool(direction, splits)]))


def test_profiles_and_anomalies_call_an_operation_by_its_name():
    out = segment_mean(torch.randn(3, 2, requires_grad=True), torch.tensor([0, 3]))
    assert type(out.grad_fn).__name__ == "segment_meanBackward"
