"""Tile sizes of the GPU kernels of the point convolution. Measured on an H200: benchmarks/NOTES.md."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from gridless.kernels.launch import cdiv, power_of_two

# Rows of which every tile has a multiple.
BLOCK = 16
# Terms whose sums one kernel keeps in registers.
GROUP = 16
# Sums of a row, terms times channels, that registers hold until the product.
HELD = 320
# Bytes of sums that are written before a product reads them: twice the second-level cache, as fewer and longer launches
# save more than the cache does. And bytes up to which that is as fast as sums that stay in registers.
CHUNK, FEW = 96 << 20, 48 << 20
# Edges of a row beyond which sums are written, because every strip of channels walks over them again: of float32, of
# half precision, and backwards.
LONG, LONG_HALF, LONG_BACKWARD = 18, 10, 8


class LaunchTile(NamedTuple):
    """Size of a program: rows, edges of each that are loaded together, warps, programs side by side on a
    multiprocessor, channels of a strip, and `ahead`: the next edges are loaded before these are used."""

    rows: int
    unroll: int
    warps: int
    beside: int = 1
    strip: int = 16
    ahead: bool = False

    def strips(self, channels: int) -> dict[str, int]:
        """Constants of a kernel for so many channels."""
        width = min(self.strip, channels)
        return {"J": channels // width, "L": width, "T": self.rows, "U": self.unroll, "AHEAD": self.ahead}


# The only tile that the Gluon kernels are written for.
GLUON_TILE = LaunchTile(128, 1, 8)


def fused_tile(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int, device: torch.device
) -> LaunchTile | None:
    """The tile in which sums stay in registers until the product, of all channels or strip by strip; or None."""
    sums = terms * dot_block(channels)
    if dtype == torch.float64 or terms > GROUP or dot_block(width) > 128:
        return None
    if sums > HELD:
        return wide_tile(dtype, terms, channels, rows, edges)
    if dtype != torch.float32:
        large = LaunchTile(64, 1, 8, strip=64)
    elif dot_block(channels) == 16:
        large = LaunchTile(32, 2, 4, 4, strip=16, ahead=True)
    else:
        large = LaunchTile(32, 1, 4, 4, strip=32) if sums <= 256 else LaunchTile(32, 1, 4, 4, strip=16, ahead=True)
    small = _small_tile(channels)
    # Sixteen warps of 128 registers fit on a multiprocessor.
    few = few_rows(rows, edges if dtype == torch.float32 else 0, small._replace(beside=16 // small.warps), device)
    return small if few else large


def wide_tile(dtype: torch.dtype, terms: int, channels: int, rows: int, edges: int) -> LaunchTile | None:
    """The tile for sums of more channels than registers hold: one strip of them after the other.

    None where the sums are few, channels are many or rows long: a library product is as fast then.
    """
    if channels > 256 or rows * terms * channels * dtype.itemsize <= FEW:
        return None
    if edges > (LONG if dtype == torch.float32 else LONG_HALF) * rows:
        return None
    if dtype == torch.float32:
        return LaunchTile(32, 1, 4, strip=32) if channels <= 96 else LaunchTile(32, 2, 4, strip=32, ahead=True)
    return LaunchTile(64, 2, 4, strip=16, ahead=channels > 96)


def wide_backward_tiles(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int
) -> tuple[LaunchTile, LaunchTile | None] | None:
    """Tiles of the gradients of features and weight, each a launch of its own; None as in `wide_tile`. Beyond 64
    channels there is none for the weight: products of chunks take half the time there."""
    if dtype == torch.float64 or terms > GROUP or dot_block(channels) > 128:
        return None
    if rows * terms * width * dtype.itemsize <= FEW or edges > LONG_BACKWARD * rows:
        return None
    if max(channels, width) > 64:
        along = wide_tile(dtype, terms, width, rows, edges)
        return None if along is None else (along, None)
    if dtype == torch.float32:
        return LaunchTile(64, 1, 4, strip=16), LaunchTile(64, 1, 8, strip=32)
    return LaunchTile(64, 2, 4, strip=16), LaunchTile(64, 2, 8, strip=32, ahead=True)


def fused_backward_tile(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int, device: torch.device
) -> LaunchTile | None:
    """The tile of the kernel of both gradients, or None: the weight's has to fit beside the sums."""
    sums = terms * dot_block(width)
    shares = sums * dot_block(channels)
    if dtype == torch.float64 or terms > GROUP or sums > HELD or shares > 16384 or dot_block(channels) > 64:
        return None
    if shares > 10240:
        return LaunchTile(64, 2, 8, 1, strip=32) if dtype == torch.float32 else LaunchTile(32, 2, 4, 2, strip=64)
    large = (
        LaunchTile(32, 2, 4, 2, strip=32, ahead=True) if dtype == torch.float32 else LaunchTile(16, 2, 4, 3, strip=64)
    )
    few = few_rows(rows, edges if dtype == torch.float32 and dot_block(channels) == 32 else 0, large, device)
    return _small_tile(width)._replace(beside=2) if few and dot_block(channels) < 64 else large


