"""Pointcept's pointops by its names, over our own searches, without a compiler, on CPU and GPU.

`offset` (B) says where each example ends: example b is rows offset[b - 1] to offset[b] - 1. Searches return int32
indices (m, nsample), -1 where there are no more neighbours, and distances, 1e5 there.

Differences: all distances are correct (the original's `ball_query` returns indices instead if it thins a ball),
neighbourhoods may have any size, and equal distances are ordered by index.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gridless import geometry
from gridless.compat.rows import sum_rows, take_rows
from gridless.structures import Cloud, Edges

__all__ = [
    "aggregation",
    "attention_fusion_step",
    "attention_relation_step",
    "ball_query",
    "ball_query_and_group",
    "batch2offset",
    "farthest_point_sampling",
    "grouping",
    "grouping2",
    "interpolation",
    "interpolation2",
    "knn_query",
    "knn_query_and_group",
    "offset2batch",
    "query_and_group",
    "random_ball_query",
    "subtraction",
]

# The distance of neighbours that do not exist: the root of the original's 1e10.
_FAR = 1e5
# Points this near are in every ball, whatever its smallest radius: a squared distance.
_SAME = 1e-5


def knn_query(
    nsample: int, xyz: Tensor, offset: Tensor, new_xyz: Tensor | None = None, new_offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The `nsample` points of xyz (n, 3) nearest to each of new_xyz (m, 3), the nearest first: indices, distances."""
    source, target = _clouds(xyz, offset, new_xyz, new_offset)
    edges = geometry.nearest(source, target, nsample)
    squares = _squares(source, target, edges)
    return _table(edges.target.long(), edges.source, squares, _within_rows(edges, squares), len(target), nsample)


