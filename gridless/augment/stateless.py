"""Random numbers without a state: a function of (seed, epoch, example, stream, position) alone.

Whatever is drawn for an example does not depend on the batch it is in, on what was drawn before, on the number of
processes or on the device, so that a run resumed in mid-epoch, or cut differently, sees the same data.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from gridless.augment.draws import Draws
from gridless.backends import backend_for, current
from gridless.structures import Ragged


def keys(seed: int, epoch: int, index: Tensor) -> Tensor:
    """One well-mixed int32 key per example, on the CPU: index (B) to (B)."""
    start = _mix64(np.uint64((seed + 0x9E3779B97F4A7C15 * (epoch + 1)) % 2**64))
    mixed = _mix64(_mix64(index.cpu().numpy().astype(np.uint64)) ^ start)
    return torch.from_numpy((mixed >> np.uint64(32)).astype(np.uint32).view(np.int32).copy())


class Keyed(Draws):
    """The numbers that `gridless.augment` draws for examples with these keys (B) int32, whatever batch they are in.

    One object is for one pass over a batch: every draw is a stream of its own.
    """

    def __init__(self, key: Tensor) -> None:
        self.key, self.stream = key, 0

    def uniform(self, batch: Ragged, *shape: int, each: str = "example", dtype: torch.dtype = torch.float32) -> Tensor:
        if dtype == torch.float64:
            return (self._numbers(batch, shape, each).double() + (2**31 + 0.5)) * 2**-32
        return self._numbers(batch, shape, each, uniform=True).to(dtype)

    def normal(self, batch: Ragged, *shape: int, each: str = "example", dtype: torch.dtype = torch.float32) -> Tensor:
        first, second = (self.uniform(batch, *shape, each=each, dtype=dtype) for _ in range(2))
        return (-2 * first.log()).sqrt() * (2 * math.pi * second).cos()

    def _numbers(self, batch: Ragged, shape: tuple[int, ...], each: str, uniform: bool = False) -> Tensor:
        """Bits, int32, or with `uniform` numbers from 0 to 1, float32."""
        if len(self.key) != batch.num_examples:
            raise ValueError(f"Keyed: {len(self.key)} keys for {batch.num_examples} examples. Give one key for each.")
        key, count, self.stream = self.key.to(batch.device), math.prod(shape), self.stream + 1
        begin = _wrap(0x3504F333 * self.stream)
        if each == "row" and backend_for(batch.device) == "gpu":
            from gridless.augment import stateless_gpu

            with current(batch.device):
                return stateless_gpu.drawn(batch, key, count, begin, uniform).view(-1, *shape)
        at = torch.arange(count, device=batch.device, dtype=torch.int32) + begin
        if each == "row":
            place = torch.arange(len(batch), device=batch.device) - batch.splits[:-1][batch.example]
            key, at = key[batch.example], at + (place * count).int()[:, None]
        bits = _mix32(_mix32(at) + key[:, None]).view(-1, *shape)
        # The largest would be rounded to 1.
        return ((bits & 0xFFFFFF).float() * 2**-24 + 2**-25).clamp_(max=1 - 2**-24) if uniform else bits


def permutation(seed: int, epoch: int, size: int) -> Tensor:
    """A random order of `size` things, one per epoch (CPU, int64)."""
    key = int(keys(seed, epoch, torch.tensor([-1], device="cpu"))[0]) & 0xFFFFFFFF
    return torch.randperm(size, generator=torch.Generator().manual_seed(key), device="cpu")


def _mix32(x: Tensor) -> Tensor:
    """A bijection of int32 that leaves no visible pattern; shifts are logical."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _wrap(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def _wrap(value: int) -> int:
    return (value + 2**31) % 2**32 - 2**31


def _mix64(x: np.ndarray | np.uint64) -> np.ndarray:
    with np.errstate(over="ignore"):
        x = np.asarray(x, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))
