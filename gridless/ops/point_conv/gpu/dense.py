"""The kernels of a convolution by matrices, chosen once for all that decides them and then ready to be launched.

Rows are counted in blocks, of which every tile has a whole number, and edges by the mean of a row, rounded up: a choice
is that of the sizes themselves, but for a last block at FEW bytes of sums, where either is as fast. It serves the next
batch, which has nearly as many.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv
from gridless.ops.point_conv.gpu import gluon
from gridless.ops.point_conv.gpu.rows import Choice, EdgeRows, RowKind, prepared
from gridless.ops.point_conv.gpu.tiles import (
    BLOCK,
    HELD,
    LaunchTile,
    dot_block,
    fused_backward_tile,
    fused_tile,
    have_room,
    side_by_side,
    wide_backward_tiles,
)
from gridless.ops.point_conv.gpu.triton_kernels import fused_backward_kernel, fused_kernel, weight_kernel

_FUSED, _FUSED_BACKWARD, _WEIGHT = map(Launcher, (fused_kernel, fused_backward_kernel, weight_kernel))


class Backward(NamedTuple):
    """Kernels of the backward pass: of both gradients together, or of the weight's and of the features'. Each is None
    where there is none."""

    # parts(rows, inverse, grad, features, weight, d_features) writes the gradient of the features, where it is wanted.
    both: Callable[..., Tensor] | None
    # parts(rows, inverse, grad, features, weight), or None where the launch is refused after all.
    weight: Callable[..., Tensor | None] | None
    # run(rows, inverse, grad, weight, None, d_features), as `forward` returns it.
    features: Callable[..., None] | None


@lru_cache(1 << 14)
def forward(
    kind: RowKind, dtype: torch.dtype, terms: int, channels: int, width: int, has_bias: bool, blocks: int, degree: int,
    index: Any, device: torch.device, precision: str, with_gluon: bool,
) -> Callable[..., None] | None:  # fmt: skip
    """run(rows, inverse, features, weight, bias, out) writes (N F) Theta + bias, or where the rows are sources the
    gradient of the features from that of the result. None where the sums are to be written first."""
    count = blocks * BLOCK
    choice = Choice(kind, dtype, terms, channels, width, count, count * degree, index, device, precision)
    if _is_written_first(choice):
        return None
    tile = fused_tile(dtype, terms, channels, width, count, choice.edges, device)
    return None if tile is None else _forward(choice, tile, has_bias, with_gluon)


def _is_written_first(choice: Choice) -> bool:
    """True for wide layers in float32 that is not rounded: `exact_product` takes two thirds of the time (1.23 and 0.74
    ms forward, 128 channels, 91,000 voxels on an H200). With 64 channels it takes as long, and room for the sums."""
    return not choice.rounds and max(dot_block(choice.channels), dot_block(choice.width)) > 64


def _forward(choice: Choice, tile: LaunchTile, has_bias: bool, with_gluon: bool) -> Callable[..., None]:
    kind, dtype, terms, channels, width, *_ = choice
    faster = gluon.forward(choice, has_bias) if with_gluon and choice.rounds else None
    # Sums of all channels, or strip by strip.
    together = dot_block(channels) if terms * dot_block(channels) <= HELD else tile.strip
    # tf32x3 needs more registers, so one program per multiprocessor.
    beside = tile.beside if choice.precision == "tf32" else 1
    registers = 65536 // (32 * tile.warps * beside) if beside > 1 and torch.version.hip is None else None
    launch = prepared(
        _FUSED, kind, dtype, choice.device, choice.index, tile.warps, registers, C=channels, P=width,
        PB=dot_block(width), HAS_BIAS=has_bias, PRECISION=choice.precision, **tile.strips(together),
    )  # fmt: skip

    def run(
        rows: EdgeRows, inverse: Tensor, features: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor
    ) -> None:
        if faster is not None and faster(rows, inverse, features, weight, bias, out):
            return
        tensors = (features, *rows.tensors, inverse, weight, weight if bias is None else bias, out)
        launch((cdiv(rows.count, tile.rows), 1, 1), tensors, (rows.count, *rows.scale))

    return run


@lru_cache(1 << 14)
def backward(
    kind: RowKind, dtype: torch.dtype, terms: int, channels: int, width: int, need_features: bool, need_weight: bool,
    blocks: int, degree: int, index: Any, device: torch.device, precision: str, with_gluon: bool,
) -> Backward:  # fmt: skip
    """Gradients of features and weight from that of the result, over rows that are sources."""
    count = blocks * BLOCK
    choice = Choice(kind, dtype, terms, channels, width, count, count * degree, index, device, precision)
    sizes = count, choice.edges
    narrow = fused_backward_tile(dtype, terms, channels, width, *sizes, device)
    if narrow is not None:
        # Features, and the sums twice, as either factor of a product.
        numbers = narrow.rows * (dot_block(channels) + 2 * terms * dot_block(width))
        narrow = narrow if have_room(numbers, dtype, device) else None
    if need_weight and narrow is not None:
        return Backward(_both(choice, narrow, need_features), None, None)
    wide = None if _is_written_first(choice) else wide_backward_tiles(dtype, terms, channels, width, *sizes)
    along = wide and wide[0]
    if narrow is not None:
        along = fused_tile(dtype, terms, width, channels, *sizes, device)
    turned = choice._replace(channels=width, width=channels)
    return Backward(
        None,
        _weight(choice, wide and wide[1], with_gluon) if need_weight else None,
        _forward(turned, along, False, with_gluon) if need_features and along is not None else None,
    )


def _both(choice: Choice, tile: LaunchTile, need_features: bool) -> Callable[..., Tensor]:
    kind, dtype, terms, channels, width, *_ = choice
    launch = prepared(
        _FUSED_BACKWARD, kind, dtype, choice.device, choice.index, tile.warps, Q=channels, P=width,
        QB=dot_block(channels), PRECISION=choice.precision, NEED_F=need_features, **tile.strips(dot_block(width)),
    )  # fmt: skip
    most = side_by_side(choice.device, tile)

    def run(
        rows: EdgeRows, inverse: Tensor, grad: Tensor, features: Tensor, weight: Tensor, d_features: Tensor | None
    ) -> Tensor:
        tiles = cdiv(rows.count, tile.rows)
        programs = min(tiles, most)
        parts = torch.empty(programs, terms, channels, width, dtype=torch.float32, device=grad.device)
        written = features if d_features is None else d_features
        tensors = (grad, features, *rows.tensors, inverse, weight, written, parts)
        launch((programs, 1, 1), tensors, (rows.count, tiles, *rows.scale))
        return parts

    return run


def _weight(choice: Choice, tile: LaunchTile | None, with_gluon: bool) -> Callable[..., Tensor | None] | None:
    """Parts of the gradient of the weight alone: 64 of the Q channels and a strip of the P in each program. None where
    there is no tile or no room for it, and Gluon has no kernel."""
    kind, dtype, terms, channels, width, *_ = choice
    faster = gluon.weight(choice) if with_gluon and choice.rounds else None
    if tile is None or not have_room(terms * tile.rows * tile.strip, dtype, choice.device):
        return faster
    cut, block = tile, min(64, dot_block(channels))
    across = (cdiv(width, cut.strip), cdiv(channels, block))
    most = max(side_by_side(choice.device, cut) // (across[0] * across[1]), 1)
    launch = prepared(
        _WEIGHT, kind, dtype, choice.device, choice.index, cut.warps, Q=channels, P=width, QB=block,
        PRECISION=choice.precision, L=cut.strip, T=cut.rows, U=cut.unroll, AHEAD=cut.ahead,
    )  # fmt: skip

    def run(rows: EdgeRows, inverse: Tensor, grad: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        if faster is not None and (parts := faster(rows, inverse, grad, features, weight)) is not None:
            return parts
        tiles = cdiv(rows.count, cut.rows)
        programs = min(most, tiles)
        parts = torch.empty(programs, terms, channels, width, dtype=torch.float32, device=grad.device)
        tensors = (grad, features, *rows.tensors, inverse, parts)
        launch((programs, *across), tensors, (rows.count, tiles, *rows.scale))
        return parts

    return run
