"""torch_scatter's functions mean what torch_scatter's mean: every result is compared with a loop over entries."""

import itertools

import pytest
import torch
from devices import DEVICES
from torch.autograd import gradcheck, gradgradcheck

from gridless.compat import torch_scatter
from gridless.compat.torch_scatter import composite, gather_coo, gather_csr, scatter, segment_coo, segment_csr
from gridless.compat.torch_scatter.scatter import sorted_product
from gridless.compat.torch_scatter.testing import dtypes

REDUCTIONS = ["sum", "add", "mul", "mean", "min", "max"]
FLOATS = [torch.half, torch.bfloat16, torch.float, torch.double]
# Shape of src, shape of index, dim.
CASES = [((9,), (9,), -1), ((9, 3), (9,), 0), ((2, 9), (2, 9), 1), ((2, 9, 3), (2, 9), 1), ((2, 9, 3), (9,), 1)]


def case(shape, index_shape, dtype=torch.float, device="cpu", seed=0):
    generator = torch.Generator().manual_seed(seed)
    src = torch.randint(-4, 5, shape, generator=generator).to(device, dtype)
    # Output 2 has no source.
    index = torch.tensor([0, 1, 3, 4])[torch.randint(0, 4, index_shape, generator=generator)]
    index.view(-1)[0] = 4
    return src, index.to(device)


def by_loop(src, index, dim, reduce, size=5):
    """Values and positions, entry by entry, in float64 or int64."""
    dim %= src.dim()
    if index.dim() == 1:
        index = index.view([-1 if d == dim else 1 for d in range(src.dim())])
    index = index.reshape(*index.shape, *[1] * (src.dim() - index.dim())).expand(src.shape)
    shape = [size if d == dim else side for d, side in enumerate(src.shape)]
    wide = torch.double if src.is_floating_point() else torch.long
    value, arg = torch.zeros(shape, dtype=wide), torch.full(shape, src.shape[dim])
    for place in itertools.product(*map(range, shape)):
        row = [j for j in range(src.shape[dim]) if index[(*place[:dim], j, *place[dim + 1 :])] == place[dim]]
        entries = [src[(*place[:dim], j, *place[dim + 1 :])].item() for j in row]
        if reduce == "mul":
            value[place] = torch.tensor(entries, dtype=wide).prod()
        elif not row:
            continue
        elif reduce in ("sum", "add"):
            value[place] = sum(entries)
        elif reduce == "mean":
            value[place] = sum(entries) / len(row) if wide == torch.double else sum(entries) // len(row)
        else:
            value[place] = min(entries) if reduce == "min" else max(entries)
            arg[place] = row[entries.index(value[place].item())]
    return value, arg


