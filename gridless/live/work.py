"""The rows of the live engine other than convolutions: of blocks of events, and of grids and vectors when asked."""

# pyright: reportCallIssue=false

from __future__ import annotations

import math

import numpy as np

from gridless.kernels.compile import njit
from gridless.live.panels import product, spread
from gridless.live.simd import add, affine, copy, decays, mean, multiply, relu

from gridless.live.table import (  # isort: skip
    A, ADD, AFFINE, A_KEPT, A_MASK, A_PITCH, B, B_KEPT, B_MASK, C, CAUSE, CELLS, CLOCK, CONVOLVE_CELLS, COPY, DENSE,
    DURATION, ELU, EMPTY, EXP, FACTOR, FIRST, FLATTEN, GATHERED, GELU, GRID, KEPT, LANE, LAST, LATEST, LAYER_NORM,
    LEAKY_COUNT, LEAKY_RELU, LIST, LOG1P, LOG_SOFTMAX, MAGNIFY, MASK, MEAN, MULTIPLY, NUMBER, OP, PITCH, PLACE,
    POLARITY, POOL_MAX, POOL_MEAN, RATE, REDUCE_MAX, REDUCE_MEAN, RELU, ROW, ROWS, SCALE, SHIFT, SIGMOID, SILU,
    SOFTMAX, SOFTPLUS, START, STEPS, SUM, S_EVENT, S_HEIGHT, S_WIDTH, TANH, TIME, TRACE, VALUE, VOXEL, WEIGHT, WHOLE,
    WHOLES,
)  # fmt: skip


