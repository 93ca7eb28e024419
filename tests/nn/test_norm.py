"""Batch normalisation over ragged, possibly padded, rows."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.nn.norm import BatchNorm

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def geometry(sizes, bucket=None):
    cloud = gl.collate([gl.Cloud.of(torch.rand(n, 3)) for n in sizes], bucket)
    return gl.Geometry({"X0": cloud})


def twin(channels=6):
    """Our layer, and torch's with the same parameters."""
    ours, theirs = BatchNorm(channels, "X0"), torch.nn.BatchNorm1d(channels, momentum=0.01, eps=1e-3)
    with torch.no_grad():
        theirs.weight.uniform_(0.5, 2)
        theirs.bias.uniform_(-1, 1)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def follow(ours, theirs):
    """Give torch's layer the weight that our layer gives its next batch."""
    theirs.momentum = max(ours.momentum, 1 / (1 + int(ours.num_batches_tracked)))


def assert_same_state(ours, theirs):
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)


@pytest.mark.parametrize("place", ["cpu", pytest.param("cuda", marks=needs_cuda)])
@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_equals_torch_on_the_real_rows(bucket, place):
    ours, theirs = (norm.to(place) for norm in twin())
    sizes = (5, 0, 13, 3)
    total = sum(sizes)
    batch = geometry(sizes, bucket).to(place)
    for step in range(3):
        x = torch.randn(len(batch["X0"]), 6, generator=torch.Generator().manual_seed(step)).to(place) * 3 + 7
        x[total:] = torch.nan  # whatever padding holds, it is not read
        a, b = x.clone().requires_grad_(), x[:total].clone().requires_grad_()
        follow(ours, theirs)
        ya, yb = ours(a, batch), theirs(b)
        torch.testing.assert_close(ya[:total], yb)
        assert (ya[total:] == 0).all()
        grad = torch.randn(yb.shape, generator=torch.Generator().manual_seed(9)).to(place)
        (ya[:total] * grad).sum().backward()
        (yb * grad).sum().backward()
        torch.testing.assert_close(a.grad[:total], b.grad, rtol=1e-4, atol=1e-6)
        assert (a.grad[total:] == 0).all()
        torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.bias.grad, theirs.bias.grad, rtol=1e-4, atol=1e-5)
        assert_same_state(ours, theirs)
    ours.eval(), theirs.eval()
    y, wanted = ours(x, batch), theirs(x[:total])
    torch.testing.assert_close(y[:total], wanted)
    assert (y[total:] == 0).all()
    assert_same_state(ours, theirs)
    for norm, out in ((ours, y), (theirs, wanted)):
        norm.zero_grad()
        out.square().sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(ours(x, batch), y)


@pytest.mark.parametrize("bucket", [None, [8]])
def test_no_rows_leave_the_statistics_alone(bucket):
    ours, _ = twin()
    before = {k: v.clone() for k, v in ours.state_dict().items()}
    batch = geometry((0, 0), bucket)
    x = torch.randn(len(batch["X0"]), 6, requires_grad=True)
    y = ours(x, batch)
    y.sum().backward()
    assert y.shape == x.shape
    assert (y == 0).all()
    assert (x.grad == 0).all()
    assert (ours.weight.grad == 0).all()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(("size", "bucket"), [(1, None), (5, [8])])
def test_the_momentum_of_a_network_in_float64_is_not_rounded(size, bucket):
    norm, batch = BatchNorm(6, "X0", momentum=0.1).double(), geometry((size,), bucket)
    norm.num_batches_tracked.fill_(10)
    x = torch.randn(len(batch["X0"]), 6, dtype=torch.float64)
    norm(x, batch)
    torch.testing.assert_close(norm.running_mean, 0.1 * x[:size].mean(0), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bucket", [None, [8]])
def test_one_row_has_no_variance(bucket):
    ours, _ = twin()
    ours.num_batches_tracked.fill_(100)
    batch = geometry((1,), bucket)
    x = torch.randn(len(batch["X0"]), 6, requires_grad=True)
    y = ours(x, batch)
    y.sum().backward()
    torch.testing.assert_close(y[0], ours.bias)
    assert x.grad.isfinite().all()
    torch.testing.assert_close(ours.running_mean, 0.01 * x[0].detach())
    torch.testing.assert_close(ours.running_var, torch.full((6,), 0.99))


def test_the_defaults_are_those_of_the_paper():
    norm = BatchNorm(4)
    assert (norm.momentum, norm.eps) == (0.01, 1e-3)


def test_normalises_grids_with_channels_last():
    x = torch.randn(2, 3, 4, 5, 6)
    ours, theirs = BatchNorm(6), torch.nn.BatchNorm3d(6, momentum=0.01, eps=1e-3)
    follow(ours, theirs)
    torch.testing.assert_close(ours(x), theirs(x.movedim(-1, 1)).movedim(1, -1))
    assert_same_state(ours, theirs)


@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_accumulates_bfloat16_in_float32(bucket):
    batch = geometry((3000,), bucket)
    x = torch.randn(len(batch["X0"]), 6).bfloat16()
    ours, _ = twin()
    wide, _ = twin()
    wide.load_state_dict(ours.state_dict())
    y = ours(x, batch)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), wide(x.float(), batch), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(ours.running_var, wide.running_var)


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_compiles_without_breaks(bucket):
    ours, theirs = twin()
    batch = geometry((5, 13, 3), bucket)
    x = torch.randn(len(batch["X0"]), 6)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    for _ in range(3):
        follow(ours, theirs)
        torch.testing.assert_close(compiled(x, batch)[:21], theirs(x[:21]))
        assert_same_state(ours, theirs)