def sorted_case(shape, index_shape, dtype=torch.float, device="cpu"):
    src, index = case(shape, index_shape, dtype, device)
    index = index.sort(-1)[0]
    return (
        src,
        index,
        torch.searchsorted(index, torch.arange(6, device=device).expand(*index.shape[:-1], 6).contiguous()),
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", dtypes)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_scatter_is_the_loop_over_entries(reduce, dtype, device):
    for shape, index_shape, dim in CASES:
        src, index = case(shape, index_shape, dtype, device)
        value, arg = by_loop(src.cpu(), index.cpu(), dim, reduce)
        result = getattr(torch_scatter, f"scatter_{reduce}")(src, index, dim)
        if reduce in ("min", "max"):
            assert result[1].cpu().equal(arg)
            result = result[0]
        assert result.dtype == dtype
        torch.testing.assert_close(result.cpu(), value.to(dtype))
        assert scatter(src, index, dim, reduce=reduce).equal(result)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", dtypes)
@pytest.mark.parametrize("reduce", ["sum", "add", "mean", "min", "max"])
def test_segments_are_the_same_of_sorted_indices(reduce, dtype, device):
    for shape, index_shape, dim in CASES[:4]:
        src, index, indptr = sorted_case(shape, index_shape, dtype, device)
        value, arg = by_loop(src.cpu(), index.cpu(), dim, reduce)
        if reduce == "mean" and not dtype.is_floating_point:
            # Segments of integers round towards 0, as torch_scatter's do.
            value = by_loop(src.cpu().double(), index.cpu(), dim, reduce)[0].trunc()
        for name, at in (("coo", index), ("csr", indptr)):
            result = getattr(torch_scatter, f"segment_{reduce}_{name}")(src, at)
            if reduce in ("min", "max"):
                assert result[1].cpu().equal(arg)
                result = result[0]
            torch.testing.assert_close(result.cpu(), value.to(dtype))


def test_means_of_integers_round_down_or_in_segments_towards_zero():
    src, index = torch.tensor([-1, -2, 1, 2]), torch.tensor([0, 0, 1, 1])
    assert torch_scatter.scatter_mean(src, index).tolist() == [-2, 1]
    assert torch_scatter.segment_mean_coo(src, index).tolist() == [-1, 1]
    assert torch_scatter.segment_mean_csr(src, torch.tensor([0, 2, 4])).tolist() == [-1, 1]


def test_rows_outside_all_runs_are_not_read():
    src, indptr = torch.tensor([100.0, 1, 2, 3, 100]), torch.tensor([1, 3, 3, 4])
    for reduce, value in (("sum", [3, 0, 3]), ("mean", [1.5, 0, 3]), ("min", [1, 0, 3]), ("max", [2, 0, 3])):
        assert segment_csr(src, indptr, reduce=reduce).tolist() == value
        assert segment_csr(src.long(), indptr, reduce=reduce).tolist() == [int(v) for v in value]


@pytest.mark.parametrize("device", DEVICES)
def test_out_is_reduced_in_place_and_runs_overwrite_it(device):
    src, index = torch.tensor([1.0, 5, 3], device=device), torch.tensor([0, 0, 2], device=device)
    expected = {"sum": [8, 2, 5], "mul": [10, 2, 6], "mean": [4, 2, 5], "min": [1, 2, 2], "max": [5, 2, 3]}
    for reduce, value in expected.items():
        out = torch.full((3,), 2.0, device=device)
        result = scatter(src, index, 0, out, reduce=reduce)
        assert result.data_ptr() == out.data_ptr()
        assert out.tolist() == value
        if reduce != "mul":
            assert segment_coo(src, index, torch.full_like(out, 2.0), reduce=reduce).tolist() == value
            run = torch.full_like(out, 2.0)
            segment_csr(src, torch.tensor([0, 2, 2, 3], device=device), run, reduce=reduce)
            assert run.equal(segment_csr(src, torch.tensor([0, 2, 2, 3], device=device), reduce=reduce))
    out = torch.full((3,), 2.0, device=device)
    assert torch_scatter.scatter_min(src, index, 0, out)[1].tolist() == [0, 3, 3]


def test_nan_and_the_worst_infinity_never_win():
    inf, nan = float("inf"), float("nan")
    src, index = torch.tensor([nan, 1, inf, nan, -inf]), torch.tensor([0, 0, 1, 2, 3])
    low, arg = torch_scatter.scatter_min(src, index)
    assert low.tolist() == [1, 0, 0, -inf]
    assert arg.tolist() == [1, 5, 5, 4]
    high, arg = torch_scatter.scatter_max(src, index)
    assert high.tolist() == [1, inf, 0, 0]
    assert arg.tolist() == [1, 2, 5, 5]
    runs = torch.tensor([0, 2, 3, 4, 5])
    assert segment_csr(src, runs, reduce="min").tolist() == low.tolist()
    assert segment_csr(src, runs, reduce="max").tolist() == high.tolist()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_gradients_are_right(reduce, device):
    for shape, index_shape, dim in CASES:
        _, index = case(shape, index_shape, torch.double, device)
        src = torch.randn(shape, dtype=torch.double, device=device, requires_grad=True)
        assert gradcheck(lambda x, i=index, d=dim: scatter(x, i, d, reduce=reduce), src)
    if reduce != "mul":
        for shape, index_shape, _ in CASES[:4]:
            _, index, indptr = sorted_case(shape, index_shape, torch.double, device)
            src = torch.randn(shape, dtype=torch.double, device=device, requires_grad=True)
            assert gradcheck(lambda x, i=index: segment_coo(x, i, reduce=reduce), src)
            assert gradcheck(lambda x, i=indptr: segment_csr(x, i, reduce=reduce), src)
            short = segment_coo(src.detach(), index).requires_grad_()
            assert gradcheck(lambda x, i=index: gather_coo(x, i), short)
            assert gradcheck(lambda x, i=indptr: gather_csr(x, i), short)


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_scatter_can_be_differentiated_twice(reduce):
    src = torch.randn(6, 2, dtype=torch.double, requires_grad=True)
    index = torch.tensor([0, 1, 0, 3, 3, 3])
    assert gradgradcheck(lambda x: scatter(x.sin(), index, 0, reduce=reduce), src)


def test_the_gradient_of_a_product_with_zeros_is_right():
    src = torch.tensor([0.0, 2, 3, 0, 0], dtype=torch.double, requires_grad=True)
    scatter(src, torch.tensor([0, 0, 0, 1, 1]), reduce="mul").sum().backward()
    assert src.grad is not None
    assert src.grad.tolist() == [6, 0, 0, 0, 0]


def test_products_of_sorted_entries_are_products():
    src, index = torch.randn(2, 9, 3, dtype=torch.double), torch.randint(0, 5, (2, 9, 3))
    expected = torch_scatter.scatter_mul(src, index, 1, dim_size=5)
    torch.testing.assert_close(sorted_product(src, index, 1, 5), expected)
    leaf = src.clone().requires_grad_()
    assert gradcheck(lambda x: sorted_product(x, index, 1, 5), leaf)


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_bits_twice(device):
    src, index = torch.randn(5000, 8, device=device), torch.randint(0, 7, (5000,), device=device)
    grid = torch.randint(0, 7, (5000, 8), device=device)
    for reduce, at in itertools.product(REDUCTIONS, (index, grid)):
        leaf = src.clone().requires_grad_()
        first = scatter(leaf, at, 0, reduce=reduce)
        first.square().sum().backward()
        again = src.clone().requires_grad_()
        second = scatter(again, at, 0, reduce=reduce)
        second.square().sum().backward()
        assert first.equal(second)
        assert leaf.grad is not None
        assert again.grad is not None
        assert leaf.grad.equal(again.grad) or reduce == "mul"
    short = torch.randn(7, 8, device=device, requires_grad=True)
    grads = [torch.autograd.grad(gather_coo(short, index).mul(src).sum(), short)[0] for _ in range(3)]
    assert grads[0].equal(grads[1])
    assert grads[0].equal(grads[2])


def test_gathers_repeat_entries():
    src, index, indptr = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([0, 0, 2]), torch.tensor([0, 2, 2, 3])
    expected = [[1, 2], [1, 2], [5, 6]]
    assert gather_coo(src, index).tolist() == gather_csr(src, indptr).tolist() == expected
    grid = gather_csr(src.t(), torch.stack([indptr, indptr]))
    assert grid.tolist() == torch.tensor(expected).t().tolist()
    out = torch.zeros(3, 2, dtype=torch.long)
    gather_csr(src, indptr, out)
    assert out.tolist() == expected


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_nothing_gives_nothing(reduce):
    x = torch.randn(0, 0, 0, 16, requires_grad=True)
    none = torch.tensor([], dtype=torch.long)
    for out in (
        scatter(x, none, dim=0, dim_size=0, reduce=reduce),
        segment_coo(x, none, dim_size=0, reduce=reduce),
        segment_csr(x, none, reduce=reduce),
        gather_coo(x, none),
        gather_csr(x, none),
    ):
        assert out.shape == (0, 0, 0, 16)
        out.backward(torch.randn_like(out))
    assert scatter(torch.rand(0, 4), none, 0, dim_size=3, reduce=reduce).tolist() == [[0] * 4] * 3


def test_an_index_of_several_dimensions_is_broadcast():
    src, index = torch.randn(4, 3, 8, 2), torch.randint(0, 8, (4, 1, 8, 2))
    for reduce in REDUCTIONS:
        result = scatter(src, index, 2, dim_size=8, reduce=reduce)
        assert result.equal(scatter(src, index.expand_as(src).contiguous(), 2, dim_size=8, reduce=reduce))


def test_unknown_reductions_are_refused_by_name():
    for call in (scatter, segment_coo):
        with pytest.raises(ValueError, match="median"):
            call(torch.rand(3), torch.tensor([0, 1, 1]), reduce="median")
    with pytest.raises(ValueError, match="int64"):
        composite.scatter_softmax(torch.arange(3), torch.tensor([0, 1, 1]))


@pytest.mark.parametrize("device", DEVICES)
def test_softmax_and_its_relatives_agree_with_torch(device):
    src = torch.randn(7, 2, dtype=torch.double, device=device)
    index = torch.tensor([0, 1, 0, 3, 3, 3, 1], device=device)
    for number in (0, 1, 3):
        rows = (index == number).nonzero().flatten()
        group = src[rows]
        pairs = [
            (torch_scatter.scatter_softmax(src, index, 0)[rows], group.softmax(0)),
            (torch_scatter.scatter_log_softmax(src, index, 0)[rows], group.log_softmax(0)),
            (torch_scatter.scatter_logsumexp(src, index, 0)[number], group.logsumexp(0)),
            (torch_scatter.scatter_std(src, index, 0)[number], group.std(0)),
            (torch_scatter.scatter_std(src, index, 0, unbiased=False)[number], group.std(0, unbiased=False)),
        ]
        for ours, theirs in pairs:
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-8)
    assert torch_scatter.scatter_logsumexp(src, index, 0)[2].tolist() == [0, 0]
    out = torch.zeros(4, 2, dtype=torch.double, device=device)
    torch_scatter.scatter_logsumexp(src, index, 0, out)
    expected = torch.cat([src[[0, 2]], torch.zeros_like(src[:1])]).logsumexp(0)
    torch.testing.assert_close(out[0], expected, rtol=1e-9, atol=1e-9)
    leaf = src.clone().requires_grad_()
    for function in (torch_scatter.scatter_softmax, torch_scatter.scatter_log_softmax, torch_scatter.scatter_logsumexp):
        assert gradcheck(lambda x, f=function: f(x, index, 0, dim_size=4), leaf)


