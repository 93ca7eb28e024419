"""Farthest sampling on the GPU.

Exact and small: a program per example, coordinates and distances in registers, a sample at a time.

Exact and large, many examples: several programs share one, and agree on each sample through an integer maximum in
memory.

Exact and large, few examples: many samples a round. Points lie in spatial order, in blocks with boxes, and each block
has one candidate: its point with the largest distance, the smaller index where several are equal. A candidate is taken
where no other block has a point that comes before it and is so near that one could change the other: for each block
whose candidate comes first, the distance to its box is not below its largest. It then has the distance at which one
sample after the other would take it, and takes nothing away from those that come before it. Such distances never rise
from one sample to the next: sorted by them, and by index, samples are in the order of the definition. Candidates wait
while they are below a part of the largest distance of all, so that few are taken beyond the last one asked for.

Approximate, or too large for that: distances lie in memory, in cache, and a program passes over them once per sample.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry import gpu_common as common
from gridless.geometry.gpu_common import example_of, load_point, squared_to
from gridless.geometry.rejection.gpu import check_within_examples, collect, decide, rejecting_rows, squared_to_sample
from gridless.kernels.launch import EXACT, Launcher, cdiv, power_of_two
from gridless.structures import Cloud, Edges

# Numbers of a cloud that fit into the registers of one program: points times (dimensions + 1), in float32.
_ON_CHIP = 1 << 15

# Points per program where several share an example.
_SHARES = (2048, 4096, 8192)

# Many samples a round where so many programs share an example: the fewer, the longer they work between two waits.
_MANY = 40

# A block has at least so many points, and more where the boxes of all blocks would not fit into registers otherwise.
_BLOCK = 64
_BOXES = 1 << 15

# Points of a program that are worked on together, and samples that are compared with their boxes together.
_TILE, _CHUNK = 2048, 128

# Candidates wait while their squared distance is below this part of the largest.
_WAIT = 0.8


def sample(cloud: Cloud, sizes: Tensor, start: int, near: Edges | None, reject: bool) -> Tensor:
    splits = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    _, largest = common.sizes(cloud, "farthest_sample")
    taken = torch.empty(int(splits[-1]), dtype=torch.int64, device=cloud.device)
    if len(taken) == 0:
        return taken
    block = power_of_two(largest)
    width = 2 if cloud.coords.dtype == torch.float64 else 1
    if near is None and block * (cloud.dim + 1) * width <= _ON_CHIP:
        tensors, warps = (cloud.coords, cloud.splits, splits, taken), min(max(block // 256, 1), 16)
        _ALL_ON_CHIP((cloud.num_examples, 1, 1), tensors, (start,), (cloud.dim, block), warps)
        return taken
    if near is None and (programs := _programs(cloud)) >= _MANY:
        return _in_rounds(cloud, splits, len(taken), start, largest, programs)
    if near is None and (share := _share(cloud, largest)):
        _take_together(cloud, splits, taken, start, largest, share)
        return taken
    closest, seeds, seed_splits = _begin(cloud, near, reject)
    block = min(block, 4096)
    edges = (cloud.splits, cloud.splits) if near is None else (near.splits, near.source)
    tensors = (cloud.coords, cloud.splits, splits, *edges, seeds, seed_splits, closest, taken)
    constants = (cloud.dim, block, near is not None)
    _IN_MEMORY((cloud.num_examples, 1, 1), tensors, (start,), constants, min(max(block // 256, 1), 16))
    return taken


def _in_rounds(cloud: Cloud, splits: Tensor, size: int, start: int, largest: int, programs: int) -> Tensor:
    coords, device, rows, dim = cloud.coords, cloud.device, len(cloud), cloud.dim
    order = _spatial_order(cloud)
    width, block = 2 * dim * coords.element_size() // 4, _BLOCK
    while block * _BOXES < largest * width:
        block *= 2
    blocks = power_of_two(cdiv(largest, block))
    programs = min(programs, blocks)
    own = power_of_two(cdiv(blocks, programs))
    memory = rows // block + cloud.num_examples
    state = torch.empty((3 * dim + 1, memory), dtype=coords.dtype, device=device)
    places = torch.empty((2, memory), dtype=torch.int32, device=device)
    new = torch.empty((dim + 1, rows), dtype=coords.dtype, device=device)
    new_at = torch.empty(rows, dtype=torch.int32, device=device)
    # Programs of an example that have arrived, and what is taken beside the first.
    counts = torch.zeros((2, cloud.num_examples), dtype=torch.int32, device=device)
    distance = torch.full((rows,), -torch.inf, dtype=coords.dtype, device=device)
    _rounds[(cloud.num_examples, programs)](
        coords,
        coords[order].t().contiguous(),
        order,
        cloud.splits,
        splits,
        distance,
        state,
        places,
        new,
        new_at,
        counts,
        start,
        rows,
        memory,
        D=dim,
        L=block,
        BLOCKS=blocks,
        OWN=own,
        TOGETHER=min(own, max(_TILE // block, 1)),
        CHUNK=_CHUNK,
        WAIT=_WAIT,
        num_warps=8 if blocks * width <= 1 << 14 else 16,
        **EXACT,
        # Programs wait for each other: all of them must run.
        launch_cooperative_grid=programs > 1,
    )
    order = torch.sort(distance, descending=True, stable=True).indices
    if cloud.num_examples == 1:
        return order[:size]
    order = order[torch.sort(cloud.example[order], stable=True).indices]
    at = torch.arange(size, device=device)
    example = torch.searchsorted(splits[1:], at, right=True)
    return order[cloud.splits[example] + at - splits[example]]


def _programs(cloud: Cloud) -> int:
    """Programs of an example, so that those of all examples run at once."""
    if cloud.device.type != "cuda":
        return 1
    at_once = torch.cuda.get_device_properties(cloud.device).multi_processor_count
    return max(at_once // cloud.num_examples, 1)


def _spatial_order(cloud: Cloud) -> Tensor:
    """The rows of each example along a Morton curve. A few points far away do not make its cells larger."""
    rows = len(cloud)
    sorted_coords = torch.sort(cloud.coords[:: max(rows // 4096, 1)], 0).values
    low, high = sorted_coords[len(sorted_coords) // 50], sorted_coords[-1 - len(sorted_coords) // 50]
    span = (high - low).max()
    key = torch.empty(rows, dtype=torch.int64, device=cloud.device)
    box = torch.cat([low - span / 2, span[None]])
    tensors, bits = (cloud.coords, cloud.splits, box, key), min(15, 45 // cloud.dim)
    _MORTON((cdiv(rows, 512), 1, 1), tensors, (rows, cloud.num_examples), (cloud.dim, max(bits, 1), 512))
    return torch.sort(key).indices


def _share(cloud: Cloud, largest: int) -> int:
    """Points per program so that all programs run at once, one on each multiprocessor; 0 where that is impossible."""
    if cloud.coords.dtype != torch.float32 or cloud.dim > 3 or cloud.device.type != "cuda":
        return 0
    at_once = torch.cuda.get_device_properties(cloud.device).multi_processor_count
    return next((n for n in _SHARES if cloud.num_examples * cdiv(largest, n) <= at_once), 0)


def _take_together(cloud: Cloud, splits: Tensor, taken: Tensor, start: int, largest: int, share: int) -> None:
    best = torch.zeros(len(taken), dtype=torch.int64, device=cloud.device)
    arrived = torch.zeros(len(taken), dtype=torch.int32, device=cloud.device)
    _together[(cloud.num_examples, cdiv(largest, share))](
        cloud.coords,
        cloud.splits,
        splits,
        taken,
        best,
        arrived,
        start,
        D=cloud.dim,
        BLOCK=share,
        num_warps=8 if share == 2048 else 16,
        **EXACT,
        launch_cooperative_grid=True,
    )


def _begin(cloud: Cloud, near: Edges | None, reject: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances before the queue begins, and what rejection sampling has kept."""
    if near is not None:
        check_within_examples(cloud, near)
    if near is not None and reject:
        rows = rejecting_rows(cloud, near, None)
        marks = decide(cloud, rows)
        return squared_to_sample(cloud, rows, marks), *collect(cloud, marks)[:2]
    closest = torch.full((len(cloud),), torch.inf, dtype=cloud.coords.dtype, device=cloud.device)
    return closest, torch.zeros_like(cloud.splits), torch.zeros_like(cloud.splits)


