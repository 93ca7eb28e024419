"""The point convolution of bfloat16 on CPUs that multiply it: gathered in float32, multiplied by torch.

A chunk of N F, or of B = [N(m)]^T dF' in the backward pass, is gathered from bfloat16 rows summed in float32, rounded
to bfloat16, and multiplied in one product, which sums in float32. The chunks add up in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gridless.backends import in_threads, num_threads
from gridless.compiled import njit
from gridless.ops.point_conv.gathers import gather_tile
from gridless.ops.point_conv.kernel import EdgeKernel
from gridless.ops.point_conv.products import lanes, multiplies_bfloat16, padded
from gridless.ops.point_conv.tiles import ranges, tile_height
from gridless.ops.point_conv.values import longest, recipe

_CHUNK_BYTES = 1 << 22
_FLOAT = np.dtype(np.float32)


def serves(features: Tensor) -> bool:
    """Whether this is the way for such features on this CPU: with one thread, as in the workers of a loader.

    With several, products by torch's threads between gathers by ours do not scale: the float32 way is faster.
    """
    return features.dtype == torch.bfloat16 and multiplies_bfloat16() and num_threads() == 1


def conv(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    splits: Tensor,
    source: Tensor,
    source_coords: Tensor,
    target_coords: Tensor,
    kernel: EdgeKernel,
) -> tuple[Tensor, Tensor]:
    size, q, p = weight.shape
    targets, missing = len(splits) - 1, padded(q, _FLOAT) - q
    theta = pad(weight.detach(), (0, 0, 0, missing)).reshape(-1, p)
    start = weight.new_zeros(p) if bias is None else bias.detach()
    out = torch.empty(targets, p, dtype=features.dtype)
    inverse = torch.empty(targets if kernel.normalise else 0)
    edges = (splits, source, target_coords, source_coords)
    for a, b, chunk in _chunks(features, edges, inverse, kernel, size, by_target=True):
        torch.addmm(start, chunk, theta, out=out[a:b])
    return out, inverse


def conv_backward(
    grad: Tensor,
    features: Tensor,
    weight: Tensor,
    inverse: Tensor,
    back_splits: Tensor,
    back_source: Tensor,
    source_coords: Tensor,
    target_coords: Tensor,
    kernel: EdgeKernel,
    need_features: bool,
    need_weight: bool,
) -> tuple[Tensor | None, Tensor | None]:
    size, q, p = weight.shape
    missing = padded(p, _FLOAT) - p
    turned = pad(weight.detach(), (0, missing)).transpose(1, 2).reshape(-1, q)  # (M P, Q)
    f = features.detach()
    d_features = torch.empty_like(f) if need_features else None
    d_weight = torch.zeros(q, len(turned)) if need_weight else None
    edges = (back_splits, back_source, source_coords, target_coords)
    for a, b, chunk in _chunks(grad, edges, inverse, kernel, size, by_target=False):
        if d_features is not None:
            torch.mm(chunk, turned, out=d_features[a:b])
        if d_weight is not None:
            d_weight += f[a:b].T @ chunk
    if d_weight is not None:
        d_weight = d_weight.view(q, size, -1)[:, :, :p].transpose(0, 1).to(weight.dtype).contiguous()
    return d_features, d_weight


def _chunks(features: Tensor, edges: tuple, inverse: Tensor, kernel: EdgeKernel, size: int, by_target: bool):  # type: ignore[no-untyped-def]
    """(first row, last row, their gathered sums (rows, M channels) bfloat16), one chunk after the other."""
    channels = padded(features.shape[1], _FLOAT)
    f = pad(features.detach(), (0, channels - features.shape[1])).contiguous().view(torch.uint16).numpy()
    splits, *rest = (t.detach().numpy() for t in edges)
    rule = recipe(kernel, rest[-1].dtype, _FLOAT)
    rows, width = len(splits) - 1, size * channels
    height = max(min(_CHUNK_BYTES // (2 * width), rows), 1)
    buffer = torch.empty(height, width, dtype=torch.bfloat16)
    out = buffer.view(torch.uint16).numpy()
    sizes = (size, channels, tile_height(width, _FLOAT), lanes(_FLOAT))
    for a in range(0, rows, height):
        b = min(a + height, rows)
        shared = (splits, *rest, *rule, f, inverse.numpy(), out, *sizes)
        in_threads(_gather, [(i, j, a, by_target, *shared) for i, j in ranges(splits, a, b)])
        yield a, b, buffer[: b - a]


@njit(nogil=True, cache=True)
def _gather(
    first, last, base, by_target, splits, column, row_coords, column_coords,
    kind, table, chain, slots, width, radius, falloff, normalise,
    f, inverse, out, size, channels, tile_rows, lane,
):  # fmt: skip
    capacity = longest(splits, first, last)
    v = np.empty((row_coords.shape[1], capacity), np.float32)
    w = np.empty(capacity, np.float32)
    p = np.empty((slots, capacity), np.float32)
    stride = size * channels
    tile = np.empty((tile_rows, stride), np.float32)
    for t in range(first, last, tile_rows):
        end = min(t + tile_rows, last)
        tile[:] = 0
        gather_tile(
            t, end, splits, column, row_coords, column_coords, kind, table, chain, width,
            radius if by_target else -radius, falloff, normalise, by_target,
            inverse, f, v, w, p, tile, stride, False, size, channels, lane,
        )  # fmt: skip
        for r in range(end - t):
            _round(tile[r].view(np.uint32), out[t - base + r])


@njit(nogil=True, cache=True)
def _round(bits, out):
    """float32, as its bits, to the nearest bfloat16, ties to even; a NaN stays one."""
    for n in range(len(bits)):
        x = bits[n]
        near = (x + np.uint32(0x7FFF) + ((x >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
        out[n] = np.uint32(0x7FC0) if (x & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else near