@pytest.mark.parametrize("name", torch_scatter.__all__)
def test_torchscript_compiles_every_function_to_the_same_result(name):
    function = getattr(torch_scatter, name)
    src, index, indptr = torch.rand(6, 2), torch.tensor([0, 0, 1, 1, 1, 3]), torch.tensor([0, 2, 5, 5, 6])
    # Segments take no dim.
    inputs = (src, indptr) if "csr" in name else (src, index) if "coo" in name else (src, index, 0)
    result, again = function(*inputs), torch.jit.script(function)(*inputs)
    for ours, scripted in zip(result, again) if isinstance(result, tuple) else [(result, again)]:
        assert ours.equal(scripted)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int32, torch.int64])
def test_means_of_runs_of_integers_round_towards_zero_and_keep_their_type(dtype):
    src, index = torch.tensor([-3, -2, 5, 2], dtype=dtype), torch.tensor([0, 0, 2, 2])
    expected = torch.tensor([-2, 0, 3], dtype=dtype)
    for mean in (segment_coo(src, index, reduce="mean"), segment_csr(src, torch.tensor([0, 2, 2, 4]), reduce="mean")):
        assert mean.dtype == dtype
        assert mean.tolist() == expected.tolist()
    assert scatter(src, index, reduce="mean").tolist() == [-3, 0, 3]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_standard_deviations_keep_their_type(dtype):
    src = torch.tensor([1.0, 3.0, 5.0], dtype=dtype)
    deviation = composite.scatter_std(src, torch.tensor([0, 0, 1]))
    assert deviation.dtype == dtype
    torch.testing.assert_close(deviation, torch.tensor([2**0.5, 0.0], dtype=dtype))


@pytest.mark.parametrize("reduce", ["sum", "mean", "min", "max"])
def test_runs_of_rows_without_entries_have_rows(reduce):
    assert segment_coo(torch.zeros(4, 0), torch.tensor([0, 0, 1, 3]), reduce=reduce).shape == (4, 0)


def test_small_indices_and_whole_numbers():
    index = torch.tensor([0, 0, 1], dtype=torch.int32)
    src = torch.tensor([[1.0], [3.0], [5.0]])
    assert torch_scatter.scatter_mean(src, index, dim=0).tolist() == [[2.0], [5.0]]
    assert torch_scatter.scatter_std(src, index, dim=0).flatten().tolist() == pytest.approx([2**0.5, 0.0])
    whole = torch_scatter.scatter_std(torch.tensor([1, 2, 7, 7]), torch.tensor([0, 0, 1, 1]))
    assert whole.tolist() == pytest.approx([0.5**0.5, 0.0])


def test_a_product_into_out_has_a_gradient():
    src = torch.tensor([2.0, 3.0], requires_grad=True)
    torch_scatter.scatter_mul(src, torch.tensor([0, 0]), out=torch.tensor([5.0])).sum().backward()
    assert src.grad.tolist() == [15.0, 10.0]
