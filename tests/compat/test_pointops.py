"""pointops' functions, compared with distances of all pairs."""

import pytest
import torch
from devices import DEVICES
from torch.autograd import gradcheck

from gridless.compat import pointops


@pytest.fixture(params=DEVICES)
def scene(request):
    """Two examples of 40 and 80 points, with 12 and 9 targets: xyz, offset, new_xyz, new_offset, distances."""
    generator = torch.Generator().manual_seed(0)
    xyz, new_xyz = torch.rand(120, 3, generator=generator), torch.rand(21, 3, generator=generator)
    offset, new_offset = torch.tensor([40, 120], dtype=torch.int32), torch.tensor([12, 21], dtype=torch.int32)
    distance = torch.cdist(new_xyz.double(), xyz.double())
    same = pointops.offset2batch(new_offset)[:, None] == pointops.offset2batch(offset)
    distance[~same] = torch.inf
    return [x.to(request.param) for x in (xyz, offset, new_xyz, new_offset, distance)]


def test_knn_finds_the_nearest_of_the_same_example(scene):
    *clouds, distance = scene
    index, distances = pointops.knn_query(8, *clouds)
    nearest, order = distance.sort(1)
    assert index.dtype == torch.int32
    assert index.long().equal(order[:, :8])
    torch.testing.assert_close(distances.double(), nearest[:, :8], rtol=1e-5, atol=1e-6)


def test_missing_neighbours_are_minus_one_and_far_away():
    xyz, offset = torch.rand(5, 3), torch.tensor([2, 5])
    index, distance = pointops.knn_query(4, xyz, offset)
    assert (index[:2, 2:] == -1).all()
    assert (index[2:, 3:] == -1).all()
    assert (distance[index < 0] == 1e5).all()
    assert index[:, 0].tolist() == [0, 1, 2, 3, 4]


def test_a_ball_is_thinned_evenly(scene):
    *clouds, distance = scene
    index, distances = pointops.ball_query(4, 0.45, 0.15, *clouds)
    for row, line in enumerate(distance):
        inside = ((line >= 0.15) & (line < 0.45)).nonzero().flatten()
        inside = inside[line[inside].argsort()]
        step = max(len(inside) / 4, 1)
        expected = [int(inside[int(i * step)]) for i in range(min(4, len(inside)))]
        assert index[row].tolist() == expected + [-1] * (4 - len(expected))
        torch.testing.assert_close(distances[row, : len(expected)].double(), line[expected], rtol=1e-5, atol=1e-6)


def test_a_random_ball_has_points_of_the_ball_once(scene):
    *clouds, distance = scene
    torch.manual_seed(0)
    index, _ = pointops.random_ball_query(6, 0.45, 0.15, *clouds)
    for row, line in enumerate(distance):
        inside = set(((line >= 0.15) & (line < 0.45)).nonzero().flatten().tolist())
        drawn = [i for i in index[row].tolist() if i >= 0]
        assert len(set(drawn)) == len(drawn) == min(6, len(inside))
        assert set(drawn) <= inside
    assert not pointops.random_ball_query(6, 0.45, 0.15, *clouds)[0].equal(index)
    with pytest.raises(ValueError, match="min_radius 2"):
        pointops.ball_query(6, 1, 2, *clouds)


def test_farthest_points_begin_with_the_first_and_are_far(scene):
    xyz, offset, *_ = scene
    chosen = pointops.farthest_point_sampling(xyz, offset, torch.tensor([3, 8], device=xyz.device)).tolist()
    assert [chosen[0], chosen[3]] == [0, 40]
    for begin, end, first, last in ((0, 40, 0, 3), (40, 120, 3, 8)):
        for size in range(first + 1, last):
            nearest = torch.cdist(xyz[begin:end], xyz[chosen[first:size]]).amin(1)
            assert begin + int(nearest.argmax()) == chosen[size]


def test_grouping_takes_features_and_offsets_and_zero_where_there_is_no_neighbour():
    xyz, feat = torch.rand(5, 3), torch.rand(5, 2)
    idx = torch.tensor([[1, -1], [4, 0]], dtype=torch.int32)
    new_xyz = torch.rand(2, 3)
    grouped = pointops.grouping(idx, feat, xyz, new_xyz, with_xyz=True)
    assert grouped[0, 0].equal(torch.cat([xyz[1] - new_xyz[0], feat[1]]))
    assert grouped[0, 1].tolist() == [0] * 5
    assert pointops.grouping(idx, feat, xyz)[1].equal(feat[[4, 0]])
    assert pointops.grouping2(feat, idx.clamp(min=0))[1].equal(feat[[4, 0]])
    group, same = pointops.knn_query_and_group(feat, xyz, torch.tensor([5]), nsample=3, with_xyz=True)
    assert group.shape == (5, 3, 5)
    assert pointops.grouping(same, feat, xyz, with_xyz=True).equal(group)
    ball, _ = pointops.ball_query_and_group(feat, xyz, torch.tensor([5]), max_radio=2.0, nsample=3)
    assert ball.shape == (5, 3, 2)


