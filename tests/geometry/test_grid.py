"""Grid sampling."""

from __future__ import annotations

import pytest
import torch
from clouds import lattice, scattered, ugly
from hypothesis import given, settings
from hypothesis import strategies as st

import gridless as gl


def reference(cloud: gl.Cloud, *args, **kwargs) -> gl.Cloud:
    with gl.use_backend("reference"):
        return gl.grid_sample(cloud, *args, **kwargs)


def assert_same(sample: gl.Cloud, wanted: gl.Cloud) -> None:
    sample = sample.cpu()
    assert torch.equal(sample.splits, wanted.splits)
    assert torch.equal(sample.coords, wanted.coords)
    assert (sample.parent_index is None) == (wanted.parent_index is None)
    assert sample.parent_index is None or torch.equal(sample.parent_index, wanted.parent_index)
    assert list(sample.rows) == list(wanted.rows)
    for name, values in sample.rows.items():
        assert values.dtype == wanted.rows[name].dtype
        torch.testing.assert_close(values, wanted.rows[name], rtol=0, atol=0)


def rich(dim: int, dtype: torch.dtype) -> gl.Cloud:
    cloud = ugly(dim, dtype)
    drawn = torch.Generator().manual_seed(0)
    label = torch.randint(0, 4, (len(cloud),), generator=drawn)
    rgb = torch.randint(0, 256, (len(cloud), 3), generator=drawn).byte()
    return gl.Cloud.of(cloud, label=label, rgb=rgb, height=torch.rand(len(cloud), generator=drawn))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [1, 2, 3, 8])
@pytest.mark.parametrize("keep", ["first", "nearest", "mean"])
def test_every_backend_gives_the_points_and_rows_of_the_reference(backend, device, keep, dim, dtype):
    cloud = rich(dim, dtype)
    rows = {"label": "most", "rgb": "mean"}
    wanted = reference(cloud, 0.3, keep, rows)
    assert_same(gl.grid_sample(cloud.to(device), 0.3, keep, rows), wanted)
    assert len(wanted) < len(cloud)


@pytest.mark.parametrize("keep", ["first", "nearest", "mean"])
def test_an_example_of_a_batch_is_sampled_as_if_it_were_alone(backend, device, keep):
    cloud = rich(3, torch.float32).to(device)
    together = gl.grid_sample(cloud, 0.3, keep, {"label": "most"})
    for one, whole in zip(together.examples, cloud.examples, strict=True):
        alone = gl.grid_sample(whole, 0.3, keep, {"label": "most"})
        assert torch.equal(one.coords, alone.coords)
        assert torch.equal(one.rows["label"], alone.rows["label"])


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 200), st.floats(0.01, 3), st.integers(0, 1000))
def test_each_cell_gives_one_point_of_its_own(count, cell, seed):
    x = scattered(count, 3, seed=seed) * 4 - 2
    label = torch.arange(count) % 3
    cells = (x.double() / cell).floor()
    wanted = {tuple(row): [] for row in cells.tolist()}
    for i, row in enumerate(cells.tolist()):
        wanted[tuple(row)].append(i)
    cloud = gl.Cloud.of(x, label=label)
    first = gl.grid_sample(cloud, cell)
    assert first.parent_index.tolist() == [members[0] for members in wanted.values()]
    nearest = gl.grid_sample(cloud, cell, "nearest")
    centre = (cells + 0.5) * cell
    away = (x.double() - centre).square().sum(1)
    assert nearest.parent_index.tolist() == sorted(min(m, key=lambda i: (away[i], i)) for m in wanted.values())
    mean = gl.grid_sample(cloud, cell, "mean", {"label": "most"})
    for i, members in enumerate(wanted.values()):
        torch.testing.assert_close(mean.coords[i], x[members].double().mean(0).float())
        labels = label[members].tolist()
        assert int(mean.rows["label"][i]) == min(set(labels), key=lambda v: (-labels.count(v), v))


def test_cells_stay_where_they_are_when_the_origin_moves(backend, device):
    # Multiples of 1/1024, which float32 holds: what a scene and its tiles share.
    x = (scattered(500, 3) * 8192).round() / 1024
    whole = gl.grid_sample(gl.Cloud.of(x.to(device)), 0.05)
    offset = torch.tensor([4.5, -3.25, 1.0])
    moved = gl.grid_sample(gl.Cloud.of((x - offset).to(device)), 0.05, origin=offset.tolist())
    assert torch.equal(whole.parent_index, moved.parent_index)


