"""Shared by the GPU searches and samplers: facts about a cloud read back once, and small Triton helpers."""

from __future__ import annotations

import struct
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.checks import squared_radius
from gridless.kernels.launch import Launcher, cdiv
from gridless.structures import Cloud


class Facts(NamedTuple):
    """Facts about a cloud by which the host chooses a kernel and its size."""

    smallest: int
    largest: int
    low: tuple[float, ...]
    high: tuple[float, ...]


def facts(cloud: Cloud, what: str) -> Facts:
    """Sizes and bounding box (first three dimensions), read back once per cloud; refuses what `Cloud.check` refuses.

    A sample has the box of what it was sampled from.
    """

    def make() -> Facts:
        device, rows = cloud.device, len(cloud)
        if rows == 0 or cloud.num_examples == 0:
            cloud.check(what)
            return Facts(0, 0, (0.0,) * 3, (0.0,) * 3)
        programs = min(cdiv(rows, 1024), 512)
        partial = torch.empty((8, programs), dtype=torch.float64, device=device)
        result = torch.empty(9, dtype=torch.float64, device=device)
        _PARTIAL_FACTS((programs, 1, 1), (cloud.coords, partial), (rows,), (cloud.dim, 1024))
        sizes = (programs, cloud.num_examples, rows - cloud.padding)
        _FACTS((1, 1, 1), (partial, cloud.splits, result), sizes, (1024,))
        bad, smallest, largest, *box = result.tolist()
        if bad:
            cloud.check(what)
        cloud.trusted()
        return Facts(int(smallest), int(largest), tuple(box[:3]), tuple(box[3:]))

    return cloud.cached("gpu_facts", make)


def inherit_facts(cloud: Cloud, sample: Cloud, smallest: int, largest: int) -> None:
    """A sample of the cloud has examples of these sizes, and the box of the cloud where that is known."""
    sample.cached("gpu_sizes", lambda: (smallest, largest))
    if cloud.keeps("gpu_facts"):
        sample.cached("gpu_facts", lambda: facts(cloud, "")._replace(smallest=smallest, largest=largest))


def sizes(cloud: Cloud, what: str) -> tuple[int, int]:
    """The number of points of the smallest and of the largest example; refuses what `facts` refuses."""
    if cloud.is_checked and alone(cloud):
        return (len(cloud),) * 2
    return cloud.cached("gpu_sizes", lambda: facts(cloud, what)[:2])


def alone(cloud: Cloud) -> bool:
    """True if the cloud is known to be one example without padding, before anything is read back."""
    return cloud.is_alone or (cloud.is_checked and cloud.splits.shape[0] == 2 and not cloud.padding)


def squared_bits(radius: float, dtype: torch.dtype) -> tuple[int, int]:
    """The squared radius as two 32-bit words (high, low): Triton would round a float argument to float32."""
    value = squared_radius(radius, dtype)
    if dtype == torch.float32:
        return 0, struct.unpack("<i", struct.pack("<f", value))[0]
    low, high = struct.unpack("<ii", struct.pack("<d", value))
    return high, low


def sort_long(splits: Tensor, values: Tensor, ordered: Tensor, longest: int) -> Tensor:
    """`ordered`, with the rows of more than SHORT `values`, which are distinct, in ascending order.

    Rows that `values` has no room for are left out. The longest row has `longest` of them.
    """
    if longest > LONGEST:
        row = torch.searchsorted(splits[1:], torch.arange(len(values), device=values.device), right=True)
        return (torch.sort(row << 32 | values).values & 0xFFFFFFFF).int()
    rows = len(splits) - 1
    _SORT_LONG((cdiv(rows, 64), 8, 1), (splits, values, ordered), (rows, len(values)), (SHORT, 64, 128), 1)
    return ordered


# Rows are sorted by counting what is smaller: long ones by several programs, very long ones too slowly.
SHORT = 64
LONGEST = 4096


@triton.jit
def load_point(coords, row, mask, D: tl.constexpr):
    """The D coordinates of `row`, as a tuple."""
    point = ()
    for k in tl.static_range(D):
        point = point + (tl.load(coords + row * D + k, mask=mask, other=0.0),)
    return point


@triton.jit
def squared_to(coords, at, mask, step, point, D: tl.constexpr):
    """Squared distance from a point to the one whose coordinates lie `step` apart from `at`, rounded in order."""
    apart = tl.load(coords + at, mask=mask) - point[0]
    total = apart * apart
    for k in tl.static_range(1, D):
        apart = tl.load(coords + at + k * step, mask=mask) - point[k]
        total = total + apart * apart
    return total


@triton.jit
def from_bits(high, low, DOUBLE: tl.constexpr):
    """The number whose bits `squared_bits` took apart."""
    if DOUBLE:
        return ((high.to(tl.int64) << 32) | (low.to(tl.int64) & 0xFFFFFFFF)).to(tl.float64, bitcast=True)
    else:
        return low.to(tl.float32, bitcast=True)


@triton.jit
def count_bits(word):
    """The number of ones in each int32."""
    x = word.to(tl.uint32, bitcast=True)
    x = x - ((x >> 1) & 0x55555555)
    x = (x & 0x33333333) + ((x >> 2) & 0x33333333)
    x = (x + (x >> 4)) & 0x0F0F0F0F
    return ((x * 0x01010101) >> 24).to(tl.int32)


