"""Iterative farthest point sampling: exact, approximate, approximate after rejection; and random, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gridless import backends
from gridless.geometry.checks import check_cloud, check_near, check_whole
from gridless.geometry.farthest import reference
from gridless.structures import Cloud, Edges

Size = int | float | Sequence[int] | np.ndarray | Tensor


@backends.uncompiled
def farthest_sample(cloud: Cloud, size: Size, start: int = 0, near: Edges | None = None, reject: bool = False) -> Cloud:
    """Iterative farthest points (IFP): each sample is the point farthest from the samples before it.

    d[j] is the squared distance of point j to the closest sample so far, infinite before the first. Repeatedly, take
    the point with the largest d that was not taken, the smaller index where several are equal, and lower d where it is
    nearer to that point. The first is row `start` of each example. d2 = (dx*dx + dy*dy) + dz*dz, each operation
    rounded in the dtype of the cloud and in this order, so that every backend takes the same points.

    With `near`, d is lowered only at the neighbours of each sample (row j of `near`, and j itself): the paper's
    approximate IFP, a priority queue in O(samples x neighbours). With `reject=True`, rejection sampling over `near`
    comes first and the queue goes on from its distances (the paper's Algorithm 5); if rejection alone keeps more than
    `size` points, the first `size` of them are the result. While infinite distances remain, the queue gives points in
    index order, so that from `start=0` both variants take the same points unless squared distances overflow.

    A backend's `sample(cloud, sizes, start, near, reject)` gets checked arguments, `sizes` (B) int64 on the device of
    the cloud, and returns the rows of the samples int64, example after example.

    Args:
        cloud: S points.
        size: samples per example: a number; a fraction above 0 and up to 1 (rounded up); or one number per example.
            An example with fewer points gives all of them.
        start: the row of every example to begin with; must be 0 with `reject`, which begins in index order.
        near: Edges of the cloud in itself, for the approximation.
        reject: rejection sampling first; needs `near`.
    Returns:
        Cloud of the samples in the order in which they were taken, with their rows and `parent_index`.
    """
    check_cloud("farthest_sample", cloud)
    sizes, start = sample_sizes(cloud, size, "farthest_sample"), check_start(start)
    if near is not None:
        check_near("farthest_sample", cloud, near)
    elif reject:
        raise ValueError("farthest_sample: reject=True needs near. Pass near=ball(cloud, cloud, radius).")
    if reject and start != 0:
        raise ValueError("farthest_sample: with reject=True sampling begins in index order. Leave start at 0.")
    _check_start(cloud, start)
    taken = backends.implementation(reference, cloud.device).sample(cloud, sizes, start, near, reject)
    return cloud.sampled(taken, _splits(sizes))


@backends.uncompiled
def random_sample(cloud: Cloud, size: Size, generator: torch.Generator | None = None, seed: int | None = None) -> Cloud:
    """Points drawn without replacement, all equally likely, in random order.

    The draw depends on the generator and its device, not on the backend. With `seed` it depends on the seed and the
    coordinates of each point alone: a cloud gives the same samples alone, in a batch, in another order of its points
    and on any device. Points with equal coordinates then follow each other in index order.

    Args:
        cloud: S points.
        size: samples of each example: a number, a fraction up to 1.0, or one number for each example.
        generator: torch's own when left out.
        seed: in place of a generator, a whole number.
    """
    check_cloud("random_sample", cloud)
    if seed is not None and generator is not None:
        raise ValueError(f"random_sample: seed is {seed}, and a generator is given too. Give one of them.")
    sizes = sample_sizes(cloud, size, "random_sample")
    # Padding rows have example B, and so come last and are never reached.
    if seed is not None:
        order = torch.argsort((cloud.example.long() << 32) + _hashed(cloud.coords.detach(), seed), stable=True)
    else:
        draw = torch.rand(len(cloud), dtype=torch.float64, device=cloud.device, generator=generator)
        order = torch.argsort(cloud.example + draw)
    splits = _splits(sizes)
    at = torch.arange(int(splits[-1]), device=cloud.device)
    example = torch.searchsorted(splits[1:].contiguous(), at, right=True)
    return cloud.sampled(order[cloud.splits[example] + at - splits[example]], splits)


def _hashed(coords: Tensor, seed: int) -> Tensor:
    """A number from 0 to 2^32 - 1 for each point (S) int64, from the bits of its coordinates and the seed."""
    bits = (coords + 0.0).contiguous().view(torch.int32)  # without the sign of -0.0
    state = _mixed(torch.full_like(bits[:, 0], (seed + 2**31) % 2**32 - 2**31))
    for column in bits.unbind(1):
        state = _mixed(state ^ column)
    return state.long() & 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    """A bijection of int32 that leaves no visible pattern; shifts are logical."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ ((x >> 16) & 0xFFFF)


def sample_sizes(cloud: Cloud, size: Size, what: str) -> Tensor:
    """Samples of each example (B) int64, never more than it has points."""
    have, size = cloud.sizes, check_size(size, what)
    if isinstance(size, float):
        # 0.07 * 100 is a little above 7 in floating point, and must not become 8.
        return torch.minimum(torch.ceil(have.double() * size - 1e-9).long().clamp(min=1), have)
    if isinstance(size, int):
        return have.clamp(max=size)
    each = size if isinstance(size, Tensor) else torch.as_tensor(size, device=have.device)
    if each.dtype not in (torch.int64, torch.int32) or each.shape != have.shape:
        raise ValueError(
            f"{what}: size is {each.dtype} of shape {tuple(each.shape)}. "
            f"Give one whole number for each of {len(have)} examples."
        )
    if len(each) and int(each.min()) < 0:
        raise ValueError(f"{what}: size must not be negative, not {int(each.min())}")
    return torch.minimum(each.to(have.device, torch.int64), have)


def check_size(size: Size, what: str) -> int | float | Sequence[int] | Tensor:
    """The size, NumPy's as Python's; refuse what no cloud can give so many samples of."""
    if isinstance(size, np.floating):
        # The decimal text counts: float32's 0.3 is a little more than 0.3, and would give 4 of 10 points.
        size = float(str(size))
    elif isinstance(size, np.generic | np.ndarray):
        size = size.tolist()
    if isinstance(size, bool) or not isinstance(size, (int, float, Sequence, Tensor)) or isinstance(size, str):
        raise TypeError(f"{what}: size must be a number, a fraction or one number per example, not {size!r}")
    if isinstance(size, float) and not 0 < size <= 1:
        raise ValueError(
            f"{what}: a fraction must be above 0 and at most 1, not {size}. Pass an int for a number of points."
        )
    if isinstance(size, int) and size < 0:
        raise ValueError(f"{what}: size must not be negative, not {size}")
    return size


def check_start(start: int) -> int:
    """The row to begin with, as an int."""
    return check_whole("farthest_sample", "start", start, least=0)


def _check_start(cloud: Cloud, start: int) -> None:
    if start == 0:
        return
    have = cloud.sizes
    short = ((have <= start) & (have > 0)).nonzero()
    if len(short):
        at = int(short[0])
        raise ValueError(f"farthest_sample: start is row {start}, but example {at} has {int(have[at])} points")


def _splits(sizes: Tensor) -> Tensor:
    return torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