@triton.jit(do_not_specialize=["start"])
def _on_chip(coords, splits, taken_splits, taken, start, D: tl.constexpr, BLOCK: tl.constexpr):
    """All samples of one example, whose distances stay in registers."""
    example = tl.program_id(0)
    first = tl.load(splits + example)
    points = (tl.load(splits + example + 1) - first).to(tl.int32)
    out = tl.load(taken_splits + example)
    size = (tl.load(taken_splits + example + 1) - out).to(tl.int32)
    lane = tl.arange(0, BLOCK)
    here = lane < points
    point = load_point(coords, first + lane, here, D)
    # Taken points have -1, lanes without a point -2.
    closest = tl.where(here, float("inf"), -2.0).to(coords.dtype.element_ty)
    current = points * 0 + start
    for k in range(0, size):
        tl.store(taken + out + k, first + current)
        d2 = squared_to(coords, (first + current) * D, None, 1, point, D)
        closest = tl.minimum(closest, d2)
        closest = tl.where(lane == current, -1.0, closest)
        current = tl.argmax(closest, 0)


@triton.jit(do_not_specialize=["rows", "examples"])
def _morton(coords, splits, box, key, rows, examples, D: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr):
    """The example and the interleaved bits of the cell of each row."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    code = example_of(splits, row, examples).to(tl.int64)
    point = load_point(coords, row, row < rows, D)
    span = tl.load(box + D)
    cells = ()
    for k in tl.static_range(D):
        # The low end is half a span below most points. A span may be zero, or infinite.
        cell = (point[k] - tl.load(box + k)) / (2 * span)
        cell = tl.where(cell > 0, tl.minimum(cell, 1.0), 0.0) * ((1 << BITS) - 1)
        cells = cells + (cell.to(tl.int32),)
    for bit in tl.static_range(BITS):
        for k in tl.static_range(D):
            code = (code << 1) | ((cells[k] >> (BITS - 1 - bit)) & 1)
    tl.store(key + row, code, mask=row < rows)


@triton.jit
def _wait(arrived, target):
    """Returns when all programs of the example have arrived: what each has written before, all read after."""
    tl.debug_barrier()
    count = tl.atomic_add(arrived, 1, sem="acq_rel") + 1
    while count < target:
        count = tl.atomic_add(arrived, 0, sem="acquire")
    tl.debug_barrier()


@triton.jit
def _box_distance(point, low, high, D: tl.constexpr):
    """Squared distance to a box, rounded as that to a point: never above that to a point in the box."""
    apart = tl.maximum(tl.maximum(low[0] - point[0], point[0] - high[0]), 0.0)
    total = apart * apart
    for k in tl.static_range(1, D):
        apart = tl.maximum(tl.maximum(low[k] - point[k], point[k] - high[k]), 0.0)
        total = total + apart * apart
    return total


@triton.jit
def _load_all(base, step, at, mask, D: tl.constexpr):
    """D numbers per lane, `step` apart."""
    values = ()
    for k in tl.static_range(D):
        values = values + (tl.load(base + k * step + at, mask=mask, other=0.0),)
    return values


@triton.jit
def _choose(closest, row, at, planes, rows, first, block, ok, state, places, memory, D: tl.constexpr):
    """Writes the candidate of each block of a tile."""
    best = tl.max(closest, 1)
    least = tl.min(tl.where(closest == best[:, None], row, 0x7FFFFFFF), 1)
    where = tl.min(tl.where(row == least[:, None], at, 0x7FFFFFFF), 1)
    tl.store(state + block, best, mask=ok)
    tl.store(places + block, least, mask=ok)
    tl.store(places + memory + block, where, mask=ok)
    for k in tl.static_range(D):
        tl.store(state + (1 + k) * memory + block, tl.load(planes + k * rows + first + where, mask=ok), mask=ok)


@triton.jit(do_not_specialize=["start", "rows", "memory"])
def _rounds(
    coords,
    planes,
    order,
    splits,
    taken_splits,
    distance,
    state,
    places,
    new,
    new_at,
    counts,
    start,
    rows,
    memory,
    D: tl.constexpr,
    L: tl.constexpr,
    BLOCKS: tl.constexpr,
    OWN: tl.constexpr,
    TOGETHER: tl.constexpr,
    CHUNK: tl.constexpr,
    WAIT: tl.constexpr,
):
    """`distance` of what is taken, in the order of `coords`; NaN, which sorts before infinity, for the first.

    state: the largest distance in a block, the coordinates of that point, and the block's box (low, high).
    places: the row of that point, and where it is along the curve.
    new, new_at: coordinates and places of what is taken, in no particular order; rounds go on from the last one seen.
    """
    example = tl.program_id(0)
    program = tl.program_id(1)
    programs = tl.num_programs(1)
    rows = rows.to(tl.int64)
    memory = memory.to(tl.int64)
    first = tl.load(splits + example)
    points = (tl.load(splits + example + 1) - first).to(tl.int32)
    size = (tl.load(taken_splits + example + 1) - tl.load(taken_splits + example)).to(tl.int32)
    arrived = counts + example
    added = counts + tl.num_programs(0) + example
    blocks = tl.cdiv(points, L)
    # Every example before this one has at most one block that is not full.
    state += first // L + example
    places += first // L + example
    new += first
    new_at += first
    group = tl.arange(0, TOGETHER)
    lane = tl.arange(0, L)
    if size > 0:
        for tile in range(program, blocks, programs * TOGETHER):
            block = tile + group * programs
            ok = block < blocks
            at = block[:, None] * L + lane[None, :]
            here = at < points
            row = (tl.load(order + first + at, mask=here, other=0) - first).to(tl.int32)
            point = _load_all(planes + first, rows, at, here, D)
            # Taken points have -1, lanes without a point -2.
            closest = squared_to(coords, (first + start) * D, None, 1, point, D)
            closest = tl.where(row == start, -1.0, closest)
            closest = tl.where(here, closest, -2.0)
            tl.store(new + D * rows + at, closest, mask=here)
            _choose(closest, row, at, planes, rows, first, block, ok, state, places, memory, D)
            for k in tl.static_range(D):
                low = tl.min(tl.where(here, point[k], float("inf")), 1)
                high = tl.max(tl.where(here, point[k], float("-inf")), 1)
                tl.store(state + (1 + D + k) * memory + block, low, mask=ok)
                tl.store(state + (1 + 2 * D + k) * memory + block, high, mask=ok)
        if program == 0:
            tl.store(distance + first + start, float("nan"))
        target = programs
        _wait(arrived, target)
        every = tl.arange(0, BLOCKS)
        exists = every < blocks
        low = _load_all(state + (1 + D) * memory, memory, every, exists, D)
        high = _load_all(state + (1 + 2 * D) * memory, memory, every, exists, D)
        own = program + tl.arange(0, OWN) * programs
        have = points * 0
        bound = tl.max(low[0], 0) * 0 + float("inf")
        going = points > 0
        while going:
            # Choose the candidates that become samples.
            best = tl.load(state + every, mask=exists, other=-2.0)
            least = tl.load(places + every, mask=exists, other=0)
            most = tl.max(best, 0)
            if have + 1 < size:
                bound = tl.minimum(bound, most * WAIT)
            going = (most >= 0) & (most >= bound)
            value = tl.load(state + own, mask=own < blocks, other=-2.0)
            candidate = _load_all(state + memory, memory, own, own < blocks, D)
            pending = ((value >= 0) & (value >= bound)).to(tl.int32)
            takes = tl.zeros([OWN], tl.int32)
            left = tl.sum(pending, 0)
            while left > 0:
                b = tl.min(tl.where(pending > 0, own, 0x7FFFFFFF), 0)
                own_best = tl.load(state + b)
                before = (best > own_best) | ((best == own_best) & (least < tl.load(places + b)))
                apart = _box_distance(_load_all(state + memory, memory, b, b >= 0, D), low, high, D)
                alone = tl.max((before & (apart < best)).to(tl.int32), 0) == 0
                takes = tl.where((own == b) & alone, 1, takes)
                pending = tl.where(own == b, 0, pending)
                left -= 1
            count = tl.sum(takes, 0)
            if count > 0:
                slot = tl.atomic_add(added, count, sem="relaxed") + tl.cumsum(takes, 0) - 1
                tl.store(distance + first + tl.load(places + own, mask=takes > 0), value, mask=takes > 0)
                tl.store(new_at + slot, tl.load(places + memory + own, mask=takes > 0), mask=takes > 0)
                for k in tl.static_range(D):
                    tl.store(new + k * rows + slot, candidate[k], mask=takes > 0)
            target += programs
            _wait(arrived, target)
            # Lower the distances to the new samples.
            until = tl.load(added)
            for tile in range(program, blocks, programs * TOGETHER):
                block = tile + group * programs
                ok = block < blocks
                box_low = _load_all(state + (1 + D) * memory, memory, block[:, None], ok[:, None], D)
                box_high = _load_all(state + (1 + 2 * D) * memory, memory, block[:, None], ok[:, None], D)
                largest = tl.load(state + block, mask=ok, other=-2.0)
                for chunk in range(have, until, CHUNK):
                    s = chunk + tl.arange(0, CHUNK)
                    more = s < until
                    sample = _load_all(new, rows, s[None, :], more[None, :], D)
                    inside = tl.load(new_at + s, mask=more, other=0)[None, :] // L == block[:, None]
                    reached = (_box_distance(sample, box_low, box_high, D) < largest[:, None]) | inside
                    lowers = tl.where(more, tl.max(reached.to(tl.int32), 0), 0)
                    hits = tl.sum(lowers, 0)
                    if hits > 0:
                        at = block[:, None] * L + lane[None, :]
                        here = at < points
                        row = (tl.load(order + first + at, mask=here, other=0) - first).to(tl.int32)
                        point = _load_all(planes + first, rows, at, here, D)
                        closest = tl.load(new + D * rows + at, mask=here, other=-2.0)
                        while hits > 0:
                            j = tl.min(tl.where(lowers > 0, s, 0x7FFFFFFF), 0)
                            closest = tl.minimum(closest, squared_to(new, j, None, rows, point, D))
                            closest = tl.where(at == tl.load(new_at + j), -1.0, closest)
                            lowers = tl.where(s == j, 0, lowers)
                            hits -= 1
                        tl.store(new + D * rows + at, closest, mask=here)
                        tl.debug_barrier()
                        _choose(closest, row, at, planes, rows, first, block, ok, state, places, memory, D)
            have = until
            target += programs
            _wait(arrived, target)


@triton.jit
def _together(coords, splits, taken_splits, taken, best, arrived, start, D: tl.constexpr, BLOCK: tl.constexpr):
    """Each program holds a share of an example. A sample is the largest (distance, -index) of all shares."""
    example = tl.program_id(0)
    programs = tl.num_programs(1)
    first = tl.load(splits + example)
    points = (tl.load(splits + example + 1) - first).to(tl.int32)
    out = tl.load(taken_splits + example)
    size = (tl.load(taken_splits + example + 1) - out).to(tl.int32)
    lane = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    here = lane < points
    point = load_point(coords, first + lane, here, D)
    closest = tl.where(here, float("inf"), -2.0)
    current = points * 0 + start
    for k in range(0, size):
        if tl.program_id(1) == 0:
            tl.store(taken + out + k, first + current)
        d2 = squared_to(coords, (first + current) * D, None, 1, point, D)
        closest = tl.minimum(closest, d2)
        closest = tl.where(lane == current, -1.0, closest)
        # Bits of distances ascend as they do; 0 is below all of them, for what was taken.
        rank = tl.where(closest >= 0, closest.to(tl.int32, bitcast=True) + 1, 0).to(tl.int64)
        key = tl.max((rank << 32) | (0x7FFFFFFF - lane), 0)
        tl.atomic_max(best + out + k, key, sem="release")
        count = tl.atomic_add(arrived + out + k, 1, sem="acq_rel") + 1
        while count < programs:
            count = tl.atomic_add(arrived + out + k, 0, sem="acquire")
        current = 0x7FFFFFFF - (tl.load(best + out + k, volatile=True) & 0x7FFFFFFF).to(tl.int32)


@triton.jit(do_not_specialize=["start"])
def _in_memory(
    coords,
    splits,
    taken_splits,
    near_splits,
    near,
    seeds,
    kept_splits,
    closest,
    taken,
    start,
    D: tl.constexpr,
    BLOCK: tl.constexpr,
    NEAR: tl.constexpr,
):
    """All samples of one example after its seeds; distances are in memory, with NEAR lowered along the edges only."""
    example = tl.program_id(0)
    first = tl.load(splits + example)
    last = tl.load(splits + example + 1)
    out = tl.load(taken_splits + example)
    size = tl.load(taken_splits + example + 1) - out
    begin = tl.load(kept_splits + example)
    already = tl.minimum(tl.load(kept_splits + example + 1) - begin, size)
    lane = tl.arange(0, BLOCK)
    for at in range(0, already, BLOCK):
        seed = tl.load(seeds + begin + at + lane, mask=at + lane < already, other=0)
        tl.store(taken + out + at + lane, seed, mask=at + lane < already)
        gone = tl.full([BLOCK], -1.0, coords.dtype.element_ty)
        tl.store(closest + seed, gone, mask=at + lane < already)
    tl.debug_barrier()
    current = first + start
    for k in range(already, size):
        if NEAR:
            if k > 0:
                current = _farthest(closest, first, last, lane, BLOCK)
            tl.store(taken + out + k, current)
            # Every lane has read before any writes.
            tl.debug_barrier()
            point = load_point(coords, current + lane * 0, lane >= 0, D)
            end = tl.load(near_splits + current + 1)
            for at in range(tl.load(near_splits + current), end, BLOCK):
                ok = at + lane < end
                j = tl.load(near + at + lane, mask=ok, other=0).to(tl.int64)
                d2 = squared_to(coords, j * D, ok, 1, point, D)
                lower = tl.minimum(tl.load(closest + j, mask=ok, other=0.0), d2)
                tl.store(closest + j, tl.where(j == current, -1.0, lower), mask=ok)
            # The point itself, where a search does not list it.
            tl.store(closest + current, -1.0)
            tl.debug_barrier()
        else:
            tl.store(taken + out + k, current)
            best = tl.full([BLOCK], -2.0, coords.dtype.element_ty)
            where = tl.zeros([BLOCK], tl.int64) + first
            for at in range(first, last, BLOCK):
                row = at + lane
                ok = row < last
                point = load_point(coords, row, ok, D)
                d2 = squared_to(coords, current * D, None, 1, point, D)
                value = tl.minimum(tl.load(closest + row, mask=ok, other=-2.0), d2)
                value = tl.where(row == current, -1.0, value)
                tl.store(closest + row, value, mask=ok)
                more = ok & (value > best)
                best = tl.where(more, value, best)
                where = tl.where(more, row, where)
            current = tl.min(tl.where(best == tl.max(best, 0), where, last), 0)


@triton.jit
def _farthest(closest, first, last, lane, BLOCK: tl.constexpr):
    """The first row of the largest distance."""
    best = tl.full([BLOCK], -2.0, closest.dtype.element_ty)
    where = tl.zeros([BLOCK], tl.int64) + first
    for at in range(first, last, BLOCK):
        value = tl.load(closest + at + lane, mask=at + lane < last, other=-2.0)
        more = value > best
        best = tl.where(more, value, best)
        where = tl.where(more, at + lane, where)
    return tl.min(tl.where(best == tl.max(best, 0), where, last), 0)


_ALL_ON_CHIP, _MORTON, _IN_MEMORY = (Launcher(kernel, exact=True) for kernel in (_on_chip, _morton, _in_memory))
