"""The numbers of `Keyed` for each row of a batch, on the GPU: one launch, where torch makes thirty."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.kernels.launch import Launcher, cdiv
from gridless.structures import Ragged

_BLOCK = 1024


def drawn(batch: Ragged, key: Tensor, count: int, stream: int, uniform: bool) -> Tensor:
    """(S, count) for examples with keys (B) int32: bits, int32; or with `uniform` numbers from 0 to 1, float32.

    `stream` is what the places of numbers in an example begin with, an int32.
    """
    values = torch.empty((len(batch), count), dtype=torch.float32 if uniform else torch.int32, device=batch.device)
    if total := values.numel():
        tensors = (batch.example, batch.splits, key, values)
        _DRAWN((cdiv(total, _BLOCK), 1, 1), tensors, (total, stream), (count, uniform, _BLOCK))
    return values


@triton.jit
def _mix(x):
    """`_mix32` of `stateless`, of uint32."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit(do_not_specialize=["total", "stream"])
def _drawn(
    example, splits, key, values, total, stream, COUNT: tl.constexpr, UNIFORM: tl.constexpr, BLOCK: tl.constexpr
):
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = number < total
    row = number // COUNT
    here = tl.load(example + row, mask=inside, other=0)
    at = number - tl.load(splits + here, mask=inside, other=0) * COUNT + stream
    mixed = _mix(at.to(tl.int32).to(tl.uint32, bitcast=True))
    mixed = _mix(mixed + tl.load(key + here, mask=inside, other=0).to(tl.uint32, bitcast=True))
    if UNIFORM:
        # Products with powers of two are exact; the largest sum would be rounded to 1.
        share = (mixed & 0xFFFFFF).to(tl.float32) * 5.9604644775390625e-08 + 2.98023223876953125e-08
        tl.store(values + number, tl.minimum(share, 0.99999994039535522460938), mask=inside)
    else:
        tl.store(values + number, mixed.to(tl.int32, bitcast=True), mask=inside)


_DRAWN = Launcher(_drawn, exact=True)
