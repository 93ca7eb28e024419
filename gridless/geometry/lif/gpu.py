"""Leaky integrate-and-fire in Triton: one lane per output pixel.

Every input event is written once for each of the output pixels it reaches, and these visits are sorted by output pixel
(stably: in order of arrival). The time of a potential is always that of the last visit, so that all decays are known
before any potential is: they are made in parallel, and what is left of the recurrence is a product, a sum and a
comparison per visit. A visit that fires marks its (input event, slot); the marks, in order, are the output.
"""

# pyright: reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from gridless.geometry.lif.rule import Rule
from gridless.kernels.launch import EXACT
from gridless.structures import Events

_BLOCK = 1024
_LANES = 32


def fire(events: Events, rule: Rule, potential: Tensor, time: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    device, rows, slots = events.device, len(events), rule.most
    width, height = rule.grid
    cells = events.num_examples * width * height
    potential, time = (x.clone(memory_format=torch.contiguous_format) for x in (potential, time))
    nothing = torch.empty(0, dtype=torch.int64, device=device)
    if rows == 0 or slots == 0 or cells == 0:
        return nothing, nothing, potential, time
    low_x, low_y, high_x, high_y, share, coarse, fine = _on_device(rule, device)
    visits = rows * slots
    key = torch.empty(visits, dtype=torch.int32 if cells < 2**31 - 1 else torch.int64, device=device)
    sizes = (rows, events.num_examples, *rule.sensor, width, height)
    ranges = (low_x, low_y, high_x, high_y)
    grid = (triton.cdiv(visits, _BLOCK),)
    _visit[grid](events.pixel, events.example, *ranges, key, *sizes, cells, slots, _BLOCK, **EXACT)
    sorted_key, order = torch.sort(key, stable=True)
    splits = torch.searchsorted(sorted_key, torch.arange(cells + 1, dtype=key.dtype, device=device))
    step = torch.empty(visits, 2, dtype=torch.float32, device=device)
    tables = (share, coarse, fine, len(rule.coarse) - 1, len(rule.fine) - 1, rule.bits)
    _steps[grid](
        events.pixel, events.time, sorted_key, order, time, *ranges, *tables, step, visits, cells, slots, _BLOCK,
        **EXACT,
    )  # fmt: skip
    fired = torch.zeros(visits, dtype=torch.int8, device=device)
    limits = (float(rule.threshold), float(rule.reset))
    _integrate[(triton.cdiv(cells, _LANES),)](
        splits, step, order, events.time, potential, time, fired, *limits, cells, slots, _LANES,
        num_warps=1, **EXACT,
    )  # fmt: skip
    marked = fired.nonzero().view(-1)
    cause, slot = marked // slots, marked % slots
    x, y = events.pixel[cause].long().unbind(1)
    columns = high_x[x] - low_x[x] + 1
    return cause, (low_y[y] + slot // columns) * width + low_x[x] + slot % columns, potential, time


@cache
def _on_device(rule: Rule, device: torch.device) -> tuple[Tensor, ...]:
    """The tables of a rule, copied once."""
    arrays = (*rule.low, *rule.high, rule.share, rule.coarse, rule.fine)
    return tuple(torch.from_numpy(array).to(device) for array in arrays)


@triton.jit(do_not_specialize=["rows", "examples", "cells"])
def _visit(
    pixel, example, low_x, low_y, high_x, high_y, key,
    rows, examples, width, height, grid_width, grid_height, cells, slots, BLOCK: tl.constexpr,
):  # fmt: skip
    """The pixel of each (event, slot) pair that the event reaches, as a key for the sort; `cells` for none."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i = at // slots
    slot = at % slots
    live = i < rows
    x = tl.load(pixel + 2 * i, live, other=-1)
    y = tl.load(pixel + 2 * i + 1, live, other=-1)
    b = tl.load(example + i, live, other=0).to(tl.int64)
    known = live & (x >= 0) & (x < width) & (y >= 0) & (y < height) & (b < examples)
    x0 = tl.load(low_x + x, known, other=0)
    y0 = tl.load(low_y + y, known, other=0)
    columns = tl.load(high_x + x, known, other=0) - x0 + 1
    rows_reached = tl.load(high_y + y, known, other=0) - y0 + 1
    across = tl.maximum(columns, 1)
    reached = known & (columns > 0) & (slot < columns * rows_reached)
    cell = (b * grid_height + y0 + slot // across) * grid_width + x0 + slot % across
    # Slots that are not used sort behind the last pixel.
    tl.store(key + at, tl.where(reached, cell, cells).to(key.dtype.element_ty), live)


@triton.jit(do_not_specialize=["visits", "cells"])
def _steps(
    pixel, time, key, order, since, low_x, low_y, high_x, high_y, share, coarse, fine, end, mask, bits,
    step, visits, cells, slots, BLOCK: tl.constexpr,
):  # fmt: skip
    """The decay since the visit before, and what the visit adds."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    cell = tl.load(key + at, at < visits, other=cells)
    live = cell < cells
    before = tl.load(key + at - 1, live & (at > 0), other=-1)
    i = tl.load(order + at, live, other=0) // slots
    again = live & (before == cell)
    previous = tl.load(order + at - 1, again, other=0) // slots
    then = tl.where(
        again, tl.load(time + previous, again, other=0), tl.load(since + cell, live & (before != cell), other=0)
    )
    age = tl.maximum(tl.load(time + i, live, other=0) - then, 0)
    decay = tl.load(coarse + tl.minimum(age >> bits, end), live, other=0.0) * tl.load(
        fine + (age & mask), live, other=0.0
    )
    x = tl.load(pixel + 2 * i, live, other=0)
    y = tl.load(pixel + 2 * i + 1, live, other=0)
    columns = tl.load(high_x + x, live, other=0) - tl.load(low_x + x, live, other=0) + 1
    rows = tl.load(high_y + y, live, other=0) - tl.load(low_y + y, live, other=0) + 1
    tl.store(step + 2 * at, decay, live)
    tl.store(step + 2 * at + 1, tl.load(share + columns * rows, live, other=0.0), live)


@triton.jit
def _advance(value, decay, add, live, threshold, reset):
    """The potential after a visit, and whether it fires."""
    value = tl.where(live, value * decay + add, value)
    fires = live & (value > threshold)
    return tl.where(fires, reset, value), fires


@triton.jit(do_not_specialize=["cells"])
def _integrate(splits, step, order, time, potential, since, fired, threshold, reset, cells, slots, LANES: tl.constexpr):
    """LANES pixels, each over its visits in order: potentials, and the visits that fire."""
    cell = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    begin = tl.load(splits + cell, cell < cells, other=0)
    end = tl.load(splits + cell + 1, cell < cells, other=0)
    value = tl.load(potential + cell, cell < cells, other=0.0)
    for k in range(0, tl.max(end - begin, 0), 4):
        # Four visits at a time: their loads do not wait for one another.
        a = begin + k
        d0 = tl.load(step + 2 * a, a < end, other=0.0)
        a0 = tl.load(step + 2 * a + 1, a < end, other=0.0)
        d1 = tl.load(step + 2 * a + 2, a + 1 < end, other=0.0)
        a1 = tl.load(step + 2 * a + 3, a + 1 < end, other=0.0)
        d2 = tl.load(step + 2 * a + 4, a + 2 < end, other=0.0)
        a2 = tl.load(step + 2 * a + 5, a + 2 < end, other=0.0)
        d3 = tl.load(step + 2 * a + 6, a + 3 < end, other=0.0)
        a3 = tl.load(step + 2 * a + 7, a + 3 < end, other=0.0)
        value, f0 = _advance(value, d0, a0, a < end, threshold, reset)
        value, f1 = _advance(value, d1, a1, a + 1 < end, threshold, reset)
        value, f2 = _advance(value, d2, a2, a + 2 < end, threshold, reset)
        value, f3 = _advance(value, d3, a3, a + 3 < end, threshold, reset)
        tl.store(fired + tl.load(order + a, f0, other=0), 1, f0)
        tl.store(fired + tl.load(order + a + 1, f1, other=0), 1, f1)
        tl.store(fired + tl.load(order + a + 2, f2, other=0), 1, f2)
        tl.store(fired + tl.load(order + a + 3, f3, other=0), 1, f3)
    met = (cell < cells) & (end > begin)
    last = tl.load(order + end - 1, met, other=0) // slots
    tl.store(potential + cell, value, met)
    tl.store(since + cell, tl.load(time + last, met, other=0), met)