def ball_query(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Points of xyz between both radii (from min_radius, below max_radius) around each of new_xyz, the nearest first.

    A ball of `count` > `nsample` points is thinned evenly: sample i is its point int(i * count / nsample).
    """
    edges, squares, target = _shell("ball_query", max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    order = _within_rows(edges, squares)
    counts = edges.splits.diff()
    if len(counts) == 0:
        return _table(edges.target.long(), edges.source, squares, order, len(target), nsample)
    step = (counts.float() / nsample).clamp(min=1)[:, None]
    place = torch.arange(nsample, device=xyz.device)
    at = torch.where(counts[:, None] > nsample, (step * place).long(), place)
    exists = at < counts[:, None]
    slot = (edges.splits[:-1, None] + at)[exists]
    row = torch.arange(len(target), device=xyz.device)[:, None].expand_as(at)[exists]
    column = place.expand_as(at)[exists]
    return _fill(row, column, edges.source[order[slot]], squares[order[slot]], len(target), nsample)


def random_ball_query(
    nsample: int,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`nsample` points of `ball_query`'s shell in random order, by torch's generator, one order for all targets."""
    edges, squares, target = _shell("random_ball_query", max_radius, min_radius, xyz, offset, new_xyz, new_offset)
    place = torch.randperm(len(xyz), device=xyz.device)
    order = _within_rows(edges, place[edges.source.long()])
    return _table(edges.target.long(), edges.source, squares, order, len(target), nsample)


def farthest_point_sampling(xyz: Tensor, offset: Tensor, new_offset: Tensor) -> Tensor:
    """Rows (m) int32 of iteratively farthest points, from the first of each example; new_offset says how many.

    An example with fewer points is filled up with its first one.
    """
    sizes = torch.diff(new_offset.long(), prepend=new_offset.new_zeros(1).long()).to(xyz.device)
    sample = geometry.farthest_sample(Cloud(_real(xyz), _splits(offset, xyz)), sizes)
    assert sample.parent_index is not None
    if len(sample) == int(sizes.sum()):
        return sample.parent_index.int()
    begin = torch.cat([offset.new_zeros(1), offset[:-1]]).to(xyz.device)
    rows = begin.repeat_interleave(sizes).int()
    place = torch.arange(len(rows), device=xyz.device) - (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    rows[place < sample.sizes.repeat_interleave(sizes)] = sample.parent_index.int()
    return rows


def grouping(idx: Tensor, feat: Tensor, xyz: Tensor, new_xyz: Tensor | None = None, with_xyz: bool = False) -> Tensor:
    """Features of neighbours: idx (m, nsample), feat (n, c) to (m, nsample, c), 0 where idx is -1.

    With `with_xyz` the offset of each neighbour from its target, xyz[idx] - new_xyz, comes before its features.
    """
    exists = (idx >= 0)[..., None]
    row = idx.long().clamp(min=0)
    grouped = torch.where(exists, take_rows(feat, row), 0)
    if not with_xyz:
        return grouped
    centre = xyz if new_xyz is None else new_xyz
    return torch.cat([torch.where(exists, take_rows(xyz, row) - centre[:, None], 0), grouped], -1)


def grouping2(input: Tensor, idx: Tensor) -> Tensor:
    """Features of neighbours: input (n, c), idx (m, nsample) to (m, nsample, c)."""
    return take_rows(input, idx)


def interpolation(xyz: Tensor, new_xyz: Tensor, feat: Tensor, offset: Tensor, new_offset: Tensor, k: int = 3) -> Tensor:
    """Features (m, c) of the points new_xyz: means of their k nearest in xyz, weighted by one over the distance."""
    index, distance = knn_query(k, xyz, offset, new_xyz, new_offset)
    weight = 1 / (distance + 1e-8)
    weight = (weight / weight.sum(1, keepdim=True)).to(feat.dtype)
    return (grouping(index, feat, xyz) * weight[..., None]).sum(1)


interpolation2 = interpolation


def subtraction(input1: Tensor, input2: Tensor, idx: Tensor) -> Tensor:
    """input1[i] - input2[idx[i, s]]: (n, c), (n, c), (n, nsample) to (n, nsample, c)."""
    return input1[:, None] - take_rows(input2, idx)


def aggregation(input: Tensor, position: Tensor, weight: Tensor, idx: Tensor) -> Tensor:
    """Sums over s of (input[idx[i, s]] + position[i, s]) weight[i, s]; channel j takes weight channel j mod w."""
    repeats = position.shape[-1] // weight.shape[-1]
    return ((take_rows(input, idx) + position) * weight.repeat(1, 1, repeats)).sum(1)


def attention_relation_step(
    query: Tensor, key: Tensor, weight: Tensor, index_target: Tensor, index_refer: Tensor
) -> Tensor:
    """Scores (m, g) of pairs: sum over c of query[target] key[refer] weight, query and key (n, g, c), weight (c)."""
    return (take_rows(query, index_target) * take_rows(key, index_refer) * weight).sum(-1)


def attention_fusion_step(weight: Tensor, value: Tensor, index_target: Tensor, index_refer: Tensor) -> Tensor:
    """Sums (n, g, c) over the pairs of each target of weight (m, g) times value[refer] (n, g, c)."""
    return sum_rows(weight[..., None] * take_rows(value, index_refer), index_target, len(value))


def knn_query_and_group(
    feat: Tensor,
    xyz: Tensor,
    offset: Tensor | None = None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
    idx: Tensor | None = None,
    nsample: int | None = None,
    with_xyz: bool = False,
) -> tuple[Tensor, Tensor]:
    """`grouping` by `knn_query`, or by `idx` where given: (grouped, idx)."""
    if idx is None:
        if nsample is None or offset is None:
            raise ValueError("knn_query_and_group: nsample or offset is missing. Pass both, or idx.")
        idx, _ = knn_query(nsample, xyz, offset, new_xyz, new_offset)
    return grouping(idx, feat, xyz, new_xyz, with_xyz), idx


def ball_query_and_group(
    feat: Tensor,
    xyz: Tensor,
    offset: Tensor | None = None,
    new_xyz: Tensor | None = None,
    new_offset: Tensor | None = None,
    idx: Tensor | None = None,
    max_radio: float | None = None,
    min_radio: float = 0,
    nsample: int | None = None,
    with_xyz: bool = False,
) -> tuple[Tensor, Tensor]:
    """`grouping` by `ball_query`, or by `idx` where given: (grouped, idx)."""
    if idx is None:
        if nsample is None or offset is None or max_radio is None:
            raise ValueError("ball_query_and_group: nsample, offset or max_radio is missing. Pass all three, or idx.")
        idx, _ = ball_query(nsample, max_radio, min_radio, xyz, offset, new_xyz, new_offset)
    return grouping(idx, feat, xyz, new_xyz, with_xyz), idx


def query_and_group(
    nsample: int,
    xyz: Tensor,
    new_xyz: Tensor,
    feat: Tensor,
    idx: Tensor | None,
    offset: Tensor,
    new_offset: Tensor,
    dilation: int = 0,
    with_feat: bool = True,
    with_xyz: bool = True,
) -> Tensor | tuple[Tensor, Tensor]:
    """Neighbours of each point of new_xyz, every (dilation + 1)-th of the nearest: (grouped, idx), or idx alone.

    An example with too few points for the dilation spreads `nsample` neighbours over those it has.
    """
    new_xyz = xyz if new_xyz is None else new_xyz
    if idx is None:
        total = 1 + (nsample - 1) * (dilation + 1)
        nearest, _ = knn_query(total, xyz, offset, new_xyz, new_offset)
        sizes = _splits(offset, xyz).diff()
        spread = torch.where(sizes < total, (sizes - 1).double() / max(nsample - 1, 1), float(dilation + 1))
        column = (spread[:, None] * torch.arange(nsample, device=xyz.device)).long()
        idx = nearest.gather(1, column[offset2batch(new_offset)])
    if not with_feat:
        return idx
    # Missing neighbours (-1) are the last point, as in the original.
    row = torch.where(idx < 0, len(xyz) - 1, idx)
    grouped = take_rows(feat, row)
    return torch.cat([take_rows(xyz, row) - new_xyz[:, None], grouped], -1) if with_xyz else grouped, idx


def offset2batch(offset: Tensor) -> Tensor:
    """The example (n) int64 of each row."""
    sizes = torch.diff(offset.long(), prepend=offset.new_zeros(1).long())
    return torch.repeat_interleave(torch.arange(len(offset), device=offset.device), sizes)


def batch2offset(batch: Tensor) -> Tensor:
    """End of each example (B) int32, from the example of each row."""
    return batch.bincount().cumsum(0).int()


def _clouds(xyz: Tensor, offset: Tensor, new_xyz: Tensor | None, new_offset: Tensor | None) -> tuple[Cloud, Cloud]:
    source = Cloud(_real(xyz), _splits(offset, xyz))
    if new_xyz is None or new_offset is None or (new_xyz is xyz and new_offset is offset):
        return source, source
    return source, Cloud(_real(new_xyz), _splits(new_offset, xyz))


def _real(xyz: Tensor) -> Tensor:
    return xyz.detach().to(torch.float64 if xyz.dtype == torch.float64 else torch.float32).contiguous()


def _splits(offset: Tensor, xyz: Tensor) -> Tensor:
    return torch.cat([offset.new_zeros(1), offset]).to(xyz.device, torch.int64)


def _squares(source: Cloud, target: Cloud, edges: Edges) -> Tensor:
    return (source.coords[edges.source.long()] - target.coords[edges.target.long()]).square().sum(1)


def _shell(
    what: str,
    max_radius: float,
    min_radius: float,
    xyz: Tensor,
    offset: Tensor,
    new_xyz: Tensor | None,
    new_offset: Tensor | None,
) -> tuple[Edges, Tensor, Cloud]:
    """Edges to points between both radii, their squared distances, and the targets."""
    if not min_radius < max_radius:
        raise ValueError(f"{what}: min_radius {min_radius} is not below max_radius {max_radius}. Swap them.")
    source, target = _clouds(xyz, offset, new_xyz, new_offset)
    edges = geometry.ball(source, target, max(max_radius, _SAME**0.5))
    squares = _squares(source, target, edges)
    inside = (squares <= _SAME) | ((squares >= min_radius**2) & (squares < max_radius**2))
    row = edges.target.long()[inside]
    splits = torch.searchsorted(row, torch.arange(len(target) + 1, device=xyz.device))
    return Edges(splits, edges.source[inside], len(source)), squares[inside], target


def _within_rows(edges: Edges, key: Tensor) -> Tensor:
    """Edges in the order of their rows, and those of a row by ascending key."""
    order = key.argsort(stable=True)
    return order[edges.target.long()[order].argsort(stable=True)]


def _table(row: Tensor, source: Tensor, squares: Tensor, order: Tensor, rows: int, size: int) -> tuple[Tensor, Tensor]:
    """The first `size` edges of each row, in `order`, as (indices, distances)."""
    row = row[order]
    column = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)
    fits = column < size
    return _fill(row[fits], column[fits], source[order[fits]], squares[order[fits]], rows, size)


def _fill(row: Tensor, column: Tensor, source: Tensor, squares: Tensor, rows: int, size: int) -> tuple[Tensor, Tensor]:
    index = torch.full((rows, size), -1, dtype=torch.int32, device=row.device)
    distance = torch.full((rows, size), _FAR, dtype=squares.dtype, device=row.device)
    index[row, column] = source.int()
    distance[row, column] = squares.sqrt()
    return index, distance