@njit(nogil=True, cache=True, error_model="numpy")
def work(i, f, d, r, s, first, n, lane):
    """Row r of the events first to first + n of stream s; or of n cells, where s is -1."""
    op, c, pitch = i[r + OP], i[r + C], i[r + PITCH]
    to, a, b, a_pitch = i[r + VALUE], i[r + A], i[r + B], i[r + A_PITCH]
    to += first * pitch if i[r + KEPT] else 0
    a += first * a_pitch if i[r + A_KEPT] else 0
    b += first * pitch if i[r + B_KEPT] else 0
    shift, scale = i[r + SHIFT], i[r + SCALE]
    if op == DENSE:
        spread(f, shift, to, n, pitch)
        for k in range(min(n, ROWS)):
            i[i[r + LIST] + k] = k
        for k in range(0, n, ROWS):
            at, of, rows = to + k * pitch, a + k * a_pitch, min(ROWS, n - k)
            product(f, at, pitch, i, i[r + LIST], of, i[r + WEIGHT], rows, a_pitch, lane)
    elif op == RELU:
        for k in range(0, n * pitch, 8):
            relu(f, to + k, a + k)
    elif op == AFFINE:
        for j in range(n):
            for k in range(0, pitch, 8):
                affine(f, to + j * pitch + k, a + j * pitch + k, scale + k, shift + k)
    elif op == ADD:
        for k in range(0, n * pitch, 8):
            add(f, to + k, a + k, b + k)
    elif op == MULTIPLY:
        for k in range(0, n * pitch, 8):
            multiply(f, to + k, a + k, b + k)
    elif op == COPY:
        _copy(i, f, r, to, a, n)
    elif op == CAUSE:
        for j in range(n):
            of = i[r + A] + i[i[s + S_EVENT] + 4 * (first + j) + 3] * pitch
            for k in range(0, pitch, 8):
                copy(f, to + j * pitch + k, of + k)
    elif op == PLACE:
        for j in range(n):
            event = i[s + S_EVENT] + 4 * (first + j)
            of = i[r + WEIGHT] + (i[event + 1] * i[s + S_WIDTH] + i[event]) * pitch
            for k in range(0, pitch, 8):
                copy(f, to + j * pitch + k, of + k)
    elif op == MEAN:
        _mean(i, f, d, r, s, first, n, to, a)
    elif op == VOXEL:
        _take_in(i, f, d, r, s, first, n, a)
    elif op == LEAKY_COUNT:
        for j in range(n):
            event = i[s + S_EVENT] + 4 * (first + j)
            cell = i[event + 1] // i[r + STEPS] * i[r + FIRST] + i[event] // i[r + STEPS]
            clock, total = i[r + CLOCK] + cell, i[r + SUM] + cell * c
            for k in range(c // 2):
                left = math.exp(-float(f[i[r + RATE] + k]) * (i[event + 2] - i[clock])) if i[clock] >= 0 else 0.0
                d[total + k] *= left
                d[total + c // 2 + k] *= left
                d[total + i[event + 3] * (c // 2) + k] += 1.0
            i[clock] = i[event + 2]
    elif op == LATEST:
        for k in range(pitch):
            f[i[r + TRACE] + k] = f[a + (n - 1) * pitch + k]
    elif op in (POOL_MEAN, POOL_MAX):
        _pool(i, f, d, r, n, a, op == POOL_MAX)
    elif op == POLARITY:
        for j in range(n):
            on = i[i[s + S_EVENT] + 4 * (first + j) + 3]
            for k in range(pitch):
                f[to + j * pitch + k] = 0.0
            f[to + j * pitch + on] = 1.0
    elif op == LAYER_NORM:
        for j in range(n):
            _layer_norm(f, to + j * pitch, a + j * pitch, c, pitch, scale, shift, f[i[r + WEIGHT]])
    elif op in (SOFTMAX, LOG_SOFTMAX):
        for j in range(n):
            _softmax(f, to + j * pitch, a + j * pitch, c, pitch, op == LOG_SOFTMAX)
    else:
        slope = f[i[r + WEIGHT]] if op == LEAKY_RELU else np.float32(0.0)
        for j in range(n):
            for k in range(c):
                f[to + j * pitch + k] = _activation(op, f[a + j * pitch + k], slope)
            for k in range(c, pitch):
                f[to + j * pitch + k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _activation(op, x, slope):
    if op == LOG1P:
        y = math.log1p(x)
    elif op == LEAKY_RELU:
        y = x if x > 0 else x * slope
    elif op == ELU:
        y = x if x > 0 else math.expm1(x)
    elif op == SIGMOID:
        y = 1 / (1 + math.exp(-x))
    elif op == TANH:
        y = math.tanh(x)
    elif op == SILU:
        y = x / (1 + math.exp(-x))
    elif op == GELU:
        y = 0.5 * x * (1 + math.erf(x * 0.7071067811865476))
    elif op == SOFTPLUS:
        y = x if x > 20 else math.log1p(math.exp(x))
    elif op == EXP:
        y = math.exp(x)
    else:
        y = abs(x)
    return np.float32(y)


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _copy(i, f, r, to, a, n):
    """Channels first to last of the input become those from `number` on; after the last ones come zeros."""
    pitch, a_pitch, first, last, at = i[r + PITCH], i[r + A_PITCH], i[r + FIRST], i[r + LAST], i[r + NUMBER]
    end, whole = at + last - first, (last - first) // 8 * 8
    for j in range(n):
        for k in range(0, whole, 8):
            copy(f, to + j * pitch + at + k, a + j * a_pitch + first + k)
        for k in range(whole, last - first):
            f[to + j * pitch + at + k] = f[a + j * a_pitch + first + k]
        if end == i[r + C]:
            for k in range(end, pitch):
                f[to + j * pitch + k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _layer_norm(f, to, a, c, pitch, scale, shift, eps):
    mean, var = 0.0, 0.0
    for k in range(c):
        mean += f[a + k]
    mean /= c
    for k in range(c):
        var += (f[a + k] - mean) ** 2
    share = 1 / math.sqrt(var / c + eps)
    for k in range(c):
        f[to + k] = np.float32((f[a + k] - mean) * share) * f[scale + k] + f[shift + k]
    for k in range(c, pitch):
        f[to + k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _softmax(f, to, a, c, pitch, logarithm):
    most, total = f[a], 0.0
    for k in range(c):
        most = max(most, f[a + k])
    for k in range(c):
        total += math.exp(f[a + k] - most)
    for k in range(c):
        x = float(f[a + k] - most)
        f[to + k] = np.float32(x - math.log(total)) if logarithm else np.float32(math.exp(x) / total)
    for k in range(c, pitch):
        f[to + k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy")
def _mean(i, f, d, r, s, first, n, to, a):
    """The leaky mean after each event: sums, and their weight after them."""
    c, pitch, total, clock, factor = i[r + C], i[r + PITCH], i[r + SUM], i[r + CLOCK], i[r + FACTOR]
    for j in range(n):
        t = i[i[s + S_EVENT] + 4 * (first + j) + 2]
        left = 0.0
        if i[clock] >= 0:
            decays(4, f, factor, f, i[r + RATE], np.float32(t - i[clock]))
            left = float(f[factor])
        i[clock] = t
        d[total + c] = d[total + c] * left + 1.0
        share = 1.0 / d[total + c]
        whole = c // 8 * 8
        for k in range(0, whole, 8):
            mean(f, to + j * pitch + k, a + j * pitch + k, d, total + k, left, share)
        for k in range(whole, c):
            d[total + k] = d[total + k] * left + f[a + j * pitch + k]
            f[to + j * pitch + k] = np.float32(d[total + k] * share)
        for k in range(c, pitch):
            f[to + j * pitch + k] = 0.0


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _take_in(i, f, d, r, s, first, n, a):
    """Events into the voxels of the window: windows are cut before their events come here, so that all are inside."""
    c, pitch, total, count = i[r + C], i[r + A_PITCH], i[r + SUM], i[r + CLOCK]
    for j in range(n):
        event = i[s + S_EVENT] + 4 * (first + j)
        frame = i[r + NUMBER] * (i[event + 2] - i[START]) // i[DURATION]
        cell = (frame * i[s + S_HEIGHT] + i[event + 1]) * i[s + S_WIDTH] + i[event]
        i[count + cell] += 1
        for k in range(c):
            d[total + cell * c + k] += f[a + j * pitch + k]


@njit(nogil=True, cache=True, error_model="numpy")
def _pool(i, f, d, r, n, a, largest):
    c, pitch, total, count = i[r + C], i[r + A_PITCH], i[r + SUM], i[r + CLOCK]
    for j in range(n):
        for k in range(c):
            x = float(f[a + j * pitch + k])
            if largest:
                d[total + k] = max(d[total + k], x) if i[count] else x
            else:
                d[total + k] += x
        i[count] += 1


@njit(nogil=True, cache=True, error_model="numpy")
def answer(i, f, d):
    """All rows without a stream, as of now."""
    lane = i[LANE]
    for index in range(i[WHOLES]):
        r = i[WHOLE] + index * len(ROW)
        op, c, pitch, cells, to, mask = i[r + OP], i[r + C], i[r + PITCH], i[r + CELLS], i[r + VALUE], i[r + MASK]
        if op == VOXEL:
            for cell in range(cells):
                seen = i[i[r + CLOCK] + cell]
                i[mask + cell] = seen
                share, total = 1.0 / max(seen, 1), i[r + SUM] + cell * c
                for k in range(pitch):
                    f[to + cell * pitch + k] = np.float32(d[total + k] * share) if k < c and seen else np.float32(0.0)
        elif op == LEAKY_COUNT:
            for cell in range(cells):
                clock, total = i[i[r + CLOCK] + cell], i[r + SUM] + cell * c
                i[mask + cell] = clock >= 0
                for k in range(pitch):
                    f[to + cell * pitch + k] = 0.0
                if clock >= 0:
                    for k in range(c // 2):
                        left = math.exp(-float(f[i[r + RATE] + k]) * (i[TIME] - clock))
                        f[to + cell * pitch + k] = d[total + k] * left
                        f[to + cell * pitch + c // 2 + k] = d[total + c // 2 + k] * left
        elif op == LATEST:
            for k in range(pitch):
                f[to + k] = f[i[r + TRACE] + k]
        elif op in (POOL_MEAN, POOL_MAX):
            share = 1.0 / max(i[i[r + CLOCK]], 1) if op == POOL_MEAN else 1.0
            for k in range(pitch):
                f[to + k] = np.float32(d[i[r + SUM] + k] * share) if k < c else np.float32(0.0)
        elif op == CONVOLVE_CELLS:
            _convolve_cells(i, f, r, lane)
        elif op in (REDUCE_MEAN, REDUCE_MAX):
            _reduce(i, f, r, op == REDUCE_MAX)
        elif op == MAGNIFY:
            _magnify(i, f, r)
        elif op == FLATTEN:
            for cell in range(cells):
                for k in range(i[r + STEPS]):
                    f[to + cell * i[r + STEPS] + k] = f[i[r + A] + cell * i[r + A_PITCH] + k]
            for k in range(c, pitch):
                f[to + k] = 0.0
        else:
            work(i, f, d, r, -1, 0, cells, lane)
            if mask != i[r + A_MASK]:
                for cell in range(cells):
                    i[mask + cell] = i[i[r + A_MASK] + cell] | i[i[r + B_MASK] + cell]


@njit(nogil=True, cache=True, error_model="numpy")
def _reduce(i, f, r, largest):
    c, pitch, to, a, cells = i[r + C], i[r + PITCH], i[r + VALUE], i[r + A], i[r + CELLS]
    for k in range(pitch):
        f[to + k] = 0.0
    for k in range(c):
        if largest:
            most = f[a + k]
            for cell in range(1, cells):
                most = max(most, f[a + cell * pitch + k])
            f[to + k] = most
        else:
            total = 0.0
            for cell in range(cells):
                total += f[a + cell * pitch + k]
            f[to + k] = np.float32(total / cells)


@njit(nogil=True, cache=True, error_model="numpy")
def _magnify(i, f, r):
    """The rectangle of the cells that hold something, of the whole grid."""
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


@njit(nogil=True, cache=True, error_model="numpy", inner=True)
def _convolve_cells(i, f, r, lane):
    """A convolution over a grid. Cells that see nothing but what an empty window has there keep its value."""
    pitch, a_pitch, steps, rows, found = i[r + PITCH], i[r + A_PITCH], i[r + STEPS], i[r + GATHERED], i[r + LIST]
    t, h, w, kt, kh, kw, st, sh, sw, pt, ph, pw = (
        i[i[r + GRID]], i[i[r + GRID] + 1], i[i[r + GRID] + 2], i[i[r + GRID] + 3], i[i[r + GRID] + 4],
        i[i[r + GRID] + 5], i[i[r + GRID] + 6], i[i[r + GRID] + 7], i[i[r + GRID] + 8], i[i[r + GRID] + 9],
        i[i[r + GRID] + 10], i[i[r + GRID] + 11],
    )  # fmt: skip
    columns, lines, gathered = i[i[r + GRID] + 12], i[i[r + GRID] + 13], 0
    for cell in range(i[r + CELLS]):
        x, y, z = cell % columns * sw - pw, cell // columns % lines * sh - ph, cell // (columns * lines) * st - pt
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
            i[found + gathered] = cell
            gathered += 1
        if gathered == ROWS or (gathered and cell + 1 == i[r + CELLS]):
            product(f, i[r + VALUE], pitch, i, found, rows, i[r + WEIGHT], gathered, steps, lane)
            gathered = 0
    if i[r + NUMBER]:
        for k in range(i[r + CELLS] * pitch):
            f[i[r + EMPTY] + k] = f[i[r + VALUE] + k]