@triton.jit
def lowest_bit(word):
    """The position of the lowest one of each int32 that has any."""
    low = (word & -word).to(tl.uint32, bitcast=True).to(tl.float32)
    return (low.to(tl.int32, bitcast=True) >> 23) - 127


@triton.jit
def example_of(splits, row, examples):
    """The example that each row belongs to; `examples` for rows past the last."""
    low = tl.zeros_like(row).to(tl.int32)
    high = low + examples
    steps = examples
    while steps > 0:
        middle = (low + high) // 2
        right = (low < high) & (tl.load(splits + middle + 1, mask=middle < examples, other=0) <= row)
        high = tl.where(right | (low >= high), high, middle)
        low = tl.where(right, middle + 1, low)
        steps = steps // 2
    return low


@triton.jit(do_not_specialize=["rows"])
def _partial_facts(coords, partial, rows, D: tl.constexpr, ROWS: tl.constexpr):
    """Facts about a share of the rows, which `_facts` joins."""
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    bad = tl.zeros([ROWS], tl.int32)
    low = ()
    high = ()
    for _ in tl.static_range(3):
        low = low + (tl.full([ROWS], float("inf"), tl.float64),)
        high = high + (tl.full([ROWS], float("-inf"), tl.float64),)
    for start in range(program * ROWS, rows, programs * ROWS):
        row = start + tl.arange(0, ROWS).to(tl.int64)
        ok = row < rows
        point = load_point(coords, row, ok, D)
        for k in tl.static_range(D):
            bad = bad | (point[k] - point[k] != 0).to(tl.int32)
        new_low = ()
        new_high = ()
        for k in tl.static_range(3):
            x = point[k if k < D else 0].to(tl.float64)
            new_low = new_low + (tl.minimum(low[k], tl.where(ok, x, float("inf"))),)
            new_high = new_high + (tl.maximum(high[k], tl.where(ok, x, float("-inf"))),)
        low = new_low
        high = new_high
    tl.store(partial + program, tl.max(bad, 0).to(tl.float64))
    for k in tl.static_range(3):
        tl.store(partial + programs * (1 + k) + program, tl.min(low[k], 0))
        tl.store(partial + programs * (4 + k) + program, tl.max(high[k], 0))


@triton.jit(do_not_specialize=["programs", "examples", "end"])
def _facts(partial, splits, result, programs, examples, end, BLOCK: tl.constexpr):
    """result: is anything wrong; smallest, largest example; low (3), high (3)."""
    lane = tl.arange(0, BLOCK)
    smallest = tl.full([BLOCK], 1 << 62, tl.int64)
    largest = tl.full([BLOCK], -1, tl.int64)
    for start in range(0, examples, BLOCK):
        e = start + lane
        ok = e < examples
        size = tl.load(splits + e + 1, mask=ok, other=0) - tl.load(splits + e, mask=ok, other=0)
        smallest = tl.where(ok, tl.minimum(smallest, size), smallest)
        largest = tl.where(ok, tl.maximum(largest, size), largest)
    small = tl.min(smallest, 0)
    large = tl.max(largest, 0)
    wrong = (small < 0) | (tl.load(splits) != 0) | (tl.load(splits + examples) != end)
    ok = lane < programs
    bad = tl.max(tl.load(partial + lane, mask=ok, other=0.0), 0)
    tl.store(result, tl.where(wrong, 1.0, bad))
    tl.store(result + 1, small.to(tl.float64))
    tl.store(result + 2, large.to(tl.float64))
    for k in tl.static_range(3):
        tl.store(result + 3 + k, tl.min(tl.load(partial + programs * (1 + k) + lane, mask=ok, other=float("inf")), 0))
        tl.store(result + 6 + k, tl.max(tl.load(partial + programs * (4 + k) + lane, mask=ok, other=float("-inf")), 0))


@triton.jit(do_not_specialize=["rows", "room"])
def _sort_long(splits, values, ordered, rows, room, SHORT: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Sort the rows of more than SHORT values: programs of one row of the grid share each of them."""
    top = tl.program_id(0) * ROWS
    lane = top + tl.arange(0, ROWS)
    counts = tl.load(splits + lane + 1, mask=lane < rows, other=0) - tl.load(splits + lane, mask=lane < rows, other=0)
    if tl.max(counts, 0) > SHORT:
        for row in range(top, tl.minimum(top + ROWS, rows)):
            start = tl.load(splits + row)
            count = (tl.load(splits + row + 1) - start).to(tl.int32)
            if (count > SHORT) & (start + count <= room):
                for begin in range(tl.program_id(1) * BLOCK, count, tl.num_programs(1) * BLOCK):
                    place_block(values + start, ordered + start, begin, count, BLOCK)


@triton.jit
def place_block(values, ordered, begin, count, BLOCK: tl.constexpr):
    """BLOCK values of a row go to the places that the number of smaller ones in the row says."""
    at = begin + tl.arange(0, BLOCK)
    value = tl.load(values + at, mask=at < count, other=0)
    place = tl.zeros([BLOCK], tl.int32)
    for first in range(0, count, 16):
        for k in tl.static_range(16):
            other = tl.load(values + first + k, mask=first + k < count, other=0x7FFFFFFF)
            place += (other < value).to(tl.int32)
    tl.store(ordered + place, value, mask=at < count)


_PARTIAL_FACTS, _FACTS, _SORT_LONG = (Launcher(kernel, exact=True) for kernel in (_partial_facts, _facts, _sort_long))
