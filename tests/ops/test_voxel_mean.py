"""The mean over the cells of a grid."""

from __future__ import annotations

import pytest
import torch

import gridless as gl
from gridless.ops.voxel_mean import _mean, _spread, voxel_mean

CELLS = 11


def rows(device, dtype=torch.float32, channels=70, count=100, index=torch.int64):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(count, channels, generator=generator).to(device, dtype)
    cell = torch.randint(-1, CELLS - 2, (count,), generator=generator)  # the last cells stay empty
    cell[40:80] = 4  # more than a block of rows
    return features, cell.to(device, index)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_averages_the_rows_of_each_cell(device, dtype, index):
    features, cell = rows(device, dtype, index=index)
    mean = voxel_mean(features, cell, CELLS)
    assert mean.dtype == dtype
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-14, torch.bfloat16: 1e-2, torch.float16: 1e-3}[dtype]
    for v in range(CELLS):
        here = features[cell == v].double()
        expected = here.mean(0) if len(here) else torch.zeros_like(mean[v], dtype=torch.float64)
        torch.testing.assert_close(mean[v].double(), expected, rtol=tolerance, atol=tolerance)


def test_cells_of_many_rows_keep_their_digits():
    features = torch.full((1_000_000, 1), 0.1)
    assert float(voxel_mean(features, torch.zeros(len(features), dtype=torch.int64), 1)) == float(features[0])


def test_rows_without_a_cell_are_not_read(device):
    features, cell = rows(device)
    features[cell < 0] = torch.nan
    features.requires_grad_()
    mean = voxel_mean(features, cell, CELLS)
    assert mean.isfinite().all()
    (grad,) = torch.autograd.grad(mean.sum(), features)
    assert grad.isfinite().all()
    assert (grad[cell < 0] == 0).all()


def test_gradients_and_second_derivatives_are_right(device):
    features = torch.randn(6, 2, dtype=torch.float64, device=device, requires_grad=True)
    cell = torch.tensor([3, -1, 0, 3, 0, 2], device=device)
    assert torch.autograd.gradcheck(lambda x: voxel_mean(x, cell, 5), features)
    assert torch.autograd.gradgradcheck(lambda x: voxel_mean(x, cell, 5) ** 2, features)


@pytest.mark.parametrize(("count", "channels", "cells"), [(0, 3, 4), (0, 3, 0), (5, 0, 4), (5, 3, 0)])
def test_nothing_to_average(device, count, channels, cells):
    features = torch.ones(count, channels, device=device, requires_grad=True)
    cell = torch.full((count,), -1, device=device)
    mean = voxel_mean(features, cell, cells)
    assert mean.shape == (cells, channels)
    assert (mean == 0).all()
    (grad,) = torch.autograd.grad(mean.sum(), features)
    assert grad.shape == features.shape


def test_is_a_well_formed_operator():
    features, cell = rows("cpu", channels=4)
    features.requires_grad_()
    torch.library.opcheck(_mean.registered, (features, cell, CELLS))
    values = torch.randn(CELLS, 4, requires_grad=True)
    torch.library.opcheck(_spread.registered, (values, cell, torch.bincount(cell[cell >= 0], minlength=CELLS)))


@pytest.mark.slow
def test_compiles_without_breaks():
    features, cell = rows("cpu", channels=4)
    features.requires_grad_()
    compiled = torch.compile(lambda x: voxel_mean(x * 2, cell, CELLS), fullgraph=True, backend="aot_eager")
    plain = voxel_mean(features * 2, cell, CELLS)
    torch.testing.assert_close(compiled(features), plain)
    gradients = [torch.autograd.grad(y.square().sum(), features)[0] for y in (compiled(features), plain)]
    torch.testing.assert_close(*gradients)


def test_refuses_what_it_cannot_average():
    features, cell = rows("cpu")
    with pytest.raises(TypeError, match=r"features.*torch\.int32"):
        voxel_mean(features.int(), cell, CELLS)
    with pytest.raises(ValueError, match=r"cell.*integer"):
        voxel_mean(features, cell[1:], CELLS)
    with pytest.raises(ValueError, match=r"cell.*integer"):
        voxel_mean(features, cell.float(), CELLS)
    with pytest.raises(ValueError, match=r"features.*\(rows, channels\)"):
        voxel_mean(features[:, 0], cell, CELLS)
    for backend in ("reference", "cpu"):
        with gl.use_backend(backend):
            with pytest.raises(ValueError, match=r"cells.*\[0, "):
                voxel_mean(features, cell, int(cell.max()))
            with pytest.raises(ValueError, match=r"cells.*\[0, "):
                voxel_mean(features, cell - 1, CELLS)
    with pytest.raises(ValueError, match="meta"):
        voxel_mean(features.to("meta"), cell, CELLS)
    with pytest.raises(ValueError, match=r"cells.*-1"):
        voxel_mean(features, cell, -1)


def test_more_rows_than_float16_can_count_have_the_right_gradient(device):
    features = torch.zeros(70_000, 1, dtype=torch.float16, device=device, requires_grad=True)
    mean = voxel_mean(features, torch.zeros(70_000, dtype=torch.int64, device=device), 1)
    (grad,) = torch.autograd.grad(mean, features, torch.full_like(mean, 1000.0))
    torch.testing.assert_close(grad.unique().cpu(), torch.tensor([1000 / 70_000]).half())


def test_the_reference_takes_part_in_transforms():
    features, cell = torch.randn(2, 9, 3), torch.tensor([0, 2, -1, 2, 0, 1, 1, 2, 0])
    with gl.use_backend("reference"):
        both = torch.func.vmap(lambda x: voxel_mean(x, cell, 4))(features)
        assert torch.equal(both, torch.stack([voxel_mean(x, cell, 4) for x in features]))
        slope = torch.func.jvp(lambda x: voxel_mean(x, cell, 4), (features[0],), (features[1],))[1]
        assert torch.equal(slope, both[1])