def test_query_and_group_skips_neighbours_by_its_dilation(scene):
    xyz, offset, new_xyz, new_offset, distance = scene
    feat = torch.rand(len(xyz), 2, device=xyz.device)
    idx = pointops.query_and_group(4, xyz, new_xyz, feat, None, offset, new_offset, dilation=2, with_feat=False)
    assert idx.long().equal(distance.argsort(1)[:, [0, 3, 6, 9]])
    grouped, again = pointops.query_and_group(4, xyz, new_xyz, feat, idx, offset, new_offset)
    assert again is idx
    assert grouped[..., 3:].equal(feat[idx.long()])


def test_interpolation_weighs_by_distance_and_has_gradients(scene):
    xyz, offset, new_xyz, new_offset, distance = scene
    feat = torch.rand(len(xyz), 2, device=xyz.device, dtype=torch.double, requires_grad=True)
    result = pointops.interpolation(xyz, new_xyz, feat, offset, new_offset)
    nearest, order = distance.topk(3, largest=False)
    weight = (1 / (nearest + 1e-8)) / (1 / (nearest + 1e-8)).sum(1, keepdim=True)
    torch.testing.assert_close(result, (feat[order] * weight[..., None]).sum(1), rtol=1e-5, atol=1e-6)
    assert gradcheck(lambda x: pointops.interpolation(xyz, new_xyz, x, offset, new_offset), feat)
    idx, _ = pointops.knn_query(3, xyz, offset, new_xyz, new_offset)
    assert gradcheck(lambda x: pointops.grouping(idx, x, xyz, new_xyz, True), feat)


def test_steps_of_attention_are_sums_over_pairs():
    query, key, value = (torch.randn(5, 2, 3, dtype=torch.double, requires_grad=True) for _ in range(3))
    target, refer, weight = torch.tensor([0, 0, 3]), torch.tensor([1, 2, 4]), torch.rand(3, dtype=torch.double)
    score = pointops.attention_relation_step(query, key, weight, target, refer)
    torch.testing.assert_close(score, torch.einsum("mgc,mgc,c->mg", query[target], key[refer], weight))
    fused = pointops.attention_fusion_step(score, value, target, refer)
    torch.testing.assert_close(fused[0], score[0, :, None] * value[1] + score[1, :, None] * value[2])
    assert fused[1].abs().sum() == 0
    idx = torch.tensor([[0, 1], [1, 2], [4, 4], [3, 0], [2, 2]])
    x, position = torch.rand(5, 4), torch.rand(5, 2, 4)
    assert pointops.subtraction(x, x, idx)[1, 1].equal(x[1] - x[2])
    weights = torch.rand(5, 2, 2)
    summed = pointops.aggregation(x, position, weights, idx)
    expected = sum((x[idx[0, s], 3] + position[0, s, 3]) * weights[0, s, 1] for s in range(2))
    torch.testing.assert_close(summed[0, 3], expected)


def test_offsets_and_batches_are_each_others_inverse():
    offset = torch.tensor([2, 2, 5], dtype=torch.int32)
    batch = pointops.offset2batch(offset)
    assert batch.tolist() == [0, 0, 2, 2, 2]
    assert pointops.batch2offset(batch).equal(offset)


@pytest.mark.parametrize("device", DEVICES)
def test_gradients_have_the_same_bits_twice(device):
    feat = torch.randn(50, 32, device=device, requires_grad=True)
    idx, upstream = torch.randint(0, 50, (3000, 8), device=device), torch.randn(3000, 8, 32, device=device)
    grads = [torch.autograd.grad(pointops.grouping(idx, feat, feat), feat, upstream)[0] for _ in range(4)]
    assert all(grads[0].equal(other) for other in grads[1:])


def test_an_example_with_too_few_points_is_filled_up():
    x, offset, wanted = torch.rand(10, 3), torch.tensor([4, 10]), torch.tensor([6, 12])
    index = pointops.farthest_point_sampling(x, offset, wanted)
    assert len(index) == 12
    assert sorted(index[:4].tolist()) == [0, 1, 2, 3]
    assert index[4:6].tolist() == [0, 0]
    assert sorted(index[6:].tolist()) == [4, 5, 6, 7, 8, 9]
    assert pointops.knn_query(3, x, offset, x[index.long()], wanted)[0].shape == (12, 3)
