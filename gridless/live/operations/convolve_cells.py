"""A convolution over a grid (T, H, W, Q): kernel (t, h, w) at a stride, zeros outside, `padding` before it begins."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from gridless.live.operation import Operation, own_fields
from gridless.live.operations.add import both
from gridless.live.operations.affine import batch_norm
from gridless.live.panels import product, spread
from gridless.live.rows import Row
from gridless.live.table import (
    A_MASK,
    A_PITCH,
    CELLS,
    GATHERED,
    LIST,
    MASK,
    NUMBER,
    PITCH,
    ROWS,
    SHIFT,
    STEPS,
    VALUE,
    WEIGHT,
    A,
)  # fmt: skip
from gridless.live.values import array_of
from gridless.nn.events import VoxelConv, VoxelMean, VoxelMerge

GRID, EMPTY = own_fields(2)


def cells(r: Any, x: Row, weight: Tensor, bias: Tensor | None, kernel: Any, stride: Any, padding: Any) -> Row:
    """Add a row with weight (P, Q, t, h, w)."""
    sizes = zip(r.channels(x, weight.shape[1]).shape[:3], stride, strict=True)
    shape = *(-(-size // step) for size, step in sizes), weight.shape[0]
    added = np.zeros(weight.shape[0], np.float32) if bias is None else array_of(bias)
    matrix = array_of(weight.permute(2, 3, 4, 1, 0).flatten(0, 2))
    settings = {"kernel": kernel, "stride": stride, "padding": padding}
    return r.add(r.name, "convolve_cells", None, (x,), shape, settings, weight=matrix, bias=added)


def voxel_conv(r: Any, layer: VoxelConv, x: Any) -> Row:
    weight = layer.weight.detach()[:, :, None]
    return cells(r, r.value(x), weight, layer.bias, (1, 3, 3), (1, *layer.stride), (0, 1, 1))


def voxel_merge(r: Any, layer: VoxelMerge, x: Any, mean: Any) -> Row:
    name = r.name
    r.name = f"{name}.conv"
    y = cells(r, r.value(x), layer.conv.weight.detach(), layer.conv.bias, (2, 2, 2), (2, 2, 2), (0, 0, 0))
    r.name = name
    return both(r, "add", batch_norm(r, layer.norm, r.same(y, "relu")), batch_norm(r, layer.mean_norm, mean))


class ConvolveCells(Operation):
    name = "convolve_cells"
    modules = {VoxelConv: voxel_conv, VoxelMerge: voxel_merge}
    # grid (in `i`): sizes of the input, kernel, stride, padding, columns and rows. empty (in `f`): value of an empty
    # window.
    fields = ("grid", "empty")
    own_mask = settles = True

    def multiply_adds(self, row):
        return row.cells * row.constants["weight"].size, 0

    def lower(self, lowered, row, entry):
        flat, settings, pitch, weight = lowered.flat, row.settings, entry["pitch"], row.constants["weight"]
        weight = lowered.fill(weight, len(weight), lowered.pitch(weight.shape[1]), pitch).reshape(-1, pitch)
        numbers = [*lowered.program[row.inputs[0]].shape[:3], *settings["kernel"], *settings["stride"]]
        numbers += [*settings["padding"], row.shape[2], row.shape[1]]
        lowered.gather(len(weight))
        return [
            entry
            | {
                "weight": flat.add("weight", lowered.panels(weight)), "steps": len(weight), "number": 1,
                "shift": flat.add("weight", lowered.fill(row.constants["bias"], pitch)),
                "grid": flat.add("whole", numbers), "empty": flat.room("weight", row.cells * pitch),
            }
        ]  # fmt: skip

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        # Cells that see only cells of an empty window keep their value there.
        pitch, a_pitch, steps, rows, listed = (
            i[r + PITCH],
            i[r + A_PITCH],
            i[r + STEPS],
            i[r + GATHERED],
            i[r + LIST],
        )
        g = i[r + GRID]
        t, h, w, kt, kh, kw = i[g], i[g + 1], i[g + 2], i[g + 3], i[g + 4], i[g + 5]
        st, sh, sw, pt, ph, pw = i[g + 6], i[g + 7], i[g + 8], i[g + 9], i[g + 10], i[g + 11]
        columns, lines, gathered = i[g + 12], i[g + 13], 0
        for cell in range(i[r + CELLS]):
            x, y = cell % columns * sw - pw, cell // columns % lines * sh - ph
            z = cell // (columns * lines) * st - pt
            differs = i[r + NUMBER]
            for dz in range(max(-z, 0), min(kt, t - z)):
                for dy in range(max(-y, 0), min(kh, h - y)):
                    for dx in range(max(-x, 0), min(kw, w - x)):
                        differs |= i[i[r + A_MASK] + ((z + dz) * h + y + dy) * w + x + dx]
            i[i[r + MASK] + cell] = differs
            if not differs:
                for k in range(pitch):
                    f[i[r + VALUE] + cell * pitch + k] = f[i[r + EMPTY] + cell * pitch + k]
            else:
                spread(f, i[r + SHIFT], i[r + VALUE] + cell * pitch, 1, pitch)
                to = rows + gathered * steps
                for dz in range(kt):
                    for dy in range(kh):
                        for dx in range(kw):
                            inside = 0 <= z + dz < t and 0 <= y + dy < h and 0 <= x + dx < w
                            of = i[r + A] + (((z + dz) * h + y + dy) * w + x + dx) * a_pitch
                            for k in range(a_pitch):
                                f[to + k] = f[of + k] if inside else np.float32(0.0)
                            to += a_pitch
                i[listed + gathered] = cell
                gathered += 1
            if gathered == ROWS or (gathered and cell + 1 == i[r + CELLS]):
                product(f, i[r + VALUE], pitch, i, listed, rows, i[r + WEIGHT], gathered, steps, lane)
                gathered = 0
        if i[r + NUMBER]:
            for k in range(i[r + CELLS] * pitch):
                f[i[r + EMPTY] + k] = f[i[r + VALUE] + k]

    # The body itself sets which cells differ.
    answer = body

    def c(self, writer, row, n):
        x, out, p = writer.at[row.inputs[0]], writer.buffer(row), row.channels
        frames, height, width, q = writer.program[row.inputs[0]].shape
        _, rows, columns, _ = row.shape
        weight = row.constants["weight"]
        matrix = writer.matrix(weight.reshape(-1, p), row.constants["bias"])
        steps = len(weight) * q
        sizes = (*row.settings["kernel"], *row.settings["stride"], *row.settings["padding"])
        grid = ", ".join(map(str, (frames, height, width, q, rows, columns, *sizes)))
        fill = [f"for (j = 0; j < some; j++) cells(s->row + j * {steps}, {x}, i + j, {grid});"]
        if writer.bits == 16:
            fill.append(f"round_all(s->row, s->row, some * {steps});")
        return writer.blocks(str(row.cells), fill, out, p, matrix)

    def example(self, net):
        net.part, net.other = VoxelMean(net.stream, net.camera, 3, 4000), VoxelConv(6, 5, 2)
        return lambda x, geometry, memory: net.other(net.part(x, geometry, memory))
