"""torch_cluster's functions by its names, with its arguments and its meaning, without a compiler.

Write `from gridless.compat.torch_cluster import knn_graph` instead of `from torch_cluster import knn_graph`.
`gl.pyg.enable()` makes PyG use them. Searches return (2, E) int64, edges in order of the rows of `y`. float16, bfloat16
and whole numbers are searched as float32, and more than eight dimensions by the distances of all pairs, some at a time.

Differences: a ball with more than `max_num_neighbors` points keeps the nearest, not the first; unsorted batch vectors
are refused; TorchScript is not supported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from gridless import geometry
from gridless.geometry.checks import check_whole
from gridless.structures import Cloud

__all__ = ["fps", "grid_cluster", "knn", "knn_graph", "nearest", "radius", "radius_graph"]

# Our searches take up to eight dimensions.
_DIMENSIONS = 8
# Pairs whose distances are in memory together.
_PAIRS = 1 << 24


def radius(
    x: Tensor,
    y: Tensor,
    r: float,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    max_num_neighbors: int | None = 32,
    num_workers: int = 1,
    batch_size: int | None = None,
    ignore_same_index: bool = False,
    use_triton: bool = False,
) -> Tensor:
    """The points of `x` nearer than `r` to each point of `y`: (rows of y, rows of x), at most `max_num_neighbors` each.

    Args:
        x: (N, F); y: (M, F).
        r: the radius; points at exactly this distance are outside.
        batch_x, batch_y: the example of each point, ascending; numbers may be missing.
        max_num_neighbors: the nearest so many are kept; None keeps all.
        batch_size: the number of examples; found in the batch vectors when left out.
        ignore_same_index: leave out row i of x as a neighbour of row i of y.
        num_workers, use_triton: taken, and without effect.
    """
    splits_x, splits_y = _splits_of_both("radius", x, y, batch_x, batch_y, batch_size)
    return radius_by_splits(x, y, splits_x, splits_y, r, max_num_neighbors, num_workers, ignore_same_index)


def radius_graph(
    x: Tensor,
    r: float,
    batch: Tensor | None = None,
    loop: bool = False,
    max_num_neighbors: int | None = 32,
    flow: str = "source_to_target",
    num_workers: int = 1,
    batch_size: int | None = None,
    use_triton: bool = False,
) -> Tensor:
    """Edges between points nearer than `r`, to itself with `loop`; arguments as of `radius`, and as of `knn_graph`."""
    edges = radius(x, x, r, batch, batch, max_num_neighbors, num_workers, batch_size, not loop)
    return _flowing(edges, flow)


def knn(
    x: Tensor,
    y: Tensor,
    k: int,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
    return_distances: bool = False,
    use_triton: bool = False,
) -> Any:
    """The k points of `x` nearest to each point of `y`: (rows of y, rows of x), the nearest first.

    Args:
        x: (N, F); y: (M, F).
        k: neighbours of each; an example with fewer points gives all of them.
        batch_x, batch_y: the example of each point, ascending; numbers may be missing.
        cosine: by the angle between the vectors.
        batch_size: the number of examples; found in the batch vectors when left out.
        return_distances: also return the squared distance of each edge; with `cosine`, 1 - cos.
        num_workers, use_triton: taken, and without effect.
    """
    splits_x, splits_y = _splits_of_both("knn", x, y, batch_x, batch_y, batch_size)
    edges, distance = _nearest(x, y, splits_x, splits_y, k, cosine)
    return (edges, distance) if return_distances else edges


def knn_graph(
    x: Tensor,
    k: int,
    batch: Tensor | None = None,
    loop: bool = False,
    flow: str = "source_to_target",
    cosine: bool = False,
    num_workers: int = 1,
    batch_size: int | None = None,
    return_distances: bool = False,
    use_triton: bool = False,
) -> Any:
    """Edges to the k nearest points of the same example (`batch`), each to itself with `loop`; others as of `knn`.

    `flow` is "source_to_target" for (neighbours, centres), or "target_to_source" for (centres, neighbours).
    """
    k = check_whole("knn_graph", "k", k, least=0)
    edges, distance = knn(x, x, k if loop else k + 1, batch, batch, cosine, 1, batch_size, return_distances=True)
    if not loop:
        others = _others(edges, k, len(x))
        edges, distance = edges[:, others], distance[others]
    edges = _flowing(edges, flow)
    return (edges, distance) if return_distances else edges


def nearest(
    x: Tensor,
    y: Tensor,
    batch_x: Tensor | None = None,
    batch_y: Tensor | None = None,
    use_triton: bool = False,
) -> Tensor:
    """The row (N) of the point of `y` that is nearest to each point of `x`, in its example; arguments as of `knn`."""
    return nearest_by_splits(x, y, *_splits_of_both("nearest", x, y, batch_x, batch_y, None))


def fps(
    src: Tensor,
    batch: Tensor | None = None,
    ratio: float | Tensor | None = None,
    random_start: bool = True,
    batch_size: int | None = None,
    ptr: Tensor | list[int] | None = None,
) -> Tensor:
    """Rows of iteratively farthest points of each example, in the order in which they are taken.

    Args:
        src: (N, ...) points.
        batch: the example of each point, ascending; or `ptr`, where each example begins, and N.
        ratio: the share of the points of an example, rounded up: one number, or a tensor of one for each; 0.5.
        random_start: begin with a random point of each example (torch's generator), not with the first.
        batch_size: the number of examples; found in the batch vector when left out.
    """
    if ptr is not None:
        splits = torch.as_tensor(ptr, device=src.device)
    else:
        splits = _splits("fps: batch", src, batch, batch_size)
    return fps_by_splits(src, splits, 0.5 if ratio is None else ratio, random_start)


def grid_cluster(pos: Tensor, size: Tensor, start: Tensor | None = None, end: Tensor | None = None) -> Tensor:
    """The number (N) of the voxel of each point of `pos`: voxels of `size` (D) from `start` to `end`, x the fastest."""
    # In the words of TorchScript: this function can be scripted.
    pos = pos.flatten(1) if pos.dim() > 1 else pos[:, None]
    if size.numel() != pos.shape[1]:
        raise ValueError(f"grid_cluster: size has {size.numel()} entries. Give {pos.shape[1]}, one per dimension.")
    if len(pos) == 0:
        return torch.zeros([0], dtype=torch.int64, device=pos.device)
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    voxels = ((end - start) / size).long() + 1
    stride = torch.cat([torch.ones_like(voxels[:1]), voxels.cumprod(0)[:-1]])
    return (((pos - start) / size).long() * stride).sum(1)


# The same by splits, where an example begins and ends, in place of batch vectors: what PyG calls from 2.8 on.


def splits_of(batch: Tensor, size: int | None = None) -> Tensor:
    return _splits("batch", batch, batch, size)


def radius_by_splits(
    x: Tensor,
    y: Tensor,
    splits_x: Tensor | None,
    splits_y: Tensor | None,
    r: float,
    max_num_neighbors: int | None = 32,
    num_workers: int = 1,
    ignore_same_index: bool = False,
) -> Tensor:
    if max_num_neighbors is not None:
        max_num_neighbors = check_whole("radius", "max_num_neighbors", max_num_neighbors, least=0)
    source, target, splits_x, splits_y = _points("radius", x, y, splits_x, splits_y)
    limit = max_num_neighbors if max_num_neighbors is None or not ignore_same_index else max_num_neighbors + 1
    # The ball has its surface, theirs has not: the next smaller number is the largest distance inside.
    reach = float(torch.nextafter(*torch.tensor([float(r), 0.0], dtype=source.dtype, device="cpu")))
    if not reach > 0 or limit == 0 or not len(x) or not len(y):
        edges = torch.empty(2, 0, dtype=torch.int64, device=x.device)
    elif source.shape[1] <= _DIMENSIONS:
        if limit is not None and limit >= int(splits_x.diff().max()):
            limit = None
        # Squares of larger radii are beyond float32; nothing that is finite is farther away than that.
        neighbours = geometry.ball(*_clouds(source, target, splits_x, splits_y), min(reach, 1e18), limit)
        edges = torch.stack([neighbours.target.long(), neighbours.source.long()])
    else:
        parts = []
        for first, begin, distance in _distances("radius", source, target, splits_x, splits_y):
            distance, order = distance.sort(dim=1, stable=True)
            row, at = (distance[:, :limit] <= reach).nonzero(as_tuple=True)
            parts.append(torch.stack([row + first, order[row, at] + begin]))
        edges = torch.cat(parts, 1)
    if not ignore_same_index:
        return edges
    edges = edges[:, edges[0] != edges[1]]
    counts = torch.bincount(edges[0], minlength=len(y))
    # A point of y without a neighbour of its own row has one neighbour too many: the farthest goes.
    if max_num_neighbors is not None and bool((many := counts > max_num_neighbors).any()):
        distance = (source[edges[1]] - target[edges[0]]).square().sum(1)
        keep = torch.ones_like(edges[0], dtype=torch.bool)
        keep[_nearest_first(edges[0], distance)[counts.cumsum(0)[many] - 1]] = False
        edges = edges[:, keep]
    return edges


def knn_by_splits(
    x: Tensor,
    y: Tensor,
    splits_x: Tensor | None,
    splits_y: Tensor | None,
    k: int,
    cosine: bool = False,
    num_workers: int = 1,
) -> Tensor:
    return _nearest(x, y, splits_x, splits_y, k, cosine)[0]


def nearest_by_splits(x: Tensor, y: Tensor, splits_x: Tensor | None, splits_y: Tensor | None) -> Tensor:
    _, _, splits_x, splits_y = _points("nearest", x, y, splits_x, splits_y)
    if not torch.equal(splits_x.diff() > 0, splits_y.diff() > 0):
        raise ValueError("nearest: some examples have points in only one of x and y. Give both the same examples.")
    return _nearest(y, x, splits_y, splits_x, 1, False)[0][1]


def fps_by_splits(src: Tensor, splits: Tensor, ratio: float | Tensor, random_start: bool = True) -> Tensor:
    x = _real(src.reshape(len(src), math.prod(src.shape[1:])))
    counts = splits.diff()
    share = torch.as_tensor(ratio, dtype=torch.float32, device=x.device)
    if not bool(((share > 0) & (share <= 1)).all()):
        raise ValueError(f"fps: ratio is {ratio}. Give more than 0 and at most 1.")
    # Check before the rows are swapped: the error names the caller's row.
    Cloud.made(coords=x, splits=splits).check("fps")
    sizes = torch.minimum((counts * share).ceil().long(), counts)
    # Every example begins with its first point, so that another one that is to be first takes its place.
    order = torch.arange(len(x), device=x.device)
    if random_start:
        first = splits[:-1][counts > 0]
        other = first + (torch.rand(len(first), device=x.device) * counts[counts > 0]).long()
        order[first], order[other] = other, first
        x = x[order]
    if x.shape[1] <= _DIMENSIONS:
        taken = geometry.farthest_sample(Cloud(x, splits).trusted(), sizes).parent_index
        assert taken is not None
    else:
        taken = torch.cat([a + _farthest(x[a:b], n) for (a, b), n in zip(pairwise(splits.tolist()), sizes.tolist())])
    return order[taken]


def _nearest(
    x: Tensor, y: Tensor, splits_x: Tensor | None, splits_y: Tensor | None, k: int, cosine: bool
) -> tuple[Tensor, Tensor]:
    """Edges (2, E), rows of y above, of one row the nearest first, and their squared distances, or 1 - cos."""
    k = check_whole("knn", "k", k)
    source, target, splits_x, splits_y = _points("knn", x, y, splits_x, splits_y)
    if cosine:
        source, target = (torch.nn.functional.normalize(v, dim=1) for v in (source, target))
    if not len(x) or not len(y):
        return torch.empty(2, 0, dtype=torch.int64, device=x.device), source.new_empty(0)
    if source.shape[1] <= _DIMENSIONS:
        neighbours = geometry.nearest(*_clouds(source, target, splits_x, splits_y), k)
        column, even = neighbours.source.long(), len(neighbours) == k * len(target)
        row = torch.arange(len(target), device=x.device)
        row = row[:, None].expand(-1, k) if even else torch.repeat_interleave(row, neighbours.counts)
        column = column.view(row.shape)
        distance = torch.zeros(row.shape, dtype=source.dtype, device=x.device)
        for source_axis, target_axis in zip(source.unbind(1), target.unbind(1)):
            distance += (source_axis[column] - (target_axis[:, None] if even else target_axis[row])).square_()
        if even:
            distance, order = distance.sort(dim=1, stable=True)
            column = column.gather(1, order)
        else:
            order = _nearest_first(row, distance)
            column, distance = column[order], distance[order]
        edges, distance = torch.stack([row.flatten(), column.flatten()]), distance.flatten()
    else:
        parts = []
        for first, begin, pairs in _distances("knn", source, target, splits_x, splits_y):
            closest, column = pairs.topk(min(k, pairs.shape[1]), dim=1, largest=False)
            row = torch.arange(first, first + len(pairs), device=x.device)[:, None].expand_as(column)
            parts.append((row.flatten(), column.flatten() + begin, closest.flatten().square()))
        row, column, distance = (torch.cat(p) for p in zip(*parts))
        edges = torch.stack([row, column])
    return edges, distance / 2 if cosine else distance


def _distances(
    what: str, x: Tensor, y: Tensor, splits_x: Tensor, splits_y: Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """(first row of y, first row of x, distances (rows of y, rows of x)) of some rows of an example after others."""
    for name, points, splits in (("x", x, splits_x), ("y", y, splits_y)):
        Cloud.made(coords=points, splits=splits).check(f"{what}: {name}")
    for (a, b), (first, last) in zip(pairwise(splits_x.tolist()), pairwise(splits_y.tolist())):
        step = max(_PAIRS // max(b - a, 1), 1)
        for low in range(first, last, step):
            # Not by products of matrices: near points would be told apart by what is left of a difference of squares.
            targets = y[low : min(low + step, last)]
            yield low, a, torch.cdist(targets, x[a:b], compute_mode="donot_use_mm_for_euclid_dist")


def _farthest(x: Tensor, size: int) -> Tensor:
    """Rows of `size` iteratively farthest points of one example, of any dimension."""
    taken = torch.zeros(size, dtype=torch.int64, device=x.device)
    closest = x.new_full((len(x),), torch.inf)
    for i in range(1, size):
        last = taken[i - 1]
        closest = torch.minimum(closest, (x - x[last]).square().sum(1)).index_fill_(0, last, -1)
        taken[i] = closest.argmax()
    return taken


def _nearest_first(row: Tensor, distance: Tensor) -> Tensor:
    """Edges in the order of their rows, and those of a row by distance."""
    order = distance.argsort(stable=True)
    return order[row[order].argsort(stable=True)]


def _others(edges: Tensor, limit: int, points: int) -> Tensor:
    """Mask of the edges between different points, at most `limit` for each row of `edges[0]`, which ascends."""
    other = edges[0] != edges[1]
    # A point may be missing among its own neighbours if points coincide; it then has one edge too many.
    if len(other) - int(other.sum()) == points:
        return other
    before = other.cumsum(0) - other.long()
    return other & (before - before[torch.searchsorted(edges[0], edges[0])] < limit)


def _flowing(edges: Tensor, flow: str) -> Tensor:
    if flow not in ("source_to_target", "target_to_source"):
        raise ValueError(f"flow must be 'source_to_target' or 'target_to_source', not {flow!r}")
    return edges.flip(0) if flow == "source_to_target" else edges


def _points(what: str, x: Tensor, y: Tensor, splits_x: Tensor | None, splits_y: Tensor | None) -> tuple[Tensor, ...]:
    """x and y as (points, dimensions) of one real type, and the splits of equally many examples."""
    x, y = (v.reshape(len(v), math.prod(v.shape[1:])) if v.ndim != 2 else v for v in (x, y))
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"{what}: x has {x.shape[1]} dimensions, y {y.shape[1]}. Give both the same.")
    real = torch.promote_types(x.dtype, y.dtype)
    x, y = (_real(v.to(real)) for v in (x, y))
    ends = [
        torch.tensor([0, len(v)], device=v.device) if s is None else s.to(v.device)
        for v, s in ((x, splits_x), (y, splits_y))
    ]
    # Examples after the last that a batch vector names have no points.
    most = max(len(s) for s in ends)
    return x, y, *(torch.cat([s, s[-1:].expand(most - len(s))]) for s in ends)


def _real(x: Tensor) -> Tensor:
    return x.detach().to(torch.float64 if x.dtype in (torch.float64, torch.int64) else torch.float32).contiguous()


def _clouds(x: Tensor, y: Tensor, splits_x: Tensor, splits_y: Tensor) -> tuple[Cloud, Cloud]:
    source = Cloud(x, splits_x)
    same = x.data_ptr() == y.data_ptr() and x.shape == y.shape and torch.equal(splits_x, splits_y)
    return source, source if same else Cloud(y, splits_y)


def _splits_of_both(
    what: str, x: Tensor, y: Tensor, batch_x: Tensor | None, batch_y: Tensor | None, size: int | None
) -> tuple[Tensor, Tensor]:
    splits_x, splits_y = _splits(f"{what}: batch_x", x, batch_x, size), _splits(f"{what}: batch_y", y, batch_y, size)
    if (batch_x is None) != (batch_y is None) and max(len(splits_x), len(splits_y)) > 2:
        raise ValueError(f"{what}: only one of batch_x and batch_y is given. With several examples give both.")
    return splits_x, splits_y


def _splits(what: str, x: Tensor, batch: Tensor | None, size: int | None) -> Tensor:
    if batch is None:
        return torch.tensor([0, len(x)], device=x.device)
    batch = batch.to(x.device)
    if batch.shape != x.shape[:1]:
        raise ValueError(f"{what} has the shape {tuple(batch.shape)}. Give one entry for each of {len(x)} points.")
    if not len(batch):
        return torch.zeros((size or 1) + 1, dtype=torch.int64, device=x.device)
    if bool((batch[1:] < batch[:-1]).any()):
        raise ValueError(
            f"{what} is not sorted. Put the points of each example together, e.g. x[batch.argsort(stable=True)]."
        )
    least, most = int(batch[0]), int(batch[-1])
    if least < 0 or (size is not None and most >= size):
        raise ValueError(f"{what} has values from {least} to {most}. Give examples from 0 to {(size or most + 1) - 1}.")
    return torch.searchsorted(
        batch.contiguous(), torch.arange((size or most + 1) + 1, device=x.device, dtype=batch.dtype)
    )
