"""torch_cluster's functions mean what torch_cluster's mean, and PyG's own functions call them."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch

from gridless.compat.torch_cluster import fps, grid_cluster, knn, knn_graph, nearest, radius, radius_graph

REAL = [torch.half, torch.bfloat16, torch.float, torch.double]
SQUARE = [[-1, -1], [-1, 1], [1, 1], [1, -1]]
# Neighbours in a square, as (centre, neighbour).
SIDES = {(0, 1), (0, 3), (1, 0), (1, 2), (2, 1), (2, 3), (3, 0), (3, 2)}


def plane(points, dtype):
    """Points of a plane in space: kernels of three dimensions are compiled for other tests, too."""
    return torch.nn.functional.pad(torch.tensor(points, dtype=dtype), (0, 1))


def pairs(edges):
    return set(map(tuple, edges.t().tolist()))


@pytest.mark.parametrize("dtype", REAL)
def test_radius_finds_what_is_inside(dtype):
    x, y = plane(SQUARE * 2, dtype), plane([[0, 0], [0, 1]], dtype)
    assert pairs(radius(x, y, 2, max_num_neighbors=4)) == {
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
        (1, 5),
        (1, 6),
    }
    for last in (1, 2):
        batch_x, batch_y = torch.tensor([0] * 4 + [last] * 4), torch.tensor([0, last])
        expected = {(0, 0), (0, 1), (0, 2), (0, 3), (1, 5), (1, 6)}
        assert pairs(radius(x, y, 2, batch_x, batch_y, max_num_neighbors=4)) == expected
        assert pairs(radius(x, y, 2, batch_x, batch_y, 4, 6, 5)) == expected


@pytest.mark.parametrize("dtype", REAL)
def test_radius_graph_joins_neighbours_and_never_more_than_it_may(dtype):
    x = plane(SQUARE, dtype)
    assert pairs(radius_graph(x, r=2.5, flow="target_to_source")) == SIDES
    assert pairs(radius_graph(x, r=2.5)) == {(j, i) for i, j in SIDES}
    # The points may be one and the same.
    for points, batch in ((x, None), (x * 0, None), (x.repeat(2, 1), torch.arange(8) // 4)):
        edges = radius_graph(points, 100, batch, max_num_neighbors=1)
        assert edges[1].tolist() == list(range(len(points)))
        assert (edges[0] != edges[1]).all()
        assert (edges[0] // 4).equal(edges[1] // 4)


def test_radius_is_without_its_surface_and_may_be_endless():
    x = plane([[0.0, 0], [1, 0], [2, 0], [2, 0]], torch.float)
    assert pairs(radius(x, x[:1], 2)) == {(0, 0), (0, 1)}
    assert pairs(radius(x, x[:1], 2.001)) == {(0, 0), (0, 1), (0, 2), (0, 3)}
    assert radius(x, x[:1], math.inf, max_num_neighbors=None).shape == (2, 4)
    assert radius(x, x, 0).shape == (2, 0)
    # More than eight dimensions are searched in another way.
    wide = torch.nn.functional.pad(x, (0, 9))
    assert pairs(radius(wide, wide[:1], 2)) == {(0, 0), (0, 1)}
    assert pairs(radius(wide, wide[:1], 2.001, max_num_neighbors=3)) == {(0, 0), (0, 1), (0, 2)}


@pytest.mark.parametrize("dim", [3, 12])
@pytest.mark.parametrize("limit", [0, 1, 5])
def test_of_others_too_the_nearest_are_kept(dim, limit):
    draw = torch.Generator().manual_seed(5)
    x, y = torch.rand(60, dim, generator=draw), torch.rand(90, dim, generator=draw)
    reach = 0.4 if dim == 3 else 1.2
    for a, b in ((x, y), (y, x), (x, x)):
        distance = torch.cdist(b.double(), a.double()).fill_diagonal_(math.inf)
        nearest = distance.topk(limit, largest=False).indices
        inside = {(i, j) for i, row in enumerate(nearest.tolist()) for j in row if distance[i, j] < reach}
        edges = radius(a, b, reach, max_num_neighbors=limit, ignore_same_index=True)
        assert pairs(edges) == inside
        assert edges.shape[1] == len(inside)
        assert edges[0].equal(edges[0].sort().values)


@pytest.mark.parametrize("dim", [3, 20])
def test_large_searches_are_those_of_a_tree(dim):
    x = torch.randn(1000, dim, generator=torch.Generator().manual_seed(29))
    tree = pytest.importorskip("scipy.spatial").cKDTree(x.numpy())
    reach = 0.5 if dim == 3 else 4.0
    edges = radius_graph(x, r=reach, flow="target_to_source", loop=True, max_num_neighbors=2000)
    assert pairs(edges) == {(i, j) for i, near in enumerate(tree.query_ball_point(x, reach)) for j in near}
    edges, distance = knn_graph(x, k=5, flow="target_to_source", loop=True, return_distances=True)
    far, column = tree.query(x, k=5)
    assert edges.tolist() == [np.repeat(np.arange(1000), 5).tolist(), column.flatten().tolist()]
    np.testing.assert_allclose(distance, far.flatten() ** 2, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("dtype", REAL)
def test_knn_finds_the_nearest(dtype):
    x, y = plane(SQUARE * 2, dtype), plane([[1, 0], [-1, 0]], dtype)
    edges, distance = knn(x, y, 2, return_distances=True)
    assert pairs(edges) == {(0, 2), (0, 3), (1, 0), (1, 1)}
    assert distance.tolist() == [1, 1, 1, 1]
    for last in (1, 2):
        batch_x, batch_y = torch.tensor([0] * 4 + [last] * 4), torch.tensor([0, last])
        for cosine, far in ((False, 1), (True, 1 - math.cos(math.pi / 4))):
            edges, distance = knn(x, y, 2, batch_x, batch_y, cosine, return_distances=True)
            assert pairs(edges) == {(0, 2), (0, 3), (1, 4), (1, 5)}
            torch.testing.assert_close(distance, torch.full_like(distance, far))


@pytest.mark.parametrize("dtype", REAL)
def test_knn_graph_joins_each_with_k_others(dtype):
    x = plane(SQUARE, dtype)
    assert pairs(knn_graph(x, 2, flow="target_to_source")) == SIDES
    assert pairs(knn_graph(x, 2)) == {(j, i) for i, j in SIDES}
    edges = knn_graph(x * 0, 2)
    assert edges[1].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (edges[0] != edges[1]).all()


@pytest.mark.parametrize("dtype", REAL)
def test_nearest_gives_each_point_a_cluster(dtype):
    x = plane(SQUARE + [[-2, -2], [-2, 2], [2, 2], [2, -2]], dtype)
    y = plane([[-1, 0], [1, 0], [-2, 0], [2, 0]], dtype)
    batch_x, batch_y = torch.tensor([0] * 4 + [1] * 4), torch.tensor([0, 0, 1, 1])
    assert nearest(x, y, batch_x, batch_y).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert nearest(x, y).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for a, b in (
        (batch_x, [0, 0, 0, 0]), (batch_x, None), ([0, 0, 1, 1, 2, 2, 3, 3], [0, 1, 3, 3]),
        ([0, 0, 1, 0, 0, 0, 0], batch_y), (batch_x, [0, 0, 1, 0]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"nearest"):
            nearest(x, y, torch.as_tensor(a), None if b is None else torch.as_tensor(b))


@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("dim", [3, 12])
def test_fps_takes_ratios_of_every_kind(dtype, dim):
    x = plane(SQUARE + [[-2, -2], [-2, 2], [2, 2], [2, -2]], dtype)
    x = torch.nn.functional.pad(x, (0, dim - 3))
    batch = torch.arange(8) // 4
    for ratio in (None, 0.5, torch.tensor(0.5), torch.tensor([0.5, 0.5])):
        assert fps(x, batch, ratio, random_start=False).tolist() == [0, 2, 4, 6]
        assert fps(x, ptr=[0, 4, 8], ratio=ratio, random_start=False).tolist() == [0, 2, 4, 6]
        assert fps(x, ptr=torch.tensor([0, 4, 8]), ratio=ratio, random_start=False).tolist() == [0, 2, 4, 6]
    for ratio in (None, 0.5, torch.tensor([0.5])):
        assert fps(x, None, ratio, False).sort().values.tolist() == [0, 5, 6, 7]
    assert fps(x, batch * 2, torch.tensor([0.25, 0.5, 0.75]), False).tolist() == [0, 4, 6, 5]
    with pytest.raises(ValueError, match=r"ratio.*0\.0"):
        fps(x, ratio=0.0)


def test_fps_begins_anywhere_in_each_example():
    torch.manual_seed(0)
    x, batch = torch.randn(2048, 3), torch.arange(2048) // 1024
    starts = set()
    for _ in range(8):
        taken = fps(x, batch, 0.5)
        assert len(taken.unique()) == 1024
        assert (taken[:512] < 1024).all()
        assert (taken[512:] >= 1024).all()
        starts.add((int(taken[0]), int(taken[512]) - 1024))
    assert len(starts) > 4
    assert any(a != b for a, b in starts)


@pytest.mark.parametrize("dtype", [*REAL, torch.int, torch.long])
def test_grid_cluster_numbers_voxels(dtype):
    points = [[0, 0], [11, 9], [2, 8], [2, 2], [8, 3]]
    for pos, size, start, end, cluster in (
        ([2, 6], [5], None, None, [0, 0]),
        ([2, 6], [5], [0], None, [0, 1]),
        (points, [5, 5], None, None, [0, 5, 3, 0, 1]),
        (points, [5, 5], None, [19, 19], [0, 6, 4, 0, 1]),
    ):
        tensors = (None if v is None else torch.tensor(v, dtype=dtype) for v in (pos, size, start, end))
        assert grid_cluster(*tensors).tolist() == cluster


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_grid_cluster_is_scripted():
    scripted = torch.jit.script(grid_cluster)
    size, corner = torch.tensor([0.5, 1.0, 2.0]), torch.zeros(3)
    points = torch.rand(100, 3, generator=torch.Generator().manual_seed(0)) * 4
    for tensors in (
        (points, size),
        (points, size, corner),
        (points, size, corner, corner + 9),
        (points[:, 0], size[:1]),
        (points.view(100, 3, 1), size),
        (points[:0], size),
    ):
        assert torch.equal(scripted(*tensors), grid_cluster(*tensors))


def test_nothing_is_found_in_nothing_and_bad_batches_are_refused():
    x, none = torch.rand(4, 3), torch.rand(0, 3)
    for a, b in ((x, none), (none, x), (none, none)):
        assert radius(a, b, 1.0).shape == knn(a, b, 2).shape == (2, 0)
    assert fps(none).tolist() == []
    assert grid_cluster(none, torch.ones(3)).tolist() == []
    with pytest.raises(ValueError, match=r"batch_x.*sorted"):
        knn(x, x, 2, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match="batch_x and batch_y"):
        knn(x, x, 2, torch.tensor([0, 0, 1, 1]))
    with pytest.raises(ValueError, match=r"batch_x.* 3"):
        knn(x, x, 2, torch.tensor([0, 0, 1, 3]), torch.tensor([0, 0, 1, 3]), batch_size=2)


@pytest.mark.parametrize("dim", [3, 12])
def test_points_that_are_not_finite_and_numbers_below_nothing_are_refused(dim):
    x = torch.zeros(4, dim)
    for refused in (
        lambda: radius_graph(x, 1.0, max_num_neighbors=-1), lambda: knn_graph(x, -1), lambda: knn(x, x, 0),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"(max_num_neighbors|k)\b.*(-1|0)$"):
            refused()
    x[2, 1] = math.nan
    for refused in (lambda: radius_graph(x, 1.0), lambda: knn_graph(x, 1), lambda: fps(x)):
        with pytest.raises(ValueError, match=r"1 points.* finite.* row 2 of example 0"):
            refused()


@pytest.mark.slow
def test_compiled_code_may_call_them():
    x = plane(SQUARE, torch.float)
    assert pairs(torch.compile(radius_graph, backend="eager")(x, r=2.5, flow="target_to_source")) == SIDES


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", REAL)
@pytest.mark.parametrize("dim", [3, 20])
def test_cuda_gives_what_the_cpu_gives(dtype, dim):
    draw = torch.Generator().manual_seed(3)
    x, y = (torch.randn(n, dim, generator=draw).to(dtype) for n in (3000, 1000))
    batch_x, batch_y = torch.arange(3000) // 1000 * 2, torch.arange(1000) // 334 * 2
    reach, size = (0.5, torch.full((dim,), 0.7, dtype=dtype)) if dim == 3 else (4.5, torch.full((dim,), 3, dtype=dtype))
    functions = {
        "radius": lambda x, y, a, b: radius(x, y, reach, a, b, max_num_neighbors=None),
        "knn": lambda x, y, a, b: knn(x, y, 8, a, b),
        "cosine": lambda x, y, a, b: knn(x, y, 8, a, b, cosine=True),
        "knn_graph": lambda x, y, a, b: knn_graph(x, 8, a),
        "radius_graph": lambda x, y, a, b: radius_graph(x, reach, a, max_num_neighbors=1000),
        "nearest": nearest,
        "fps": lambda x, y, a, b: fps(x, a, torch.tensor([0.1, 0.5, 0.2, 0.5, 0.3], device=x.device), False),
        "grid": lambda x, y, a, b: grid_cluster(x[:, :3], size[:3].to(x.device)),
    }
    for name, function in functions.items():
        here = function(x, y, batch_x, batch_y)
        there = function(*(v.cuda() for v in (x, y, batch_x, batch_y))).cpu()
        # The order of nearly equal distances in many dimensions may differ by rounding.
        wrong = len(pairs(here) ^ pairs(there)) if here.ndim == 2 else int((here != there).sum())
        assert wrong <= (0 if dim == 3 and name != "cosine" else 0.002 * here.shape[-1]), name


# PyG, in a process of its own: `enable` is for the whole process.
PROGRAM = """
import torch, torch_geometric
from torch_geometric.nn import fps, knn, knn_graph, nearest, radius, radius_graph, voxel_grid
import gridless as gl
gl.pyg.enable()
x = torch.tensor([[-1.0, -1, 0], [-1, 1, 0], [1, -1, 0], [1, 1, 0]])
y, batch = torch.tensor([[-1.0, 0, 0], [1, 0, 0]]), torch.zeros(4, dtype=torch.long)
assert fps(x, batch, ratio=0.5).shape == (2,)
assert knn(x, y, 2, batch, batch[:2]).tolist() == [[0, 0, 1, 1], [0, 1, 2, 3]]
assert radius(x, y, 1.5, batch, batch[:2]).tolist() == [[0, 0, 1, 1], [0, 1, 2, 3]]
assert knn_graph(x, 2, batch).shape == radius_graph(x, 2.5, batch).shape == (2, 8)
assert radius_graph(x, 2.5, batch, loop=True).shape == (2, 12)
assert nearest(x, y, batch, batch[:2]).tolist() == [0, 0, 1, 1]
pos, batch = torch.tensor([[0.0, 0], [11, 9], [2, 8], [2, 2], [8, 3]]), torch.tensor([0, 0, 0, 1, 1])
assert voxel_grid(pos, size=5, batch=batch).tolist() == [0, 5, 3, 6, 7]
assert voxel_grid(pos, size=5, batch=batch, start=-1, end=[18, 14]).tolist() == [0, 10, 4, 16, 17]
assert voxel_grid(pos, size=5).tolist() == [0, 5, 3, 0, 1]
unsorted = torch.tensor([0, 1, 0, 1])
for call, message in (
    (lambda: knn_graph(x, 1, unsorted), "not sorted"), (lambda: fps(x, unsorted), "not sorted"),
    (lambda: torch_geometric.nn.DynamicEdgeConv(torch.nn.Linear(6, 4), 1)(x, unsorted), "not sorted"),
    (lambda: radius(x, x, 1.0, torch.arange(4), torch.arange(4), batch_size=2), "from 0 to 3"),
):
    try:
        call()
    except ValueError as error:
        assert message in str(error), error
    else:
        raise AssertionError(message)
