"""The rectangle of the cells of a grid (1, H, W, C) that hold something, magnified to the whole grid.

Cells hold something where a channel has `least` or more; where none does, all count. The rectangle keeps its middle and
the ratio of its sides. Values between cells are linear, outside they are 0.
"""

from __future__ import annotations

import math

import numpy as np

from gridless.live.operation import Operation
from gridless.live.table import A_MASK, A_PITCH, FIRST, LAST, MASK, PITCH, VALUE, WEIGHT, A, C
from gridless.nn.events import LeakyCount


class Magnify(Operation):
    name = "magnify"
    own_mask = True

    def lower(self, lowered, row, entry):
        least = lowered.flat.add("weight", [row.settings["least"]])
        return [entry | {"weight": least, "first": row.shape[2], "last": row.shape[1]}]

    @staticmethod
    def body(i, f, d, r, s, first, n, lane):
        c, pitch, a_pitch, wide, high = i[r + C], i[r + PITCH], i[r + A_PITCH], i[r + FIRST], i[r + LAST]
        least, left, right, top, bottom = f[i[r + WEIGHT]], wide, -1, high, -1
        for cell in range(wide * high):
            held = False
            for k in range(c):
                held |= f[i[r + A] + cell * a_pitch + k] >= least
            if held:
                x, y = cell % wide, cell // wide
                left, right, top, bottom = min(left, x), max(right, x), min(top, y), max(bottom, y)
        if right < 0:
            left, right, top, bottom = 0, wide - 1, 0, high - 1
        share = max((right - left + 1) / wide, (bottom - top + 1) / high)
        for cell in range(wide * high):
            x = 0.5 * (left + right) + share * (cell % wide - 0.5 * (wide - 1))
            y = 0.5 * (top + bottom) + share * (cell // wide - 0.5 * (high - 1))
            column, line = math.floor(x), math.floor(y)
            to, seen = i[r + VALUE] + cell * pitch, 0
            for k in range(pitch):
                f[to + k] = 0.0
            for k in range(c):
                total = 0.0
                for v in range(max(line, 0), min(line + 2, high)):
                    for u in range(max(column, 0), min(column + 2, wide)):
                        at = v * wide + u
                        seen |= i[i[r + A_MASK] + at]
                        total += f[i[r + A] + at * a_pitch + k] * ((1 - abs(x - u)) * (1 - abs(y - v)))
                f[to + k] = np.float32(total)
            i[i[r + MASK] + cell] = seen

    # The body itself sets which cells differ.
    answer = body

    c_functions = """APART void magnify(float *restrict to, const float *restrict grid, int height, int width,
                   int channels, float least) {
    int left = width, right = -1, top = height, bottom = -1, x, y, c, u, v;
    double across, down, share;
    for (y = 0; y < height; y++) {
        for (x = 0; x < width; x++) {
            int held = 0;
            for (c = 0; c < channels; c++) held |= grid[(y * width + x) * channels + c] >= least;
            if (!held) continue;
            if (x < left) left = x;
            if (x > right) right = x;
            if (y < top) top = y;
            bottom = y;
        }
    }
    if (right < 0) left = top = 0, right = width - 1, bottom = height - 1;
    across = (double)(right - left + 1) / width, down = (double)(bottom - top + 1) / height;
    share = across > down ? across : down;
    for (y = 0; y < height; y++) {
        double at_y = 0.5 * (top + bottom) + share * (y - 0.5 * (height - 1));
        int line = (int)at_y - ((int)at_y > at_y);
        for (x = 0; x < width; x++, to += channels) {
            double at_x = 0.5 * (left + right) + share * (x - 0.5 * (width - 1));
            int column = (int)at_x - ((int)at_x > at_x);
            for (c = 0; c < channels; c++) {
                double total = 0.0;
                for (v = line < 0 ? 0 : line; v < line + 2 && v < height; v++) {
                    double beside = 1.0 - (at_y > v ? at_y - v : v - at_y);
                    for (u = column < 0 ? 0 : column; u < column + 2 && u < width; u++)
                        total += grid[(v * width + u) * channels + c]
                                 * ((1.0 - (at_x > u ? at_x - u : u - at_x)) * beside);
                }
                to[c] = (float)total;
            }
        }
    }
}
"""

    def c(self, writer, row, n):
        x, out, (_, height, width, channels) = writer.at[row.inputs[0]], writer.buffer(row), row.shape
        return [f"magnify({out}, {x}, {height}, {width}, {channels}, {writer.number(row.settings['least'])});"]

    def example(self, net):
        net.part = LeakyCount(net.camera, 2, (60.0, 150.0), 500, fit=True)
        return lambda x, geometry, memory: net.part(geometry, memory)
