"""The convolution over taps on the CPU.

The rows of all edges are gathered in tap order, multiplied by torch tap by tap, and added to their targets. A thread
owns whole targets: no two writes meet.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads
from gridless.structures.tap_edges import Pairs, TapEdges

# Numbers that are gathered and multiplied at once: some megabytes, so that memory stays bounded.
_ROOM = 1 << 22
# Numbers that are worth a thread of their own.
_SHARE = 1 << 15


def conv(features: Tensor, weight: Tensor, bias: Tensor | None, edges: TapEdges) -> Tensor:
    wide = torch.promote_types(features.dtype, torch.float32)
    # The weight as it lies: a copy of it costs more than the products of few rows.
    rows, theta = features.detach().to(wide), weight.detach().to(wide)
    out = rows.new_zeros(edges.num_target, weight.shape[2])
    if bias is not None:
        out += bias.detach().to(wide)
    chunks = _chunks(edges.pairs, edges.num_target, weight.shape[1] + weight.shape[2])
    gathered, products = (_room(chunks, rows, channels) for channels in weight.shape[1:])
    for chunk in chunks:
        _gather(rows, chunk.source, gathered)
        for k, a, b in chunk.taps():
            torch.mm(gathered[a:b], theta[k], out=products[a:b])
        _add(products, chunk, out)
    return out.to(features.dtype)


def conv_backward(
    grad: Tensor, features: Tensor, weight: Tensor, edges: TapEdges,
    need_features: bool, need_weight: bool, need_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """One gather of the gradient, in the order of the sources, serves features and weight."""
    wide, dtype = torch.promote_types(grad.dtype, torch.float32), grad.dtype
    slope, rows, theta = (x.detach().to(wide) for x in (grad, features, weight))
    d_features = slope.new_zeros(features.shape) if need_features else None
    # In the order in which the weight lies, so that autograd keeps it as it is.
    d_weight = torch.empty_like(theta) if need_weight else None
    # Seen from the sources, opposite taps of symmetric edges change places.
    last = weight.shape[0] - 1
    pairs = (edges if edges.symmetric else edges.transpose()).pairs
    chunks = _chunks(pairs, len(features), 2 * weight.shape[1] + weight.shape[2])
    gathered = _room(chunks, slope, weight.shape[2])
    own, products = (_room(chunks, slope, weight.shape[1]) for _ in range(2))
    unwritten = set(range(weight.shape[0]))
    for chunk in chunks if need_features or need_weight else ():
        _gather(slope, chunk.source, gathered)
        if d_weight is not None:
            _gather(rows, chunk.target, own)
        for k, a, b in chunk.taps():
            tap = last - k if edges.symmetric else k
            if d_features is not None:
                torch.mm(gathered[a:b], theta[tap].t(), out=products[a:b])
            if d_weight is not None:
                beta = 0 if tap in unwritten else 1
                torch.addmm(d_weight[tap], own[a:b].t(), gathered[a:b], beta=beta, out=d_weight[tap])
                unwritten.discard(tap)
        if d_features is not None:
            _add(products, chunk, d_features)
    if d_weight is not None:
        for tap in unwritten:
            d_weight[tap].zero_()
    d_bias = slope.sum(0).to(dtype) if need_bias else None
    d_features, d_weight = (x if x is None else x.to(dtype) for x in (d_features, d_weight))
    return d_features, d_weight, d_bias


class _Chunk(NamedTuple):
    """The edges of the targets from `first` to before `end`, in tap order."""

    first: int
    end: int
    splits: np.ndarray
    """First edge of each tap in the chunk, and the end."""
    source: Tensor
    target: Tensor

    def taps(self) -> Iterator[tuple[int, int, int]]:
        """(tap, its first edge, the end of its edges) of every tap that has some."""
        for k, (a, b) in enumerate(pairwise(self.splits.tolist())):
            if a < b:
                yield k, a, b


def _chunks(pairs: Pairs, targets: int, width: int) -> list[_Chunk]:
    """All edges, as many targets at a time as have about _ROOM numbers, `width` for each edge."""
    splits = pairs.splits.numpy()
    parts = min(max(len(pairs.target) * width // _ROOM, 1), max(targets, 1))
    if parts == 1:
        return [_Chunk(0, targets, splits, pairs.source, pairs.target)]
    return [_part(pairs, splits, first, end) for first, end in even_ranges(targets, parts)]


def _part(pairs: Pairs, splits: np.ndarray, first: int, end: int) -> _Chunk:
    target, taps = pairs.target.numpy(), list(pairwise(splits.tolist()))
    slices = [slice(*(a + np.searchsorted(target[a:b], (first, end))).tolist()) for a, b in taps]
    source, target = (torch.cat([x[part] for part in slices]) for x in (pairs.source, pairs.target))
    return _Chunk(first, end, np.cumsum([0, *(part.stop - part.start for part in slices)]), source, target)


def _room(chunks: list[_Chunk], like: Tensor, channels: int) -> Tensor:
    """Memory for the rows of the largest chunk: used again by each, as new pages cost as much as the sums."""
    return like.new_empty(max(len(chunk.source) for chunk in chunks), channels)


def _parts(numbers: int) -> int:
    return max(min(num_threads(), numbers // _SHARE), 1)


def _gather(rows: Tensor, index: Tensor, out: Tensor) -> None:
    """rows[index], into the first rows of `out`."""
    jobs = even_ranges(len(index), _parts(len(index) * rows.shape[1]))
    in_threads(_gather_rows, [(a, b, rows.numpy(), index.numpy(), out.numpy()) for a, b in jobs])


def _add(products: Tensor, chunk: _Chunk, out: Tensor) -> None:
    """Adds each product to the row of its target, in tap order."""
    given = products.numpy(), chunk.splits, chunk.target.numpy(), out.numpy()
    ranges = even_ranges(chunk.end - chunk.first, _parts(len(chunk.source) * out.shape[1]))
    in_threads(_add_rows, [(chunk.first + a, chunk.first + b, *given) for a, b in ranges])


@njit(nogil=True, cache=True)
def _gather_rows(first, last, rows, index, out):
    for e in range(first, last):
        row = index[e]
        for c in range(out.shape[1]):
            out[e, c] = rows[row, c]


@njit(nogil=True, cache=True)
def _add_rows(first, last, products, splits, target, out):
    """Adds the products of edges with targets first <= t < last, tap by tap."""
    for k in range(len(splits) - 1):
        e, end = splits[k], splits[k + 1]
        e += np.searchsorted(target[e:end], first)
        while e < end and target[e] < last:
            row = target[e]
            for c in range(out.shape[1]):
                out[row, c] += products[e, c]
            e += 1