@pytest.mark.parametrize("cell", [0.05, 0.1])
def test_points_on_borders_of_cells_are_divided_as_numbers_are(backend, device, cell):
    x = torch.arange(400).div(20).double()
    sample = gl.grid_sample(gl.Cloud.of(x[:, None].to(device)), cell)
    numbers = [int(value // 1) for value in (x.numpy() / cell)]
    assert sample.parent_index.tolist() == [i for i, n in enumerate(numbers) if not i or n != numbers[i - 1]]


def test_of_equally_near_points_every_backend_keeps_the_first(backend, device):
    cloud = gl.Cloud.of(lattice(500, 3) + 400000.0)
    assert_same(gl.grid_sample(cloud.to(device), 0.3, "nearest"), reference(cloud, 0.3, "nearest"))


def test_cells_that_are_far_apart_are_told_apart(backend, device):
    x = torch.tensor([[0.0, 0.0, 0.0], [1e6, -1e6, 1e6], [0.0, 0.0, 0.0], [1e6, -1e6, 1e6], [1e6, 1e6, 1e6]])
    sample = gl.grid_sample(gl.Cloud.of(x.double().to(device)), 1e-9)
    assert sample.parent_index.tolist() == [0, 1, 4]


def test_the_mean_of_whole_numbers_is_exact_beyond_what_float64_counts(backend, device):
    far = 2**60 + 1
    time = torch.tensor([far, far + 2, 1, -far, 2, 3])
    pair = torch.stack([time, time + 1], 1)
    cloud = gl.Cloud.of(torch.tensor([0.1, 0.2, 1.1, 2.1, 3.1, 3.2])[:, None], time=time, pair=pair).to(device)
    sample = gl.grid_sample(cloud, 1.0, rows={"time": "mean", "pair": "mean"})
    # 2.5 and 3.5 go to the even number.
    assert sample.rows["time"].tolist() == [far + 1, 1, -far, 2]
    assert sample.rows["pair"].tolist() == [[far + 1, far + 2], [1, 2], [-far, 1 - far], [2, 4]]


def test_padding_is_no_point(backend, device):
    x = scattered(20, 3)
    padded = gl.Cloud(torch.cat([x, torch.full((5, 3), 7.0)]), torch.tensor([0, 20]), padding=5).to(device)
    assert torch.equal(gl.grid_sample(padded, 0.4).cpu().coords, reference(gl.Cloud.of(x), 0.4).coords)


def test_a_plan_samples_by_cells():
    plan = gl.Plan()
    cloud = plan.points()
    few = plan.grid_sample(cloud, 0.25, "nearest", {"label": "most"})
    near = plan.ball(few, few, 0.5)
    assert str(plan.steps[few]) == "grid_sample(X0, cell=0.25, keep=nearest, rows=(('label', 'most'),))"
    x = gl.Cloud.of(scattered(300, 3), label=torch.arange(300) % 5)
    geometry = plan(x)
    assert torch.equal(geometry[few].coords, gl.grid_sample(x, 0.25, "nearest").coords)
    assert torch.equal(geometry[few].rows["label"], gl.grid_sample(x, 0.25, "nearest", {"label": "most"}).rows["label"])
    assert geometry[near].num_source == len(geometry[few])
    with pytest.raises(ValueError, match=r"keep .*first, nearest, mean.*middle"):
        plan.grid_sample(cloud, 0.25, "middle")
    with pytest.raises(ValueError, match=r"cell .*-1"):
        plan.grid_sample(cloud, -1)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"cell": 0}, "cell .*0"),
        ({"cell": float("nan")}, "cell .*nan"),
        ({"cell": "0.1"}, r"cell .*'0\.1'"),
        ({"cell": 0.1, "keep": "last"}, "keep .*'last'"),
        ({"cell": 0.1, "rows": {"height": "most"}}, "'height'.*most"),
        ({"cell": 0.1, "rows": {"wave": "mean"}}, "'wave' .*complex"),
        ({"cell": 0.1, "rows": {"wave": "most"}}, "'wave' .*complex"),
        ({"cell": 0.1, "rows": {"height": "sum"}}, "'sum'.* kept, mean, most"),
        ({"cell": 1e-18}, "cell.*1e-18"),
        ({"cell": 0.1, "origin": [0.0, float("nan"), 0.0]}, r"origin .* 3 .*\[0\.0, nan, 0\.0\]"),
        ({"cell": 0.1, "origin": [float("inf"), 0.0, 0.0]}, "origin .* 3 .*inf"),
        ({"cell": 0.1, "origin": [1.0]}, r"origin .* 3 .*\[1\.0\]"),
    ],
)
def test_refuses_by_name(arguments, error):
    cloud = gl.Cloud.of(scattered(5, 3) + 1, height=torch.rand(5), wave=torch.rand(5, dtype=torch.complex64))
    with pytest.raises(ValueError, match=error):
        gl.grid_sample(cloud, **arguments)


def test_refuses_rows_that_are_not_there(backend, device):
    with pytest.raises(KeyError, match="'label'"):
        gl.grid_sample(gl.Cloud.of(scattered(3, 3).to(device)), 0.1, rows={"label": "most"})


def test_means_have_gradients():
    coords, values = (torch.rand(9, n, requires_grad=True) for n in (3, 2))
    sample = gl.grid_sample(gl.Cloud.of(coords, values=values), 0.5, keep="mean")
    grads = torch.autograd.grad(sample.coords.sum() + sample.rows["values"].sum(), (coords, values))
    assert all(torch.isclose(grad.sum(0), torch.tensor(float(len(sample)))).all() for grad in grads)


@pytest.mark.parametrize("keep", ["first", "nearest"])
def test_a_point_that_is_kept_keeps_its_own_rows(keep):
    cloud = gl.Cloud.of(torch.rand(50, 3), heat=torch.rand(50))
    sample = gl.grid_sample(cloud, 0.5, keep=keep)
    assert torch.equal(sample.rows["heat"], cloud.rows["heat"][sample.parent_index])
