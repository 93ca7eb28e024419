"""Augmentation of whole batches of clouds at once, on whatever device they live.

The same transformations as `gridless.augment`, drawn without a state (`gridless.training.stateless`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gridless.structures import Cloud, Rows
from gridless.training import stateless
from gridless.training.batch import send

# Streams of random numbers, one per purpose.
ORDER, DROP, JITTER, AXIS, TILT, AZIMUTH, SCALE, SHIFT, MIRROR = range(9)


@dataclass(frozen=True)
class Policy:
    """What is done to each training cloud, in this order.

    The defaults change nothing. Coordinates are (x, y, z) with y up.
    """

    shuffle: bool = False
    """Put the points in a random order, on which rejection sampling depends."""
    drop: float = 0.0
    """Keep the first floor(P (1 - p)) points, p uniform in [0, drop): points are really removed."""
    jitter: float = 0.0
    """Standard deviation of noise added to each coordinate."""
    jitter_clip: float = math.inf
    """Longest noise vector; longer ones are shortened to it."""
    tilt: float = 0.0
    """Standard deviation of a rotation about a random axis, in radians."""
    tilt_clip: float = math.inf
    """Largest such rotation."""
    azimuth: bool = False
    """Rotate about the y axis by any angle."""
    scale: tuple[float, float] = (1.0, 1.0)
    """Multiply by a factor from this range."""
    stretch: bool = False
    """Draw the factor for each axis by itself."""
    mirror: bool = False
    """Reflect x, and z, each in half of the cases."""
    shift: float = 0.0
    """Add a vector with coordinates in [-shift, shift]."""

    def __call__(
        self,
        points: Tensor,
        index: Tensor,
        seed: int,
        epoch: int,
        sizes: Tensor | None = None,
        rows: Mapping[str, Tensor] | None = None,
    ) -> Cloud:
        """The examples `index` (B, on the CPU) of points (N, P, 3), augmented, as one ragged batch.

        Of example i the first sizes[i] (N, on the CPU) points count, or all; rows (N, P, ...) follow their points.
        """
        device, size = points.device, points.shape[1]
        key = stateless.keys(seed, epoch, index)
        there_are = torch.full((len(index),), size) if sizes is None else sizes[index]
        counts = self._counts(key, there_are)
        splits = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        there, there_key = send(index, device), send(key, device)
        x = points[there]  # (B, P, 3)
        beside = {name: values[there] for name, values in (rows or {}).items()}
        if self.shuffle:
            order = stateless.bits(there_key, ORDER, size)
            if sizes is not None:
                # What does not count stays behind.
                missing = torch.arange(size, device=device) >= send(there_are, device)[:, None]
                order = order.long().masked_fill(missing, 2**31)
            order = order.argsort(dim=1, stable=True)
            x = x.gather(1, order[..., None].expand_as(x))
            beside = {name: _ordered(values, order) for name, values in beside.items()}
        if self.jitter:
            noise = stateless.normal(there_key, JITTER, 3 * size).view(-1, size, 3) * self.jitter
            if self.jitter_clip < math.inf:
                noise = noise * (self.jitter_clip / noise.norm(dim=2, keepdim=True).clamp(min=1e-12)).clamp(max=1)
            x = x + noise
        if (matrix := self._matrix(key)) is not None:
            x = x @ send(matrix.to(x.dtype), device)
        if self.shift:
            x = x + send((2 * stateless.uniform(key, SHIFT, 3) - 1) * self.shift, device)[:, None]
        if not self.drop and sizes is None:
            return Cloud(x.flatten(0, 1), send(splits, device), rows=Rows(_flat(beside)))
        at = _kept(len(x), size, splits, device)
        cut = {name: values[at] for name, values in _flat(beside).items()}
        return Cloud(x.flatten(0, 1)[at], send(splits, device), rows=Rows(cut))

    def _counts(self, key: Tensor, sizes: Tensor) -> Tensor:
        if not self.drop:
            return sizes
        kept = (sizes * (1 - self.drop * stateless.uniform(key, DROP, 1).double()[:, 0])).floor().long()
        return kept.clamp(min=1)

    def _matrix(self, key: Tensor) -> Tensor | None:
        """The linear part, for row vectors: (B, 3, 3)."""
        matrix = None
        if self.tilt:
            axis = torch.nn.functional.normalize(stateless.normal(key, AXIS, 3), dim=1)
            angle = (stateless.normal(key, TILT, 1) * self.tilt).clamp(-self.tilt_clip, self.tilt_clip)
            matrix = _times(matrix, _rotation(axis, angle))
        if self.azimuth:
            angle = 2 * math.pi * stateless.uniform(key, AZIMUTH, 1)
            matrix = _times(matrix, _rotation(torch.tensor([[0.0, 1.0, 0.0]]).expand(len(key), 3), angle))
        factor = torch.ones(len(key), 3)
        if self.scale != (1.0, 1.0):
            low, high = self.scale
            factor = low + (high - low) * stateless.uniform(key, SCALE, 3 if self.stretch else 1).expand(-1, 3)
        if self.mirror:
            sign = 1 - 2 * (stateless.uniform(key, MIRROR, 3) < 0.5).float()
            factor = factor * torch.where(torch.tensor([True, False, True]), sign, 1.0)
        if self.mirror or self.scale != (1.0, 1.0):
            matrix = _times(matrix, torch.diag_embed(factor))
        return matrix


def _times(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a @ b


def _rotation(axis: Tensor, angle: Tensor) -> Tensor:
    """Rotation matrices by Rodrigues' formula: axis (B, 3) of length 1, angle (B, 1)."""
    x, y, z = axis.unbind(1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
    sin, cos = angle.sin()[..., None], angle.cos()[..., None]
    return torch.eye(3) + sin * cross + (1 - cos) * (cross @ cross)


def _flat(rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.flatten(0, 1) for name, values in rows.items()}


def _ordered(values: Tensor, order: Tensor) -> Tensor:
    """values (B, P, ...) in the order (B, P) of each example."""
    return values.gather(1, order.reshape(*order.shape, *[1] * (values.ndim - 2)).expand_as(values))


def _kept(examples: int, size: int, splits: Tensor, device: torch.device) -> Tensor:
    """Of points (B, P), flat, the first so many of each example; the counts are known to the host."""
    total = int(splits[-1])
    # Row s of the result is point s - splits[b] of example b, that is row s + b * size - splits[b] of the flat input.
    offset = send(torch.arange(examples) * size - splits[:-1], device)
    counts = send(splits.diff(), device)
    return torch.arange(total, device=device) + torch.repeat_interleave(offset, counts, output_size=total)