@pytest.mark.slow
def test_no_rows_have_a_gradient_when_compiled():
    ours = BatchNorm(6)
    torch.compile(ours, fullgraph=True, backend="aot_eager")(torch.randn(0, 6)).sum().backward()
    assert ours.weight.grad.tolist() == ours.bias.grad.tolist() == [0] * 6


def test_refuses_the_wrong_width_and_a_missing_geometry():
    with pytest.raises(ValueError, match=r"features.*\b6\b.*\b5\b"):
        BatchNorm(6)(torch.randn(3, 5))
    with pytest.raises(ValueError, match="geometry"):
        BatchNorm(6, "X0")(torch.randn(3, 6))
    with pytest.raises(ValueError, match=r"channels.*0"):
        BatchNorm(0)
    with pytest.raises(TypeError, match=r"channels.*'X0'.*BatchNorm\(channels, cloud\)"):
        BatchNorm("X0", 6)
    with pytest.raises(TypeError, match=r"norm\(features, geometry\)"):
        BatchNorm(6, "X0")(geometry((5,), None), torch.randn(5, 6))


@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_features_of_another_cloud_are_refused(bucket):
    batch = geometry((5, 4), bucket)
    with pytest.raises(ValueError, match=r"BatchNorm: features.*\b3\b.*X0"):
        BatchNorm(6, "X0")(torch.rand(3, 6), batch)


@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_without_a_momentum_statistics_are_the_mean_over_all_batches(bucket):
    ours, theirs = twin()
    ours.momentum = theirs.momentum = None
    batch = geometry((5, 6), bucket)
    for step in range(3):
        x = torch.randn(len(batch["X0"]), 6, generator=torch.Generator().manual_seed(step)) + step
        torch.testing.assert_close(ours(x, batch)[:11], theirs(x[:11]))
        assert_same_state(ours, theirs)


def test_a_momentum_of_nothing_leaves_the_statistics_alone():
    norm = BatchNorm(6, momentum=0.0)
    norm(torch.randn(50, 6))
    assert norm.running_mean.tolist() == [0] * 6


def test_swa_counts_statistics_anew():
    model = torch.nn.Sequential(BatchNorm(6))
    batches = [torch.randn(50, 6) + i for i in range(3)]
    torch.optim.swa_utils.update_bn(batches, model)
    torch.testing.assert_close(model[0].running_mean, torch.stack(batches).mean((0, 1)))
    assert model[0].momentum == 0.01
    assert model[0].num_batches_tracked == 3


@pytest.mark.parametrize("bucket", [None, "power_of_two"])
def test_statistics_that_are_not_tracked_stay(bucket):
    ours, theirs = twin()
    ours.track_running_stats = theirs.track_running_stats = False
    batch = geometry((5, 6), bucket)
    x = torch.randn(len(batch["X0"]), 6)
    torch.testing.assert_close(ours(x, batch)[:11], theirs(x[:11]))
    assert_same_state(ours, theirs)
    assert ours.num_batches_tracked == 0


def test_a_layer_of_torch_does_not_take_its_place():
    with pytest.raises(TypeError, match=r"gl\.nn\.synchronise"):
        torch.nn.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(BatchNorm(6)))
    x = torch.randn(5, 6)
    torch.testing.assert_close(torch.jit.trace(BatchNorm(6).eval(), (x,))(x), BatchNorm(6).eval()(x))


@needs_cuda
@pytest.mark.parametrize("momentum", [0.2, None])
def test_eager_and_captured_batches_on_a_gpu_are_counted_alike(momentum):
    ours, wanted = (BatchNorm(6, momentum=momentum).to(place) for place in ("cuda", "cpu"))
    batches = torch.randn(12, 64, 6)
    x = batches[0].cuda()

    def eager(step):
        ours(batches[step].cuda())

    def replay(step):
        x.copy_(batches[step])
        graph.replay()

    # Under a capture nothing runs: the batch is not counted.
    eager(0), eager(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ours(x)
    calls = [eager, eager, eager, replay, replay, eager, replay, eager, eager, replay, eager, eager]
    for step in range(2, 12):
        calls[step](step)
    for batch in batches:
        wanted(batch)
    assert_same_state(ours.cpu(), wanted)


@needs_cuda
def test_a_loaded_number_of_batches_is_followed_on_a_gpu():
    ours, wanted = BatchNorm(6).cuda(), BatchNorm(6)
    state = {name: value.clone() for name, value in wanted.state_dict().items()}
    state["num_batches_tracked"] = torch.tensor(30)
    x = torch.randn(64, 6)
    for norm in (ours, wanted):
        norm(x.to(norm.weight.device))
        norm.load_state_dict(state)
        norm(x.to(norm.weight.device))
    assert_same_state(ours.cpu(), wanted)
