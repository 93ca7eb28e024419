"""Triton kernels of the point convolution in which no output has channels: edge sums, and coordinates' gradients."""

from __future__ import annotations

import triton
import triton.language as tl

from gridless.ops.point_conv.gpu.triton_kernels import (
    basis_value,
    edge_falloff,
    edge_scale,
    edge_vector,
    inverse_or_zero,
    load_point,
    times_power,
)


@triton.jit
def _slope(
    v, m: tl.constexpr, by: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr, D: tl.constexpr
):
    """d p_m / d v[by]"""
    if KIND == 0:
        p = tl.zeros_like(v[0])
        if TABLE[m * D + by] > 0:
            p = p + TABLE[m * D + by]
            for d in tl.static_range(D):
                p = times_power(p, v[d], TABLE[m * D + d] - (d == by))
    else:
        one = tl.zeros_like(v[0]) + 2.0 * SHARP
        p = basis_value(v, one, m, KIND, TABLE, SHARP, D) * (v[by] - TABLE[m * D + by])
    return p


@triton.jit(do_not_specialize=["last"])
def sums_kernel(
    ROW_X, COL_X, SPLITS, COLS, INVERSE, OUT, last, high, low,
    M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    BASE: tl.constexpr, TERMS: tl.constexpr, T: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """OUT (S', TERMS): terms BASE to BASE + M of the sums of edge values of each target, K edges of it at a time."""
    scale = edge_scale(high, low, ROW_X)
    row = tl.program_id(0) * T + tl.arange(0, T)
    live = row < last
    begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
    end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
    x = ()
    for d in tl.static_range(D):
        x = x + (tl.load(ROW_X + row.to(INDEX) * D + d, mask=live, other=0.0)[:, None],)
    acc = ()
    for _ in tl.static_range(M):
        acc = acc + (tl.zeros([T, K], DTYPE),)
    total = tl.zeros([T, K], DTYPE)
    for k in range(0, tl.max(end - begin), K):
        edge = begin[:, None] + k + tl.arange(0, K)[None, :]
        on = edge < end[:, None]
        col = tl.load(COLS + edge, mask=on, other=0).to(INDEX)
        v = edge_vector(x, load_point(COL_X, col, on, D), on, scale, False, DTYPE, D)
        w = edge_falloff(v, on, FALLOFF, D)
        total += w
        new = ()
        for m in tl.static_range(M):
            new = new + (acc[m] + basis_value(v, w, m, KIND, TABLE, SHARP, D),)
        acc = new
    inverse = inverse_or_zero(tl.sum(total, axis=1))
    if NORMALISE:
        tl.store(INVERSE + row, inverse, mask=live)
    for m in tl.static_range(M):
        out = tl.sum(acc[m], axis=1)
        tl.store(OUT + row.to(tl.int64) * TERMS + BASE + m, out * inverse if NORMALISE else out, mask=live)


@triton.jit(do_not_specialize=["first", "last"])
def coords_kernel(
    R, F, ROW_X, COL_X, SPLITS, COLS, INVERSE, ALONG, OUT, first, last, high, low,
    C: tl.constexpr, M: tl.constexpr, D: tl.constexpr, KIND: tl.constexpr, TABLE: tl.constexpr, SHARP: tl.constexpr,
    FALLOFF: tl.constexpr, NORMALISE: tl.constexpr, FLIP: tl.constexpr, DTYPE: tl.constexpr, INDEX: tl.constexpr,
    BASE: tl.constexpr, TERMS: tl.constexpr, FEATURES: tl.constexpr, T: tl.constexpr, CB: tl.constexpr,
):  # fmt: skip
    """OUT (rows, D) += the gradient of the rows' coordinates that terms BASE to BASE + M bring.

    An edge's coefficients are c_m = <R[row, m], F[col]>, with R (last - first, TERMS, C); without FEATURES they are
    those of its target, R (S', TERMS). ALONG (S') holds D_i = <dF'_i, F'_i - bias>: targets add their share to it, and
    sources (FLIP), which come later, read it.
    """
    scale = edge_scale(high, low, ROW_X)
    row = first + tl.program_id(0) * T + tl.arange(0, T)
    live = row < last
    begin = tl.load(SPLITS + row, mask=live, other=0).to(INDEX)
    end = tl.load(SPLITS + row + 1, mask=live, other=0).to(INDEX)
    x = load_point(ROW_X, row.to(INDEX), live, D)
    inverse = tl.zeros([T], DTYPE) + 1.0
    if NORMALISE and not FLIP:
        inverse = tl.load(INVERSE + row, mask=live, other=0.0)
    along = tl.zeros([T], DTYPE)
    slope = ()
    falls = ()
    for _ in tl.static_range(D):
        slope = slope + (tl.zeros([T], DTYPE),)
        falls = falls + (tl.zeros([T], DTYPE),)
    for block in range(0, C, CB):
        channel = block + tl.arange(0, CB)
        wanted = channel < C
        # Terms that do not depend on the channels count with the first block of them.
        once = tl.where(tl.full([T], block, tl.int32) == 0, 1.0, 0.0).to(DTYPE)
        row_values = ()
        for m in tl.static_range(M):
            if FEATURES:
                at = ((row - first).to(tl.int64) * TERMS + BASE + m)[:, None] * C + channel[None, :]
                r = tl.load(R + at, mask=live[:, None] & wanted[None, :], other=0.0).to(DTYPE)
            elif FLIP:
                r = tl.zeros([T], DTYPE)
            else:
                r = tl.load(R + row.to(tl.int64) * TERMS + BASE + m, mask=live, other=0.0).to(DTYPE)
            row_values = row_values + (r,)
        for k in range(0, tl.max(end - begin)):
            on = begin + k < end
            col = tl.load(COLS + begin + k, mask=on, other=0).to(INDEX)
            v = edge_vector(x, load_point(COL_X, col, on, D), on, scale, FLIP, DTYPE, D)
            w = edge_falloff(v, on, FALLOFF, D)
            if NORMALISE and FLIP:
                inverse = tl.load(INVERSE + col, mask=on, other=0.0)
            if FEATURES:
                f = tl.load(F + col[:, None] * C + channel[None, :], mask=on[:, None] & wanted[None, :], other=0.0)
                f = f.to(DTYPE)
            one = tl.where(on, tl.zeros([T], DTYPE) + 1.0, 0.0)
            value = tl.zeros([T], DTYPE)
            bend = ()
            for _ in tl.static_range(D):
                bend = bend + (tl.zeros([T], DTYPE),)
            for m in tl.static_range(M):
                if FEATURES:
                    c = tl.sum(row_values[m] * f, axis=1)
                elif FLIP:
                    c = tl.load(R + col * TERMS + BASE + m, mask=on, other=0.0).to(DTYPE)
                else:
                    c = row_values[m]
                value += c * basis_value(v, one, m, KIND, TABLE, SHARP, D)
                new = ()
                for d in tl.static_range(D):
                    new = new + (bend[d] + c * _slope(v, m, d, KIND, TABLE, SHARP, D),)
                bend = new
            along += value * w
            if NORMALISE and FLIP and BASE == 0:
                value -= once * tl.load(ALONG + col, mask=on, other=0.0)
            square = tl.zeros([T], DTYPE)
            for d in tl.static_range(D):
                square += v[d] * v[d]
            inside = on & (square != 0.0) & (w != 0.0) & FALLOFF
            unit = tl.where(inside, -1.0 / tl.sqrt(tl.where(inside, square, 1.0)), 0.0)
            new = ()
            counted = ()
            for d in tl.static_range(D):
                g = tl.where(on, (w * bend[d] + value * unit * v[d]) * inverse, 0.0)
                new = new + (slope[d] + g,)
                counted = counted + (falls[d] + once * unit * v[d],)
            slope = new
            falls = counted
    along = along * inverse
    for d in tl.static_range(D):
        g = slope[d]
        if NORMALISE and not FLIP:
            g = g - inverse * along * falls[d]
        g = g * (-scale if FLIP else scale)
        if BASE > 0:
            g += tl.load(OUT + row.to(INDEX) * D + d, mask=live, other=0.0)
        tl.store(OUT + row.to(INDEX) * D + d, g, mask=live)
    if NORMALISE and not FLIP:
        if BASE > 0:
            along += tl.load(ALONG + row, mask=live, other=0.0)
        tl.store(ALONG + row, along, mask=live)
