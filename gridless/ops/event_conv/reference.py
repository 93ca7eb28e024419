"""The event convolution in plain torch: the specification. Torch differentiates it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gridless.geometry.causal import Link
from gridless.geometry.causal.reference import cells, seen
from gridless.structures import Edges

# A decay under exp(-CUTOFF) counts as 0, in every backend.
CUTOFF = 80.0


def decay(rate: Tensor, age: Tensor) -> Tensor:
    """exp(-rate age), or 0 where that is under exp(-80)."""
    x = rate * age
    over = x > CUTOFF
    return torch.where(over, 0.0, torch.exp(-torch.where(over, 0.0, x)))


def gather(features: Tensor, rate: Tensor, link: Link, decay_time: float, edges: Edges | None = None) -> Tensor:
    """A (S', U, V, Q)."""
    if edges is not None:
        return _by_products(features, rate, link, decay_time, edges)
    # Only over pairs that see each other: 0 times NaN is NaN.
    pairs = [seen(link, u).nonzero().unbind(1) for u in range(rate.shape[0])]
    taps = [_along(features, rate[u], link, decay_time, *pairs[u]) for u in range(rate.shape[0])]
    return torch.stack(taps, 1) if taps else features.new_zeros(len(link.target), *rate.shape, features.shape[1])


def _along(features: Tensor, rate: Tensor, link: Link, decay_time: float, target: Tensor, source: Tensor) -> Tensor:
    """A (S', V, Q) of one tap, whose targets (E) see these sources (E)."""
    age = (link.target.time[target] - link.source.time[source]).to(features.dtype) / decay_time  # (E)
    value = decay(rate, age[:, None])[:, :, None] * features[source, None]  # (E, V, Q)
    return value.new_zeros(len(link.target), *value.shape[1:]).index_add(0, target, value)


def _by_products(features: Tensor, rate: Tensor, link: Link, decay_time: float, edges: Edges) -> Tensor:
    """A (S', U, V, Q) as V sparse matrices (S' U, S) times the features."""
    end = len(edges) - edges.padding
    row, source = edges.target[:end].long(), edges.source[:end].long()
    target, tap = row // rate.shape[0], row % rate.shape[0]
    age = (link.target.time[target] - link.source.time[source]).to(features.dtype) / decay_time  # (E)
    factor, shape = decay(rate[tap], age[:, None]), (edges.num_target, edges.num_source)  # (E, V)
    settings: dict[str, Any] = {"check_invariants": False, "is_coalesced": True, "device": features.device}
    # Sparse products on CUDA read values as if they were contiguous.
    values = factor.t().contiguous()
    matrices = [torch.sparse_coo_tensor(torch.stack([row, source]), f, shape, **settings) for f in values]
    products = [torch.sparse.mm(matrix, features) for matrix in matrices]
    gathered = torch.stack(products, 1) if products else features.new_zeros(edges.num_target, 0, features.shape[1])
    return gathered.view(len(link.target), *rate.shape, features.shape[1])


def scan_step(
    features: Tensor, rate: Tensor, link: Link, decay_time: float, trace: Tensor, time: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A of a packet, and the memory after it."""
    gathered = gather(features, rate, link, decay_time)
    source, target = link.source, link.target
    width, height = source.sensor
    trace, before, time = trace.clone(), trace, time.clone()
    for u, (dx, dy) in enumerate(link.offsets):
        x, y = (target.pixel.long() * link.stride + torch.tensor([dx, dy], device=target.device)).unbind(1)
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height) & (target.example < target.num_examples)
        cell = torch.where(inside, (target.example * height + y) * width + x, 0)
        age = (target.time - time[cell]).to(features.dtype)[:, None] / decay_time
        gathered[:, u] += (decay(rate[u], age) * inside[:, None])[:, :, None] * before[cell, u]
    used = _used(link)
    for j, c in enumerate(cells(source).tolist()):
        if c < len(time):
            factor = decay(rate, (source.time[j] - time[c]).to(features.dtype) / decay_time)
            trace[c] = (trace[c] * factor[:, :, None] + features[j]) * used[c % len(used), :, None, None]
            time[c] = source.time[j]
    return gathered, trace, time


def transform_while_updating(
    features: Tensor, weight: Tensor, rate: Tensor, bias: Tensor | None, link: Link, decay_time: float
) -> Tensor:
    """The paper's other order of streaming, event by event: out (S', P), the same sums as the scan form.

    A source event is transformed when it arrives: z <- f Theta_uv + exp(-rate_uv age) z, z (U, V, P) of its pixel. A
    target only decays and adds what it finds. `docs/paper-to-code.md` says why the engine transforms at the target.
    """
    (width, height), target = link.source.sensor, link.target
    pixels = link.source.num_examples * height * width
    trace, time = weight.new_zeros(pixels, *rate.shape, weight.shape[3]), torch.zeros(pixels, dtype=torch.int64)
    out = weight.new_zeros(len(target), weight.shape[3])
    arrivals = cells(link.source).tolist()
    for j, cell in enumerate(arrivals):
        if cell < pixels:
            age = (link.source.time[j] - time[cell]).to(features.dtype) / decay_time
            trace[cell] = torch.einsum("q,uvqp->uvp", features[j], weight) + decay(rate, age)[:, :, None] * trace[cell]
            time[cell] = link.source.time[j]
        for i in (link.until == j).nonzero()[:, 0].tolist():
            for u, (dx, dy) in enumerate(link.offsets):
                x, y = (target.pixel[i].long() * link.stride + torch.tensor([dx, dy])).tolist()
                if 0 <= x < width and 0 <= y < height and target.example[i] < target.num_examples:
                    cell = (int(target.example[i]) * height + y) * width + x
                    age = (target.time[i] - time[cell]).to(features.dtype) / decay_time
                    out[i] += (decay(rate[u], age)[:, None] * trace[cell, u]).sum(0)
    return out if bias is None else out + bias


def _used(link: Link) -> Tensor:
    """Mask of the (source pixel, tap) pairs that some target pixel uses: (H W, U) bool."""
    (width, height), (columns, rows) = link.source.sensor, link.target.sensor
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    used = []
    for dx, dy in link.offsets:
        fits = ((x - dx) % link.stride == 0) & ((y - dy) % link.stride == 0)
        ox, oy = (x - dx) // link.stride, (y - dy) // link.stride
        used.append((fits & (ox >= 0) & (ox < columns) & (oy >= 0) & (oy < rows)).flatten())
    return torch.stack(used, 1).to(link.source.device)
