"""Causal neighbourhoods in Numba: runs by counting sort, then a merge of the two runs of every (target pixel, tap)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from gridless.geometry.causal import by_pixel as runs_of
from gridless.geometry.causal.link import Link
from gridless.kernels.compile import njit
from gridless.kernels.threads import even_ranges, in_threads, num_threads, row_ranges
from gridless.structures import MAX_EDGES, Events


def by_pixel(events: Events) -> tuple[Tensor, Tensor]:
    width, height = events.sensor
    order = events.splits.new_empty(len(events), dtype=torch.int32)
    splits = events.splits.new_zeros(events.num_examples * width * height + 1)
    _sort(events.pixel.numpy(), events.splits.numpy(), width, height, order.numpy(), splits.numpy())
    return order, splits


def causal(link: Link, window: int) -> tuple[Tensor, Tensor]:
    order, first, count = _found(link, window)
    splits = link.source.splits.new_zeros(len(count) + 1)
    torch.cumsum(torch.from_numpy(count), 0, out=splits[1:])
    if splits[-1] > MAX_EDGES:
        raise ValueError(f"causal: {int(splits[-1])} edges are more than {MAX_EDGES}. Use a window or smaller batches.")
    source = splits.new_empty(int(splits[-1]), dtype=torch.int32)
    arrays = (order, first, count, splits.numpy(), source.numpy())
    in_threads(_fill, [(a, b, *arrays) for a, b in even_ranges(len(count), num_threads())])
    return splits, source


def _found(link: Link, window: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The order of the source; of every (target, tap), where its edges begin in there, and how many there are."""
    rows = len(link.target) * len(link.offsets)
    first, count = np.zeros(rows, np.int64), np.zeros(rows, np.int32)
    source, target = runs_of(link.source), runs_of(link.target)
    grids = np.array([*link.source.sensor, *link.target.sensor, link.stride], np.int64)
    taps = np.array(link.offsets, np.int64).reshape(-1, 2)
    runs = [t.numpy() for t in (*source, *target)]
    times = link.source.time.numpy(), link.target.time.numpy()
    shared = (taps, grids, *runs, link.until.numpy(), *times, window, first, count)
    in_threads(_find, [(a, b, *shared) for a, b in share_cells(target.splits)])
    return runs[0], first, count


def share_cells(splits: Tensor, parts: int | None = None) -> list[tuple[int, int]]:
    """Ranges of cells with about equally many events."""
    parts = (1 if num_threads() == 1 else 4 * num_threads()) if parts is None else parts
    ends = splits.numpy()
    # A cell without events costs a little, too.
    return row_ranges(ends + np.arange(len(ends)) // 4, parts)


@njit(nogil=True, cache=True)
def _sort(pixel, splits, width, height, order, ends):
    """Events by pixel, in order of arrival: rows in `order`, and the end of each pixel in `ends`."""
    for b in range(len(splits) - 1):
        for i in range(splits[b], splits[b + 1]):
            ends[(b * height + pixel[i, 1]) * width + pixel[i, 0] + 1] += 1
    for c in range(1, len(ends)):
        ends[c] += ends[c - 1]
    at = ends[:-1].copy()
    for b in range(len(splits) - 1):
        for i in range(splits[b], splits[b + 1]):
            c = (b * height + pixel[i, 1]) * width + pixel[i, 0]
            order[at[c]] = i
            at[c] += 1
    for i in range(splits[-1], len(order)):
        order[i] = i


@njit(nogil=True, cache=True, inner=True)
def source_cell(cell, dx, dy, grids):
    """The source cell that a tap of a target cell looks at, or -1."""
    width, height, grid_width, grid_height, stride = grids[0], grids[1], grids[2], grids[3], grids[4]
    x = cell % grid_width * stride + dx
    y = cell // grid_width % grid_height * stride + dy
    if x < 0 or x >= width or y < 0 or y >= height:
        return -1
    return (cell // (grid_width * grid_height) * height + y) * width + x


@njit(nogil=True, cache=True)
def _find(
    low, high, taps, grids, s_order, s_splits, t_order, t_splits, until, s_time, t_time, window, first, count
):  # fmt: skip
    """First edge and number of edges of the targets in the cells low to high, for every tap."""
    for cell in range(low, high):
        if t_splits[cell] == t_splits[cell + 1]:
            continue
        for u in range(len(taps)):
            p = source_cell(cell, taps[u, 0], taps[u, 1], grids)
            if p < 0:
                continue
            begin, end = s_splits[p], s_splits[p]
            for k in range(t_splits[cell], t_splits[cell + 1]):
                i = t_order[k]
                while end < s_splits[p + 1] and s_order[end] <= until[i]:
                    end += 1
                while begin < end and t_time[i] - s_time[s_order[begin]] > window:
                    begin += 1
                first[i * len(taps) + u] = begin
                count[i * len(taps) + u] = end - begin


@njit(nogil=True, cache=True)
def _fill(low, high, order, first, count, splits, source):
    """Write the sources of the rows low to high."""
    for row in range(low, high):
        for k in range(count[row]):
            source[splits[row] + k] = order[first[row] + k]
