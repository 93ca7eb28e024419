"""The voxel head of the live engine: what changed since an empty window, and nothing else, in one compiled function.

With normalisations folded in, the head is products with a rectifier between them, and most voxels of a window are
empty. What the head computes of an empty window is made once. Of a window with events only the difference is carried:
a voxel that was touched differs by its mean, a cell of the next grid differs if one of its eight voxels does or if its
own stream was active; the rest keeps the value of the empty window.

    sum_i   = empty_i + sum over the eight voxels j of cell i of difference_j matrix_ij
    difference_i = scale (relu(sum_i) - relu(empty_i)) + mean_scale mean_i

The first difference is the mean itself; its scale is part of the matrix.
"""

# pyright: reportCallIssue=false

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from gridless.kernels.compile import njit
from gridless.models.events import VoxelHead
from gridless.nn.events import VoxelMerge
from gridless.streaming.lowering import Flat, affine, array_of, columns_of, fill, panels_of
from gridless.streaming.panels import product

# Cells that are multiplied together.
ROWS = 16

# fmt: off
FIELDS = (
    # Sizes of the grid; channels in memory (in eights), and of sums (in whole vectors).
    "frames", "rows", "columns", "c", "wide",
    # Where its parts begin: counts in `clock`, sums in `voxel`, differences in `work`, touched cells in `touched`.
    "count", "total", "difference", "touched",
    # In `weight`: sums of the empty window, the matrix from the grid before, and the folded normalisations.
    "empty", "matrix", "scale", "mean_scale",
)
FRAMES, ROWS_OF, COLUMNS, C, WIDE, COUNT, TOTAL, DIFFERENCE, TOUCHED, EMPTY, MATRIX, SCALE, MEAN_SCALE = range(
    len(FIELDS)
)
# After the grids: the lift of the last grid's pixels, then two dense layers. Sizes and places in `weight`.
END_FIELDS = (
    "lifted", "hidden", "classes", "empty", "lift", "hidden_weight", "hidden_bias", "last_weight", "last_bias",
    "row", "sum",
)
LIFTED, HIDDEN, CLASSES, E_EMPTY, LIFT, HIDDEN_WEIGHT, HIDDEN_BIAS, LAST_WEIGHT, LAST_BIAS, ROW, SUM = range(
    len(END_FIELDS)
)
# fmt: on


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(grid, first, cell, clock, voxel, work, to):
    """The difference of a touched cell, to `work`; that of the first grid is its mean."""
    c = grid[C]
    if first:
        share, at = 1.0 / clock[grid[COUNT] + cell], grid[TOTAL] + cell * c
        for k in range(c):
            work[to + k] = voxel[at + k] * share
    else:
        at = grid[DIFFERENCE] + cell * c
        for k in range(c):
            work[to + k] = work[at + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _row(fine, first, cell, width, height, clock, voxel, work, touched, to):
    """The eight voxels of a cell of the next grid, to `work`, zero where nothing changed: whether anything did."""
    frames, rows, columns, c = fine[FRAMES], fine[ROWS_OF], fine[COLUMNS], fine[C]
    x, y, f = cell % width, cell // width % height, cell // (width * height)
    found = False
    for tap in range(8):
        df, dy, dx = 2 * f + (tap >> 2), 2 * y + (tap >> 1 & 1), 2 * x + (tap & 1)
        child = (df * rows + dy) * columns + dx
        if df < frames and dy < rows and dx < columns and touched[fine[TOUCHED] + child]:
            if not found:
                work[to : to + tap * c] = 0.0
            found = True
            _gather(fine, first, child, clock, voxel, work, to + tap * c)
        elif found:
            work[to + tap * c : to + tap * c + c] = 0.0
    return found


@njit(nogil=True, cache=True, error_model="numpy")
def _multiply(fine, grid, end, cells, count, weight, clock, voxel, work, lane):
    """The differences of the gathered cells."""
    c, wide, total = grid[C], grid[WIDE], end[SUM]
    for i in range(count):
        empty = grid[EMPTY] + cells[i] * wide
        for k in range(wide):
            work[total + i * wide + k] = weight[empty + k]
    steps = 8 * fine[C]
    product(work, total, wide, work, end[ROW], steps, weight, grid[MATRIX], count, steps, lane)
    for i in range(count):
        empty, to = grid[EMPTY] + cells[i] * wide, grid[DIFFERENCE] + cells[i] * c
        for k in range(c):
            z = max(work[total + i * wide + k], np.float32(0.0)) - max(weight[empty + k], np.float32(0.0))
            work[to + k] += weight[grid[SCALE] + k] * z


@njit(nogil=True, cache=True, error_model="numpy")
def _merge(fine, grid, first, end, weight, clock, voxel, work, touched, cells, lane):
    """The next grid from the finer one and from its own stream."""
    c, width, height = grid[C], grid[COLUMNS], grid[ROWS_OF]
    steps, gathered = 8 * fine[C], 0
    for cell in range(grid[FRAMES] * width * height):
        found = _row(fine, first, cell, width, height, clock, voxel, work, touched, end[ROW] + gathered * steps)
        seen, to = clock[grid[COUNT] + cell], grid[DIFFERENCE] + cell * c
        touched[grid[TOUCHED] + cell] = found or seen > 0
        if seen:
            share, at = 1.0 / seen, grid[TOTAL] + cell * c
            for k in range(c):
                work[to + k] = np.float32(voxel[at + k] * share) * weight[grid[MEAN_SCALE] + k]
        elif found:
            work[to : to + c] = 0.0
        if found:
            cells[gathered] = cell
            gathered += 1
            if gathered == ROWS:
                _multiply(fine, grid, end, cells, gathered, weight, clock, voxel, work, lane)
                gathered = 0
    if gathered:
        _multiply(fine, grid, end, cells, gathered, weight, clock, voxel, work, lane)


@njit(nogil=True, cache=True, error_model="numpy")
def _keep_larger(of, at, count, wide, pooled):
    for i in range(count):
        for k in range(wide):
            pooled[k] = max(pooled[k], of[at + i * wide + k])


@njit(nogil=True, cache=True, error_model="numpy")
def _pool(grid, first, end, weight, clock, voxel, work, touched, pooled, lane):
    """The largest lifted value over the pixels of the last grid, which has one frame."""
    c, wide, total = grid[C], end[LIFTED], end[SUM]
    pooled[:] = -np.inf
    gathered, cells = 0, grid[COLUMNS] * grid[ROWS_OF]
    for cell in range(cells):
        empty = end[E_EMPTY] + cell * wide
        if not touched[grid[TOUCHED] + cell]:
            _keep_larger(weight, empty, 1, wide, pooled)
            continue
        _gather(grid, first, cell, clock, voxel, work, end[ROW] + gathered * c)
        for k in range(wide):
            work[total + gathered * wide + k] = weight[empty + k]
        gathered += 1
        if gathered == ROWS:
            product(work, total, wide, work, end[ROW], c, weight, end[LIFT], gathered, c, lane)
            _keep_larger(work, total, gathered, wide, pooled)
            gathered = 0
    if gathered:
        product(work, total, wide, work, end[ROW], c, weight, end[LIFT], gathered, c, lane)
        _keep_larger(work, total, gathered, wide, pooled)


@njit(nogil=True, cache=True, error_model="numpy")
def predict(grids, end, weight, clock, voxel, work, touched, cells, pooled, hidden, logits, lane):
    """The logits of the window so far."""
    first = grids[0]
    for cell in range(first[FRAMES] * first[ROWS_OF] * first[COLUMNS]):
        touched[first[TOUCHED] + cell] = clock[first[COUNT] + cell] > 0
    for g in range(1, len(grids)):
        _merge(grids[g - 1], grids[g], g == 1, end, weight, clock, voxel, work, touched, cells, lane)
    _pool(grids[-1], len(grids) == 1, end, weight, clock, voxel, work, touched, pooled, lane)
    hidden[:] = weight[end[HIDDEN_BIAS] : end[HIDDEN_BIAS] + end[HIDDEN]]
    product(hidden, 0, end[HIDDEN], pooled, 0, 0, weight, end[HIDDEN_WEIGHT], 1, end[LIFTED], lane)
    for k in range(end[HIDDEN]):
        hidden[k] = max(hidden[k], np.float32(0.0))
    logits[:] = weight[end[LAST_BIAS] : end[LAST_BIAS] + end[CLASSES]]
    product(logits, 0, end[CLASSES], hidden, 0, 0, weight, end[LAST_WEIGHT], 1, end[HIDDEN], lane)


@njit(nogil=True, cache=True)
def forget(grids, clock, voxel):
    """An empty window: only what was touched needs to be cleared."""
    for g in range(len(grids)):
        grid = grids[g]
        c = grid[C]
        for cell in range(grid[FRAMES] * grid[ROWS_OF] * grid[COLUMNS]):
            if clock[grid[COUNT] + cell]:
                clock[grid[COUNT] + cell] = 0
                voxel[grid[TOTAL] + cell * c : grid[TOTAL] + (cell + 1) * c] = 0.0


class FoldedHead:
    """The voxel head of a trained network over the sums and counts of the loop; `sizes` of the pooled levels' rows."""

    def __init__(self, head: VoxelHead, sizes: list[dict[str, int]], lane: int) -> None:
        flat = Flat()
        scale, shift = _folded(head.norm)
        first, rows, cells = sizes[0], [], 0
        empty: Tensor = shift.expand(first["frames"], first["rows"], first["columns"], -1)
        for size, merge in zip(sizes, [None, *head.merges], strict=True):
            count = size["frames"] * size["rows"] * size["columns"]
            row = {k: size[k] for k in ("frames", "rows", "columns", "count", "total")}
            row |= {"c": size["p"], "wide": size["p_wide"], "touched": cells}
            row |= dict.fromkeys(FIELDS[FIELDS.index("empty") :], 0) | {"difference": 0}
            if isinstance(merge, VoxelMerge):
                matrix, empty = self._merge(flat, row, merge, empty, scale, rows[-1]["c"], lane)
                scale = torch.ones(matrix.shape[1])
                row["difference"] = flat.room("work", count * row["c"])
            cells += count
            rows.append(row)
        end = self._end(flat, head, empty, scale, rows[-1]["c"], lane)
        end["row"] = flat.room("work", ROWS * max([rows[-1]["c"], *(8 * row["c"] for row in rows[:-1])]))
        end["sum"] = flat.room("work", ROWS * max([end["lifted"], *(row["wide"] for row in rows)]))
        self.grids = np.array([[row[field] for field in FIELDS] for row in rows], np.int64)
        self.end = np.array([end[field] for field in END_FIELDS], np.int64)
        self.weight, self.lane, self.classes = flat.array("weight"), lane, head.classify[-1].out_features
        self.buffers = (
            flat.array("work"), np.zeros(cells, np.bool_), np.zeros(ROWS, np.int64),
            *(np.zeros(end[name], np.float32) for name in ("lifted", "hidden", "classes")),
        )  # fmt: skip

    def _merge(
        self, flat: Flat, row: dict[str, int], merge: VoxelMerge, empty: Tensor, before: Tensor, c: int, lane: int
    ) -> tuple[Tensor, Tensor]:
        """Add the parts of a merge; its matrix (8 Q, P) and the next grid of the empty window (T, H, W, P)."""
        weight = merge.conv.weight.detach().permute(2, 3, 4, 1, 0).flatten(0, 2)  # (8, Q, P)
        scale, shift = _folded(merge.norm)
        mean_scale, mean_shift = _folded(merge.mean_norm)
        empty = pad(empty, [0, 0] + [n for side in reversed(empty.shape[:3]) for n in (0, side % 2)])
        t, h, w, q = empty.shape
        cells = empty.reshape(t // 2, 2, h // 2, 2, w // 2, 2, q).permute(0, 2, 4, 1, 3, 5, 6).flatten(3)
        total = cells.double() @ weight.flatten(0, 1).double() + merge.conv.bias.detach().double()  # type: ignore
        # Columns as in the table: eights first, then whole vectors, which may be shorter than eight.
        matrix = fill(array_of(weight * before[:, None]), 8, c, row["c"]).reshape(-1, row["c"])
        row["matrix"] = flat.add("weight", panels_of(matrix, lane))
        sums = fill(array_of(total.flatten(0, 2)), t * h * w // 8, row["c"])
        row["empty"] = flat.add("weight", columns_of(sums, lane))
        row["scale"] = flat.add("weight", fill(array_of(scale), row["c"]))
        row["mean_scale"] = flat.add("weight", fill(array_of(mean_scale), row["c"]))
        return weight.flatten(0, 1), (total.relu() * scale + (shift + mean_shift)).float()

    def _end(self, flat: Flat, head: VoxelHead, empty: Tensor, before: Tensor, c: int, lane: int) -> dict[str, int]:
        norm, _, hidden, _, hidden_norm, _, last = head.classify
        weight, bias = head.lift.weight.detach(), head.lift.bias.detach()
        lifted = columns_of(array_of(linear(empty[0].double(), weight.double(), bias.double())), lane)
        parts: dict[str, int] = {"lifted": lifted.shape[1], "empty": flat.add("weight", lifted)}
        lift = fill(array_of(weight.T * before[:, None]), c, weight.shape[0])
        parts["lift"] = flat.add("weight", panels_of(lift, lane))
        size = parts["lifted"]
        for name, layer, layer_norm in (("hidden", hidden, norm), ("last", last, hidden_norm)):
            matrix, constant = _after(layer, layer_norm)
            wide = columns_of(array_of(constant), lane)
            matrix = panels_of(fill(array_of(matrix.T), size, len(constant)), lane)
            parts[f"{name}_weight"], parts[f"{name}_bias"] = flat.add("weight", matrix), flat.add("weight", wide)
            size = parts["hidden" if name == "hidden" else "classes"] = wide.size
        return parts

    def __call__(self, clock: np.ndarray, voxel: np.ndarray) -> Tensor:
        """logits (classes) of the window so far."""
        predict(self.grids, self.end, self.weight, clock, voxel, *self.buffers, self.lane)
        return torch.from_numpy(self.buffers[-1][: self.classes].copy())

    def forget(self, clock: np.ndarray, voxel: np.ndarray) -> None:
        """Begin an empty window."""
        forget(self.grids, clock, voxel)


def _folded(norm: Any) -> tuple[Tensor, Tensor]:
    scale, shift = affine(norm)
    return torch.from_numpy(scale), torch.from_numpy(shift)


def _after(layer: Any, norm: Any) -> tuple[Tensor, Tensor]:
    """The weight and bias of a dense layer that follows a normalisation."""
    scale, shift = _folded(norm)
    return layer.weight.detach() * scale, layer.bias.detach() + layer.weight.detach() @ shift