def have_room(numbers: int, dtype: torch.dtype, device: torch.device) -> bool:
    """True if shared memory holds so many numbers of float32, which products take from there; half precision comes from
    registers."""
    return dtype.itemsize == 2 or numbers * dtype.itemsize <= shared_memory(device)


def _small_tile(channels: int) -> LaunchTile:
    """The tile for few rows: if all programs run at once, the longest row decides the time. Few rows wait for each
    other, and four edges of each are in flight while the next four are on their way."""
    return LaunchTile(16, 4, 2 if dot_block(channels) == 16 else 4, strip=32, ahead=True)


def few_rows(rows: int, edges: int, tile: LaunchTile, device: torch.device) -> bool:
    """True if the tiles fit at once; long rows count as few up to about four times as many. `edges` is 0 for sizes that
    have not been measured."""
    return fit_at_once(rows, tile, device) or (edges > 15 * rows and rows <= 256 * processors(device))


def fit_at_once(rows: int, tile: LaunchTile, device: torch.device) -> bool:
    """True if the device runs all tiles side by side."""
    return cdiv(rows, tile.rows) <= side_by_side(device, tile)


def gluon_tile(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int, device: torch.device
) -> LaunchTile | None:
    """The tile of the Gluon kernel where it exists, is faster, and has rows enough; else None."""
    suits = channels in (32, 64) and width in (16, 32, 64) and terms * 32 <= HELD and dtype != torch.float64
    held = terms * channels <= HELD
    least = 0.6 if held or dtype == torch.float32 else 0.8
    if not suits or edges > 24 * rows or busy(rows, GLUON_TILE, device) < least:
        return None
    return GLUON_TILE._replace(strip=channels if held else 32)


def gluon_weight_tile(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int
) -> LaunchTile | None:
    """The tile of the Gluon kernel of the weight's gradient, where rows are many and short as in `wide_backward_tiles`;
    else None. `unroll` are the sums that may wait in shared memory. Registers of a lane hold sums of ten terms."""
    suits = channels in (64, 128) and width in (64, 128) and terms in (2, 4, 6, 8, 10) and dtype != torch.float64
    if not suits or rows * terms * width * dtype.itemsize <= FEW or edges > LONG_BACKWARD * rows:
        return None
    return LaunchTile(64, 1 if dtype == torch.float32 and channels == 128 else 2, 4)


def gluon_wide_tile(
    dtype: torch.dtype, terms: int, channels: int, width: int, rows: int, edges: int
) -> LaunchTile | None:
    """The tile of the Gluon kernel of layers of 128 channels, where rows are many and short as in `wide_tile`; else
    None. `unroll` is as in `gluon_weight_tile`."""
    suits = {channels, width} in ({128}, {64, 128}) and terms in (2, 4, 6, 8, 10) and dtype != torch.float64
    if not suits or terms * channels <= HELD or wide_tile(dtype, terms, channels, rows, edges) is None:
        return None
    return LaunchTile(64, 1 if dtype == torch.float32 else 2, 4)


def gather_tile(dtype: torch.dtype, block: int) -> LaunchTile:
    """A few rows for one warp: neighbourhoods of different sizes wait for each other only within a program."""
    strip = min(block, 32)
    return LaunchTile(128 // strip, 2, 1, strip=strip, ahead=dtype != torch.float64)


def depthwise_tile(dtype: torch.dtype, channels: int) -> tuple[int, LaunchTile]:
    """Channels of a program, and its tile: as in `gather_tile`, a few rows for one warp.

    Each lane makes the values of its row's edges for itself: 8 channels of it share them. Their sums take 8 registers a
    term, and as many again for the gradient of the weight.
    """
    block = 64 if channels % 64 == 0 else min(32, max(4, power_of_two(channels)))
    tile = gather_tile(dtype, block)
    # 16 bytes of features to a lane.
    return block, tile._replace(strip=block if dtype.itemsize == 2 else tile.strip, beside=8)


def busy(rows: int, tile: LaunchTile, device: torch.device) -> float:
    """The share of the device that works, where every multiprocessor takes as many tiles."""
    tiles = cdiv(rows, tile.rows)
    return tiles / (cdiv(tiles, processors(device)) * processors(device))


@cache
def dot_block(channels: int) -> int:
    return max(16, power_of_two(channels))


@cache
def side_by_side(device: torch.device, tile: LaunchTile) -> int:
    """Programs that run side by side, in round numbers."""
    return processors(device) if device.type == "cpu" else max(processors(device) * tile.beside // 32, 1) * 32


@cache
def processors(device: torch.device) -> int:
    return 4 if device.type == "cpu" else torch.cuda.get_device_properties(device).multi_processor_count


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have: 227 KB on an H200, 99 KB on many others."""
    if device.type == "cpu":
        return 227 << 10
    return getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 48 << 10)