import torch_cluster
assert torch_cluster.knn is gl.torch_cluster.knn

from torch_geometric.nn import (DynamicEdgeConv, GravNetConv, MLP, PointNetConv, PointTransformerConv, XConv, fps,
                                global_max_pool, knn_graph, knn_interpolate, radius)
from torch_geometric.typing import WITH_TORCH_CLUSTER
assert WITH_TORCH_CLUSTER
from torch_geometric.transforms import KNNGraph, RadiusGraph
from torch_geometric.data import Data
torch.manual_seed(0)
pos, batch = torch.rand(200, 3), torch.arange(200) // 100
index = fps(pos, batch, ratio=0.2)
row, col = radius(pos, pos[index], 0.3, batch, batch[index], max_num_neighbors=64)
conv = PointNetConv(MLP([3, 16, 32]), add_self_loops=False)
features = conv((None, None), (pos, pos[index]), torch.stack([col, row]))
up = knn_interpolate(features, pos[index], pos, batch[index], batch, k=3)
edges = DynamicEdgeConv(MLP([64, 32]), k=8)(up, batch)
edges = PointTransformerConv(32, 16)(edges, pos, knn_graph(pos, 8, batch))
out = torch.cat([edges, XConv(32, 16, 3, 8)(up, pos, batch), GravNetConv(32, 16, 4, 8, 8)(up, batch)], 1)
global_max_pool(out, batch).sum().backward()
assert KNNGraph(6)(Data(pos=pos)).edge_index.shape == (2, 1200)
assert RadiusGraph(0.1)(Data(pos=pos)).num_edges > 0
"""


@pytest.mark.slow
def test_pyg_runs_without_compiled_packages():
    pytest.importorskip("torch_geometric")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
